"""The watch over a site's machines: what it costs, what it tells, and when it leaves a machine alone."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.bmcs import BmcMemory, Bmcs
from agent.config import WatchSection
from agent.event_feeds import EventFeeds
from agent.observations import Observations, Seen, Trouble
from agent.reports import Reports
from agent.vault import Vault, VaultKey
from agent.watch_list import Parts, difference
from agent.watching import Watcher
from drivers import Target
from drivers.signals import BmcEvent, EventKind
from protocol.commands import Ending, Outcome, TargetRef
from protocol.errors import ErrorCode
from protocol.frames import Finished, NodeState, Observation, WatchedNode, WatchList
from protocol.secret import Secret
from protocol.shapes.management import Health
from protocol.shapes.power import PowerState
from simulators.redfish import FaultRule, RedfishServer, ServiceOptions
from simulators.redfish.faults import Effect
from tests.agent.counting_driver import Machines, refused
from tests.agent.rig import invoke
from tests.drivers.redfish.harness import without_waiting

USER, PASSWORD = "admin", "Planted-Pa55word"
POWER = (BmcEvent(EventKind.POWER),)


@dataclass
class Rig:
    """A watcher, and what the control plane would be told."""

    vault: Vault
    bmcs: Bmcs
    watcher: Watcher
    observations: Observations
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def watch(self, *nodes: WatchedNode, version: str = "1") -> None:
        self.watcher.take(WatchList(version=version, nodes=list(nodes)))

    def told(self) -> list[NodeState]:
        """What is due, taken."""
        states: list[NodeState] = []
        while (frame := self.observations.take()) is not None:
            states += frame.nodes
        return states

    async def next(self) -> NodeState:
        """The next state that is told."""
        while True:
            states = self.told()
            if states:
                assert len(states) == 1, states
                return states[0]
            self.woken.clear()
            await self.woken.wait()


def node(host: str, *, node_id: str | None = None, **target: Any) -> WatchedNode:
    return WatchedNode(
        node_id=node_id or f"node-{host}", driver="simulated", target=TargetRef(f"simulated://{host}", **target)
    )


def redfish(bmc: RedfishServer, node_id: str = "node-1") -> WatchedNode:
    return WatchedNode(node_id=node_id, driver="redfish", target=TargetRef(bmc.url, "bmc", "none"))


@asynccontextmanager
async def rig(folder: Path, *, events: bool = False, **settings: Any) -> AsyncIterator[Rig]:
    vault = Vault(folder / "vault.json", lambda: VaultKey.load(folder / "vault.key", make=True))
    vault.set("bmc", USER, Secret(PASSWORD))
    bmcs = Bmcs(vault, BmcMemory(folder / "bmcs.json"))
    woken = asyncio.Event()
    observations = Observations(woken.set)
    section = WatchSection(**settings)
    watcher = Watcher(bmcs, observations, section, chance=random.Random(7))
    if events:
        watcher.hear_by(EventFeeds(watcher, section, None, chance=random.Random(7)))
    bmcs.after_change = watcher.changed
    try:
        yield Rig(vault, bmcs, watcher, observations, woken)
    finally:
        await watcher.aclose()
        await bmcs.aclose()


def now() -> float:
    return asyncio.get_running_loop().time()


def under_way() -> set[str]:
    """What the tasks of this loop do."""
    return {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}


# What is told


@without_waiting
async def test_changes_are_told_and_nothing_else(machines: Machines, folder: Path) -> None:
    async with rig(folder) as it:
        it.watch(node("m1"))
        assert (await it.next()).power == "on"

        await asyncio.sleep(300)
        assert machines.reads["m1"] >= 9
        assert it.told() == []

        machines.power["m1"] = PowerState.OFF
        assert (await it.next()).power == "off"


@without_waiting
async def test_everything_is_told_anew_after_each_watch_list_and_nothing_before_it(
    machines: Machines, folder: Path
) -> None:
    async with rig(folder) as it:
        nodes = [node(f"m{number}") for number in range(3)]
        it.watch(*nodes)
        await asyncio.sleep(60)
        assert {state.node_id for state in it.told()} == {"node-m0", "node-m1", "node-m2"}

        it.observations.close()
        machines.power["m1"] = PowerState.OFF
        await asyncio.sleep(60)
        assert it.told() == []

        it.watch(*nodes)
        assert {state.node_id: state.power for state in it.told()} == {
            "node-m0": "on",
            "node-m1": "off",
            "node-m2": "on",
        }


@pytest.mark.case("B23")
@without_waiting
async def test_b23_a_state_between_two_is_told_as_such_and_looked_at_soon_again(folder: Path) -> None:
    async with RedfishServer(users={USER: PASSWORD}, clock=now) as bmc, rig(folder) as it:
        it.watch(redfish(bmc))
        assert (await it.next()).power == "on"
        words = (None, "Reset", "PoweringOn", "On")
        shown = tuple(Effect(set={"/PowerState": word}) for word in words)
        bmc.faults.add(FaultRule(method="GET", path="*/Systems/1", sequence=shown))
        began = now()

        told = [await it.next() for _ in words]

        assert [state.power for state in told] == ["unknown", "unknown", "poweringOn", "on"]
        assert [state.raw for state in told] == [None, "Reset", "PoweringOn", "On"]
        assert now() - began < 33 + 15


@without_waiting
async def test_the_health_is_told_with_the_power(folder: Path) -> None:
    async with RedfishServer(users={USER: PASSWORD}, clock=now) as bmc, rig(folder) as it:
        it.watch(redfish(bmc))
        assert (await it.next()).health == "ok"

        bmc.state.set_health("Critical")

        assert (await it.next()).health == "critical"


def test_a_state_is_told_with_its_age_and_not_with_a_time(folder: Path) -> None:
    async def run() -> NodeState:
        observations = Observations(lambda: None)
        observations.keep([])
        observations.note("n1", Seen(PowerState.ON, Health.OK, "On", None, "poll", now() - 5))
        frame = observations.take()
        assert frame is not None
        return frame.nodes[0]

    assert 5000 <= asyncio.run(run()).age_ms < 6000


def test_a_trouble_is_told_once_however_its_words_change() -> None:
    observations = Observations(lambda: None)

    def trouble(code: ErrorCode, words: str) -> bool:
        return observations.note("n1", Seen.nothing(Trouble(code, words), "poll", 0.0))

    assert trouble(ErrorCode.UNREACHABLE, "no answer within 9.98 s")
    assert not trouble(ErrorCode.UNREACHABLE, "no answer within 9.97 s")
    assert trouble(ErrorCode.AUTH_FAILED, "refused")


def test_many_states_go_out_in_several_frames_in_the_order_of_their_changes() -> None:
    async def run() -> list[Observation]:
        observations = Observations(lambda: None)
        observations.keep([])
        for number in range(1200):
            observations.note(f"n{number}", Seen(PowerState.ON, Health.OK, "On", None, "poll", now()))
        observations.note("n0", Seen(PowerState.OFF, Health.OK, "Off", None, "poll", now()))
        return [frame for _ in range(4) if (frame := observations.take()) is not None]

    frames = asyncio.run(run())

    assert [len(frame.nodes) for frame in frames] == [500, 500, 200]
    assert (frames[-1].nodes[-1].node_id, frames[-1].nodes[-1].power) == ("n0", "off")


async def test_endings_go_before_what_was_seen() -> None:
    ended = Finished(id="cmd_1", ending=Ending(Outcome.SUCCEEDED, {}))
    reports = Reports(lambda _id: ended)
    observations = Observations(reports.wake)
    reports.take_from(observations)
    observations.keep([])
    observations.note("n1", Seen(PowerState.ON, Health.OK, "On", None, "poll", now()))
    reports.mark("cmd_1")

    assert reports.take() is ended
    assert isinstance(reports.take(), Observation)
    assert reports.take() is None

    reports.clear()
    observations.note("n1", Seen(PowerState.OFF, Health.OK, "Off", None, "poll", now()))
    assert reports.take() is None


# Troubles


@without_waiting
async def test_a_machine_that_does_not_answer_is_unknown_at_the_second_time_and_never_off(
    machines: Machines, folder: Path
) -> None:
    async with rig(folder) as it:
        it.watch(node("m1"))
        await it.next()
        machines.fails["m1"] = refused(ErrorCode.UNREACHABLE, "no connection")
        began = now()

        told = await it.next()

        assert (told.power, told.health, told.trouble) == ("unknown", "unknown", "UNREACHABLE: no connection")
        assert now() - began < 33 + 6
        machines.fails.clear()
        told = await it.next()
        assert (told.power, told.trouble) == ("on", None)


@without_waiting
async def test_one_lost_answer_is_no_trouble(machines: Machines, folder: Path) -> None:
    async with rig(folder) as it:
        it.watch(node("m1"))
        await it.next()
        before = machines.reads["m1"]
        machines.fails["m1"] = refused(ErrorCode.UNREACHABLE, "no connection")
        while it.watcher._watched["node-m1"].failures == 0:
            await asyncio.sleep(0.5)
        machines.fails.clear()

        await asyncio.sleep(7)

        assert machines.reads["m1"] == before + 1
        assert it.told() == []


@without_waiting
async def test_a_refused_password_is_told_at_once_and_not_tried_again_until_it_changes(folder: Path) -> None:
    async with RedfishServer(users={USER: "another"}, clock=now) as bmc, rig(folder) as it:
        it.watch(redfish(bmc))

        told = await it.next()
        await asyncio.sleep(600)

        assert told.trouble is not None
        assert told.trouble.startswith("AUTH_FAILED: ")
        assert PASSWORD not in told.trouble
        assert len(bmc.journal.entries("POST", "*/Sessions")) == 1
        bmc.state.set_password(USER, PASSWORD + "2")
        it.bmcs._vault.set("bmc", USER, Secret(PASSWORD + "2"))
        told_later = [await it.next()]
        while told_later[-1].power != "on":
            told_later.append(await it.next())
        assert [state.trouble for state in told_later][-1] is None
        assert len(bmc.journal.entries("POST", "*/Sessions")) == 2


@without_waiting
async def test_a_missing_credential_says_how_to_give_it(folder: Path) -> None:
    async with rig(folder) as it:
        it.watch(node("m1", credential_ref="absent"))

        told = await it.next()

        assert told.trouble is not None
        assert "rackwright agent credentials set absent" in told.trouble


@without_waiting
async def test_a_machine_that_stays_away_is_asked_ever_more_seldom(machines: Machines, folder: Path) -> None:
    async with rig(folder) as it:
        machines.fails["m1"] = refused(ErrorCode.UNREACHABLE, "no connection")
        asked: list[float] = []
        machines.targets.clear()
        it.watch(node("m1"))
        seen = 0
        while len(asked) < 9:
            await asyncio.sleep(1)
            if len(machines.targets) > seen:
                seen = len(machines.targets)
                asked.append(now())

        gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
        assert gaps[0] < 8
        assert gaps[-1] > 4 * gaps[1]
        assert all(gap < 340 for gap in gaps)


@without_waiting
async def test_a_busy_bmc_is_left_alone_as_long_as_it_asks(folder: Path) -> None:
    async with RedfishServer(users={USER: PASSWORD}, clock=now) as bmc, rig(folder) as it:
        it.watch(redfish(bmc))
        await it.next()
        bmc.faults.add(FaultRule(path="*/Systems/1", status=503, headers={"Retry-After": "100"}, count=1))
        at = len(bmc.journal.entries("GET", "*/Systems/1"))
        while len(bmc.journal.entries("GET", "*/Systems/1")) == at:
            await asyncio.sleep(1)
        busy = now()

        while len(bmc.journal.entries("GET", "*/Systems/1")) == at + 1:
            await asyncio.sleep(1)

        assert now() - busy >= 99
        assert it.told() == []


@without_waiting
async def test_a_slow_bmc_is_looked_at_less_often(folder: Path) -> None:
    async with RedfishServer(users={USER: PASSWORD}, clock=now, latency=8.0) as bmc, rig(folder) as it:
        it.watch(redfish(bmc))
        await asyncio.sleep(200)
        before = len(bmc.journal.entries("GET", "*/Systems/1"))

        await asyncio.sleep(900)

        assert len(bmc.journal.entries("GET", "*/Systems/1")) - before <= 900 / (80 * 0.9) + 1


@without_waiting
async def test_a_machine_whose_password_is_being_changed_is_waited_for(
    machines: Machines, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(folder) as it:

        def busy(_node: WatchedNode, _before: object) -> Target:
            raise refused(ErrorCode.BUSY, "the password of this machine's BMC is being changed")

        monkeypatch.setattr(it.bmcs, "watched", busy)
        it.watch(node("m1"))
        await asyncio.sleep(120)
        assert (machines.reads["m1"], it.told()) == (0, [])
        monkeypatch.undo()

        assert (await it.next()).power == "on"


# Herds, and machines that are being changed


@without_waiting
async def test_a_new_list_is_no_herd(machines: Machines, folder: Path) -> None:
    async with rig(folder, at_once=4) as it:
        for number in range(40):
            machines.gates[f"m{number}"] = asyncio.Event()
        it.watch(*(node(f"m{number}") for number in range(40)))
        await asyncio.sleep(25)

        assert len(it.watcher._looks) == 4
        for gate in machines.gates.values():
            gate.set()
        await asyncio.sleep(5)
        assert len(it.told()) == 40


@without_waiting
async def test_looks_are_spread_over_the_interval(machines: Machines, folder: Path) -> None:
    async with rig(folder) as it:
        it.watch(*(node(f"m{number}") for number in range(600)))
        await asyncio.sleep(0.9)
        first = sum(machines.reads.values())
        await asyncio.sleep(30)
        before = sum(machines.reads.values())
        most = 0
        for _ in range(30):
            await asyncio.sleep(1)
            after = sum(machines.reads.values())
            most, before = max(most, after - before), after

        assert first < 150
        assert most < 200


@without_waiting
async def test_nobody_looks_while_a_change_is_under_way_and_somebody_does_soon_after(
    machines: Machines, folder: Path
) -> None:
    async with rig(folder) as it:
        it.watch(node("m1"))
        await it.next()
        machines.gates["m1"] = asyncio.Event()
        machines.entered["m1"] = asyncio.Event()
        payload = {**invoke("power", "setPower", {"action": "off"}).payload, "targetNodeId": "node-m1"}

        async def change() -> None:
            async with it.bmcs.turn(payload) as work:
                await work.run(1000, lambda _message, _percent: None)

        changing = asyncio.create_task(change())
        await machines.entered["m1"].wait()
        before = machines.reads["m1"]
        await asyncio.sleep(300)
        assert machines.reads["m1"] == before

        machines.gates["m1"].set()
        del machines.gates["m1"]
        await changing
        ended = now()
        assert (await it.next()).power == "off"
        assert now() - ended < 3


@without_waiting
async def test_a_look_shares_the_session_of_the_commands(folder: Path) -> None:
    options = ServiceOptions(max_sessions=1)
    async with RedfishServer(users={USER: PASSWORD}, clock=now, options=options) as bmc, rig(folder) as it:
        it.watch(redfish(bmc))
        await it.next()
        payload = {
            **invoke("power", "setPower", {"action": "off"}).payload,
            "driver": "redfish",
            "targetNodeId": "node-1",
            "target": {"address": bmc.url, "credentialRef": "bmc", "tls": "none"},
        }
        async with it.bmcs.turn(payload) as work:
            await work.run(60, lambda _message, _percent: None)

        assert (await it.next()).power == "off"
        assert len(bmc.journal.entries("POST", "*/Sessions")) == 1


# Lists


def test_a_list_holds_once_its_last_part_is_there() -> None:
    parts = Parts()

    assert parts.take(WatchList(version="1", nodes=[node("a")], more=True)) is None
    whole = parts.take(WatchList(version="1", nodes=[node("b")]))

    assert whole is not None
    assert list(whole) == ["node-a", "node-b"]
    assert parts.take(WatchList(version="2", nodes=[node("a")], more=True)) is None
    assert parts.take(WatchList(version="3", nodes=[node("c")])) == {"node-c": node("c")}


def test_a_machine_that_is_reached_in_another_way_goes_and_comes() -> None:
    before = {"node-a": node("a"), "node-b": node("b")}
    after = {"node-a": node("a"), "node-b": node("other", node_id="node-b"), "node-c": node("c")}

    changed = difference(before, after)

    assert changed.gone == ["node-b"]
    assert [come.node_id for come in changed.come] == ["node-b", "node-c"]


@without_waiting
async def test_a_machine_that_left_the_list_is_looked_at_no_more(machines: Machines, folder: Path) -> None:
    async with rig(folder) as it:
        it.watch(node("m1"), node("m2"))
        await asyncio.sleep(60)
        it.watch(node("m2"), version="2")
        before = machines.reads["m1"]

        await asyncio.sleep(300)

        assert machines.reads["m1"] == before
        assert [state.node_id for state in it.told()] == ["node-m2"]
        assert it.watcher.counts() == {"nodes": 1, "withEvents": 0, "troubled": 0}


@without_waiting
async def test_a_look_that_ends_after_its_machine_has_left_tells_nothing(machines: Machines, folder: Path) -> None:
    async with rig(folder) as it:
        machines.gates["m1"] = asyncio.Event()
        machines.entered["m1"] = asyncio.Event()
        it.watch(node("m1"))
        await machines.entered["m1"].wait()
        it.watch(version="2")
        machines.gates["m1"].set()
        await asyncio.sleep(60)

        assert it.told() == []


@without_waiting
async def test_a_watch_that_is_switched_off_looks_at_nothing(machines: Machines, folder: Path) -> None:
    async with rig(folder, enabled=False) as it:
        it.watch(node("m1"))
        await asyncio.sleep(300)

        assert machines.reads["m1"] == 0


# Events


@without_waiting
async def test_a_stream_tells_of_a_change_in_seconds_and_makes_polling_slow(folder: Path) -> None:
    async with RedfishServer(users={USER: PASSWORD}, clock=now) as bmc, rig(folder, events=True) as it:
        it.watch(redfish(bmc))
        await it.next()
        await asyncio.sleep(20)
        assert it.watcher.counts()["withEvents"] == 1
        before = len(bmc.journal.entries("GET", "*/Systems/1"))
        await asyncio.sleep(1500)
        assert len(bmc.journal.entries("GET", "*/Systems/1")) - before <= 6

        bmc.state.set_power("Off")
        began = now()
        told = await it.next()

        assert (told.power, told.how) == ("off", "stream")
        assert now() - began < 3
        assert len(bmc.state.open_sessions) == 1


@without_waiting
async def test_an_end_right_after_a_new_password_ends_the_session_of_the_old_ones_stream_too(folder: Path) -> None:
    async with RedfishServer(users={USER: PASSWORD}, clock=now) as bmc:
        async with rig(folder, events=True) as it:
            it.watch(redfish(bmc))
            await it.next()
            while not it.watcher.counts()["withEvents"]:
                await asyncio.sleep(0.1)
            # The same password once more is a new version: the next command logs in anew, beside the stream.
            it.vault.set("bmc", USER, Secret(PASSWORD))
            payload = {
                **invoke("power", "getPower", {}).payload,
                "driver": "redfish",
                "targetNodeId": "node-1",
                "target": {"address": bmc.url, "credentialRef": "bmc", "tls": "none"},
            }
            async with it.bmcs.turn(payload) as work:
                await work.run(60, lambda _message, _percent: None)
            assert len(bmc.state.open_sessions) == 2
            await it.watcher.aclose()
            assert "EventFeed._run" not in under_way()
        # As at the end of a process: what is under way now would never end.
        assert len(bmc.state.open_sessions) == 0
        assert "RedfishConnection.aclose" not in under_way()


@without_waiting
async def test_a_stream_that_ends_is_opened_again_and_what_was_missed_is_seen(folder: Path) -> None:
    async with RedfishServer(users={USER: PASSWORD}, clock=now) as bmc, rig(folder, events=True) as it:
        it.watch(redfish(bmc))
        await it.next()
        await asyncio.sleep(20)
        bmc.service.events.streams.close_all()
        bmc.state.set_power("Off")
        began = now()

        assert (await it.next()).power == "off"
        assert now() - began < 10
        await asyncio.sleep(10)
        assert len(bmc.service.events.streams.open) == 1


@without_waiting
async def test_a_bmc_whose_events_kept_silent_about_a_change_is_polled_as_one_without(folder: Path) -> None:
    async with RedfishServer(users={USER: PASSWORD}, clock=now) as bmc, rig(folder, events=True) as it:
        it.watch(redfish(bmc))
        await it.next()
        await asyncio.sleep(20)

        bmc.state.patch("/redfish/v1/Systems/1", {"PowerState": "Off"})
        await it.next()
        bmc.state.patch("/redfish/v1/Systems/1", {"PowerState": "On"})
        began = now()

        assert (await it.next()).power == "on"
        assert now() - began <= 34


@without_waiting
async def test_a_bmc_without_a_stream_is_polled(folder: Path) -> None:
    faults = [FaultRule(path="*/SSE", status=404)]
    async with RedfishServer(users={USER: PASSWORD}, clock=now, faults=faults) as bmc, rig(folder, events=True) as it:
        it.watch(redfish(bmc))
        await it.next()
        await asyncio.sleep(600)

        assert it.watcher.counts()["withEvents"] == 0
        assert len(bmc.journal.entries("GET", "*/Systems/1")) >= 18
        assert len(bmc.journal.entries("GET", "*/SSE")) == 2


@without_waiting
async def test_a_flood_of_events_is_no_flood_of_looks(machines: Machines, folder: Path) -> None:
    async with rig(folder) as it:
        it.watch(node("m1"))
        await it.next()
        before, began = machines.reads["m1"], now()
        for _ in range(1000):
            it.watcher.heard("node-m1", POWER, "push")
            await asyncio.sleep(0.01)

        assert machines.reads["m1"] - before <= (now() - began) / 2 + 1


@without_waiting
async def test_an_event_that_a_look_would_not_show_leads_to_none(machines: Machines, folder: Path) -> None:
    async with rig(folder) as it:
        it.watch(node("m1"))
        await it.next()
        before = machines.reads["m1"]
        it.watcher.heard("node-m1", (BmcEvent(EventKind.OTHER),), "push")
        it.watcher.heard("node-of-nobody", POWER, "push")

        await asyncio.sleep(20)

        assert machines.reads["m1"] == before


@without_waiting
async def test_a_log_that_tells_of_every_look_is_no_endless_round(machines: Machines, folder: Path) -> None:
    async with rig(folder) as it:
        it.watch(node("m1"))
        await it.next()
        before = machines.reads["m1"]
        for _ in range(600):
            it.watcher.heard("node-m1", (BmcEvent(EventKind.LOG),), "push")
            await asyncio.sleep(0.5)

        assert machines.reads["m1"] - before <= 300 / 27 + 1


@without_waiting
async def test_a_flood_of_events_during_one_look_leads_to_one_more(machines: Machines, folder: Path) -> None:
    async with rig(folder) as it:
        it.watch(node("m1"))
        await it.next()
        await asyncio.sleep(60)
        watched = it.watcher._watched["node-m1"]
        watched.looking = True
        for _ in range(10_000):
            it.watcher.heard("node-m1", (BmcEvent(EventKind.LOG),), "push")
        watched.looking = False

        assert len(watched.follow_up) <= 3


@without_waiting
async def test_an_event_that_comes_before_its_state_is_followed_by_further_looks(
    machines: Machines, folder: Path
) -> None:
    async with rig(folder) as it:
        it.watch(node("m1"))
        await it.next()
        await asyncio.sleep(5)
        it.watcher.heard("node-m1", POWER, "push")
        await asyncio.sleep(1)
        machines.power["m1"] = PowerState.OFF
        began = now()

        told = await it.next()

        assert (told.power, told.how) == ("off", "push")
        assert now() - began < 5
