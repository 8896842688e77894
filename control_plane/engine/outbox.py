"""The workflow events, each written in the transition that it tells of."""

from control_plane.engine.records import StepError, StepRow, WorkflowError, WorkflowRow
from control_plane.engine.tally import TALLY
from control_plane.engine.work import Work

__all__ = ["step_event", "workflow_event"]


def workflow_event(
    work: Work, workflow: WorkflowRow, name: str, *, error: WorkflowError | None = None, **more: object
) -> None:
    """`workflow.<name>`: created, started, paused, resumed, retried, succeeded, failed or cancelled."""
    data: dict[str, object] = _facts(workflow)
    if error is not None:
        data["error"] = error
    work.publish(workflow.tenant_id, f"workflow/{workflow.id}", f"workflow.{name}", data | more)
    work.tx.after_commit(TALLY.workflow(name))


def step_event(
    work: Work, workflow: WorkflowRow, step: StepRow, name: str, *, error: StepError | None = None
) -> None:
    """`workflow.step.<name>`: started, succeeded, failed, retrying or skipped."""
    data: dict[str, object] = _facts(workflow)
    data |= {"stepId": step.id, "action": step.action, "phase": step.phase, "attempt": step.attempt}
    if error is not None:
        data["error"] = error
    work.publish(workflow.tenant_id, f"workflow/{workflow.id}", f"workflow.step.{name}", data)
    work.tx.after_commit(TALLY.step(name))


def _facts(workflow: WorkflowRow) -> dict[str, object]:
    return {
        "workflowId": workflow.id,
        "nodeId": workflow.node_id,
        "profileId": workflow.profile_id,
        "profileVersion": workflow.profile_version,
    }
