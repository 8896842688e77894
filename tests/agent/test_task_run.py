"""`task.run`: real scripts, their exit codes, their output, their time, and what is left of them after a crash."""

import asyncio
import os
from pathlib import Path

import pytest

from agent.departure import Departures, Means
from agent.handlers import CURRENT_COMMAND, Answer
from agent.own_machine import OwnMachine
from agent.task_run import BoundedOutput, TaskRunner, end_left_over
from drivers import Drivers
from drivers.linux.host import Host
from protocol.commands import Ending, Outcome
from protocol.errors import ErrorCode, OperationError
from protocol.ids import new_id
from protocol.shapes.machine import TaskExit, TaskOutcome, task_exit
from tests.agent.rig import FakeClock, until


@pytest.fixture
def machine(folder: Path, clock: FakeClock) -> OwnMachine:
    async def told(_command: str, _seconds: float) -> bool:
        return True

    departures = Departures(folder / "departure.json", clock, told=told, stop=lambda: None)
    for means in (Means.REBOOT, Means.POWER_OFF):
        departures.ways[means] = _stay
    return OwnMachine(Drivers(), departures, folder)


async def _stay(_departure: object) -> None:
    return None


async def run(machine: OwnMachine, script: str, seconds: float = 20.0, **more: object) -> Answer:
    said = more.pop("said", [])
    assert isinstance(said, list)
    CURRENT_COMMAND.set(str(more.pop("command", "cmd_1")))
    handler = TaskRunner(machine)
    payload = {"script": script, "targetNodeId": "node_1", **more}
    assert handler.faults(payload) == []
    async with handler.turn(payload) as work:
        return await work.run(seconds, lambda message, _percent: said.append(message))


async def failure_of(machine: OwnMachine, script: str, seconds: float = 20.0, **more: object) -> OperationError:
    with pytest.raises(OperationError) as failure:
        await run(machine, script, seconds, **more)
    return failure.value


@pytest.mark.parametrize(
    ("code", "outcome", "then"),
    [
        (0, TaskOutcome.COMPLETE, None),
        (16, TaskOutcome.STOP, None),
        (32, TaskOutcome.COMPLETE, "poweroff"),
        (64, TaskOutcome.COMPLETE, "reboot"),
        (128, TaskOutcome.INCOMPLETE, None),
        (144, TaskOutcome.INCOMPLETE, None),
        (160, TaskOutcome.INCOMPLETE, "poweroff"),
        (192, TaskOutcome.INCOMPLETE, "reboot"),
    ],
)
def test_exit_codes_say_what_is_wanted_next(code: int, outcome: TaskOutcome, then: str | None) -> None:
    assert task_exit(code) == TaskExit(outcome, then)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [1, 2, 17, 48, 96, 126, 127, 129, 137, 224, 255, -9, -15, -64])
def test_every_other_exit_code_and_every_signal_is_a_failure(code: int) -> None:
    assert task_exit(code) is None


async def test_a_script_runs_with_its_arguments_and_environment_and_its_output_is_kept(machine: OwnMachine) -> None:
    said: list[str] = []
    answer = await run(
        machine,
        "echo $GREETING $1; echo $RACKWRIGHT_NODE >&2; cat; echo done",
        arguments=["two words"],
        environment={"GREETING": "hello"},
        said=said,
    )
    assert answer.result["output"] == "hello two words\nnode_1\ndone\n"
    assert (answer.result["exitCode"], answer.result["outcome"], answer.result["then"]) == (0, "complete", None)
    assert said[-1] == "done"


async def test_nothing_of_the_agents_own_environment_reaches_a_script(
    machine: OwnMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VAULT_KEY", "s3cret")
    answer = await run(machine, "env")
    assert "s3cret" not in str(answer.result["output"])


async def test_the_first_line_names_the_interpreter(machine: OwnMachine) -> None:
    answer = await run(machine, "#!/usr/bin/env python3\nprint(6 * 7)")
    assert answer.result["output"] == "42\n"


async def test_a_script_that_fails_says_how_and_its_last_words(machine: OwnMachine) -> None:
    error = await failure_of(machine, "echo working; echo no such disk >&2; exit 3")
    assert error.code is ErrorCode.NOT_APPLIED
    assert error.message == "the script ended with exit code 3: no such disk"
    assert error.details == {"exitCode": 3, "output": "working\nno such disk\n", "omittedBytes": 0}


async def test_a_script_that_was_killed_says_by_what(machine: OwnMachine) -> None:
    assert "was ended by signal 9" in (await failure_of(machine, "kill -9 $$")).message


async def test_a_script_that_cannot_be_started_says_so(machine: OwnMachine) -> None:
    error = await failure_of(machine, "true", interpreter="/no/such/shell")
    assert error.code is ErrorCode.INVALID_ARGUMENT
    assert "/no/such/shell" in error.message


async def test_a_script_that_takes_too_long_is_ended_with_all_that_it_started(machine: OwnMachine) -> None:
    error = await failure_of(machine, "sleep 1000 & echo begun; sleep 1000", timeout="300ms", command="cmd_slow")
    assert error.code is ErrorCode.TIMEOUT
    assert error.details["output"] == "begun\n"
    assert await end_left_over(Host(), "cmd_slow") == 0


async def test_a_cancelled_script_is_ended(machine: OwnMachine) -> None:
    said: list[str] = []
    task = asyncio.create_task(run(machine, "trap '' TERM; echo begun; sleep 1000", said=said, command="cmd_c"))
    await until(lambda: said == ["begun"])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert await end_left_over(Host(), "cmd_c") == 0


async def test_what_a_script_leaves_in_the_background_does_not_hold_its_command(machine: OwnMachine) -> None:
    answer = await run(machine, "sleep 1000 & echo done", command="cmd_background")
    assert answer.result["output"] == "done\n"
    assert await end_left_over(Host(), "cmd_background") == 1


async def test_much_output_is_bounded_and_says_what_was_left_out(machine: OwnMachine) -> None:
    answer = await run(machine, "echo first; seq 1 100000; echo last")
    output = str(answer.result["output"])
    assert len(output) < 80_000
    assert output.startswith("first\n1\n2\n")
    assert output.endswith("100000\nlast\n")
    assert f"[… {answer.result['omittedBytes']} bytes left out …]" in output


def test_the_end_that_is_kept_is_exact_however_the_pieces_come() -> None:
    whole = bytes(range(48, 90)) * 50
    for size in (1, 7, 64, 5000):
        output = BoundedOutput(head=10, tail=30)
        for place in range(0, len(whole), size):
            output.add(whole[place : place + size])
        assert output.omitted == len(whole) - 40
        assert output.text().encode().startswith(whole[:10])
        assert output.text().encode().endswith(whole[-30:])


async def test_a_reboot_that_a_script_asks_for_comes_after_its_result(machine: OwnMachine) -> None:
    command = new_id("cmd")
    answer = await run(machine, "exit 192", command=command)
    assert (answer.result["outcome"], answer.result["then"]) == ("incomplete", "reboot")
    assert machine.departures.is_leaving
    assert machine.departures.ending_of(command) == Ending(Outcome.SUCCEEDED, result=answer.result)
    await machine.departures.aclose()


async def test_a_restarted_agent_ends_what_is_left_and_calls_the_task_interrupted(machine: OwnMachine) -> None:
    marked = {**os.environ, "RACKWRIGHT_COMMAND": "cmd_crash"}
    orphan = await asyncio.create_subprocess_exec("/bin/sleep", "1000", env=marked)
    CURRENT_COMMAND.set("cmd_crash")
    async with TaskRunner(machine).turn({"script": "sleep 1000"}) as work:
        ending = await work.observe(5.0)
    assert await orphan.wait() == -9
    assert ending.error is not None
    assert (ending.outcome, ending.error.code) == (Outcome.FAILED, "INTERRUPTED")
    assert "1 of its processes" in ending.error.message


async def test_the_script_is_gone_from_the_disk_afterwards(machine: OwnMachine, folder: Path) -> None:
    await run(machine, "true")
    assert list((folder / "tasks").iterdir()) == []


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({}, "payload.script"),
        ({"script": ""}, "payload.script"),
        ({"script": "x", "interpreter": "sh"}, "payload.interpreter"),
        ({"script": "x", "environment": {"A B": "c"}}, "payload"),
        ({"script": "x", "timeout": "soon"}, "payload.timeout"),
        ({"script": "x", "scrpt": "y"}, "payload.scrpt"),
    ],
)
def test_faults_of_a_task_are_told_before_it_is_taken_in(
    machine: OwnMachine, payload: dict[str, object], path: str
) -> None:
    assert next(issue.path for issue in TaskRunner(machine).faults(payload)).startswith(path)
