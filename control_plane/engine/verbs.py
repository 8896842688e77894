"""What an operator, or another module, does to a workflow: abort, retry, pause, resume.

Each locks the workflow's row, as the reconciler does, so that they follow one another; each raises RequestError
INVALID_STATE, INVALID_INPUT or CONFLICT and then has changed nothing. The caller has found the workflow and may see
it.
"""

import msgspec

from control_plane.commands import WORKFLOWS_CHANNEL
from control_plane.engine import outbox
from control_plane.engine.agent_steps import cancel_commands
from control_plane.engine.outcomes import end, next_attempt
from control_plane.engine.records import StepRow, WorkflowError, WorkflowRow
from control_plane.engine.rows import (
    STEP_COLUMNS,
    STEPS,
    change_pending,
    load_step,
    lock_workflow,
)
from control_plane.engine.states import Ending, Phase, StepState, WorkflowState
from control_plane.engine.timing import Timing
from control_plane.engine.work import Work
from control_plane.store import ConstraintViolated, Transaction
from protocol.errors import RequestCode, RequestError

__all__ = ["abort", "pause", "resume", "retry", "steps_of"]

replace = msgspec.structs.replace


def abort(tx: Transaction, timing: Timing, workflow_id: str, reason: str | None = None) -> WorkflowRow:
    """Ends a workflow. One that runs or is paused ends its step in flight, cleans up, and is cancelled then; one that
    never began or has failed is cancelled at once. Aborting what is cancelled, or about to be, changes nothing."""
    workflow = _locked(tx, workflow_id)
    if workflow.state is WorkflowState.CANCELLED or workflow.ending is Ending.CANCELLING:
        return workflow
    if workflow.state is WorkflowState.SUCCEEDED:
        raise RequestError(RequestCode.INVALID_STATE, "the workflow has succeeded: there is nothing to abort")
    error = WorkflowError(code="ABORTED", message=reason or "aborted by an operator")
    for phase in (Phase.MAIN, Phase.ON_FAILURE):
        change_pending(tx, workflow.id, phase, StepState.CANCELLED)
    if workflow.state in (WorkflowState.PENDING, WorkflowState.FAILED):
        change_pending(tx, workflow.id, Phase.CLEANUP, StepState.CANCELLED)
        work = Work(tx)
        ended = end(work, replace(workflow, state=WorkflowState.CANCELLED, error=error))
        work.flush()
        return ended
    work, now = Work(tx), tx.now()
    if workflow.step_seq is not None:
        step = load_step(tx, workflow.id, workflow.step_seq)
        if step.phase is not Phase.CLEANUP:
            cancel_commands(tx, workflow, f"the workflow was aborted: {error.message}")
            last = now + timing.cancel_grace_ms
            work.save_step(replace(step, deadline=min(step.deadline or last, last)))
    aborted = work.save_workflow(
        replace(
            workflow,
            state=WorkflowState.RUNNING,
            ending=Ending.CANCELLING,
            error=error,
            wake_at=now,
            finished_at=None,
        ),
    )
    work.flush()
    tx.notify(WORKFLOWS_CHANNEL, workflow.id)
    return aborted


def retry(tx: Transaction, workflow_id: str, from_step: str | None = None) -> WorkflowRow:
    """Runs a failed workflow again from a main step on: by default from the first that was not done.

    That step and every later main step get their next attempt, and clean-up is owed anew; earlier steps keep what
    they did.
    """
    workflow = _locked(tx, workflow_id)
    if workflow.state is not WorkflowState.FAILED:
        raise RequestError(
            RequestCode.INVALID_STATE, f"the workflow is {workflow.state}: only a failed one can be retried"
        )
    steps = steps_of(tx, workflow.id)
    first = _first_to_retry([step for step in steps if step.phase is Phase.MAIN], from_step)
    _refuse_second(tx, workflow)
    work = Work(tx)
    for step in steps:
        if step.phase is not Phase.MAIN or step.seq >= first.seq:
            work.save_step(_rearmed(step))
    retried = work.save_workflow(
        replace(
            workflow,
            state=WorkflowState.RUNNING,
            ending=None,
            error=None,
            step_seq=None,
            step_id=None,
            wake_at=tx.now(),
            finished_at=None,
        )
    )
    outbox.workflow_event(work, retried, "retried", fromStep=first.id)
    try:
        work.flush()
    except ConstraintViolated as other:
        # One that another transaction started at this very moment.
        raise RequestError(
            RequestCode.CONFLICT, "another workflow is active on the same machine: wait for it, or abort it first"
        ) from other
    tx.notify(WORKFLOWS_CHANNEL, workflow.id)
    return retried


def pause(tx: Transaction, workflow_id: str) -> WorkflowRow:
    """Starts nothing more until it is resumed; the step in flight may end."""
    workflow = _locked(tx, workflow_id)
    if workflow.state is not WorkflowState.RUNNING:
        raise RequestError(
            RequestCode.INVALID_STATE, f"the workflow is {workflow.state}: only a running one can be paused"
        )
    if workflow.ending is not None:
        raise RequestError(
            RequestCode.INVALID_STATE, f"the workflow is {workflow.ending}: its clean-up cannot be paused"
        )
    work = Work(tx)
    paused = work.save_workflow(replace(workflow, state=WorkflowState.PAUSED))
    outbox.workflow_event(work, paused, "paused")
    work.flush()
    return paused


def resume(tx: Transaction, workflow_id: str) -> WorkflowRow:
    """Goes on with a paused workflow."""
    workflow = _locked(tx, workflow_id)
    if workflow.state is not WorkflowState.PAUSED:
        raise RequestError(
            RequestCode.INVALID_STATE, f"the workflow is {workflow.state}: only a paused one can be resumed"
        )
    work = Work(tx)
    resumed = work.save_workflow(replace(workflow, state=WorkflowState.RUNNING, wake_at=tx.now()))
    outbox.workflow_event(work, resumed, "resumed")
    work.flush()
    tx.notify(WORKFLOWS_CHANNEL, workflow.id)
    return resumed


def steps_of(tx: Transaction, workflow_id: str) -> list[StepRow]:
    """Every row, in the order in which the phases run."""
    return tx.all(
        f"SELECT {STEP_COLUMNS} FROM {STEPS} WHERE workflow_id = :id ORDER BY seq",
        {"id": workflow_id},
        into=StepRow,
    )


def _locked(tx: Transaction, workflow_id: str) -> WorkflowRow:
    workflow = lock_workflow(tx, workflow_id)
    if workflow is None:
        raise RequestError(RequestCode.NOT_FOUND, f"there is no workflow {workflow_id!r}")
    return workflow


def _first_to_retry(main: list[StepRow], from_step: str | None) -> StepRow:
    undone = [step for step in main if step.state not in (StepState.SUCCEEDED, StepState.SKIPPED)]
    if not undone:
        raise RequestError(
            RequestCode.INVALID_INPUT,
            "every main step succeeded: what failed is its clean-up, which only a new workflow can do again",
        )
    if from_step is None:
        return undone[0]
    chosen = next((step for step in main if step.id == from_step), None)
    if chosen is None:
        raise RequestError(
            RequestCode.INVALID_INPUT,
            f"{from_step!r} is no main step of this workflow: there are {', '.join(step.id for step in main)}",
        )
    return chosen


def _refuse_second(tx: Transaction, workflow: WorkflowRow) -> None:
    """Raises CONFLICT when another workflow of the same node or instance is active."""
    other = None
    if workflow.node_id is not None:
        # Literal states: by them both databases know the small index of what is active.
        other = tx.one(
            "SELECT id FROM workflows WHERE node_id = :node AND id <> :id "
            "AND state IN ('pending', 'running', 'paused')",
            {"id": workflow.id, "node": workflow.node_id},
        )
    if other is None and workflow.instance_id is not None:
        other = tx.one(
            "SELECT id FROM workflows WHERE tenant_id = :tenant AND instance_id = :instance AND id <> :id "
            "AND state IN ('pending', 'running', 'paused')",
            {"id": workflow.id, "tenant": workflow.tenant_id, "instance": workflow.instance_id},
        )
    if other is not None:
        raise RequestError(
            RequestCode.CONFLICT, f"workflow {other[0]} is active on the same machine: wait for it, or abort it first"
        )


def _rearmed(step: StepRow) -> StepRow:
    """A main step gets its next attempt, and its retries afresh; a row that never began keeps its number."""
    again = next_attempt(step)
    attempt = again.attempt if step.phase is Phase.MAIN or step.started_at is not None else step.attempt
    return replace(again, attempt=attempt, first_attempt=attempt, started_at=None)
