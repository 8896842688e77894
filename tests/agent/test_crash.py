"""Whatever happens, and wherever: an act is done at most once, and its ending is never lost and never silent."""

import asyncio
from pathlib import Path

import pytest

from protocol.commands import Ending, Outcome
from protocol.errors import ErrorCode
from protocol.frames import Command
from tests.agent.counting_driver import Machines
from tests.agent.points import Points
from tests.agent.rig import Agent, Asked, FakeClock, Ledger, setting, until

FAULTS = ("cut", "duplicate", "swap")


async def live(folder: Path, clock: FakeClock, ledger: Ledger, kill_at: int = 0, **faults: int) -> Points:
    """One life of the agent, connecting again after a cut, until all is settled and forgotten or it is killed."""
    points = Points(kill_at)
    agent = Agent(folder, clock, points)
    dead = asyncio.create_task(points.dead.wait())
    try:
        wire, session = agent.connect(ledger, **faults)
        frames = 0
        while not points.dead.is_set():
            done = asyncio.create_task(_all_gone(agent, ledger))
            await asyncio.wait((dead, done, session), return_when=asyncio.FIRST_COMPLETED)
            frames = max(frames, wire.frames)
            if done.done() or points.dead.is_set():
                done.cancel()
                break
            done.cancel()
            wire, session = agent.connect(ledger)
        points.passed += [] if points.dead.is_set() else [f"frame {number}" for number in range(frames)]
        return points
    finally:
        dead.cancel()
        await agent.kill()


async def _all_gone(agent: Agent, ledger: Ledger) -> None:
    await ledger.settled.wait()
    await until(lambda: not agent.executor.held() and not agent.executor._background)


def judge(row: Asked, acts: int, where: str) -> None:
    assert acts <= 1, f"{where}: done {acts} times"
    assert row.ending is not None, f"{where}: no ending"
    assert all(ending == row.ending for ending in row.endings), f"{where}: two endings"
    assert not row.given_up, f"{where}: the journal lost a command that it had acknowledged"
    if row.ending.outcome is Outcome.SUCCEEDED:
        assert acts == 1, f"{where}: reported done, and was not"
    else:
        assert row.ending.error is not None
        assert row.ending.error.code == ErrorCode.OUTCOME_UNKNOWN, f"{where}: {row.ending}"
        assert row.ending.error.details["mayHaveHappened"] is True


async def replayed_after(folder: Path, clock: FakeClock, command: Command) -> Ending:
    """The same frame once more, to a later life of the agent."""
    ledger = Ledger()
    row = ledger.ask(command)
    await live(folder, clock, ledger)
    assert row.ending is not None
    return row.ending


async def test_a_kill_at_any_point_neither_repeats_a_reset_nor_loses_its_ending(
    tmp_path: Path, clock: FakeClock, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    killed: list[str] = []
    unknown: list[str] = []
    while True:
        number = len(killed) + 1
        machines.clear()
        folder = tmp_path / str(number)
        folder.mkdir()
        ledger = Ledger()
        command = setting("reset")
        row = ledger.ask(command)
        points = await live(folder, clock, ledger, kill_at=number)
        if not points.dead.is_set():
            break
        where = f"killed at {number} ({points.passed[-1]})"
        killed.append(points.passed[-1])
        await live(folder, clock, ledger)
        judge(row, machines.acts["m1 reset"], where)
        if row.ending is not None and row.ending.outcome is not Outcome.SUCCEEDED:
            unknown.append(points.passed[-1])
        acts = machines.acts["m1 reset"]
        assert await replayed_after(folder, clock, command) == row.ending, where
        assert machines.acts["m1 reset"] == acts, f"{where}: the replayed id was done again"
    with capsys.disabled():
        print(  # noqa: T201
            f"\n  {len(killed)} kill points, {len(unknown)} of them end as OUTCOME_UNKNOWN: {', '.join(unknown)}"
        )
    assert {"before accept", "after accept", "before start", "after start", "before the act", "after the act"} < {
        *killed
    }
    assert {"before finish", "after finish", "before forget", "after forget"} < {*killed}
    # Only a process that dies between `started` and its ending leaves a doubt.
    assert set(unknown) <= {
        "after start",
        "before the act",
        "after the act",
        "before sending Accepted",
        "after sending Accepted",
        "before sending Started",
        "after sending Started",
        "before finish",
        "after receiving a frame",
    }


async def test_two_kills_at_any_two_points_are_no_worse_than_one(
    tmp_path: Path, clock: FakeClock, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = 0
    first = 0
    first_reached = True
    while first_reached:
        first += 1
        second = 0
        while True:
            second += 1
            machines.clear()
            folder = tmp_path / f"{first}-{second}"
            folder.mkdir()
            ledger = Ledger()
            row = ledger.ask(setting("reset"))
            first_reached = (await live(folder, clock, ledger, kill_at=first)).dead.is_set()
            second_reached = (await live(folder, clock, ledger, kill_at=second)).dead.is_set()
            await live(folder, clock, ledger)
            judge(row, machines.acts["m1 reset"], f"killed at {first} and then at {second}")
            pairs += 1
            if not second_reached:
                break
    with capsys.disabled():
        print(  # noqa: T201
            f"\n  {pairs} pairs of kill points"
        )
    assert pairs > 100


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_at_any_frame_neither_repeats_a_reset_nor_loses_its_ending(
    fault: str, tmp_path: Path, clock: FakeClock, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    number = frames = 0
    while number <= frames:
        number += 1
        machines.clear()
        folder = tmp_path / str(number)
        folder.mkdir()
        ledger = Ledger()
        row = ledger.ask(setting("reset"))
        points = await live(folder, clock, ledger, **{fault: number})
        frames = max(frames, sum(name.startswith("frame ") for name in points.passed))
        judge(row, machines.acts["m1 reset"], f"{fault} of frame {number}")
        assert machines.acts["m1 reset"] == 1, "without a crash there is no doubt"
    with capsys.disabled():
        print(  # noqa: T201
            f"\n  {fault}: {number} frames"
        )
    assert frames >= 5


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_kill_at_any_point_beside_a_fault_at_any_frame(
    fault: str, tmp_path: Path, clock: FakeClock, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = 0
    for frame in range(1, 9):
        kill_at = 0
        while True:
            kill_at += 1
            machines.clear()
            folder = tmp_path / f"{frame}-{kill_at}"
            folder.mkdir()
            ledger = Ledger()
            row = ledger.ask(setting("reset"))
            killed = (await live(folder, clock, ledger, kill_at=kill_at, **{fault: frame})).dead.is_set()
            await live(folder, clock, ledger, **{fault: frame})
            judge(row, machines.acts["m1 reset"], f"{fault} of frame {frame}, killed at {kill_at}")
            pairs += 1
            if not killed:
                break
    with capsys.disabled():
        print(  # noqa: T201
            f"\n  {fault}: {pairs} pairs with a kill"
        )
    assert pairs > 50


async def test_a_kill_at_any_point_of_a_converging_change_ends_with_the_state_that_was_asked(
    tmp_path: Path, clock: FakeClock, machines: Machines
) -> None:
    number = 0
    while True:
        number += 1
        machines.clear()
        folder = tmp_path / str(number)
        folder.mkdir()
        ledger = Ledger()
        row = ledger.ask(setting("off"))
        killed = (await live(folder, clock, ledger, kill_at=number)).dead.is_set()
        if not killed:
            break
        await live(folder, clock, ledger)
        assert row.ending is not None
        assert row.ending.outcome is Outcome.SUCCEEDED
        assert machines.power["m1"] == "off"
    assert number > 15
