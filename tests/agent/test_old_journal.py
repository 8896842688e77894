"""A journal that knows less than the control plane: a full disk, a host that was set back to a snapshot."""

import asyncio
import shutil
from pathlib import Path

import pytest

from agent.errors import JournalError
from protocol.commands import JournalState, Outcome
from protocol.frames import Command
from tests.agent.counting_driver import Machines
from tests.agent.rig import Agent, FakeClock, getting, setting, until


def outcome(agent: Agent, command: Command) -> Outcome | None:
    live = agent.executor._live.get(command.id)
    return None if live is None or live.ending is None else live.ending.outcome


@pytest.fixture
def busy(machines: Machines) -> Machines:
    """A machine whose lane the first command holds."""
    machines.gates["m1"], machines.entered["m1"] = asyncio.Event(), asyncio.Event()
    return machines


async def test_a_cancelled_command_whose_ending_the_full_disk_refused_is_not_done_by_the_next_process(
    folder: Path, clock: FakeClock, busy: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(folder, clock)
    first, second = setting("on"), setting("reset")
    agent.executor.command(first)
    await busy.entered["m1"].wait()
    agent.executor.command(second)
    await until(lambda: agent.journal.get(second.id) is not None)

    async def full(*_: object) -> None:
        raise JournalError("the disk is full")

    monkeypatch.setattr(agent.journal, "finish", full)
    monkeypatch.setattr(agent.journal, "forget", full)
    agent.executor.cancel(second.id, "changed my mind")
    await until(lambda: outcome(agent, second) is Outcome.CANCELLED)
    # The control plane has the ending; the disk still says that the command was accepted.
    agent.executor.settled([second.id])
    await agent.kill()

    busy.gates["m1"].set()
    successor = Agent(folder, clock)
    assert JournalState.ACCEPTED in {held.state for held in successor.executor.held() if held.id == second.id}
    witness = getting("m1")
    successor.executor.command(witness)
    await until(lambda: outcome(successor, witness) is Outcome.SUCCEEDED)
    # The hello names it, and the control plane, which knows its ending, has it forgotten.
    successor.executor.settled([second.id])
    await until(lambda: second.id not in {held.id for held in successor.executor.held()})
    await until(lambda: successor.journal.get(second.id) is None)
    await successor.kill()
    assert "m1 reset" not in busy.acts


async def test_an_accepted_command_of_an_earlier_process_waits_for_the_control_planes_word(
    folder: Path, clock: FakeClock, busy: Machines
) -> None:
    agent = Agent(folder, clock)
    first, second = setting("on"), setting("reset")
    agent.executor.command(first)
    await busy.entered["m1"].wait()
    agent.executor.command(second)
    await until(lambda: agent.journal.get(second.id) is not None)
    await agent.kill()

    busy.gates["m1"].set()
    successor = Agent(folder, clock)
    witness = getting("m1")
    successor.executor.command(witness)
    await until(lambda: outcome(successor, witness) is Outcome.SUCCEEDED)
    assert "m1 reset" not in busy.acts
    successor.executor.command(second)
    await until(lambda: outcome(successor, second) is Outcome.SUCCEEDED)
    await successor.kill()
    assert busy.acts["m1 reset"] == 1


async def test_a_journal_set_back_to_before_the_deed_does_not_do_it_again_by_itself(
    folder: Path, clock: FakeClock, busy: Machines, tmp_path: Path
) -> None:
    agent = Agent(folder, clock)
    first, second = setting("on"), setting("reset")
    agent.executor.command(first)
    await busy.entered["m1"].wait()
    agent.executor.command(second)
    await until(lambda: agent.journal.get(second.id) is not None)
    snapshot = tmp_path / "snapshot"
    shutil.copytree(folder, snapshot)
    busy.gates["m1"].set()
    await until(lambda: outcome(agent, second) is Outcome.SUCCEEDED)
    await agent.kill()

    restored = Agent(snapshot, clock)
    witness = getting("m1")
    restored.executor.command(witness)
    await until(lambda: outcome(restored, witness) is Outcome.SUCCEEDED)
    assert {held.id: held.state for held in restored.executor.held()}[second.id] is JournalState.ACCEPTED
    restored.executor.settled([second.id])
    await until(lambda: second.id not in {held.id for held in restored.executor.held()})
    await restored.kill()
    assert busy.acts["m1 reset"] == 1
