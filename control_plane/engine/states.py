"""The states of a workflow and of its steps, with what may follow what.

A workflow:

    — ──► pending ──► running ◄──► paused
             │           │            │
             │           ├──► succeeded
             │           ├──► failed ──► running (retry), cancelled (abort)
             └───────────┴──► cancelled ◄──┘

While clean-up runs after a failure or an abort the workflow is still `running`; its `ending` says which it will be.

A step:

    pending ──► running, waiting, skipped, cancelled
    running ──► waiting, succeeded, failed, pending (next attempt), cancelled
    waiting ──► running, succeeded, failed, pending (next attempt), cancelled

and by the operator's retry any step that ended goes back to pending.
"""

from collections.abc import Mapping
from enum import StrEnum

__all__ = [
    "ACTIVE",
    "IN_FLIGHT",
    "STEP_TRANSITIONS",
    "WORKFLOW_TRANSITIONS",
    "Ending",
    "Phase",
    "RunsOn",
    "StepState",
    "WorkflowState",
]


class WorkflowState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


ACTIVE = frozenset({WorkflowState.PENDING, WorkflowState.RUNNING, WorkflowState.PAUSED})
"""A node has at most one workflow in one of these."""

WORKFLOW_TRANSITIONS: Mapping[WorkflowState, frozenset[WorkflowState]] = {
    WorkflowState.PENDING: frozenset({WorkflowState.RUNNING, WorkflowState.CANCELLED}),
    WorkflowState.RUNNING: frozenset(
        {WorkflowState.PAUSED, WorkflowState.SUCCEEDED, WorkflowState.FAILED, WorkflowState.CANCELLED}
    ),
    WorkflowState.PAUSED: frozenset({WorkflowState.RUNNING}),
    WorkflowState.SUCCEEDED: frozenset(),
    WorkflowState.FAILED: frozenset({WorkflowState.RUNNING, WorkflowState.CANCELLED}),
    WorkflowState.CANCELLED: frozenset(),
}


class Ending(StrEnum):
    """How a workflow will end whose clean-up runs after something went wrong."""

    FAILING = "failing"
    CANCELLING = "cancelling"


class Phase(StrEnum):
    """The three phases, in the order in which they run."""

    MAIN = "main"
    ON_FAILURE = "on-failure"
    CLEANUP = "cleanup"


class RunsOn(StrEnum):
    CONTROL_PLANE = "control-plane"
    SITE = "site"
    RAMDISK = "ramdisk"
    DAEMON = "daemon"


class StepState(StrEnum):
    PENDING = "pending"
    """Not begun in this attempt."""
    RUNNING = "running"
    """A worker executes its code."""
    WAITING = "waiting"
    """A command is out, a rejoin is awaited, or its code said that it is not ready."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Its `when` was false, or it was not owed."""
    CANCELLED = "cancelled"
    """It never ran, or was stopped, because the workflow failed or was aborted."""


IN_FLIGHT = frozenset({StepState.RUNNING, StepState.WAITING})

STEP_TRANSITIONS: Mapping[StepState, frozenset[StepState]] = {
    # Failed at once: there is nobody to send it to, or it is too large to be sent.
    StepState.PENDING: frozenset(
        {StepState.RUNNING, StepState.WAITING, StepState.FAILED, StepState.SKIPPED, StepState.CANCELLED}
    ),
    StepState.RUNNING: frozenset(
        {StepState.WAITING, StepState.SUCCEEDED, StepState.FAILED, StepState.PENDING, StepState.CANCELLED}
    ),
    StepState.WAITING: frozenset(
        {StepState.RUNNING, StepState.SUCCEEDED, StepState.FAILED, StepState.PENDING, StepState.CANCELLED}
    ),
    StepState.SUCCEEDED: frozenset({StepState.PENDING}),
    StepState.FAILED: frozenset({StepState.PENDING}),
    StepState.SKIPPED: frozenset({StepState.PENDING}),
    StepState.CANCELLED: frozenset({StepState.PENDING}),
}
