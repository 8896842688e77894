"""Reading and writing the engine's rows, many at once: each of the few statements serves a whole batch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from control_plane.engine.records import StepRow, WorkflowRow
from control_plane.engine.states import StepState
from control_plane.records import columns
from control_plane.store import Transaction, json_text

__all__ = [
    "STEPS",
    "STEP_COLUMNS",
    "WORKFLOW_COLUMNS",
    "Grip",
    "change_pending",
    "held_by_others",
    "load_step",
    "load_steps",
    "load_upcoming",
    "lock_held",
    "lock_workflow",
    "store_steps",
    "store_workflows",
]

WORKFLOW_COLUMNS = columns(WorkflowRow)
STEP_COLUMNS = columns(StepRow)
STEPS = "workflow_steps JOIN step_plans USING (workflow_id, seq)"

_HELD = """
FROM ROWS(:held AS held (id TEXT, worker TEXT, fence BIGINT))
    JOIN workflows ON workflows.id = held.id
    JOIN shards ON shards.shard = workflows.shard AND shards.worker = held.worker AND shards.fence = held.fence
"""
_LOCK_HELD = f"""
SELECT {columns(WorkflowRow, "workflows")} {_HELD}
ORDER BY workflows.id FOR UPDATE OF workflows FOR KEY SHARE OF shards
"""
_LOCK_FREE = f"""
SELECT {columns(WorkflowRow, "workflows")} {_HELD}
ORDER BY workflows.id FOR UPDATE OF workflows SKIP LOCKED FOR KEY SHARE OF shards SKIP LOCKED
"""
_STILL_THERE = f"SELECT workflows.id {_HELD}"
_LOCK = f"SELECT {WORKFLOW_COLUMNS} FROM workflows WHERE id = :id FOR UPDATE"
_STEP = f"SELECT {STEP_COLUMNS} FROM {STEPS} WHERE workflow_id = :id AND seq = :seq"
_STEPS = f"""
SELECT {STEP_COLUMNS} FROM ROWS(:wanted AS wanted (workflow TEXT, number BIGINT))
    JOIN workflow_steps ON workflow_steps.workflow_id = wanted.workflow AND workflow_steps.seq = wanted.number
    JOIN step_plans USING (workflow_id, seq)
"""
_UPCOMING = f"""
SELECT {STEP_COLUMNS} FROM ROWS(:wanted AS wanted (workflow TEXT))
    JOIN workflow_steps ON workflow_steps.workflow_id = wanted.workflow AND workflow_steps.seq = (
        SELECT MIN(later.seq) FROM workflow_steps AS later
        WHERE later.workflow_id = wanted.workflow AND later.state = 'pending'
    )
    JOIN step_plans USING (workflow_id, seq)
"""
_STORE_WORKFLOWS = """
UPDATE workflows SET state = new.state, ending = new.ending, step_seq = new.step_seq, step_id = new.step_id,
    error = new.error, wake_at = new.wake_at, started_at = new.started_at, finished_at = new.finished_at,
    updated_at = new.updated_at
FROM ROWS(:rows AS new (id TEXT, state TEXT, ending TEXT, step_seq BIGINT, step_id TEXT, error TEXT, wake_at BIGINT,
    started_at BIGINT, finished_at BIGINT, updated_at BIGINT))
WHERE workflows.id = new.id
"""
_STEP_CHANGES = (
    "state",
    "attempt",
    "first_attempt",
    "command_id",
    "deadline",
    "wake_at",
    "rejoin",
    "result",
    "error",
    "started_at",
    "finished_at",
)
_STORE_STEP = f"""
UPDATE workflow_steps SET {", ".join(f"{name} = :{name}" for name in _STEP_CHANGES)}
WHERE workflow_id = :workflow_id AND seq = :seq
"""
_STORE_STEPS = """
UPDATE workflow_steps SET state = new.state, attempt = new.attempt, first_attempt = new.first_attempt,
    command_id = new.command_id, deadline = new.deadline, wake_at = new.wake_at, rejoin = new.rejoin,
    result = new.result, error = new.error, started_at = new.started_at, finished_at = new.finished_at
FROM ROWS(:rows AS new (workflow_id TEXT, seq BIGINT, state TEXT, attempt BIGINT, first_attempt BIGINT,
    command_id TEXT, deadline BIGINT, wake_at BIGINT, rejoin TEXT, result TEXT, error TEXT, started_at BIGINT,
    finished_at BIGINT))
WHERE workflow_steps.workflow_id = new.workflow_id AND workflow_steps.seq = new.seq
"""
_LONG_RESULT = 16 * 1024
"""Characters of a result that is stored by a statement of its own."""


class Grip(NamedTuple):
    """A worker's hold on a shard: good only while the shard's row has this worker and this fence."""

    worker: str
    fence: int


def lock_held(tx: Transaction, asked: Iterable[tuple[str, Grip]], *, patient: bool = True) -> dict[str, WorkflowRow]:
    """The workflows, locked, by id; without those that are gone or whose shard the worker does not hold any more.

    They are locked in the order of their ids, so that two batches never wait for each other in a circle. The shards'
    rows are held too: whoever takes a shard over waits for this transaction, and sees all of it. `patient`: what
    others have locked is waited for; otherwise it is left out, and `held_by_others` tells of it.
    """
    found = tx.all(_LOCK_HELD if patient else _LOCK_FREE, _held(asked), into=WorkflowRow)
    return {row.id: row for row in found}


def held_by_others(tx: Transaction, missing: Mapping[str, Grip]) -> set[str]:
    """Of the workflows that could not be locked at once: those that are this worker's still."""
    return {row[0] for row in tx.all(_STILL_THERE, _held(missing.items()))} if missing else set()


def _held(asked: Iterable[tuple[str, Grip]]) -> Mapping[str, object]:
    return {"held": [(workflow_id, grip.worker, grip.fence) for workflow_id, grip in asked]}


def lock_workflow(tx: Transaction, workflow_id: str) -> WorkflowRow | None:
    """The workflow, locked, for the operator's verbs."""
    return tx.one(_LOCK, {"id": workflow_id}, into=WorkflowRow)


def load_step(tx: Transaction, workflow_id: str, seq: int) -> StepRow:
    step = tx.one(_STEP, {"id": workflow_id, "seq": seq}, into=StepRow)
    if step is None:
        raise LookupError(f"workflow {workflow_id} has no step {seq}")
    return step


def load_steps(tx: Transaction, wanted: Sequence[tuple[str, int]]) -> list[StepRow]:
    """The steps of these (workflow id, seq)."""
    return tx.all(_STEPS, {"wanted": wanted}, into=StepRow)


def load_upcoming(tx: Transaction, workflow_ids: Iterable[str]) -> Mapping[str, StepRow]:
    """The next row of each of the workflows that has one, in the order of the phases: rows are numbered main,
    on-failure, clean-up."""
    wanted = [(workflow_id,) for workflow_id in workflow_ids]
    return {step.workflow_id: step for step in tx.all(_UPCOMING, {"wanted": wanted}, into=StepRow)}


def store_workflows(tx: Transaction, workflows: Iterable[WorkflowRow]) -> None:
    """Stores what can change of workflows."""
    rows = [
        (
            row.id,
            row.state.value,
            row.ending.value if row.ending else None,
            row.step_seq,
            row.step_id,
            json_text(row.error) if row.error else None,
            row.wake_at,
            row.started_at,
            row.finished_at,
            row.updated_at,
        )
        for row in workflows
    ]
    if rows:
        tx.run(_STORE_WORKFLOWS, {"rows": rows})


def store_steps(tx: Transaction, steps: Iterable[StepRow]) -> None:
    """Stores what can change of steps."""
    rows: list[tuple[object, ...]] = []
    for step in steps:
        result = json_text(step.result) if step.result is not None else None
        row = _stored(step, result)
        if result is not None and len(result) > _LONG_RESULT:
            # In the one statement for all of them it would be escaped and parsed once more: dear for a long text.
            tx.run(_STORE_STEP, dict(zip(("workflow_id", "seq", *_STEP_CHANGES), row, strict=True)))
        else:
            rows.append(row)
    if rows:
        tx.run(_STORE_STEPS, {"rows": rows})


def _stored(step: StepRow, result: str | None) -> tuple[object, ...]:
    return (
        step.workflow_id,
        step.seq,
        step.state.value,
        step.attempt,
        step.first_attempt,
        step.command_id,
        step.deadline,
        step.wake_at,
        json_text(step.rejoin) if step.rejoin else None,
        result,
        json_text(step.error) if step.error else None,
        step.started_at,
        step.finished_at,
    )


def change_pending(
    tx: Transaction, workflow_id: str, phase: str, state: StepState, *, but_owned_by: int | None = None
) -> list[StepRow]:
    """Ends the pending rows of a phase (`skipped` or `cancelled`), all but those of one owner. Returns them."""
    changed = tx.all(
        """
        UPDATE workflow_steps SET state = :state, finished_at = :now
        WHERE workflow_id = :id AND phase = :phase AND state = 'pending'
            AND (CAST(:owner AS BIGINT) IS NULL OR owner_seq IS NULL OR owner_seq <> CAST(:owner AS BIGINT))
        RETURNING workflow_id, seq
        """,
        {"id": workflow_id, "phase": phase, "state": state.value, "owner": but_owned_by, "now": tx.now()},
    )
    return sorted(load_steps(tx, changed), key=lambda step: step.seq)
