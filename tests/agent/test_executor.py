"""The executor's promises while the process lives: order, lanes, deadlines, cancels, limits, repeated ids."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from agent.live_command import new_deadline
from agent.reports import Reports
from protocol.commands import Ending, JournalState, Outcome
from protocol.errors import ErrorCode
from protocol.frames import MAX_FRAME_BYTES, AgentFrame, Command, Finished, Progress, Started, encode
from protocol.ids import new_id
from protocol.shapes.power import PowerState
from tests.agent.counting_driver import Machines, refused
from tests.agent.rig import Agent, FakeClock, getting, invoke, setting, until


class Desk:
    """An agent whose frames a test hands in and takes out by itself."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.executor = agent.executor
        self.frames: list[AgentFrame] = []
        self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        while True:
            await self.executor.reports.wait()
            while (frame := self.executor.reports.take()) is not None:
                self.frames.append(frame)

    def kinds(self, command: Command) -> list[str]:
        return [type(frame).__name__ for frame in self.frames if getattr(frame, "id", "") == command.id]

    def endings(self, command: Command) -> list[Ending]:
        return [frame.ending for frame in self.frames if isinstance(frame, Finished) and frame.id == command.id]

    async def ending(self, command: Command) -> Ending:
        await until(lambda: bool(self.endings(command)))
        return self.endings(command)[-1]

    async def close(self) -> None:
        self._telling.cancel()
        await asyncio.gather(self._telling, return_exceptions=True)
        await self.agent.kill()


@contextlib.asynccontextmanager
async def desk(folder: Path, clock: FakeClock, **limits: int) -> AsyncIterator[Desk]:
    opened = Desk(Agent(folder, clock, None, **limits))
    try:
        yield opened
    finally:
        await opened.close()


def held_at(machines: Machines, host: str) -> asyncio.Event:
    """The machine does not answer until the event is set."""
    machines.entered[host] = asyncio.Event()
    gate = machines.gates[host] = asyncio.Event()
    return gate


def code_of(ending: Ending) -> str:
    assert ending.error is not None
    return ending.error.code


async def test_a_change_is_durable_at_each_step_before_it_is_told(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        gate = held_at(machines, "m1")
        command = setting("reset")
        d.executor.command(command)
        await machines.entered["m1"].wait()
        entry = d.agent.journal.get(command.id)
        assert entry is not None
        assert entry.state is JournalState.STARTED
        gate.set()
        ending = await d.ending(command)
        entry = d.agent.journal.get(command.id)
        assert entry is not None
        assert entry.ending == ending
        assert ending.outcome is Outcome.SUCCEEDED
        assert ending.result == {"state": "on", "changed": True, "verbUsed": "X", "forced": False}


@pytest.mark.case("B49")
async def test_a_repeated_id_is_answered_at_every_stage_and_done_once(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        gate = held_at(machines, "m1")
        command = setting("reset")
        d.executor.command(command)
        d.executor.command(command)
        await machines.entered["m1"].wait()
        before = len(d.kinds(command))
        d.executor.command(command)
        await until(lambda: len(d.kinds(command)) > before)
        assert d.kinds(command)[-1] == "Started"
        gate.set()
        first = await d.ending(command)
        d.executor.command(command)
        await until(lambda: len(d.endings(command)) == 2)
        assert d.endings(command) == [first, first]
        assert machines.acts["m1 reset"] == 1


@pytest.mark.case("B49")
async def test_an_id_that_was_settled_long_ago_is_answered_with_its_old_ending(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        command = setting("reset")
        d.executor.command(command)
        first = await d.ending(command)
        d.executor.settled([command.id])
        assert d.executor.held() == []
        d.executor.command(command)
        await until(lambda: len(d.endings(command)) == 2)
        assert d.endings(command)[1] == first
        # Also when the frame would be refused today.
        d.executor.settled([command.id])
        late = Command(id=command.id, kind=command.kind, payload=command.payload, remaining_ms=-5)
        d.executor.command(late)
        await until(lambda: len(d.endings(command)) == 3)
        assert d.endings(command)[2] == first
        assert machines.acts["m1 reset"] == 1


async def test_a_refused_id_stays_refused_after_it_was_settled(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        command = setting("reset")
        expired = Command(id=command.id, kind=command.kind, payload=command.payload, remaining_ms=0)
        d.executor.command(expired)
        first = await d.ending(command)
        assert first.outcome is Outcome.EXPIRED
        d.executor.settled([command.id])
        d.executor.command(command)
        await until(lambda: len(d.endings(command)) == 2)
        assert d.endings(command)[1] == first
        assert not machines.acts


@pytest.mark.case("B49")
async def test_a_read_touches_no_disk_and_is_not_read_again_until_it_is_settled(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        command = getting()
        d.executor.command(command)
        ending = await d.ending(command)
        assert ending.result == {"state": "on", "raw": "On"}
        assert d.kinds(command)[-1] == "Finished"
        d.executor.command(command)
        await until(lambda: len(d.endings(command)) == 2)
        d.executor.settled([command.id])
        assert d.executor.held() == []
        assert d.agent.journal.commits == 0
        assert d.agent.journal.held() == []
        assert machines.reads["m1"] == 1


async def test_a_busy_machine_holds_up_no_other(folder: Path, clock: FakeClock, machines: Machines) -> None:
    async with desk(folder, clock, running=4) as d:
        gate = held_at(machines, "busy")
        waiting = [setting("reset", "busy") for _ in range(20)]
        for command in waiting:
            d.executor.command(command)
        await machines.entered["busy"].wait()
        others = [setting("reset", f"m{number}") for number in range(30)]
        for command in others:
            d.executor.command(command)
        for command in others:
            assert (await d.ending(command)).outcome is Outcome.SUCCEEDED
        assert machines.acts["busy reset"] == 1
        read = getting("busy")
        gate.set()
        d.executor.command(read)
        for command in waiting:
            assert (await d.ending(command)).outcome is Outcome.SUCCEEDED
        assert machines.acts["busy reset"] == 20


async def test_changes_of_one_machine_are_done_in_the_order_they_came(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        commands = [setting("on" if number % 2 else "off") for number in range(21)]
        for command in commands:
            d.executor.command(command)
        for command in commands:
            await d.ending(command)
        order = [frame.id for frame in d.frames if isinstance(frame, Finished)]
        assert order == [command.id for command in commands]
        assert machines.power["m1"] is PowerState.OFF


async def test_a_command_whose_time_runs_out_in_the_queue_is_expired_and_not_done(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        gate = held_at(machines, "m1")
        first, late = setting("reset"), setting("cycle", remaining_ms=30)
        d.executor.command(first)
        await machines.entered["m1"].wait()
        d.executor.command(late)
        ending = await d.ending(late)
        assert ending.outcome is Outcome.EXPIRED
        gate.set()
        await d.ending(first)
        assert machines.acts["m1 cycle"] == 0


async def test_time_that_passed_while_the_machine_slept_counts(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        gate = held_at(machines, "m1")
        first, second = setting("reset"), setting("cycle", remaining_ms=60_000)
        d.executor.command(first)
        await machines.entered["m1"].wait()
        d.executor.command(second)
        await until(lambda: "Accepted" in d.kinds(second))
        clock.now_ms += 61_000
        gate.set()
        assert (await d.ending(second)).outcome is Outcome.EXPIRED
        assert machines.acts["m1 cycle"] == 0


async def test_a_cancel_before_the_start_is_provably_not_done(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        gate = held_at(machines, "m1")
        first, second = setting("reset"), setting("cycle")
        d.executor.command(first)
        await machines.entered["m1"].wait()
        d.executor.command(second)
        await until(lambda: "Accepted" in d.kinds(second))
        d.executor.cancel(second.id, "an operator asked")
        ending = await d.ending(second)
        assert ending.outcome is Outcome.CANCELLED
        assert ending.error is not None
        assert ending.error.details == {"mayHaveHappened": False}
        assert "an operator asked" in ending.error.message
        gate.set()
        await d.ending(first)
        assert machines.acts["m1 cycle"] == 0


@pytest.mark.parametrize("moments", range(12))
async def test_a_cancel_at_any_moment_gives_one_ending_that_tells_the_truth(
    moments: int, folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        command = setting("reset")
        held_at(machines, "m1")
        d.executor.command(command)
        for _ in range(moments):
            await asyncio.sleep(0)
        if moments == 11:
            await machines.entered["m1"].wait()
        d.executor.cancel(command.id, "")
        ending = await d.ending(command)
        assert ending.outcome is Outcome.CANCELLED
        assert ending.error is not None
        acts = machines.acts["m1 reset"]
        assert acts == 0 or ending.error.details == {"mayHaveHappened": True}
        entry = d.agent.journal.get(command.id)
        assert entry is not None
        assert entry.ending == ending
        assert len(set(map(repr, d.endings(command)))) == 1


async def test_a_cancelled_read_changed_nothing(folder: Path, clock: FakeClock, machines: Machines) -> None:
    async with desk(folder, clock) as d:
        held_at(machines, "m1")
        command = getting()
        d.executor.command(command)
        await machines.entered["m1"].wait()
        d.executor.cancel(command.id, "")
        ending = await d.ending(command)
        assert ending.error is not None
        assert ending.error.details == {"mayHaveHappened": False}


async def test_a_cancel_that_overtakes_its_command_still_stops_it(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        command = setting("reset")
        d.executor.cancel(command.id, "too late")
        d.executor.command(command)
        assert (await d.ending(command)).outcome is Outcome.CANCELLED
        assert not machines.acts


async def test_a_cancel_of_an_ended_or_unknown_command_changes_nothing(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        command = setting("reset")
        d.executor.command(command)
        first = await d.ending(command)
        d.executor.cancel(command.id, "late")
        d.executor.cancel("cmd_none", "")
        await until(lambda: len(d.endings(command)) == 2)
        assert d.endings(command) == [first, first]


async def test_a_command_that_the_control_plane_wants_no_more_is_not_begun(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        gate = held_at(machines, "m1")
        first, second = setting("reset"), setting("cycle")
        d.executor.command(first)
        await machines.entered["m1"].wait()
        d.executor.command(second)
        await until(lambda: "Accepted" in d.kinds(second))
        d.executor.settled([first.id, second.id])
        gate.set()
        await until(lambda: not d.executor.held())
        assert machines.acts == {"m1 reset": 1}
        assert d.endings(first) == []
        assert d.endings(second) == []
        await until(lambda: not d.agent.journal.held())


@pytest.mark.parametrize(
    ("kind", "payload", "said"),
    [
        ("boot.kexec", {}, "role site, does not do 'boot.kexec'; it does driver.invoke, agent.collectLogs"),
        ("dance", {}, "does not do 'dance'"),
        ("driver.invoke", {}, "payload.driver: is required; payload.concern: is required"),
        ("agent.collectLogs", {"lines": 0, "x": 1}, "payload.x: is not known here"),
    ],
)
async def test_what_cannot_be_done_is_rejected_with_every_fault(
    kind: str, payload: dict[str, object], said: str, folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        command = Command(id=new_id("cmd"), kind=kind, payload=payload, remaining_ms=1000)
        d.executor.command(command)
        ending = await d.ending(command)
        assert ending.outcome is Outcome.REJECTED
        assert code_of(ending) == "INVALID_ARGUMENT"
        assert ending.error is not None
        assert said in ending.error.message
        assert d.agent.journal.held() == []


async def test_a_wrong_argument_type_and_an_unknown_one_are_both_told(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        command = invoke("power", "setPower", {"action": "resett", "wiat": True})
        d.executor.command(command)
        ending = await d.ending(command)
        assert ending.error is not None
        assert "did you mean 'reset'" in ending.error.message
        assert "did you mean 'wait'" in ending.error.message


async def test_a_failure_keeps_its_cause(folder: Path, clock: FakeClock, machines: Machines) -> None:
    async with desk(folder, clock) as d:
        machines.fails["m1"] = refused(ErrorCode.BMC_ERROR, "the BMC is on fire")
        command = setting("reset")
        d.executor.command(command)
        ending = await d.ending(command)
        assert (ending.outcome, code_of(ending)) == (Outcome.FAILED, "BMC_ERROR")


async def test_an_unknown_credential_is_a_failure_that_says_what_to_run(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        command = setting("reset")
        target = {"address": "simulated://m1", "credentialRef": "site1/bmc/rack4"}
        d.executor.command(
            Command(
                id=command.id, kind=command.kind, payload={**command.payload, "target": target}, remaining_ms=9000
            )
        )
        ending = await d.ending(command)
        assert (ending.outcome, code_of(ending)) == (Outcome.FAILED, "INVALID_ARGUMENT")
        assert ending.error is not None
        assert "run rackwright agent credentials set site1/bmc/rack4 on " in ending.error.message
        assert not machines.acts


async def test_progress_is_thinned_and_never_journalled(folder: Path, clock: FakeClock, machines: Machines) -> None:
    async with desk(folder, clock) as d:
        command = setting("reset")
        for _ in range(50):
            d.executor.reports.progress(command.id, "busy", 1.0)
        await until(lambda: any(isinstance(frame, Progress) for frame in d.frames))
        assert len([frame for frame in d.frames if isinstance(frame, Progress)]) == 1
        assert d.agent.journal.commits == 0


async def test_progress_repeats_no_secret_also_where_it_is_cut_off() -> None:
    reports = Reports(lambda _id: None, lambda text: text.replace("calvin123", "***"))
    reports.progress("cmd_1", f"{'x' * 995} calvin123", 1.0)
    frame = reports.take()
    assert isinstance(frame, Progress)
    assert frame.message == f"{'x' * 995} ***"
    reports.end_progress("cmd_1")


async def test_a_full_disk_lets_nothing_begin(folder: Path, clock: FakeClock, machines: Machines) -> None:
    async with desk(folder, clock) as d:
        d.agent.journal._connection.execute("PRAGMA max_page_count = 1")
        command = setting("reset")
        padded = {**command.payload, "targetNodeId": "n" * 200_000}
        d.executor.command(Command(id=command.id, kind=command.kind, payload=padded, remaining_ms=60_000))
        ending = await d.ending(command)
        assert (ending.outcome, code_of(ending)) == (Outcome.REJECTED, "BUSY")
        assert ending.error is not None
        assert "free space" in ending.error.message
        assert not machines.acts
        # A read needs no disk.
        read = getting()
        d.executor.command(read)
        assert (await d.ending(read)).outcome is Outcome.SUCCEEDED


async def test_a_start_that_cannot_be_journalled_is_a_failure_before_the_act(
    folder: Path, clock: FakeClock, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent.errors import JournalError

    async def broken(_command_id: str) -> None:
        raise JournalError("the journal cannot be written")

    async with desk(folder, clock) as d:
        monkeypatch.setattr(d.agent.journal, "start", broken)
        command = setting("reset")
        d.executor.command(command)
        ending = await d.ending(command)
        assert (ending.outcome, code_of(ending)) == (Outcome.FAILED, "INTERRUPTED")
        assert not machines.acts


async def test_an_ending_that_cannot_be_journalled_is_told_all_the_same(
    folder: Path, clock: FakeClock, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent.errors import JournalError

    async def broken(_command_id: str, _ending: Ending) -> None:
        raise JournalError("the journal cannot be written")

    async with desk(folder, clock) as d:
        monkeypatch.setattr(d.agent.journal, "finish", broken)
        command = setting("reset")
        d.executor.command(command)
        assert (await d.ending(command)).outcome is Outcome.SUCCEEDED
        assert machines.acts["m1 reset"] == 1


async def test_more_commands_than_the_limit_are_rejected_and_may_come_again(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock, limit=2) as d:
        gate = held_at(machines, "m1")
        commands = [setting("reset") for _ in range(3)]
        for command in commands:
            d.executor.command(command)
        ending = await d.ending(commands[2])
        assert (ending.outcome, code_of(ending)) == (Outcome.REJECTED, "BUSY")
        assert ending.error is not None
        assert ending.error.retryable
        gate.set()
        for command in commands[:2]:
            await d.ending(command)


async def test_an_answer_larger_than_a_frame_is_told_as_that(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        machines.fails["m1"] = refused(ErrorCode.BMC_ERROR, "x" * MAX_FRAME_BYTES)
        command = setting("reset")
        d.executor.command(command)
        ending = await d.ending(command)
        assert code_of(ending) == "BMC_ERROR"
        assert ending.error is not None
        assert "more than the" in ending.error.message
        assert len(encode(Finished(id=command.id, ending=ending))) < MAX_FRAME_BYTES


async def test_logs_are_collected_as_they_were_written(folder: Path, clock: FakeClock, machines: Machines) -> None:
    async with desk(folder, clock) as d:
        command = Command(id=new_id("cmd"), kind="agent.collectLogs", payload={"lines": 2}, remaining_ms=1000)
        d.executor.command(command)
        ending = await d.ending(command)
        assert ending.result is not None
        assert ending.result["lines"] == ["two", "three"]


async def test_a_stop_abandons_what_waits_and_the_next_life_does_it(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    gate = held_at(machines, "m1")
    first, second = setting("reset"), setting("cycle")
    async with desk(folder, clock) as d:
        d.executor.command(first)
        await machines.entered["m1"].wait()
        d.executor.command(second)
        await until(lambda: "Accepted" in d.kinds(second))
        stopping = asyncio.create_task(d.executor.stop(5.0))
        await asyncio.sleep(0)
        gate.set()
        await stopping
        d.executor.command(setting("nmi"))
        assert machines.acts == {"m1 reset": 1}
    async with desk(folder, clock) as d:
        assert (await d.ending(first)).outcome is Outcome.SUCCEEDED
        # The control plane's word, as after each hello: it is still wanted.
        d.executor.command(second)
        assert (await d.ending(second)).outcome is Outcome.SUCCEEDED
    assert machines.acts == {"m1 reset": 1, "m1 cycle": 1}


async def test_a_change_that_outlasts_the_stop_is_settled_by_reading_in_the_next_life(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    gate = held_at(machines, "m1")
    command = setting("reset")
    async with desk(folder, clock) as d:
        d.executor.command(command)
        await machines.entered["m1"].wait()
        await d.executor.stop(0.01)
        assert d.endings(command) == []
    gate.set()
    async with desk(folder, clock) as d:
        assert code_of(await d.ending(command)) == "OUTCOME_UNKNOWN"
    assert machines.acts["m1 reset"] == 1


async def test_after_a_boot_of_the_host_a_command_waits_to_hear_how_much_time_is_left(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    command = setting("reset")
    agent = Agent(folder, clock)
    await agent.journal.accept(command, new_deadline(clock, 60_000))
    await agent.kill()
    clock.reboot()
    async with desk(folder, clock) as d:
        assert [held.state for held in d.executor.held()] == ["accepted"]
        for _ in range(20):
            await asyncio.sleep(0)
        assert not machines.acts
        d.executor.command(command)
        assert (await d.ending(command)).outcome is Outcome.SUCCEEDED
    assert machines.acts["m1 reset"] == 1


@pytest.mark.parametrize("how", ["cancelled", "settled", "too late"])
async def test_a_command_that_waits_to_hear_of_its_time_can_be_ended(
    how: str, folder: Path, clock: FakeClock, machines: Machines
) -> None:
    command = setting("reset")
    agent = Agent(folder, clock)
    await agent.journal.accept(command, new_deadline(clock, 60_000))
    await agent.kill()
    clock.reboot()
    async with desk(folder, clock) as d:
        if how == "cancelled":
            d.executor.cancel(command.id, "")
            assert (await d.ending(command)).outcome is Outcome.CANCELLED
        elif how == "settled":
            d.executor.settled([command.id])
            await until(lambda: not d.executor.held())
        else:
            late = Command(id=command.id, kind=command.kind, payload=command.payload, remaining_ms=-1)
            d.executor.command(late)
            assert (await d.ending(command)).outcome is Outcome.EXPIRED
    assert not machines.acts


async def test_a_started_frame_goes_out_once_and_before_its_ending(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        gate = held_at(machines, "m1")
        command = setting("reset")
        d.executor.command(command)
        await until(lambda: any(isinstance(frame, Started) for frame in d.frames))
        gate.set()
        await d.ending(command)
        kinds = d.kinds(command)
        assert kinds == sorted(kinds, key=["Accepted", "Started", "Progress", "Finished"].index)
        assert kinds.count("Started") == 1


async def test_hundreds_of_changes_at_once_share_their_disk_waits(
    folder: Path, clock: FakeClock, machines: Machines
) -> None:
    async with desk(folder, clock) as d:
        commands = [setting("reset", f"m{number}") for number in range(500)]
        for command in commands:
            d.executor.command(command)
        for command in commands:
            assert (await d.ending(command)).outcome is Outcome.SUCCEEDED
        assert sum(machines.acts.values()) == 500
        assert d.agent.journal.commits < 300, "1,500 writes"


async def test_what_is_due_is_told_before_the_link_closes(folder: Path, clock: FakeClock, machines: Machines) -> None:
    async with desk(folder, clock) as d:
        command = setting("reset")
        d.executor.command(command)
        await until(lambda: [held.state for held in d.executor.held()] == ["finished"])
        await d.executor.reports.drain(10)
        assert d.endings(command)
        await d.executor.reports.drain(10)


@pytest.mark.parametrize(
    ("write", "frame", "acts"), [("accept", "Accepted", 0), ("start", "Started", 0), ("finish", "Finished", 1)]
)
async def test_nothing_is_told_or_done_before_its_write_is_durable(
    write: str,
    frame: str,
    acts: int,
    folder: Path,
    clock: FakeClock,
    machines: Machines,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with desk(folder, clock) as d:
        reached, durable = asyncio.Event(), asyncio.Event()
        real = getattr(d.agent.journal, write)

        async def slow(*arguments: object) -> object:
            reached.set()
            await durable.wait()
            return await real(*arguments)

        monkeypatch.setattr(d.agent.journal, write, slow)
        command = setting("reset")
        d.executor.command(command)
        await reached.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        assert frame not in d.kinds(command)
        assert machines.acts["m1 reset"] == acts
        durable.set()
        await d.ending(command)
        assert machines.acts["m1 reset"] == 1


async def test_the_lane_is_held_until_the_ending_is_durable(
    folder: Path, clock: FakeClock, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(folder, clock) as d:
        reached, durable = asyncio.Event(), asyncio.Event()
        real = d.agent.journal.finish

        async def slow(command_id: str, ending: Ending) -> None:
            reached.set()
            await durable.wait()
            await real(command_id, ending)

        monkeypatch.setattr(d.agent.journal, "finish", slow)
        first, second = setting("off"), setting("on")
        d.executor.command(first)
        d.executor.command(second)
        await reached.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        assert machines.acts == {"m1 off": 1}
        durable.set()
        await d.ending(second)


@pytest.mark.parametrize(("action", "code"), [("reset", "OUTCOME_UNKNOWN"), (None, "INTERRUPTED")])
async def test_work_that_is_cancelled_from_within_does_not_end_in_silence(
    action: str | None, code: str, folder: Path, clock: FakeClock, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def shared_login_was_cancelled(_host: str) -> None:
        raise asyncio.CancelledError

    async with desk(folder, clock) as d:
        monkeypatch.setattr(machines, "gate", shared_login_was_cancelled)
        command = setting(action) if action else getting()
        d.executor.command(command)
        ending = await d.ending(command)
        assert (ending.outcome, code_of(ending)) == (Outcome.FAILED, code)


async def test_a_fault_of_the_agent_itself_is_told_as_one(
    folder: Path, clock: FakeClock, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(folder, clock) as d:
        monkeypatch.setattr(d.agent.bmcs, "target", lambda _invoke: 1 // 0)
        command = setting("reset")
        d.executor.command(command)
        ending = await d.ending(command)
        assert code_of(ending) == "INTERRUPTED"
        assert ending.error is not None
        assert "ZeroDivisionError" in ending.error.message
        assert not machines.acts


async def test_time_that_runs_out_while_the_start_is_written_is_expired_and_not_done(
    folder: Path, clock: FakeClock, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(folder, clock) as d:
        real = d.agent.journal.start

        async def slow(command_id: str) -> None:
            await real(command_id)
            clock.now_ms += 100_000

        monkeypatch.setattr(d.agent.journal, "start", slow)
        command = setting("reset")
        d.executor.command(command)
        assert (await d.ending(command)).outcome is Outcome.EXPIRED
        assert not machines.acts


async def test_what_the_disk_refused_is_written_when_it_recovers(
    folder: Path, clock: FakeClock, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent.errors import JournalError
    from agent.safekeeping import Safekeeping

    journal = Agent(folder, clock).journal
    command, tasks = setting("reset"), []
    await journal.accept(command, new_deadline(clock, 1000))
    safekeeping = Safekeeping(journal, lambda work: tasks.append(asyncio.create_task(work)), retry=0.01)
    done = Ending(Outcome.SUCCEEDED, result={})
    failures = iter([True, True, False])

    def flaky(real: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def write(*arguments: object) -> None:
            if next(failures, False):
                raise JournalError("the disk is full")
            await real(*arguments)

        return write

    monkeypatch.setattr(journal, "finish", flaky(journal.finish))
    await safekeeping.finish(command.id, done)
    await asyncio.gather(*tasks)
    entry = journal.get(command.id)
    assert entry is not None
    assert entry.ending == done
    failures = iter([True, True, False])
    monkeypatch.setattr(journal, "forget", flaky(journal.forget))
    safekeeping.forget([(command.id, done)])
    await asyncio.gather(*tasks)
    assert journal.held() == []
    journal.close()
