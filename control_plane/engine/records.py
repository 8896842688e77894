"""The engine's rows, and what a step was resolved to."""

from typing import Literal

import msgspec

from control_plane.engine.states import Ending, Phase, RunsOn, StepState, WorkflowState
from protocol.errors import Failure

__all__ = [
    "OnFailure",
    "Rejoin",
    "StepError",
    "StepKind",
    "StepRow",
    "StepSpec",
    "WorkflowError",
    "WorkflowRow",
]

OnFailure = Literal["fail", "continue", "rescue", "step"]
"""`step`: the step has an on-failure row of its own."""

StepKind = Literal["code", "operation", "command"]
"""code: a registered Python function. operation: one driver.invoke. command: another command kind, by its action."""


class StepSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A step of a profile, resolved: all that is needed to run it, whatever becomes of the profile."""

    kind: StepKind
    with_: dict[str, object] = msgspec.field(default_factory=dict, name="with")
    when: str | None = None
    timeout_ms: int
    retries: int = 0
    on_failure: OnFailure = "fail"
    await_rejoin: bool = False
    driver: str | None = None
    """The driver bound to the operation's concern."""


class StepError(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Why a step failed. `details` keeps the agent's own failure, with the BMC's own words."""

    code: str
    message: str
    details: Failure | None = None


class WorkflowError(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Why a workflow failed or was aborted: `<stepId> (<action>): <message>`, with the step's code."""

    code: str
    message: str
    rescue: bool = False
    details: Failure | None = None


class Rejoin(msgspec.Struct, frozen=True, rename="camel"):
    """A machine's boot id and session role; both null where none was connected."""

    boot_id: str | None
    role: str | None


class WorkflowRow(msgspec.Struct, frozen=True):
    id: str
    tenant_id: str
    profile_id: str
    profile_version: int
    node_id: str | None
    instance_id: str | None
    shard: int
    owner: str | None
    state: WorkflowState
    ending: Ending | None
    step_seq: int | None
    step_id: str | None
    error: WorkflowError | None
    wake_at: int | None
    created_at: int
    started_at: int | None
    finished_at: int | None
    updated_at: int


class StepRow(msgspec.Struct, frozen=True):
    workflow_id: str
    seq: int
    id: str
    phase: Phase
    action: str
    runs_on: RunsOn
    spec: StepSpec
    owner_seq: int | None
    state: StepState
    attempt: int
    first_attempt: int
    command_id: str | None
    deadline: int | None
    wake_at: int | None
    rejoin: Rejoin | None
    result: dict[str, object] | None
    error: StepError | None
    started_at: int | None
    finished_at: int | None
