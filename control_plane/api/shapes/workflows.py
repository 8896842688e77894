"""Workflows: what runs, or ran, on one node, step by step."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta

from control_plane.api.shapes.commands import ProgressView
from control_plane.api.shapes.common import PageRequest, Request, TenantId, View, id_cursor
from control_plane.engine.records import StepError, WorkflowError

__all__ = [
    "AbortWorkflow",
    "GetWorkflow",
    "ListWorkflows",
    "PauseWorkflow",
    "ResumeWorkflow",
    "RetryWorkflow",
    "StepView",
    "WorkflowList",
    "WorkflowView",
]

_BODY = "[0-9a-hjkmnp-tv-z]{26,52}"
NodeId = Annotated[str, Meta(pattern=rf"^node_{_BODY}$(?!\n)", max_length=57)]
WorkflowId = Annotated[str, Meta(pattern=rf"^wf_{_BODY}$(?!\n)", max_length=55)]
_Text = r"^[^\x00]*$(?!\n)"
"""Anything but NUL, which PostgreSQL cannot store."""


class _OneWorkflow(Request, frozen=True, kw_only=True):
    tenant_id: TenantId
    node_id: NodeId
    workflow_id: WorkflowId


class GetWorkflow(_OneWorkflow, frozen=True, kw_only=True):
    pass


class AbortWorkflow(_OneWorkflow, frozen=True, kw_only=True):
    reason: Annotated[str, Meta(max_length=512, pattern=_Text)] | None = None
    """Kept as the workflow's error."""


class RetryWorkflow(_OneWorkflow, frozen=True, kw_only=True):
    from_step: Annotated[str, Meta(max_length=256, pattern=_Text)] | None = None
    """The id of a main step; the first that was not done where it is left out."""


class PauseWorkflow(_OneWorkflow, frozen=True, kw_only=True):
    pass


class ResumeWorkflow(_OneWorkflow, frozen=True, kw_only=True):
    pass


class ListWorkflows(PageRequest, frozen=True, kw_only=True):
    """Newest first."""

    tenant_id: TenantId
    node_id: NodeId

    checks = {"cursor": id_cursor("wf")}


class StepView(View, frozen=True, kw_only=True):
    """One row of the workflow."""

    id: str
    seq: int
    phase: str
    """main, on-failure, cleanup."""
    action: str
    runs_on: str
    """control-plane, site, ramdisk, daemon."""
    state: str
    """pending, running, waiting, succeeded, failed, skipped, cancelled."""
    attempt: int
    attempts: int
    """How many there may be, this one included; an operator's retry grants them anew."""
    command_id: str | None
    deadline: datetime | None
    result: dict[str, Any] | None
    error: StepError | None
    """Why it failed; while another attempt is to come or under way, why the last one did. `details` holds the agent's
    own failure, with what the BMC itself said."""
    started_at: datetime | None
    finished_at: datetime | None
    elapsed_ms: int | None
    """Of this attempt, by the database's clock; so far, where it has not ended."""
    progress: ProgressView | None
    """The last news of its command, while it runs and where its agent is connected to the worker that was asked."""


class WorkflowView(View, frozen=True, kw_only=True):
    id: str
    tenant_id: str
    profile_id: str
    profile_version: int
    node_id: str | None
    instance_id: str | None
    owner: str | None
    state: str
    """pending, running, paused, succeeded, failed, cancelled."""
    ending: str | None
    """failing or cancelling, while clean-up runs after a failure or an abort."""
    step_id: str | None
    """The step in flight."""
    error: WorkflowError | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime
    elapsed_ms: int
    """Since it was created, by the database's clock."""
    steps: list[StepView]
    """In the order in which they run."""


class WorkflowList(View, frozen=True, kw_only=True):
    items: list[WorkflowView]
    cursor: str | None
