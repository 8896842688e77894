"""Workflows as they are shown: found by tenant and node, never by their id alone."""

from typing import NamedTuple

from control_plane.engine.records import StepRow, WorkflowRow
from control_plane.engine.rows import STEP_COLUMNS, STEPS, WORKFLOW_COLUMNS
from control_plane.records import CommandRow, columns
from control_plane.store import Transaction

__all__ = ["Shown", "find_workflow", "list_workflows", "show", "show_each"]


class Shown(NamedTuple):
    """A workflow with all that belongs to it, at one moment."""

    workflow: WorkflowRow
    steps: list[StepRow]
    now: int
    """The store's time of the reading."""
    commands: list[CommandRow]
    """Those that are open, where they were asked for."""


def find_workflow(tx: Transaction, tenant_id: str, node_id: str, workflow_id: str) -> WorkflowRow | None:
    """None alike for one that is not there, of another tenant, or of another node."""
    return tx.one(
        f"SELECT {WORKFLOW_COLUMNS} FROM workflows WHERE id = :id AND tenant_id = :tenant_id AND node_id = :node_id",
        {"id": workflow_id, "tenant_id": tenant_id, "node_id": node_id},
        into=WorkflowRow,
    )


def list_workflows(
    tx: Transaction, tenant_id: str, node_id: str, before: str | None, limit: int
) -> list[WorkflowRow]:
    """A node's workflows, newest first, older than the id `before`."""
    return tx.all(
        f"""
        SELECT {WORKFLOW_COLUMNS} FROM workflows WHERE tenant_id = :tenant_id AND node_id = :node_id
            AND (CAST(:before AS TEXT) IS NULL OR id < CAST(:before AS TEXT))
        ORDER BY id DESC LIMIT :limit
        """,
        {"tenant_id": tenant_id, "node_id": node_id, "before": before, "limit": limit},
        into=WorkflowRow,
    )


def show(tx: Transaction, workflow: WorkflowRow) -> Shown:
    """With its steps and its open commands."""
    commands = tx.all(
        f"SELECT {columns(CommandRow)} FROM commands WHERE workflow_id = :id "
        "AND state IN ('queued', 'delivered', 'running') ORDER BY id",
        {"id": workflow.id},
        into=CommandRow,
    )
    return Shown(workflow, _steps(tx, [workflow])[workflow.id], tx.now(), commands)


def show_each(tx: Transaction, workflows: list[WorkflowRow]) -> list[Shown]:
    """With their steps, all found by one statement."""
    steps = _steps(tx, workflows)
    return [Shown(workflow, steps[workflow.id], tx.now(), []) for workflow in workflows]


def _steps(tx: Transaction, workflows: list[WorkflowRow]) -> dict[str, list[StepRow]]:
    found: dict[str, list[StepRow]] = {workflow.id: [] for workflow in workflows}
    rows = tx.all(
        f"SELECT {STEP_COLUMNS} FROM {STEPS} WHERE workflow_id IN EACH(:ids) ORDER BY workflow_id, seq",
        {"ids": list(found)},
        into=StepRow,
    )
    for row in rows:
        found[row.workflow_id].append(row)
    return found
