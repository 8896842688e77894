"""Reading and writing the engine's rows. Statements are few and fixed, since they run thousands of times a second."""

from typing import NamedTuple

import msgspec

from control_plane.engine.records import StepRow, WorkflowRow
from control_plane.engine.states import ACTIVE, Ending, Phase, StepState
from control_plane.records import columns
from control_plane.store import Transaction, json_text

__all__ = [
    "STEP_COLUMNS",
    "WORKFLOW_COLUMNS",
    "Grip",
    "change_pending",
    "load_running",
    "load_step",
    "lock_held",
    "lock_workflow",
    "next_pending",
    "save_step",
    "save_workflow",
]

WORKFLOW_COLUMNS = columns(WorkflowRow)
STEP_COLUMNS = columns(StepRow)

_LOCK_HELD = f"""
SELECT {columns(WorkflowRow, "workflows")} FROM workflows
    JOIN shards ON shards.shard = workflows.shard AND shards.worker = :worker AND shards.fence = :fence
WHERE workflows.id = :id FOR UPDATE OF workflows FOR SHARE OF shards
"""
_LOCK = f"SELECT {WORKFLOW_COLUMNS} FROM workflows WHERE id = :id FOR UPDATE"
_STEP = f"SELECT {STEP_COLUMNS} FROM workflow_steps WHERE workflow_id = :id AND seq = :seq"
_NEXT = f"""
SELECT {STEP_COLUMNS} FROM workflow_steps WHERE workflow_id = :id AND state = 'pending' ORDER BY seq LIMIT 1
"""
_SAVE_WORKFLOW = """
UPDATE workflows SET state = :state, ending = :ending, step_seq = :step_seq, step_id = :step_id, error = :error,
    wake_at = :wake_at, started_at = :started_at, finished_at = :finished_at, updated_at = :updated_at
WHERE id = :id
"""
_SAVE_STEP = """
UPDATE workflow_steps SET state = :state, attempt = :attempt, first_attempt = :first_attempt,
    command_id = :command_id, deadline = :deadline, wake_at = :wake_at, rejoin = :rejoin, result = :result,
    error = :error, started_at = :started_at, finished_at = :finished_at
WHERE workflow_id = :workflow_id AND seq = :seq
"""


class Grip(NamedTuple):
    """A worker's hold on a shard: good only while the shard's row has this worker and this fence."""

    worker: str
    fence: int


def lock_held(tx: Transaction, workflow_id: str, grip: Grip) -> WorkflowRow | None:
    """The workflow, locked; None when it is gone or the worker does not hold its shard any more.

    The shard's row is held too: whoever takes the shard over waits for this transaction, and sees all of it.
    """
    return tx.one(_LOCK_HELD, {"id": workflow_id, "worker": grip.worker, "fence": grip.fence}, into=WorkflowRow)


def lock_workflow(tx: Transaction, workflow_id: str) -> WorkflowRow | None:
    """The workflow, locked, for the operator's verbs."""
    return tx.one(_LOCK, {"id": workflow_id}, into=WorkflowRow)


def load_step(tx: Transaction, workflow_id: str, seq: int) -> StepRow:
    step = tx.one(_STEP, {"id": workflow_id, "seq": seq}, into=StepRow)
    if step is None:
        raise LookupError(f"workflow {workflow_id} has no step {seq}")
    return step


def load_running(tx: Transaction, workflow: WorkflowRow, step: StepRow) -> StepRow | None:
    """The step as it is stored now, while its code may still do something: it runs in this very attempt, and nobody
    has aborted its workflow since. None otherwise."""
    if workflow.step_seq != step.seq or workflow.state not in ACTIVE:
        return None
    if workflow.ending is Ending.CANCELLING and step.phase is not Phase.CLEANUP:
        return None
    present = load_step(tx, workflow.id, step.seq)
    return present if present.state is StepState.RUNNING and present.attempt == step.attempt else None


def next_pending(tx: Transaction, workflow_id: str) -> StepRow | None:
    """The next row in the order of the phases: rows are numbered main, on-failure, clean-up."""
    return tx.one(_NEXT, {"id": workflow_id}, into=StepRow)


def save_workflow(tx: Transaction, workflow: WorkflowRow) -> WorkflowRow:
    """Stores what can change of a workflow, and when it was."""
    saved = msgspec.structs.replace(workflow, updated_at=tx.now())
    tx.run(
        _SAVE_WORKFLOW,
        {
            "id": saved.id,
            "state": saved.state.value,
            "ending": saved.ending.value if saved.ending else None,
            "step_seq": saved.step_seq,
            "step_id": saved.step_id,
            "error": json_text(saved.error) if saved.error else None,
            "wake_at": saved.wake_at,
            "started_at": saved.started_at,
            "finished_at": saved.finished_at,
            "updated_at": saved.updated_at,
        },
    )
    return saved


def save_step(tx: Transaction, step: StepRow) -> StepRow:
    """Stores what can change of a step."""
    tx.run(
        _SAVE_STEP,
        {
            "workflow_id": step.workflow_id,
            "seq": step.seq,
            "state": step.state.value,
            "attempt": step.attempt,
            "first_attempt": step.first_attempt,
            "command_id": step.command_id,
            "deadline": step.deadline,
            "wake_at": step.wake_at,
            "rejoin": json_text(step.rejoin) if step.rejoin else None,
            "result": json_text(step.result) if step.result is not None else None,
            "error": json_text(step.error) if step.error else None,
            "started_at": step.started_at,
            "finished_at": step.finished_at,
        },
    )
    return step


def change_pending(
    tx: Transaction, workflow_id: str, phase: str, state: StepState, *, but_owned_by: int | None = None
) -> list[StepRow]:
    """Ends the pending rows of a phase (`skipped` or `cancelled`), all but those of one owner. Returns them."""
    changed = tx.all(
        f"""
        UPDATE workflow_steps SET state = :state, finished_at = :now
        WHERE workflow_id = :id AND phase = :phase AND state = 'pending'
            AND (CAST(:owner AS BIGINT) IS NULL OR owner_seq IS NULL OR owner_seq <> CAST(:owner AS BIGINT))
        RETURNING {STEP_COLUMNS}
        """,
        {"id": workflow_id, "phase": phase, "state": state.value, "owner": but_owned_by, "now": tx.now()},
        into=StepRow,
    )
    return sorted(changed, key=lambda step: step.seq)
