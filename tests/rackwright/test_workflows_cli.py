"""`rackwright workflows` and `rackwright doctor`, as they are typed."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from control_plane.config import EngineConfig
from control_plane.engine.records import StepError, WorkflowError
from control_plane.engine.states import Phase, RunsOn, StepState, WorkflowState
from protocol.errors import BmcMessage, Failure, RequestCode, RequestError
from protocol.ids import new_id
from rackwright import workflow_commands
from rackwright.client import Client
from rackwright.workflow_view import window
from tests.control_plane.running import RunningControlPlane
from tests.control_plane.workflow_rows import put_workflow, step
from tests.rackwright.conftest import Shell

FAILURE = Failure("BMC_ERROR", "the BMC refused", bmc=[BmcMessage("Base.1.0.GeneralError", "no such\x1b[31m drive")])
ERROR = StepError(code="COMMAND_FAILED", message="BMC_ERROR: the BMC refused", details=FAILURE)


class Lab:
    """The node n1, whose workflows the tests put into the store."""

    def __init__(self, plane: RunningControlPlane, node_id: str) -> None:
        self.plane = plane
        self.node_id = node_id

    def put(self, state: WorkflowState, *arguments: Any, **changes: Any) -> str:
        found: str = self.write(lambda tx: put_workflow(tx, self.node_id, state, *arguments, **changes))
        return found

    def write(self, work: Callable[[Any], Any]) -> Any:
        return self.plane.run(self.plane.plane.store.write(work))


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[RunningControlPlane]:
    """One whose engine is off: workflows stay as the tests have put them."""
    made = RunningControlPlane(tmp_path / "state")
    made.config = msgspec.structs.replace(made.config, engine=EngineConfig(enabled=False))
    with made as running:
        yield running


@pytest.fixture
def lab(plane: RunningControlPlane, client: Client) -> Lab:
    client.sites.create(name="lab")
    return Lab(plane, client.nodes.create(name="n1", site_id="lab", bmc={"address": "simulated://n1"}).id)


@pytest.mark.line("B10")
def test_b10_every_method_has_its_command_and_the_doctor_too(shell: Shell) -> None:
    for method in ("get", "list", "watch", "abort", "retry", "pause", "resume"):
        assert shell("workflows", method, "--help").code == 0
        assert "NODE" in shell.out
    assert shell("doctor", "--help").code == 0


@pytest.mark.line("B10")
def test_b10_workflows_are_listed_newest_first_and_shown_with_their_steps(shell: Shell, lab: Lab) -> None:
    old = lab.put(WorkflowState.SUCCEEDED)
    new = lab.put(
        WorkflowState.FAILED,
        [step(0, state=StepState.FAILED, error=ERROR, started_at=1, finished_at=65_001)],
        error=WorkflowError(
            code="COMMAND_FAILED", message="step-0 (power.getPower): the BMC refused", details=FAILURE
        ),
    )
    assert shell("workflows", "list", "n1").code == 0, shell.err
    assert [line.split()[0] for line in shell.out.splitlines()] == ["id", new, old]
    assert shell("workflows", "list", lab.node_id, "--limit", "1", "--json").code == 0
    assert [item["id"] for item in json.loads(shell.out)["items"]] == [new]
    assert shell("workflows", "get", "n1").code == 0
    assert f"id        {new}" in shell.out
    assert "the BMC said: Base.1.0.GeneralError: no such\\x1b[31m drive" in shell.out
    assert "1:05" in shell.out
    assert shell("workflows", "get", "n1", old, "--json").code == 0
    assert json.loads(shell.out)["id"] == old


@pytest.mark.line("B10")
def test_b10_the_active_workflow_is_meant_where_none_is_named(shell: Shell, lab: Lab) -> None:
    active = lab.put(WorkflowState.RUNNING)
    lab.put(WorkflowState.SUCCEEDED)
    assert json.loads(shell("workflows", "get", "n1", "--json").out)["id"] == active
    assert shell("workflows", "pause", "n1").code == 0, shell.err
    assert shell.out.startswith(f"{active}: paused")
    assert shell.err == f"pause {active}\n"
    assert shell("workflows", "pause", "n1").code == 3
    assert "no workflow to pause: none is running" in shell.err
    assert shell("workflows", "resume", "n1", active).code == 0
    assert shell("workflows", "abort", "n1", "--reason", "wrong disk", "--json").code == 0
    aborted = json.loads(shell.out)
    assert (aborted["id"], aborted["error"]["message"]) == (active, "wrong disk")
    assert shell.err == f"abort {active}\n"


@pytest.mark.line("B10")
def test_b10_a_retry_takes_the_only_failed_one_and_asks_where_there_are_several(shell: Shell, lab: Lab) -> None:
    rows = [step(0, state=StepState.SUCCEEDED), step(1, state=StepState.FAILED)]
    first = lab.put(WorkflowState.FAILED, rows)
    second = lab.put(WorkflowState.FAILED, rows)
    assert shell("workflows", "retry", "n1").code == 2
    assert first in shell.err
    assert second in shell.err
    assert shell("workflows", "retry", "n1", second, "--from-step", "nothing").code == 2
    assert shell("workflows", "retry", "n1", second, "--from-step", "step-0").code == 0
    assert shell("workflows", "retry", "n1").code == 1
    assert f"retry {first}" in shell.err
    assert "active on the same machine" in shell.err


@pytest.mark.line("B10")
def test_b10_what_is_unknown_is_not_found_and_what_is_wrong_is_usage(shell: Shell, lab: Lab) -> None:
    assert shell("workflows", "list", "n2").code == 3
    assert shell("workflows", "get", "n1").code == 3
    assert "no workflow has ever run on this node" in shell.err
    assert shell("workflows", "get", "n1", new_id("wf")).code == 3
    assert shell("workflows", "get", "n1", "wf_x").code == 2
    assert shell("workflows", "watch", "n1").code == 3


def advance(lab: Lab, workflow_id: str, looks: list[dict[str, str]]) -> Callable[[float], None]:
    """Stands for the passing of time between two looks: each time the next change is made."""
    changes = iter(looks)

    def pause(_seconds: float) -> None:
        change = next(changes)
        lab.write(lambda tx: _change(tx, workflow_id, change))

    return pause


def _change(tx: Any, workflow_id: str, change: dict[str, str]) -> None:
    for seq, state in enumerate(change["steps"].split()):
        tx.run(
            "UPDATE workflow_steps SET state = :state, started_at = :now WHERE workflow_id = :id AND seq = :seq",
            {"state": state, "id": workflow_id, "seq": seq, "now": tx.now()},
        )
    tx.run(
        "UPDATE workflows SET state = :state, finished_at = :finished WHERE id = :id",
        {
            "state": change["state"],
            "id": workflow_id,
            "finished": None if change["state"] == "running" else tx.now(),
        },
    )


LOOKS = [
    {"state": "running", "steps": "waiting pending"},
    {"state": "running", "steps": "succeeded waiting"},
    {"state": "succeeded", "steps": "succeeded succeeded"},
]


def started(lab: Lab, monkeypatch: pytest.MonkeyPatch, looks: list[dict[str, str]] = LOOKS) -> str:
    rows = [step(0), step(1, id="write", action="deploy.writeImage", runs_on=RunsOn.RAMDISK)]
    workflow_id = lab.put(WorkflowState.RUNNING, rows)
    monkeypatch.setattr(workflow_commands, "sleep", advance(lab, workflow_id, looks))
    return workflow_id


@pytest.mark.line("B10")
def test_b10_a_watch_tells_each_change_in_a_line_and_ends_with_the_workflow(
    shell: Shell, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(lab, monkeypatch)
    assert shell("workflows", "watch", "n1").code == 0, shell.err
    lines = [line.partition(" after")[0] for line in shell.out.splitlines()]
    assert lines == [
        "workflow running",
        "main: step-0 (power.getPower on site) waiting",
        "main: step-0 (power.getPower on site) succeeded",
        "main: write (deploy.writeImage on ramdisk) waiting",
        "workflow succeeded",
        "main: write (deploy.writeImage on ramdisk) succeeded",
    ]


@pytest.mark.line("B10")
def test_b10_a_watch_for_scripts_gives_one_json_object_a_line(
    shell: Shell, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow_id = started(lab, monkeypatch)
    assert shell("workflows", "watch", "n1", workflow_id, "--json").code == 0, shell.err
    events = [json.loads(line) for line in shell.out.splitlines()]
    assert [event["event"] for event in events] == ["workflow", "step", "step", "step", "workflow", "step"]
    assert {event["workflowId"] for event in events} == {workflow_id}
    assert [event["state"] for event in events if event.get("stepId") == "write"] == ["waiting", "succeeded"]


@pytest.mark.line("B10")
def test_b10_a_watch_of_a_failure_ends_with_1_and_the_cause_in_the_bmcs_own_words(shell: Shell, lab: Lab) -> None:
    failed = step(0, state=StepState.FAILED, error=ERROR)
    error = WorkflowError(code=ERROR.code, message=f"step-0 (power.getPower): {ERROR.message}", details=FAILURE)
    lab.put(WorkflowState.FAILED, [failed, step(1, phase=Phase.CLEANUP, state=StepState.SKIPPED)], error=error)
    assert shell("workflows", "watch", "n1").code == 1
    assert "the BMC said: Base.1.0.GeneralError: no such\\x1b[31m drive" in shell.out
    assert shell.err.splitlines()[0] == f"COMMAND_FAILED: {error.message}"


@pytest.mark.line("B10")
def test_b10_a_watch_waits_for_a_control_plane_that_is_away(
    shell: Shell, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(lab, monkeypatch)
    real, calls = Client.call, 0

    def sometimes(self: Client, group: str, method: str, request: Any = None) -> dict[str, Any]:
        nonlocal calls
        calls += 1 if (group, method) == ("workflows", "get") else 0
        if calls == 2 and (group, method) == ("workflows", "get"):
            raise RequestError(RequestCode.UNAVAILABLE, "no answer")
        return real(self, group, method, request)

    monkeypatch.setattr(Client, "call", sometimes)
    assert shell("workflows", "watch", "n1").code == 0, shell.err
    assert "no answer; the workflow goes on" in shell.err


@pytest.mark.line("B10")
def test_b10_on_a_terminal_a_watch_shows_a_table_of_the_steps(
    shell: Shell, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    workflow_id = started(lab, monkeypatch)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "150")
    assert shell("workflows", "watch", "n1").code == 0, shell.err
    found = workflow_commands._table(json.loads(shell("workflows", "get", "n1", "--json").out), 20)
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(found)
    text = console.export_text()
    assert text.startswith(f"{workflow_id}: succeeded")
    assert "deploy.writeImage" in text


@pytest.mark.line("B10")
def test_b10_a_table_that_is_higher_than_the_terminal_shows_what_is_around_the_step_under_way(
    shell: Shell, lab: Lab
) -> None:
    states = [StepState.SUCCEEDED] * 300 + [StepState.WAITING] + [StepState.PENDING] * 211
    workflow_id = lab.put(WorkflowState.RUNNING, [step(seq, state=state) for seq, state in enumerate(states)])
    shown = json.loads(shell("workflows", "get", "n1", workflow_id, "--json").out)
    rows = window(shown, 12)
    assert [row[1] for row in rows[1:-1]] == [f"step-{seq}" for seq in range(295, 305)]
    assert (rows[0][0], rows[-1][0]) == ("… 295", "… 207")
    assert len(window(shown, 512)) == 512


@pytest.mark.line("B10")
def test_b10_an_interrupted_watch_says_that_the_workflow_goes_on(
    shell: Shell, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow_id = lab.put(WorkflowState.PAUSED)

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(workflow_commands, "sleep", interrupt)
    assert shell("workflows", "watch", "n1").code == 130
    assert shell.err.rstrip() == f"the workflow goes on: rackwright workflows watch n1 {workflow_id}"


@pytest.mark.line("B10")
def test_b10_the_doctor_ends_with_1_where_something_is_wrong(shell: Shell, lab: Lab) -> None:
    assert shell("doctor").code == 1
    assert "warning  sites-without-agent  site/" in shell.out
    assert "join-tokens create --site lab" in shell.out
    lab.write(lambda tx: tx.run("DELETE FROM nodes"))
    assert shell("doctor", "--json").code == 0
    (found,) = json.loads(shell.out)["items"]
    assert (found["id"], found["severity"]) == ("sites-without-agent", "info")
    lab.write(lambda tx: tx.run("DELETE FROM sites"))
    assert shell("doctor").code == 0
    assert shell.out == "nothing to report\n"
