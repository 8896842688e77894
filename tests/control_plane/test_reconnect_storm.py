"""Five hundred agents that lost their connections together come back together (case B50)."""

import asyncio
from pathlib import Path

import psycopg
import pytest
from websockets.asyncio.client import ClientConnection

from benchmarks.children import more_files
from benchmarks.enrolment import agent_context, agent_row, dial, insert_agents, issue
from control_plane.authority import Authority
from control_plane.gateway import Gateway
from control_plane.sessions import make_ready, open_session
from control_plane.sites import create_site
from control_plane.store import Store, Transaction, migrate, open_store
from protocol.frames import Hello
from protocol.ids import new_id
from tests.control_plane.test_store_sqlite import commits

AGENTS = 500
AT_A_TIME = 50
"""Handshakes: one core does both ends of each."""

pytestmark = pytest.mark.case("B50")


def hello_of(agent_id: str, boot: str = "boot-1", session: str = "") -> Hello:
    return Hello(
        agent_id=agent_id,
        role="site",
        boot_id=boot,
        journal_id=f"jrn-{agent_id}",
        last_session=session,
        instance=boot,
        version="0",
    )


def fleet(tx: Transaction) -> list[str]:
    site = create_site(tx, "root", "lab")
    rows = [agent_row(new_id("agent"), "root", site.id, tx.now()) for _ in range(AGENTS)]
    insert_agents(tx, rows)
    return [row.id for row in rows]


def open_sessions(tx: Transaction) -> list[str]:
    return [row[0] for row in tx.all("SELECT agent_id FROM sessions WHERE disconnected_at IS NULL")]


def events(tx: Transaction) -> set[str]:
    return {row[0] for row in tx.all("SELECT DISTINCT type FROM events")}


async def comes_back(store: Store, agent_id: str) -> None:
    """Its hello and its ready, as the gateway stores them."""
    session, _, _ = await store.write(open_session, hello_of(agent_id), "w1")
    assert await store.write(make_ready, session) is not None


async def test_b50_all_are_welcomed_once_and_nothing_but_their_coming_and_going_is_told_of_them(
    tmp_path: Path,
) -> None:
    more_files()
    store = open_store(f"sqlite://{tmp_path}/control.db")
    await migrate(store)
    ids = await store.write(fleet)
    await asyncio.to_thread(issue, tmp_path / "ca", tmp_path, ids)
    gateway = Gateway(store, Authority.open(tmp_path / "ca"), worker="w1")
    await gateway.start()
    contexts = {agent_id: agent_context(tmp_path, agent_id) for agent_id in ids}
    handshakes = asyncio.Semaphore(AT_A_TIME)
    sessions = dict.fromkeys(ids, "")

    async def connected(agent_id: str) -> ClientConnection:
        async with handshakes:
            hello = hello_of(agent_id, session=sessions[agent_id])
            connection, welcome = await dial(gateway.port, contexts[agent_id], hello)
        sessions[agent_id] = welcome.session_id
        return connection

    connections: list[ClientConnection] = []
    for _ in range(2):
        for connection in connections:
            connection.transport.abort()
        connections = await asyncio.gather(*(connected(agent_id) for agent_id in ids))
    assert sorted(await store.read(open_sessions)) == sorted(ids)
    assert await store.read(events) <= {"agent.connected", "agent.disconnected"}
    for connection in connections:
        connection.transport.abort()
    await gateway.stop()
    await store.close()


async def test_b50_their_hellos_share_the_databases_commits(tmp_path: Path) -> None:
    path = tmp_path / "control.db"
    store = open_store(f"sqlite://{path}")
    await migrate(store)
    ids = await store.write(fleet)
    before = commits(path)
    await asyncio.gather(*(comes_back(store, agent_id) for agent_id in ids))
    assert sorted(await store.read(open_sessions)) == sorted(ids)
    assert commits(path) - before < 2 * AGENTS / 10
    await store.close()


async def test_b50_an_agent_whose_row_somebody_has_locked_keeps_no_other_one_waiting(postgres_url: str) -> None:
    store = open_store(postgres_url)
    await migrate(store)
    ids = await store.write(fleet)
    async with await psycopg.AsyncConnection.connect(postgres_url) as somebody:
        await somebody.execute("SELECT id FROM agents WHERE id = %s FOR UPDATE", (ids[0],))
        locked = asyncio.create_task(comes_back(store, ids[0]))
        await asyncio.gather(*(comes_back(store, agent_id) for agent_id in ids[1:]))
        assert sorted(await store.read(open_sessions)) == sorted(ids[1:])
        assert not locked.done()
        await somebody.rollback()
    await locked
    assert sorted(await store.read(open_sessions)) == sorted(ids)
    await store.close()
