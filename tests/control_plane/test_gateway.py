"""The agents' door, over real mutual TLS, on both databases."""

import asyncio
import contextlib
import hashlib
import ssl
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from control_plane.audit import list_audit
from control_plane.authority import Authority
from control_plane.commands import cancel, enqueue, get_command
from control_plane.gateway import Gateway
from control_plane.gateway_pulse import GatewayPulse
from control_plane.join_tokens import create_join_token
from control_plane.nodes import create_node
from control_plane.records import CommandRow, NodeRow
from control_plane.retention import Kept, prune_join_tokens
from control_plane.sessions import get_agent, revoke_agent
from control_plane.sites import create_site, get_site
from control_plane.store import Store, Transaction, migrate
from protocol.commands import CommandState, Ending, JournalState, Outcome
from protocol.errors import Failure
from protocol.frames import (
    SUBPROTOCOL,
    Accepted,
    Cancel,
    CertificateIssued,
    CertificateRequest,
    ErrorFrame,
    Goodbye,
    Joined,
    JoinRefused,
    Settled,
    Started,
    Welcome,
)
from protocol.ids import new_id
from protocol.join_token import JoinToken
from protocol.operations import Repeat
from tests.control_plane.scripted_agent import ScriptedAgent, join, key_and_csr


@dataclass
class Site:
    """A control plane with one site and one machine; the agent is not there yet."""

    store: Store
    authority: Authority
    gateway: Gateway
    site_id: str
    node_id: str
    folder: Path

    async def token(self, ttl_ms: int = 3_600_000) -> JoinToken:
        token = JoinToken.new(self.authority.sha256)
        await self.store.write(_token, token, self.site_id, ttl_ms)
        return token

    async def agent(self) -> ScriptedAgent:
        return await ScriptedAgent.joined(self.gateway.port, self.authority.pem, await self.token(), self.folder)

    async def command(self, agent: ScriptedAgent, *, repeat: Repeat = Repeat.ONCE) -> CommandRow:
        """An operation that can wait a minute for its agent."""
        return await self.store.write(_enqueue, agent.id, self.node_id, repeat, 60_000)

    async def row(self, command_id: str) -> CommandRow:
        row = await self.store.read(get_command, "root", command_id)
        assert row is not None
        return row

    async def until(self, command_id: str, state: CommandState) -> CommandRow:
        async with asyncio.timeout(10):
            while (row := await self.row(command_id)).state is not state:
                await asyncio.sleep(0.02)
        return row

    async def attempt(self, token: JoinToken, csr: str) -> Joined | JoinRefused:
        return await join(self.gateway.port, self.authority.pem, token, csr)

    async def join_unheard(self, token: JoinToken, csr: str) -> None:
        """The join is stored, and the connection is cut before its answer is read."""

        async def is_spent() -> None:
            async with asyncio.timeout(10):
                while await self.store.read(_is_unused, token.id):
                    await asyncio.sleep(0.02)

        with contextlib.suppress(ConnectionClosed):
            await join(self.gateway.port, self.authority.pem, token, csr, cut_once=is_spent)

    async def restart(self) -> None:
        """The process dies and comes back: nothing but the tables is left."""
        port = self.gateway.port
        await self.gateway.stop()
        self.gateway = Gateway(self.store, self.authority, worker="w1", port=port)
        await self.gateway.start()


def _site(tx: Transaction) -> tuple[str, str]:
    site = create_site(tx, "root", "lab")
    now = tx.now()
    node = NodeRow(
        new_id("node"), "root", "m1", site.id, {}, {}, "https://192.0.2.1", "redfish", "ref", "first-use", now, now
    )
    return site.id, create_node(tx, node).id


def _token(tx: Transaction, token: JoinToken, site_id: str, ttl_ms: int) -> None:
    create_join_token(tx, token, tenant_id="root", site_id=site_id, role="site", created_by="test", ttl_ms=ttl_ms)


def _is_unused(tx: Transaction, token_id: str) -> bool:
    row = tx.one("SELECT used_at FROM join_tokens WHERE id = :id", {"id": token_id})
    return row is not None and row[0] is None


def _joined(tx: Transaction) -> tuple[int, int, int]:
    """How many agents there are, certificates, and events of joins."""
    row = tx.one(
        "SELECT (SELECT COUNT(*) FROM agents), (SELECT COUNT(*) FROM certificates), "
        "(SELECT COUNT(*) FROM events WHERE type = 'agent.joined')"
    )
    assert row is not None
    return int(row[0]), int(row[1]), int(row[2])


def _enqueue(tx: Transaction, agent_id: str, node_id: str, repeat: Repeat, life_ms: int) -> CommandRow:
    identifier = new_id("cmd")
    action = {Repeat.ONCE: "reset", Repeat.CONVERGE: "on"}.get(repeat)
    payload: dict[str, object] = {
        "driver": "simulated",
        "concern": "power",
        "operation": "setPower" if action else "getPower",
        "args": {"action": action} if action else {},
        "targetNodeId": node_id,
    }
    row = CommandRow(
        id=identifier,
        tenant_id="root",
        node_id=node_id,
        agent_id=agent_id,
        kind="driver.invoke",
        payload=payload,
        key=identifier,
        repeat=repeat,
        state=CommandState.QUEUED,
        created_at=tx.now(),
        created_by="test",
        not_after=tx.now() + life_ms,
        sent_session=None,
        sent_journal=None,
        started_at=None,
        finished_at=None,
        cancel_reason=None,
        ending=None,
        late_ending=None,
    )
    return enqueue(tx, row)


@pytest.fixture
async def site(store: Store, tmp_path: Path) -> AsyncIterator[Site]:
    await migrate(store)
    authority = Authority.open(tmp_path / "ca")
    gateway = Gateway(store, authority, worker="w1")
    await gateway.start()
    site_id, node_id = await store.write(_site)
    it = Site(store, authority, gateway, site_id, node_id, tmp_path)
    yield it
    await it.gateway.stop()


async def test_the_ca_is_given_to_anybody_and_is_the_one_in_the_token(site: Site) -> None:
    context = ssl._create_unverified_context()
    url = f"https://127.0.0.1:{site.gateway.port}/ca.pem"
    body = await asyncio.to_thread(lambda: urllib.request.urlopen(url, context=context).read())
    assert hashlib.sha256(ssl.PEM_cert_to_DER_cert(body.decode())).hexdigest() == (await site.token()).ca_sha256


async def test_the_first_agent_of_a_site_serves_it(site: Site) -> None:
    agent = await site.agent()
    row = await site.store.read(get_site, "root", site.site_id)
    assert row is not None
    assert row.agent_id == agent.id


async def test_a_token_joins_one_agent_only(site: Site) -> None:
    token = await site.token()
    first = await ScriptedAgent.joined(site.gateway.port, site.authority.pem, token, site.folder)
    answer = await join(site.gateway.port, site.authority.pem, token, key_and_csr()[1])
    assert isinstance(answer, JoinRefused)
    assert f"used before, by {first.id}" in answer.message


async def test_a_join_whose_answer_was_lost_is_answered_again_for_the_same_key(site: Site) -> None:
    token, (key, csr) = await site.token(), key_and_csr()
    await site.join_unheard(token, csr)
    answer = await site.attempt(token, csr)
    assert isinstance(answer, Joined)
    assert await site.store.read(_joined) == (1, 1, 1)
    (site.folder / "key.pem").write_bytes(key)
    (site.folder / "cert.pem").write_text(answer.certificate)
    async with ScriptedAgent(site.gateway.port, site.folder, answer.agent_id, answer.ca) as agent:
        assert isinstance(await agent.connect(), Welcome)
    line = (await site.store.read(list_audit, "root", None, 1))[0]
    assert (line.actor, line.action, line.decision) == (answer.agent_id, "compute:agents:join", "allowed")
    assert line.detail == {"joinTokenId": token.id, "repeated": True}


async def test_a_control_plane_that_was_killed_after_a_join_was_stored_answers_it_when_it_is_back(site: Site) -> None:
    token, (_, csr) = await site.token(), key_and_csr()
    await site.join_unheard(token, csr)
    await site.restart()
    first, second = await site.attempt(token, csr), await site.attempt(token, csr)
    assert isinstance(first, Joined)
    assert first == second
    assert await site.store.read(_joined) == (1, 1, 1)


async def test_the_same_join_asked_several_times_at_once_is_one_join(site: Site) -> None:
    token, (_, csr) = await site.token(), key_and_csr()
    answers = await asyncio.gather(*(site.attempt(token, csr) for _ in range(4)))
    assert isinstance(answers[0], Joined)
    assert answers == [answers[0]] * 4
    assert await site.store.read(_joined) == (1, 1, 1)


async def test_a_lost_join_is_not_answered_again_to_another_key_or_without_the_secret(site: Site) -> None:
    token, (_, csr) = await site.token(), key_and_csr()
    await site.join_unheard(token, csr)
    another = await site.attempt(token, key_and_csr()[1])
    assert isinstance(another, JoinRefused)
    assert "a token joins one agent" in another.message
    wrong = await site.attempt(JoinToken(token.ca_sha256, token.id, JoinToken.new("0" * 64).secret), csr)
    assert isinstance(wrong, JoinRefused)
    assert "not known here" in wrong.message


async def test_a_key_is_not_had_by_whoever_shows_its_certificate_request_damaged(site: Site) -> None:
    token, (_, csr) = await site.token(), key_and_csr()
    await site.join_unheard(token, csr)
    der = bytearray(ssl.PEM_cert_to_DER_cert(csr.replace("CERTIFICATE REQUEST", "CERTIFICATE")))
    der[-1] ^= 1
    forged = ssl.DER_cert_to_PEM_cert(bytes(der)).replace("CERTIFICATE", "CERTIFICATE REQUEST")
    refused = await site.attempt(token, forged)
    assert isinstance(refused, JoinRefused)
    assert refused.code == "UNREADABLE"


async def test_a_lost_join_is_answered_again_only_within_the_tokens_time(site: Site) -> None:
    token, (_, csr) = await site.token(), key_and_csr()
    await site.join_unheard(token, csr)
    end = "UPDATE join_tokens SET expires_at = :now WHERE id = :id"
    await site.store.write(lambda tx: tx.run(end, {"now": tx.now(), "id": token.id}))
    refused = await site.attempt(token, csr)
    assert isinstance(refused, JoinRefused)
    assert refused.code == "TOKEN_REFUSED"


async def test_a_lost_join_is_not_answered_again_once_its_agent_was_revoked(site: Site) -> None:
    token, (_, csr) = await site.token(), key_and_csr()
    first = await site.attempt(token, csr)
    assert isinstance(first, Joined)
    await site.store.write(revoke_agent, "root", first.agent_id, "lost")
    refused = await site.attempt(token, csr)
    assert isinstance(refused, JoinRefused)
    assert refused.code == "TOKEN_REFUSED"


async def test_what_a_token_was_answered_with_is_forgotten_with_the_token(site: Site) -> None:
    token, (_, csr) = await site.token(), key_and_csr()
    await site.attempt(token, csr)
    await site.store.write(lambda tx: tx.run("UPDATE join_tokens SET expires_at = 1"))
    assert await site.store.write(prune_join_tokens, Kept(), 10) == 1
    assert await site.store.read(lambda tx: tx.all("SELECT token_id FROM join_answers")) == []


async def test_an_expired_token_is_refused_with_what_to_do(site: Site) -> None:
    token = await site.token(ttl_ms=-1)
    answer = await join(site.gateway.port, site.authority.pem, token, key_and_csr()[1])
    message = "this join token has expired: make a new one and use it in time"
    assert answer == JoinRefused(message=message, code="TOKEN_REFUSED")


async def test_a_wrong_secret_spends_nothing(site: Site) -> None:
    token = await site.token()
    wrong = JoinToken(token.ca_sha256, token.id, JoinToken.new("0" * 64).secret)
    answer = await join(site.gateway.port, site.authority.pem, wrong, key_and_csr()[1])
    assert isinstance(answer, JoinRefused)
    assert "not known here" in answer.message
    await ScriptedAgent.joined(site.gateway.port, site.authority.pem, token, site.folder)


async def test_a_damaged_certificate_request_spends_nothing(site: Site) -> None:
    token = await site.token()
    answer = await join(site.gateway.port, site.authority.pem, token, "no request")
    assert isinstance(answer, JoinRefused)
    assert "certificate request cannot be read" in answer.message
    await ScriptedAgent.joined(site.gateway.port, site.authority.pem, token, site.folder)


async def test_without_a_certificate_nobody_reaches_the_agents_path(site: Site) -> None:
    context = ssl.create_default_context(cadata=site.authority.pem)
    with pytest.raises(InvalidStatus) as refused:
        await connect(
            f"wss://127.0.0.1:{site.gateway.port}/agent",
            ssl=context,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            proxy=None,
        )
    assert refused.value.response.status_code == 401
    assert b"join with a join token" in bytes(refused.value.response.body)


async def test_a_certificate_of_another_ca_is_refused_in_the_handshake(site: Site, tmp_path: Path) -> None:
    agent = await site.agent()
    other = Authority.open(tmp_path / "other")
    key, csr = key_and_csr()
    (site.folder / "key.pem").write_bytes(key)
    (site.folder / "cert.pem").write_text(other.issue_agent(csr, agent.id).pem)
    with pytest.raises((OSError, WebSocketException)):
        await agent.open()


async def test_a_hello_for_another_agent_is_refused(site: Site) -> None:
    async with await site.agent() as agent:
        agent.id = new_id("agent")
        with pytest.raises(ConnectionClosed) as closed:
            await agent.connect()
        assert "another agent than the certificate" in str(closed.value)


async def test_a_queued_command_reaches_the_agent_and_its_ending_is_settled(site: Site) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        row = await site.command(agent)
        command = await agent.receive_command()
        assert command.id == row.id
        assert 50_000 < command.remaining_ms <= 60_000
        await agent.send(Accepted(id=row.id))
        await site.until(row.id, CommandState.DELIVERED)
        await agent.send(Started(id=row.id))
        assert (await site.until(row.id, CommandState.RUNNING)).started_at is not None
        assert await agent.finish(row.id) == Settled(ids=[row.id])
        ended = await site.row(row.id)
        assert ended.state is CommandState.SUCCEEDED
        assert ended.ending == Ending(Outcome.SUCCEEDED, {"state": "on"})


async def test_a_command_queued_while_the_agent_is_away_is_sent_when_it_comes(site: Site) -> None:
    async with await site.agent() as agent:
        row = await site.command(agent)
        await agent.connect()
        assert (await agent.receive_command()).id == row.id


@pytest.mark.case("B49")
async def test_a_command_that_never_arrived_is_sent_again_over_the_next_connection(site: Site) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        row = await site.command(agent)
        await agent.receive_command()
        await agent.cut()
        await agent.connect()
        assert (await agent.receive_command()).id == row.id


@pytest.mark.case("B51")
async def test_an_act_whose_journal_is_lost_is_not_sent_again(site: Site) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        row = await site.command(agent)
        await agent.receive_command()
        await agent.cut()
        agent.journal_id = new_id("jrn")
        await agent.connect()
        ended = await site.until(row.id, CommandState.FAILED)
        assert ended.ending is not None
        assert ended.ending.error is not None
        assert ended.ending.error.code == "OUTCOME_UNKNOWN"
        later = await site.command(agent, repeat=Repeat.READ)
        assert (await agent.receive_command()).id == later.id


async def test_a_harmless_command_whose_journal_is_lost_is_sent_again(site: Site) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        row = await site.command(agent, repeat=Repeat.CONVERGE)
        await agent.receive_command()
        await agent.cut()
        agent.journal_id = new_id("jrn")
        await agent.connect()
        assert (await agent.receive_command()).id == row.id


@pytest.mark.case("B49")
@pytest.mark.parametrize("arrived", [False, True], ids=["the command was lost", "its reply was lost"])
async def test_b49_a_command_that_is_sent_twice_has_one_id_and_one_result_and_its_agent_stays_in_service(
    site: Site, arrived: bool
) -> None:
    first, second = Ending(Outcome.SUCCEEDED, {"steps": ["a"]}), Ending(Outcome.SUCCEEDED, {"steps": ["b"]})
    async with await site.agent() as agent:
        await agent.connect()
        row = await site.command(agent, repeat=Repeat.READ)
        asked = await agent.receive_command()
        await agent.cut()
        # A read is in no journal: only an agent that still runs it says that it has it.
        agent.held = {row.id: JournalState.STARTED} if arrived else {}
        await agent.connect()
        if not arrived:
            again = await agent.receive_command()
            assert (again.id, again.payload) == (asked.id, asked.payload)
        assert await agent.finish(row.id, first) == Settled(ids=[row.id])
        assert await agent.finish(row.id, second) == Settled(ids=[row.id])
        assert (await site.row(row.id)).ending == first
        known, session = await site.store.read(get_agent, "root", agent.id)
        assert known.revoked_at is None
        assert session is not None
        assert session.disconnected_at is None
        later = await site.command(agent)
        assert (await agent.receive_command()).id == later.id


@pytest.mark.case("B49")
async def test_a_repeated_ending_is_settled_again_and_changes_nothing(site: Site) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        row = await site.command(agent)
        await agent.receive_command()
        await agent.finish(row.id)
        before = await site.row(row.id)
        assert await agent.finish(row.id) == Settled(ids=[row.id])
        assert await site.row(row.id) == before


async def test_news_that_comes_after_the_ending_changes_nothing(site: Site) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        row = await site.command(agent)
        await agent.receive_command()
        await agent.finish(row.id)
        await agent.send(Accepted(id=row.id))
        await agent.send(Started(id=row.id))
        other = await site.command(agent)
        await agent.receive_command()
        await agent.finish(other.id)
        assert (await site.row(row.id)).state is CommandState.SUCCEEDED


async def test_an_ending_that_was_not_settled_is_taken_from_the_next_connection(site: Site) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        row = await site.command(agent)
        await agent.receive_command()
        await agent.cut()
        agent.held[row.id] = JournalState.FINISHED
        await agent.connect()
        assert agent.welcome is not None
        assert agent.welcome.settled == []
        await agent.finish(row.id)
        assert (await site.row(row.id)).state is CommandState.SUCCEEDED
        await agent.cut()
        await agent.connect()
        assert agent.welcome.settled == [row.id]


async def test_an_agent_cannot_settle_another_agents_command(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "second"
    folder.mkdir()
    async with await site.agent() as agent, contextlib.AsyncExitStack() as stack:
        second = await ScriptedAgent.joined(site.gateway.port, site.authority.pem, await site.token(), folder)
        await stack.enter_async_context(second)
        await agent.connect()
        await second.connect()
        row = await site.command(agent)
        await agent.receive_command()
        await second.finish(row.id)
        assert (await site.row(row.id)).state is CommandState.QUEUED


async def test_a_cancel_before_the_command_was_sent_ends_it_at_once(site: Site) -> None:
    async with await site.agent() as agent:
        row = await site.command(agent)
        ended = await site.store.write(_cancel, row.id)
        assert ended.state is CommandState.CANCELLED
        assert isinstance(await agent.connect(), Welcome)


async def test_a_cancel_is_told_to_the_agent_that_holds_the_command(site: Site) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        row = await site.command(agent)
        await agent.receive_command()
        await site.store.write(_cancel, row.id)
        assert await agent.receive() == Cancel(id=row.id, reason="changed my mind")
        failure = Failure("CANCELLED", "cancelled before it began")
        await agent.finish(row.id, Ending(Outcome.CANCELLED, error=failure))
        assert (await site.row(row.id)).state is CommandState.CANCELLED


async def test_a_cancel_is_told_again_after_a_cut(site: Site) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        row = await site.command(agent)
        await agent.receive_command()
        await agent.cut()
        await site.store.write(_cancel, row.id)
        agent.held[row.id] = JournalState.STARTED
        await agent.connect()
        assert await agent.receive() == Cancel(id=row.id, reason="changed my mind")


async def test_a_newer_connection_supersedes_the_older_one(site: Site) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        older = agent.connection
        await agent.connect()
        assert older is not None
        async for _ in older:
            pass
        row = await site.command(agent)
        assert (await agent.receive_command()).id == row.id


async def test_a_revoked_agent_is_sent_away_and_stays_away(site: Site) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        await site.store.write(revoke_agent, "root", agent.id, "the host was stolen")
        assert isinstance(await agent.receive(), Goodbye)
        answer = await agent.connect()
        assert isinstance(answer, Goodbye)
        assert "the host was stolen" in answer.reason
        assert answer.retry_after_ms is None


async def test_a_certificate_is_renewed_over_the_connection_and_the_new_one_connects(site: Site) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        key, csr = key_and_csr()
        await agent.send(CertificateRequest(csr=csr))
        issued = await agent.receive()
        assert isinstance(issued, CertificateIssued)
        (site.folder / "key.pem").write_bytes(key)
        (site.folder / "cert.pem").write_text(issued.certificate)
        await agent.cut()
        assert isinstance(await agent.connect(), Welcome)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ('{"type":"teleport","id":"x"}', "knows no frame of type 'teleport'"),
        ('{"type":"finished"}', "finished frame cannot be read"),
        ("nonsense", "not JSON"),
        (b"\x00" * 40, "no console frame"),
    ],
)
async def test_a_frame_that_cannot_be_taken_is_answered_and_the_connection_goes_on(
    site: Site, data: str | bytes, says: str
) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        assert agent.connection is not None
        await agent.connection.send(data)
        answer = await agent.receive()
        assert isinstance(answer, ErrorFrame)
        assert says in answer.message
        row = await site.command(agent)
        assert (await agent.receive_command()).id == row.id


@pytest.mark.case("B58")
async def test_b58_a_worker_that_was_cut_off_from_the_database_does_not_take_its_own_agents_for_a_dead_workers(
    site: Site, tmp_path: Path
) -> None:
    (tmp_path / "orphan").mkdir()
    token, port, ca = await site.token(), site.gateway.port, site.authority.pem
    async with (
        await site.agent() as agent,
        await ScriptedAgent.joined(port, ca, token, tmp_path / "orphan") as orphan,
    ):
        await agent.connect()
        await orphan.connect()
        # Nobody could say for a minute that he lives; one worker is really gone.
        await site.store.write(_silence, orphan.id)
        pulse = asyncio.create_task(
            GatewayPulse(site.store, "w1", beat_seconds=0.01, silent_seconds=0.05).run(), name="pulse"
        )
        assert isinstance(await orphan.receive(), Goodbye)
        pulse.cancel()
        _, session = await site.store.read(get_agent, "root", agent.id)
        assert session is not None
        assert session.disconnected_at is None
        row = await site.command(agent)
        assert (await agent.receive_command()).id == row.id


def _silence(tx: Transaction, orphan_id: str) -> None:
    """Nobody has said of late that he lives; the connection of this agent is another worker's."""
    tx.run("INSERT INTO gateways (worker, seen_at) VALUES ('gone', 1)")
    tx.run("UPDATE sessions SET worker = 'gone' WHERE agent_id = :id", {"id": orphan_id})
    tx.run("UPDATE gateways SET seen_at = 1")


async def test_a_restarted_control_plane_goes_on_where_it_was(site: Site) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        row = await site.command(agent)
        await agent.receive_command()
        await agent.send(Started(id=row.id))
        await site.until(row.id, CommandState.RUNNING)
        await site.restart()
        _, session = await site.store.read(get_agent, "root", agent.id)
        assert session is not None
        assert session.disconnected_at is not None
        agent.held[row.id] = JournalState.STARTED
        await agent.connect()
        await agent.finish(row.id)
        assert (await site.row(row.id)).state is CommandState.SUCCEEDED


async def test_what_the_ledger_gave_up_keeps_the_late_ending_beside(site: Site) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        row = await site.command(agent)
        await agent.receive_command()
        await agent.cut()
        kept, agent.journal_id = agent.journal_id, new_id("jrn")
        await agent.connect()
        await site.until(row.id, CommandState.FAILED)
        await agent.cut()
        agent.journal_id = kept
        agent.held[row.id] = JournalState.FINISHED
        await agent.connect()
        assert agent.welcome is not None
        assert agent.welcome.settled == []
        await agent.finish(row.id)
        ended = await site.row(row.id)
        assert ended.state is CommandState.FAILED
        assert ended.late_ending is not None
        assert ended.late_ending.outcome is Outcome.SUCCEEDED


def _cancel(tx: Transaction, command_id: str) -> CommandRow:
    row = get_command(tx, "root", command_id, lock=True)
    assert row is not None
    return cancel(tx, row, "changed my mind")


def test_frames_of_the_join_do_not_show_the_secret() -> None:
    token = JoinToken.new("0" * 64)
    assert token.secret.reveal() not in repr(token)
    assert "secret" not in msgspec.structs.asdict(token) or str(token.secret) == "***"
