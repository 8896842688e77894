"""Workflows: watching and steering what runs on a node."""

from collections.abc import Callable

from control_plane.api.call import Call
from control_plane.api.handlers.paging import page
from control_plane.api.shapes.commands import ProgressView
from control_plane.api.shapes.common import instant, of
from control_plane.api.shapes.workflows import (
    AbortWorkflow,
    GetWorkflow,
    ListWorkflows,
    PauseWorkflow,
    ResumeWorkflow,
    RetryWorkflow,
    StepView,
    WorkflowList,
    WorkflowView,
)
from control_plane.engine import verbs
from control_plane.engine.reading import Shown, find_workflow, list_workflows, show, show_each
from control_plane.engine.records import StepRow, WorkflowRow
from control_plane.engine.states import IN_FLIGHT, WorkflowState
from control_plane.metal.verbs import allow_retry
from control_plane.nodes import find_node
from control_plane.store import Transaction
from protocol.errors import RequestCode, RequestError
from protocol.frames import Progress

__all__ = ["abort", "audited", "get", "list_", "pause", "resume", "retry"]


async def get(call: Call, request: GetWorkflow) -> WorkflowView:
    """With the progress of its command, where that is known to this process."""
    shown = await call.services.store.read(_shown, call.tenant, request.node_id, request.workflow_id)
    links = call.services.links
    known = [links.progress_of(command) for command in shown.commands]
    return view(shown, next((progress for progress in reversed(known) if progress is not None), None))


def list_(tx: Transaction, call: Call, request: ListWorkflows) -> WorkflowList:
    """A node's workflows. A node that is gone is no fault while there are workflows of it to show."""
    rows, cursor = page(
        request, lambda before, limit: list_workflows(tx, call.tenant, request.node_id, before or None, limit)
    )
    if not rows and request.cursor is None:
        find_node(tx, call.tenant, request.node_id)
    return WorkflowList(items=[view(shown) for shown in show_each(tx, rows)], cursor=cursor)


def abort(tx: Transaction, call: Call, request: AbortWorkflow) -> WorkflowView:
    found = _found(tx, call.tenant, request.node_id, request.workflow_id)
    return view(show(tx, verbs.abort(tx, call.services.timing, found.id, request.reason)))


def retry(tx: Transaction, call: Call, request: RetryWorkflow) -> WorkflowView:
    found = _found(tx, call.tenant, request.node_id, request.workflow_id)
    if found.state is WorkflowState.FAILED:
        allow_retry(tx, found, request.from_step)
    return view(show(tx, verbs.retry(tx, found.id, request.from_step)))


def pause(tx: Transaction, call: Call, request: PauseWorkflow) -> WorkflowView:
    return _steered(tx, call, request, verbs.pause)


def resume(tx: Transaction, call: Call, request: ResumeWorkflow) -> WorkflowView:
    return _steered(tx, call, request, verbs.resume)


def audited(answer: WorkflowView) -> tuple[str, dict[str, object]]:
    """It is decided on the node, and written down by the node."""
    return answer.node_id or "*", {"workflowId": answer.id}


def view(shown: Shown, progress: Progress | None = None) -> WorkflowView:
    row = shown.workflow
    until = shown.now if row.finished_at is None else row.finished_at
    return WorkflowView(
        id=row.id,
        tenant_id=row.tenant_id,
        profile_id=row.profile_id,
        profile_version=row.profile_version,
        node_id=row.node_id,
        instance_id=row.instance_id,
        owner=row.owner,
        state=row.state.value,
        ending=None if row.ending is None else row.ending.value,
        step_id=row.step_id,
        error=row.error,
        created_at=instant(row.created_at),
        started_at=of(row.started_at),
        finished_at=of(row.finished_at),
        updated_at=instant(row.updated_at),
        elapsed_ms=max(0, until - row.created_at),
        steps=[
            _step_view(step, shown.now, progress if step.seq == row.step_seq and step.state in IN_FLIGHT else None)
            for step in shown.steps
        ],
    )


def _step_view(step: StepRow, now: int, progress: Progress | None) -> StepView:
    elapsed = None
    if step.started_at is not None and (step.state in IN_FLIGHT or step.finished_at is not None):
        elapsed = max(0, (now if step.finished_at is None else step.finished_at) - step.started_at)
    return StepView(
        id=step.id,
        seq=step.seq,
        phase=step.phase.value,
        action=step.action,
        runs_on=step.runs_on.value,
        state=step.state.value,
        attempt=step.attempt,
        attempts=step.first_attempt + step.spec.retries,
        command_id=step.command_id,
        deadline=of(step.deadline),
        result=step.result,
        error=step.error,
        started_at=of(step.started_at),
        finished_at=of(step.finished_at),
        elapsed_ms=elapsed,
        progress=None if progress is None else ProgressView(message=progress.message, percent=progress.percent),
    )


def _steered(
    tx: Transaction,
    call: Call,
    request: PauseWorkflow | ResumeWorkflow,
    steer: Callable[[Transaction, str], WorkflowRow],
) -> WorkflowView:
    found = _found(tx, call.tenant, request.node_id, request.workflow_id)
    return view(show(tx, steer(tx, found.id)))


def _shown(tx: Transaction, tenant_id: str, node_id: str, workflow_id: str) -> Shown:
    return show(tx, _found(tx, tenant_id, node_id, workflow_id))


def _found(tx: Transaction, tenant_id: str, node_id: str, workflow_id: str) -> WorkflowRow:
    """Raises RequestError NOT_FOUND, in the same words whatever is missing."""
    row = find_workflow(tx, tenant_id, node_id, workflow_id)
    if row is None:
        raise RequestError(RequestCode.NOT_FOUND, f"node {node_id!r} has no workflow {workflow_id!r}")
    return row
