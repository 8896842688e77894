"""Leaving a boot: the intent is durable first, the result is told before the machine goes, and nothing is done twice.

Cases B49 (a repeated command) and B51 (the agent dies with the machine, before or after it could report).
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from agent.departure import Departure, Departures, Means
from agent.errors import AgentError
from agent.executor import Executor
from agent.journal import Journal
from agent.own_machine import OwnMachine
from agent.reboot import Reboot
from agent.session import Session
from drivers import Drivers
from protocol.commands import Outcome
from protocol.errors import ErrorCode, OperationError
from protocol.frames import Command, Hello
from protocol.ids import new_id
from tests.agent.points import Points
from tests.agent.rig import FakeClock, Ledger, Wire, until


class Life:
    """One life of an agent on its own machine: the journal, the record, and a way to go that only counts."""

    def __init__(self, folder: Path, clock: FakeClock) -> None:
        self.clock = clock
        self.stopped = asyncio.Event()
        self.gone: list[Departure] = []
        self.journal = Journal.open(folder / "journal.db", clock)
        self.drivers = Drivers()
        self.departures = Departures(folder / "departure.json", clock, told=self._told, stop=self.stopped.set)
        self.departures.ways[Means.REBOOT] = self._go
        self.machine = OwnMachine(self.drivers, self.departures, folder)
        self.executor = Executor(self.journal, {"node.reboot": Reboot(self.machine)}, clock, role="daemon")
        self.stays = ""
        self.tasks: list[asyncio.Task[object]] = []

    def begin(self) -> None:
        self.executor.recover(self.journal.held())
        self.departures.resume()

    def connect(self, ledger: Ledger) -> Wire:
        wire = Wire(Points())
        self.tasks.append(asyncio.create_task(ledger.serve(wire)))
        self.tasks.append(asyncio.create_task(Session(wire, self.hello, self.executor).run()))
        return wire

    def hello(self) -> Hello:
        return Hello(
            agent_id="agent_1",
            role="daemon",
            boot_id=self.clock.boot_id,
            journal_id=self.journal.id,
            version="0",
            held=self.executor.held(),
        )

    async def end(self) -> None:
        """The process dies, or ends; the folder stays."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.executor.abandon()
        await self.departures.aclose()
        self.journal.close()
        await self.drivers.aclose()

    async def _told(self, command: str, seconds: float) -> bool:
        return await self.executor.until_settled(command, min(seconds, 0.2))

    async def _go(self, departure: Departure) -> None:
        self.gone.append(departure)
        if self.stays:
            raise OperationError(ErrorCode.NOT_APPLIED, self.stays)
        self.clock.reboot()
        raise _MachineIsGone


class _MachineIsGone(BaseException):
    pass


def reboot(**payload: object) -> Command:
    return Command(id=new_id("cmd"), kind="node.reboot", payload=payload, remaining_ms=60_000)


async def leaves(life: Life) -> None:
    await asyncio.wait_for(life.stopped.wait(), 5)
    with pytest.raises(_MachineIsGone):
        await life.departures.go()


@pytest.mark.case("B51")
async def test_b51_the_result_is_settled_before_the_machine_goes(folder: Path, clock: FakeClock) -> None:
    life, ledger = Life(folder, clock), Ledger()
    row = ledger.ask(reboot(targetNodeId="node_1"))
    life.begin()
    life.connect(ledger)
    await asyncio.wait_for(life.stopped.wait(), 5)
    assert row.ending is not None
    assert (row.ending.outcome, row.ending.result) == (Outcome.SUCCEEDED, {"bootId": "boot-1", "means": "reboot"})
    assert life.gone == []
    assert life.executor.held() == []
    await leaves(life)
    assert [departure.boot_id for departure in life.gone] == ["boot-1"]
    await life.end()


@pytest.mark.case("B51")
async def test_b51_without_a_control_plane_it_goes_all_the_same_and_the_next_boot_tells(
    folder: Path, clock: FakeClock
) -> None:
    life = Life(folder, clock)
    life.begin()
    command = reboot()
    life.executor.command(command)
    await leaves(life)
    await life.end()
    after, ledger = Life(folder, clock), Ledger()
    row = ledger.ask(command)
    after.begin()
    assert not after.departures.is_leaving
    after.connect(ledger)
    await until(lambda: row.ending is not None)
    assert row.ending is not None
    assert row.ending.outcome is Outcome.SUCCEEDED
    assert after.gone == []
    await after.end()


@pytest.mark.case("B51")
async def test_b51_an_agent_that_dies_before_the_ending_is_durable_is_answered_by_the_new_boot(
    folder: Path, clock: FakeClock
) -> None:
    life = Life(folder, clock)
    command = reboot()
    await life.journal.accept(command, _deadline(clock))
    await life.journal.start(command.id)
    await life.departures.intend(command.id, Means.REBOOT, timeout=60, result={"bootId": "boot-1", "means": "reboot"})
    await life.end()
    clock.reboot()
    after, ledger = Life(folder, clock), Ledger()
    row = ledger.ask(command)
    row.sent_journal = after.journal.id
    after.begin()
    after.connect(ledger)
    await until(lambda: row.ending is not None)
    assert row.ending is not None
    assert row.ending.outcome is Outcome.SUCCEEDED
    assert row.ending.observed == {"bootId": clock.boot_id}
    assert after.gone == []
    await after.end()


@pytest.mark.case("B51")
async def test_b51_an_agent_that_dies_before_it_intended_to_go_says_that_the_machine_stayed(
    folder: Path, clock: FakeClock
) -> None:
    life = Life(folder, clock)
    command = reboot()
    await life.journal.accept(command, _deadline(clock))
    await life.journal.start(command.id)
    await life.end()
    after, ledger = Life(folder, clock), Ledger()
    row = ledger.ask(command)
    row.sent_journal = after.journal.id
    after.begin()
    after.connect(ledger)
    await until(lambda: row.ending is not None)
    assert row.ending is not None
    assert row.ending.error is not None
    assert (row.ending.outcome, row.ending.error.code) == (Outcome.FAILED, "INTERRUPTED")
    assert "asking again is safe" in row.ending.error.message
    assert not after.departures.is_leaving
    await after.end()


@pytest.mark.case("B51")
async def test_an_agent_that_dies_between_the_intent_and_the_act_goes_on_in_the_same_boot(
    folder: Path, clock: FakeClock
) -> None:
    life = Life(folder, clock)
    await life.departures.intend(new_id("cmd"), Means.REBOOT, timeout=60, result={})
    await life.end()
    assert life.gone == []
    after = Life(folder, clock)
    after.begin()
    await leaves(after)
    assert len(after.gone) == 1
    await after.end()


@pytest.mark.case("B49")
async def test_b49_a_repeated_reboot_is_answered_from_the_journal_and_not_done_again(
    folder: Path, clock: FakeClock
) -> None:
    life = Life(folder, clock)
    command = reboot()
    life.executor.command(command)
    await leaves(life)
    await life.end()
    after = Life(folder, clock)
    after.begin()
    after.executor.command(command)
    after.executor.settled([command.id])
    await until(lambda: not after.executor.held())
    after.executor.command(command)
    await until(lambda: any(held.state == "finished" for held in after.executor.held()))
    assert not after.departures.is_leaving
    assert after.gone == []
    await after.end()


async def test_a_machine_that_did_not_go_is_not_told_to_for_ever_and_the_cause_is_kept(
    folder: Path, clock: FakeClock
) -> None:
    life = Life(folder, clock)
    life.stays = "systemctl said no"
    command = new_id("cmd")
    await life.departures.intend(command, Means.REBOOT, timeout=60, result={})
    await asyncio.wait_for(life.stopped.wait(), 5)
    with pytest.raises(AgentError, match="systemctl said no"):
        await life.departures.go()
    await life.end()
    after = Life(folder, clock)
    after.begin()
    assert not after.departures.is_leaving
    ending = after.departures.ending_of(command)
    assert ending.error is not None
    assert (ending.error.code, ending.error.message) == ("NOT_APPLIED", "systemctl said no")
    await after.end()


async def test_what_was_intended_is_not_done_long_after_its_time(folder: Path, clock: FakeClock) -> None:
    life = Life(folder, clock)
    await life.departures.intend(new_id("cmd"), Means.REBOOT, timeout=30, result={})
    await life.end()
    clock.now_ms += 30_000
    after = Life(folder, clock)
    after.begin()
    assert not after.departures.is_leaving
    await after.end()


async def test_nothing_else_is_begun_on_a_machine_that_is_about_to_go(folder: Path, clock: FakeClock) -> None:
    life = Life(folder, clock)
    async with life.machine.lane("node.reboot") as lane:
        await life.departures.intend(new_id("cmd"), Means.REBOOT, timeout=60, result={}, lane=lane)
    waiting = asyncio.create_task(_take_lane(life))
    await asyncio.wait_for(life.stopped.wait(), 5)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await life.end()


async def test_a_reboot_waits_for_what_is_under_way_unless_it_is_forced(folder: Path, clock: FakeClock) -> None:
    life = Life(folder, clock)
    async with life.machine.lane("task.run"):
        life.executor.command(reboot())
        await until(lambda: len(life.executor.held()) == 1)
        await asyncio.sleep(0.05)
        assert not life.departures.is_leaving
        life.executor.command(reboot(force=True))
        await asyncio.wait_for(life.stopped.wait(), 5)
    with pytest.raises(_MachineIsGone):
        await life.departures.go()
    assert life.gone[0].force
    await life.end()


async def test_a_record_that_cannot_be_written_keeps_the_machine(folder: Path, clock: FakeClock) -> None:
    life = Life(folder, clock)
    (folder / "departure.json").mkdir()
    with pytest.raises(OperationError, match="nothing was done") as failure:
        await life.departures.intend(new_id("cmd"), Means.REBOOT, timeout=60, result={})
    assert failure.value.code is ErrorCode.NOT_APPLIED
    assert not life.departures.is_leaving
    await life.end()


def test_faults_of_a_reboot_are_told_before_it_is_taken_in(folder: Path) -> None:
    machine = OwnMachine.__new__(OwnMachine)
    issues = Reboot(machine).faults({"forced": True, "targetNodeId": 3})
    assert [issue.path for issue in issues] == ["payload.forced", "payload.targetNodeId"]


def _deadline(clock: FakeClock):  # type: ignore[no-untyped-def]
    from agent.live_command import new_deadline

    return new_deadline(clock, 60_000)


async def _take_lane(life: Life) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(life.machine.lane("deploy.writeImage"))
        raise AssertionError("the lane was free")
