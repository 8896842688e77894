"""What agents see of the machines, as the control plane takes it in; and the lists that it gives them to watch."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from control_plane.api.metrics import Metrics
from control_plane.join_tokens import create_join_token
from control_plane.nodes import create_node, delete_node, find_node, update_node
from control_plane.observations import ObservationIntake, Reported, differing, sights_of, store_observations
from control_plane.records import NodeRow, SessionRow
from control_plane.sites import create_site, serve_by
from control_plane.store import Store, StoreUnavailable, Transaction
from control_plane.watch_lists import WatchDelivery, frames_of, lists_of
from protocol.commands import TargetRef
from protocol.frames import MAX_FRAME_BYTES, NodeState, Observation, WatchedNode, WatchList, encode
from protocol.ids import new_id
from protocol.join_token import JoinToken
from tests.control_plane.api_harness import Api
from tests.control_plane.ledger import TENANT, Ledger
from tests.control_plane.running import RunningControlPlane
from tests.control_plane.scripted_agent import ScriptedAgent


@pytest.fixture
async def ledger(ledger: Ledger) -> Ledger:
    """With the agent serving the site of the node."""
    await ledger.store.write(_serve, ledger.agent_id)
    return ledger


def _serve(tx: Transaction, agent_id: str) -> None:
    tx.run("UPDATE sites SET agent_id = :agent_id", {"agent_id": agent_id})


def state(node_id: str, power: str = "on", health: str = "ok", **more: Any) -> NodeState:
    return NodeState(node_id=node_id, power=power, health=health, **more)


async def report(ledger: Ledger, session: SessionRow, *states: NodeState) -> dict[str, int]:
    batch = [Reported(session.id, session.agent_id, told) for told in states]
    return await ledger.store.write(store_observations, batch)


async def events(ledger: Ledger) -> list[tuple[str, dict[str, Any]]]:
    def read(tx: Transaction) -> list[Any]:
        return tx.all("SELECT type, data FROM events WHERE type LIKE 'node.%' ORDER BY seq")

    return [(kind, msgspec.json.decode(data)) for kind, data in await ledger.store.read(read)]


async def sight(ledger: Ledger, node_id: str = "") -> Any:
    found = await ledger.store.read(sights_of, [node_id or ledger.node_id])
    return found.get(node_id or ledger.node_id)


# Storing


async def test_what_is_seen_is_stored_with_when_and_by_whom(ledger: Ledger) -> None:
    session, _ = await ledger.connect()

    await report(ledger, session, state(ledger.node_id, raw="On", how="stream", age_ms=1500))

    found = await sight(ledger)
    assert (found.row.power, found.row.health, found.row.raw, found.row.how) == ("on", "ok", "On", "stream")
    assert (found.row.agent_id, found.row.seen_at) == (ledger.agent_id, ledger.clock.now - 1500)
    assert found.watched


async def test_each_change_of_power_and_of_health_is_one_event(ledger: Ledger) -> None:
    session, _ = await ledger.connect()

    await report(ledger, session, state(ledger.node_id))
    await report(ledger, session, state(ledger.node_id))
    await report(ledger, session, state(ledger.node_id, "off"))
    await report(ledger, session, state(ledger.node_id, "off", "critical"))

    told = [(kind, data["from"], data["to"]) for kind, data in await events(ledger)]
    assert told == [
        ("node.power", "unknown", "on"),
        ("node.health", "unknown", "ok"),
        ("node.power", "on", "off"),
        ("node.health", "ok", "critical"),
    ]


async def test_a_machine_that_cannot_be_asked_is_unknown_and_says_why(ledger: Ledger) -> None:
    session, _ = await ledger.connect()
    await report(ledger, session, state(ledger.node_id))

    await report(ledger, session, state(ledger.node_id, "unknown", "unknown", trouble="UNREACHABLE: no answer"))

    kind, data = (await events(ledger))[2]
    assert (kind, data["to"], data["trouble"]) == ("node.power", "unknown", "UNREACHABLE: no answer")
    assert (await sight(ledger)).row.trouble == "UNREACHABLE: no answer"


async def test_nothing_is_new_where_only_a_troubles_words_differ(ledger: Ledger) -> None:
    session, _ = await ledger.connect()
    await report(ledger, session, state(ledger.node_id, "unknown", "unknown", trouble="UNREACHABLE: within 9.9 s"))

    again = [
        Reported(session.id, session.agent_id, state(ledger.node_id, "unknown", "unknown", trouble="UNREACHABLE: x"))
    ]

    assert await ledger.store.read(differing, again) == []


async def test_an_agent_is_believed_about_its_own_sites_machines_alone(ledger: Ledger) -> None:
    session, _ = await ledger.connect()
    await ledger.store.write(_another_sites, ledger.node_id)

    counts = await report(ledger, session, state(ledger.node_id), state(new_id("node")))

    assert counts == {"stored": 0}
    assert await sight(ledger) is None
    assert await events(ledger) == []


def _another_sites(tx: Transaction, node_id: str) -> None:
    site = create_site(tx, TENANT, "elsewhere")
    node = find_node(tx, TENANT, node_id, lock=True)
    update_node(tx, msgspec.structs.replace(node, site_id=site.id))


async def test_what_comes_late_over_an_older_connection_is_dropped(ledger: Ledger) -> None:
    old, _ = await ledger.connect()
    await ledger.connect()

    assert await report(ledger, old, state(ledger.node_id)) == {"stored": 0}


async def test_a_deleted_nodes_state_goes_with_it(ledger: Ledger) -> None:
    session, _ = await ledger.connect()
    await report(ledger, session, state(ledger.node_id))

    await ledger.store.write(lambda tx: delete_node(tx, find_node(tx, TENANT, ledger.node_id, lock=True)))

    assert await sight(ledger) is None
    assert await report(ledger, session, state(ledger.node_id, "off")) == {"stored": 0}


async def test_what_was_seen_is_not_of_now_once_the_agent_is_gone(ledger: Ledger) -> None:
    session, _ = await ledger.connect()
    await report(ledger, session, state(ledger.node_id))

    await ledger.disconnect(session)

    found = await sight(ledger)
    assert (found.row.power, found.watched) == ("on", False)


# Taking in


@asynccontextmanager
async def intake(store: Store) -> AsyncIterator[ObservationIntake]:
    made = ObservationIntake(store)
    made.start()
    try:
        yield made
    finally:
        await made.stop()


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


class CountingStore:
    """Passes everything on, and counts the writes; `fails` of them as if the database were away."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.writes = self.reads = self.fails = 0

    async def write(self, fn: Any, *args: Any) -> Any:
        self.writes += 1
        return await self._store.write(fn, *args)

    async def read(self, fn: Any, *args: Any) -> Any:
        if self.fails:
            self.fails -= 1
            raise StoreUnavailable("away")
        self.reads += 1
        return await self._store.read(fn, *args)


async def test_what_is_known_already_costs_no_write(ledger: Ledger) -> None:
    session, _ = await ledger.connect()
    counting = CountingStore(ledger.store)
    async with intake(counting) as taking:  # type: ignore[arg-type]
        taking.take(session, Observation(nodes=[state(ledger.node_id)]))
        await until(lambda: taking.counts["stored"] == 1)
        taking.take(session, Observation(nodes=[state(ledger.node_id)]))
        await until(lambda: counting.reads == 2)
        await asyncio.sleep(0.02)

    assert counting.writes == 1
    assert dict(taking.counts) == {"received": 2, "stored": 1, "power": 1, "health": 1}


async def test_a_whole_sites_states_are_stored_in_few_transactions_and_the_last_state_counts(ledger: Ledger) -> None:
    session, _ = await ledger.connect()
    ids = await ledger.store.write(_many_nodes, ledger.node_id, 600)
    counting = CountingStore(ledger.store)
    async with intake(counting) as taking:  # type: ignore[arg-type]
        for power in ("poweringOn", "on"):
            taking.take(session, Observation(nodes=[state(node_id, power) for node_id in ids]))
        await until(lambda: taking.counts["stored"] == 600)

    assert counting.writes == 2
    found = await ledger.store.read(sights_of, ids)
    assert {sight.row.power for sight in found.values()} == {"on"}


def _many_nodes(tx: Transaction, like: str, count: int) -> list[str]:
    node = find_node(tx, TENANT, like)
    made = [msgspec.structs.replace(node, id=new_id("node"), name=f"many-{number}") for number in range(count)]
    return [create_node(tx, row).id for row in made]


async def test_what_could_not_be_stored_is_stored_later_in_its_latest_form(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control_plane.observations._RETRY_SECONDS", 0.05)
    session, _ = await ledger.connect()
    counting = CountingStore(ledger.store)
    counting.fails = 2
    async with intake(counting) as taking:  # type: ignore[arg-type]
        taking.take(session, Observation(nodes=[state(ledger.node_id, "on")]))
        await until(lambda: counting.fails == 1)
        taking.take(session, Observation(nodes=[state(ledger.node_id, "off")]))
        await until(lambda: taking.counts["stored"] == 1)

    assert (await sight(ledger)).row.power == "off"


async def test_words_that_nobody_here_knows_are_unknown_and_bounded(ledger: Ledger) -> None:
    session, _ = await ledger.connect()
    async with intake(ledger.store) as taking:
        strange = state(ledger.node_id, "hovering", "splendid", raw="x\0" * 1000, how="telepathy")
        taking.take(session, Observation(nodes=[strange, state("no id at all")]))
        await until(lambda: taking.counts["stored"] == 1)

    row = (await sight(ledger)).row
    assert (row.power, row.health, row.how, row.raw) == ("unknown", "unknown", "poll", "x" * 500)


# The API


async def test_nodes_show_what_is_seen_of_them(api: Api) -> None:
    agent_id = await api.lab()
    before = await api.ok("nodes.get", {"nodeId": "n1"})
    session = api.links.sessions[agent_id]
    told = state(before["id"], "off", "warning", how="push")

    await api.store.write(store_observations, [Reported(session.id, agent_id, told)])

    listed = (await api.ok("nodes.list"))["items"][0]
    got = await api.ok("nodes.get", {"nodeId": "n1"})
    assert (before["power"], before["health"], before["seenAt"], before["watched"]) == (
        "unknown",
        "unknown",
        None,
        False,
    )
    assert (listed["power"], listed["health"], listed["seenBy"], listed["watched"]) == (
        "off",
        "warning",
        "push",
        True,
    )
    assert got == listed
    assert got["seenAt"] is not None


async def test_a_node_in_trouble_is_not_shown_as_seen(api: Api) -> None:
    agent_id = await api.lab()
    node = await api.ok("nodes.get", {"nodeId": "n1"})
    session = api.links.sessions[agent_id]
    told = state(node["id"], "unknown", "unknown", trouble="UNREACHABLE: no route")
    await api.store.write(store_observations, [Reported(session.id, session.agent_id, told)])
    shown = await api.ok("nodes.get", {"nodeId": "n1"})
    assert (shown["seenAt"], shown["seenBy"], shown["watched"]) == (None, None, True)
    assert (shown["trouble"], bool(shown["troubleSince"])) == ("UNREACHABLE: no route", True)
    assert shown["site"] == "lab"

    await api.store.write(store_observations, [Reported(session.id, session.agent_id, state(node["id"], "on"))])
    shown = await api.ok("nodes.get", {"nodeId": "n1"})
    assert (bool(shown["seenAt"]), shown["trouble"], shown["troubleSince"]) == (True, None, None)


def test_metrics_tell_what_the_agents_told() -> None:
    metrics = Metrics(lambda: 0)
    metrics.watch_observations(lambda: {"received": 7, "power": 2})

    text = metrics.render().decode()
    assert 'rackwright_node_observations_total{what="received"} 7.0' in text
    assert 'rackwright_node_observations_total{what="power"} 2.0' in text


# Watch lists


async def test_a_list_has_the_sites_machines_and_no_credential(ledger: Ledger) -> None:
    lists = await ledger.store.read(lists_of, [ledger.agent_id, "agent_nobody"])

    assert lists == {
        ledger.agent_id: [
            WatchedNode(
                node_id=ledger.node_id, driver="redfish", target=TargetRef("https://192.0.2.1", None, "first-use")
            )
        ],
        "agent_nobody": [],
    }


async def test_the_driver_is_that_of_the_power_and_an_in_band_one_is_not_watched_from_outside(ledger: Ledger) -> None:
    await ledger.store.write(_set_drivers, ledger.node_id, {"power": "ipmi", "boot": "redfish"})
    by_power = await ledger.store.read(lists_of, [ledger.agent_id])
    await ledger.store.write(_set_drivers, ledger.node_id, {"power": "linux"})
    in_band = await ledger.store.read(lists_of, [ledger.agent_id])

    watched = by_power[ledger.agent_id][0]
    assert (watched.driver, watched.target.address) == ("ipmi", "ipmi://192.0.2.1")
    assert in_band[ledger.agent_id] == []


def _set_drivers(tx: Transaction, node_id: str, drivers: dict[str, str]) -> None:
    update_node(tx, msgspec.structs.replace(find_node(tx, TENANT, node_id, lock=True), drivers=drivers))


def test_a_long_list_comes_in_parts_that_are_frames() -> None:
    target = TargetRef("https://" + "a" * 290, "r" * 128, "ca:/" + "p" * 1000)
    nodes = [WatchedNode(node_id=f"node_{number:026}", driver="redfish", target=target) for number in range(1100)]

    frames = frames_of(nodes)

    assert [len(frame.nodes) for frame in frames] == [500, 500, 100]
    assert [frame.more for frame in frames] == [True, True, False]
    assert len({frame.version for frame in frames}) == 1
    assert max(len(encode(frame)) for frame in frames) < MAX_FRAME_BYTES
    assert frames_of(nodes[:-1])[0].version != frames[0].version
    assert frames_of([]) == [WatchList(version=frames_of([])[0].version, nodes=[])]


@dataclass
class Link:
    """A connection that keeps what is posted."""

    session: SessionRow
    protocol: int
    ready: bool = True
    posted: list[msgspec.Struct] = field(default_factory=list)

    def post(self, frame: msgspec.Struct) -> None:
        self.posted.append(frame)


@pytest.mark.parametrize(("protocol", "role", "told"), [(2, "site", 1), (1, "site", 0), (2, "daemon", 0)])
async def test_only_a_sites_agent_that_knows_lists_is_given_one(
    ledger: Ledger, protocol: int, role: str, told: int
) -> None:
    session, _ = await ledger.connect()
    link = Link(msgspec.structs.replace(session, role=role), protocol)
    delivery = WatchDelivery(ledger.store, "worker-1", {ledger.agent_id: link})
    for _ in range(2):
        delivery.wake(ledger.agent_id)
        assert await delivery.deliver()

    assert len(link.posted) == told


def test_an_agent_is_told_its_list_and_each_change_of_it(tmp_path: Path) -> None:
    with RunningControlPlane(tmp_path / "plane") as plane:
        (tmp_path / "agent").mkdir()
        plane.run(_follow_lists(plane, tmp_path / "agent"))


async def _follow_lists(plane: RunningControlPlane, folder: Path) -> None:
    store = plane.plane.store
    token = JoinToken.new("c" * 64)
    site_id = await store.write(_site_with_token, token)
    ca = (plane.config.state / "ca" / "ca.pem").read_text()
    agent = await ScriptedAgent.joined(plane.plane.agents_port, ca, token, folder)
    await agent.connect()
    assert await _next_list(agent) == []

    first = await store.write(_new_node, site_id, "n1")
    assert await _next_list(agent) == [first]
    second = await store.write(_new_node, site_id, "n2")
    assert await _next_list(agent) == sorted([first, second])
    await store.write(lambda tx: delete_node(tx, find_node(tx, TENANT, first, lock=True)))
    assert await _next_list(agent) == [second]

    await agent.send(Observation(nodes=[state(second, "off")]))
    counts = plane.plane.gateway.observations.counts
    await until(lambda: counts["stored"] == 1)

    await agent.cut()
    await agent.connect()
    assert await _next_list(agent) == [second]
    await store.write(serve_by, site_id, None)
    assert await _next_list(agent) == []
    await agent.cut()


async def _next_list(agent: ScriptedAgent) -> list[str]:
    frame = await agent.receive_any()
    assert isinstance(frame, WatchList), frame
    return sorted(node.node_id for node in frame.nodes)


def _site_with_token(tx: Transaction, token: JoinToken) -> str:
    site = create_site(tx, TENANT, "lab")
    create_join_token(tx, token, tenant_id=TENANT, site_id=site.id, role="site", created_by="test", ttl_ms=60_000)
    return site.id


def _new_node(tx: Transaction, site_id: str, name: str) -> str:
    row = NodeRow(
        id=new_id("node"),
        tenant_id=TENANT,
        name=name,
        site_id=site_id,
        labels={},
        drivers={},
        bmc_address=f"simulated://{name}",
        bmc_driver="simulated",
        credential_ref=None,
        tls="first-use",
        created_at=tx.now(),
        updated_at=tx.now(),
    )
    return create_node(tx, row).id
