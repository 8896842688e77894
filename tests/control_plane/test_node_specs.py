"""Node specs: from a workflow that succeeded to the daemon of its machine, on both databases."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from control_plane.authority import Authority
from control_plane.commands import WORKFLOWS_CHANNEL
from control_plane.engine.outcomes import NODE_SPEC_CHANNEL
from control_plane.engine.states import WorkflowState
from control_plane.gateway import Gateway
from control_plane.join_tokens import create_join_token
from control_plane.node_specs import note_applied
from control_plane.nodes import create_node
from control_plane.records import NodeRow
from control_plane.sessions import open_session
from control_plane.sites import create_site
from control_plane.store import Store, Transaction, json_text, migrate
from protocol.frames import MAX_FRAME_BYTES, ControlFrame, Hello, NodeSpec, NodeSpecApplied, Welcome
from protocol.ids import new_id
from protocol.join_token import JoinToken
from tests.control_plane.scripted_agent import ScriptedAgent
from tests.control_plane.workflow_rows import put_workflow

WORKER = "w1"


@dataclass
class Machine:
    """A machine with its daemon, and the gateway that serves it."""

    store: Store
    gateway: Gateway
    node_id: str
    agent: ScriptedAgent

    async def want(self, spec: dict[str, object]) -> int:
        """As a deploy does that succeeds; the new generation."""
        return await self.store.write(_want, self.node_id, spec)

    async def connect(self, holds: int = 0) -> None:
        await self.agent.open()
        await self.agent.send(self.hello(holds))
        answer = await self.receive()
        assert isinstance(answer, Welcome), answer

    def hello(self, holds: int = 0) -> Hello:
        return Hello(
            agent_id=self.agent.id, role="daemon", boot_id="b", journal_id="jrn_1", version="0", node_spec=holds
        )

    async def receive(self) -> ControlFrame:
        async with asyncio.timeout(20):
            return await self.agent.receive()

    async def applied(self, generation: int) -> None:
        """Returns once the store says that the daemon holds it."""
        async with asyncio.timeout(10):
            while await self.store.read(_applied, self.node_id) != generation:
                await asyncio.sleep(0.02)


@pytest.fixture
async def machine(store: Store, tmp_path: Path) -> AsyncIterator[Machine]:
    await migrate(store)
    authority = Authority.open(tmp_path / "ca")
    token = JoinToken.new(authority.sha256)
    node_id = await store.write(_fleet, token)
    gateway = Gateway(store, authority, worker=WORKER)
    await gateway.start()
    agent = await ScriptedAgent.joined(gateway.port, authority.pem, token, tmp_path)
    await store.write(_make_daemon, agent.id, node_id)
    async with agent:
        yield Machine(store, gateway, node_id, agent)
    await gateway.stop()


async def test_a_daemon_is_sent_the_spec_when_it_connects_and_says_that_it_holds_it(machine: Machine) -> None:
    generation = await machine.want({"hostname": "n1"})
    await machine.connect()
    assert await machine.receive() == NodeSpec(generation=generation, spec={"hostname": "n1"})
    await machine.agent.send(NodeSpecApplied(generation=generation))
    await machine.applied(generation)


async def test_a_connected_daemon_is_sent_a_new_generation_at_once(machine: Machine) -> None:
    await machine.connect()
    first = await machine.want({"hostname": "n1"})
    assert await machine.receive() == NodeSpec(generation=first, spec={"hostname": "n1"})
    await machine.agent.send(NodeSpecApplied(generation=first))
    second = await machine.want({"hostname": "n2"})
    assert second == first + 1
    assert await machine.receive() == NodeSpec(generation=second, spec={"hostname": "n2"})


async def test_without_any_hint_the_sweep_finds_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control_plane.node_specs._SWEEP_SECONDS", 0.05)
    machine.gateway._specs.wake()
    await machine.connect()
    wanted: dict[str, object] = {"a": 1}
    generation = await machine.store.write(_want_silently, machine.node_id, wanted)
    assert await machine.receive() == NodeSpec(generation=generation, spec={"a": 1})
    # Not acknowledged, so it comes again.
    assert await machine.receive() == NodeSpec(generation=generation, spec={"a": 1})


async def test_a_daemon_that_holds_it_is_sent_nothing_and_one_that_lost_it_is_sent_it_again(machine: Machine) -> None:
    generation = await machine.want({"a": 1})
    await machine.connect(holds=generation)
    await machine.applied(generation)
    await machine.agent.cut()
    # Installed anew: it holds nothing, whatever the machine's last daemon had.
    await machine.connect(holds=0)
    assert await machine.receive() == NodeSpec(generation=generation, spec={"a": 1})


async def test_a_daemon_that_is_ahead_of_a_restored_database_is_brought_back(machine: Machine) -> None:
    generation = await machine.want({"a": 1})
    await machine.connect(holds=generation + 7)
    assert await machine.receive() == NodeSpec(generation=generation, spec={"a": 1})


async def test_a_spec_that_no_frame_can_hold_does_not_end_the_connection(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    await machine.want({"a": "x" * MAX_FRAME_BYTES})
    await machine.connect()
    async with asyncio.timeout(20):
        while "may have" not in caplog.text:
            await asyncio.sleep(0.02)
    generation = await machine.want({"a": 1})
    assert await machine.receive() == NodeSpec(generation=generation, spec={"a": 1})


async def test_another_machines_agents_word_changes_nothing(machine: Machine) -> None:
    await machine.want({"a": 1})
    await machine.store.write(_make_daemon, machine.agent.id, None)
    await machine.connect()
    await machine.agent.send(NodeSpecApplied(generation=1))
    await machine.store.write(_make_daemon, machine.agent.id, machine.node_id)
    await machine.agent.cut()
    await machine.connect()
    assert isinstance(await machine.receive(), NodeSpec)


async def test_an_agent_that_connects_wakes_the_workflow_of_its_machine(machine: Machine) -> None:
    def put(tx: Transaction) -> str:
        put_workflow(tx, machine.node_id, WorkflowState.FAILED, tenant="root")
        return put_workflow(tx, machine.node_id, WorkflowState.RUNNING, tenant="root")

    active = await machine.store.write(put)
    hinted: asyncio.Queue[str] = asyncio.Queue()
    stop = machine.store.listen(WORKFLOWS_CHANNEL, hinted.put_nowait)
    assert await hinted.get() == ""
    await machine.store.write(open_session, machine.hello(), WORKER)
    assert await hinted.get() == active
    stop()


async def test_the_late_word_of_an_older_connection_changes_nothing(machine: Machine) -> None:
    await machine.want({"a": 1})
    older, _, _ = await machine.store.write(open_session, machine.hello(), WORKER)
    newer, _, _ = await machine.store.write(open_session, machine.hello(), WORKER)
    await machine.store.write(note_applied, older, 1)
    assert await machine.store.read(_applied, machine.node_id) == 0
    await machine.store.write(note_applied, newer, 1)
    assert await machine.store.read(_applied, machine.node_id) == 1


def _fleet(tx: Transaction, token: JoinToken) -> str:
    site = create_site(tx, "root", "lab")
    create_join_token(tx, token, tenant_id="root", site_id=site.id, role="site", created_by="test", ttl_ms=60_000)
    now = tx.now()
    node = NodeRow(
        new_id("node"), "root", "m1", site.id, {}, {}, "simulated://m1", "simulated", None, "none", now, now
    )
    return create_node(tx, node).id


def _make_daemon(tx: Transaction, agent_id: str, node_id: str | None) -> None:
    tx.run("UPDATE agents SET role = 'daemon', node_id = :node WHERE id = :id", {"id": agent_id, "node": node_id})


def _want(tx: Transaction, node_id: str, spec: dict[str, object]) -> int:
    generation = _want_silently(tx, node_id, spec)
    tx.notify(NODE_SPEC_CHANNEL, node_id)
    return generation


def _want_silently(tx: Transaction, node_id: str, spec: dict[str, object]) -> int:
    row = tx.one(
        """
        INSERT INTO desired_states (node_id, tenant_id, generation, spec, invalidated_at, applied)
        VALUES (:node_id, 'root', 1, :spec, :now, NULL)
        ON CONFLICT (node_id) DO UPDATE SET generation = desired_states.generation + 1, spec = excluded.spec
        RETURNING generation
        """,
        {"node_id": node_id, "spec": json_text(spec), "now": tx.now()},
    )
    assert row is not None
    return int(row[0])


def _applied(tx: Transaction, node_id: str) -> Any:
    row = tx.one("SELECT applied FROM desired_states WHERE node_id = :id", {"id": node_id})
    return None if row is None else row[0]
