"""How a step ends, and what that makes of its workflow: success, another attempt, failure, the end of it all."""

import msgspec

from control_plane.engine import outbox
from control_plane.engine.records import StepError, StepRow, WorkflowError, WorkflowRow
from control_plane.engine.rows import change_pending
from control_plane.engine.states import Ending, Phase, StepState, WorkflowState
from control_plane.engine.work import Work
from control_plane.found_labels import INVENTORY, note_inventory
from control_plane.host_config import filled
from control_plane.store import json_text

__all__ = ["cancel_step", "close_main", "fail_attempt", "finish", "skip", "succeed"]

replace = msgspec.structs.replace


def succeed(work: Work, workflow: WorkflowRow, step: StepRow, result: dict[str, object] | None) -> None:
    """The step is done; the next one is due at once."""
    done = work.save_step(
        replace(
            step, state=StepState.SUCCEEDED, result=result or {}, error=None, wake_at=None, finished_at=work.now()
        ),
    )
    if done.action == INVENTORY and workflow.node_id is not None:
        # In this transition, so that the next step's `when` finds them.
        note_inventory(work.tx, workflow.node_id, done.result)
    outbox.step_event(work, workflow, done, "succeeded")
    work.save_workflow(_free(work, workflow))


def skip(work: Work, workflow: WorkflowRow, step: StepRow) -> None:
    """The step is not to run: its `when` is false, or it is not owed."""
    skipped = work.save_step(replace(step, state=StepState.SKIPPED, finished_at=work.now()))
    outbox.step_event(work, workflow, skipped, "skipped")
    work.save_workflow(_free(work, workflow))


def cancel_step(work: Work, workflow: WorkflowRow, step: StepRow) -> None:
    """The step in flight was stopped by an abort."""
    work.save_step(replace(step, state=StepState.CANCELLED, wake_at=None, finished_at=work.now()))
    work.save_workflow(_free(work, workflow))


def close_main(work: Work, workflow: WorkflowRow) -> None:
    """Main is over and no on-failure row is owed."""
    for row in change_pending(work.direct(), workflow.id, Phase.ON_FAILURE, StepState.SKIPPED):
        outbox.step_event(work, workflow, row, "skipped")
    work.save_workflow(_free(work, workflow))


def fail_attempt(work: Work, workflow: WorkflowRow, step: StepRow, error: StepError) -> None:
    """An attempt failed: another one while retries are left, else the step's `onFailure` decides."""
    if step.attempt - step.first_attempt < step.spec.retries:
        # It says why until it succeeds: an attempt may take hours.
        again = work.save_step(replace(next_attempt(step), error=error))
        outbox.step_event(work, workflow, again, "retrying", error=error)
        work.save_workflow(_free(work, workflow))
        return
    failed = work.save_step(replace(step, state=StepState.FAILED, error=error, wake_at=None, finished_at=work.now()))
    outbox.step_event(work, workflow, failed, "failed", error=error)
    if step.phase is Phase.MAIN and step.spec.on_failure != "continue":
        workflow = _fail_main(work, workflow, failed, error)
    elif step.phase is Phase.CLEANUP and step.spec.on_failure != "continue" and workflow.ending is None:
        # Everything that was asked is done, but what it left behind is not tidied up: that must not pass as success.
        workflow = replace(workflow, ending=Ending.FAILING, error=_workflow_error(failed, error))
    work.save_workflow(_free(work, workflow))


def finish(work: Work, workflow: WorkflowRow) -> WorkflowRow:
    """Every row has ended: the workflow gets its last state, and its owner is queued."""
    state = {
        None: WorkflowState.SUCCEEDED,
        Ending.FAILING: WorkflowState.FAILED,
        Ending.CANCELLING: WorkflowState.CANCELLED,
    }[workflow.ending]
    return end(work, replace(workflow, state=state))


def end(work: Work, workflow: WorkflowRow) -> WorkflowRow:
    """Stores a last state with everything that belongs to it, in this one transaction."""
    ended = work.save_workflow(
        replace(workflow, ending=None, step_seq=None, step_id=None, wake_at=None, finished_at=work.now())
    )
    outbox.workflow_event(work, ended, ended.state.value, error=ended.error)
    if ended.owner is not None:
        work.tx.run(
            "INSERT INTO owner_queue (kind, key, workflow_id, tenant_id, queued_at) "
            "VALUES (:kind, :key, :workflow_id, :tenant_id, :now)",
            {
                "kind": ended.owner,
                "key": ended.node_id or ended.id,
                "workflow_id": ended.id,
                "tenant_id": ended.tenant_id,
                "now": work.now(),
            },
        )
        work.tx.notify(OWNERS_CHANNEL, ended.owner)
    if ended.state is WorkflowState.SUCCEEDED and ended.node_id is not None:
        _invalidate_desired_state(work, ended)
    return ended


OWNERS_CHANNEL = "owners"
"""Payload: the kind of work that was queued."""
NODE_SPEC_CHANNEL = "node_specs"
"""Payload: the node whose desired state has changed."""


def next_attempt(step: StepRow) -> StepRow:
    """The row for one more attempt: pending, under a new number, with nothing of the old one but its count."""
    return replace(
        step,
        state=StepState.PENDING,
        attempt=step.attempt + 1,
        command_id=None,
        deadline=None,
        wake_at=None,
        rejoin=None,
        result=None,
        error=None,
        finished_at=None,
    )


def _fail_main(work: Work, workflow: WorkflowRow, step: StepRow, error: StepError) -> WorkflowRow:
    """The rest of main is cancelled; of the on-failure rows only this step's own is owed."""
    change_pending(work.direct(), workflow.id, Phase.MAIN, StepState.CANCELLED)
    for row in change_pending(work.direct(), workflow.id, Phase.ON_FAILURE, StepState.SKIPPED, but_owned_by=step.seq):
        outbox.step_event(work, workflow, row, "skipped")
    if workflow.ending is not None:
        return workflow
    return replace(workflow, ending=Ending.FAILING, error=_workflow_error(step, error))


def _workflow_error(step: StepRow, error: StepError) -> WorkflowError:
    return WorkflowError(
        code=error.code,
        message=f"{step.id} ({step.action}): {error.message}",
        rescue=step.spec.on_failure == "rescue",
        details=error.details,
    )


def _free(work: Work, workflow: WorkflowRow) -> WorkflowRow:
    """Nothing is in flight; the next look is due at once, or, of a paused workflow, when it is resumed."""
    wake_at = None if workflow.state is WorkflowState.PAUSED else work.now()
    return replace(workflow, step_seq=None, step_id=None, wake_at=wake_at)


def _invalidate_desired_state(work: Work, workflow: WorkflowRow) -> None:
    """The profile's host configuration becomes what the node's daemon is to have."""
    document = work.tx.one("SELECT document FROM workflow_documents WHERE workflow_id = :id", {"id": workflow.id})
    config = msgspec.json.decode(document[0], type=_WithHostConfig).host_config if document else None
    if config is None or workflow.node_id is None:
        return
    name = work.tx.one("SELECT name FROM nodes WHERE id = :id", {"id": workflow.node_id})
    spec = filled(config, node_id=workflow.node_id, node_name=str(name[0]) if name else "")
    work.tx.run(
        """
        INSERT INTO desired_states (node_id, tenant_id, generation, spec, invalidated_at, applied)
        VALUES (:node_id, :tenant_id, 1, :spec, :now, NULL)
        ON CONFLICT (node_id) DO UPDATE SET generation = desired_states.generation + 1, spec = excluded.spec,
            invalidated_at = excluded.invalidated_at
        """,
        {"node_id": workflow.node_id, "tenant_id": workflow.tenant_id, "spec": json_text(spec), "now": work.now()},
    )
    work.tx.notify(NODE_SPEC_CHANNEL, workflow.node_id)


class _WithHostConfig(msgspec.Struct, rename="camel"):
    host_config: dict[str, object] | None = None
