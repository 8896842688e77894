"""The workflow events, each written in the transition that it tells of."""

import msgspec

from control_plane.engine.records import StepError, StepRow, WorkflowError, WorkflowRow
from control_plane.engine.states import Phase
from control_plane.engine.work import Work

__all__ = ["step_event", "workflow_event"]


class _StepFacts(msgspec.Struct, frozen=True, rename="camel"):
    """What a step's event tells; a struct, since it is by far the most frequent one."""

    workflow_id: str
    node_id: str | None
    profile_id: str
    profile_version: int
    step_id: str
    action: str
    phase: Phase
    attempt: int
    error: StepError | msgspec.UnsetType = msgspec.UNSET


def workflow_event(
    work: Work, workflow: WorkflowRow, name: str, *, error: WorkflowError | None = None, **more: object
) -> None:
    """`workflow.<name>`: created, started, paused, resumed, retried, succeeded, failed or cancelled."""
    data: dict[str, object] = {
        "workflowId": workflow.id,
        "nodeId": workflow.node_id,
        "profileId": workflow.profile_id,
        "profileVersion": workflow.profile_version,
    }
    if error is not None:
        data["error"] = error
    work.publish(workflow.tenant_id, f"workflow/{workflow.id}", f"workflow.{name}", data | more)


def step_event(
    work: Work, workflow: WorkflowRow, step: StepRow, name: str, *, error: StepError | None = None
) -> None:
    """`workflow.step.<name>`: started, succeeded, failed, retrying or skipped."""
    facts = _StepFacts(
        workflow.id,
        workflow.node_id,
        workflow.profile_id,
        workflow.profile_version,
        step.id,
        step.action,
        step.phase,
        step.attempt,
        msgspec.UNSET if error is None else error,
    )
    work.publish(workflow.tenant_id, f"workflow/{workflow.id}", f"workflow.step.{name}", facts)
