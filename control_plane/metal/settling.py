"""How a workflow's end is taken in: the node's state follows, in one transaction with the queue's row."""

import logging

import msgspec

from control_plane.engine.records import WorkflowError, WorkflowRow
from control_plane.engine.states import ACTIVE, WorkflowState
from control_plane.engine.verbs import steps_of
from control_plane.events import publish
from control_plane.metal.rows import Asked, ProvisionRow, get_run, lock_provision, store_provision
from control_plane.metal.states import GOAL, UNDER_WAY, MetalVerb, ProvisionState, Residue
from control_plane.metal.verbs import (
    LONGEST_CAUSE,
    OWNER,
    Tools,
    Wish,
    begin,
    get_workflow,
    is_moved,
    missed_erasure,
    missed_return,
    residue_after,
)
from control_plane.records import NodeRow
from control_plane.sessions import supersede_agents_of
from control_plane.store import Transaction
from protocol.errors import RequestCode, RequestError

__all__ = [
    "QueuedEnd",
    "fail_left_behind",
    "list_left_behind",
    "list_queued",
    "list_unsettled",
    "settle_workflow",
    "take_queued",
]

_log = logging.getLogger("control_plane.metal.settling")
_GRACE_MS = 60_000
replace = msgspec.structs.replace


class QueuedEnd(msgspec.Struct, frozen=True):
    """A row of the owner's queue."""

    seq: int
    key: str
    workflow_id: str


def list_queued(tx: Transaction, limit: int) -> list[QueuedEnd]:
    """The oldest ends that nobody has taken in. Of one node they are in the order in which they happened: its next
    workflow is begun only after the end of the one before is stored."""
    return tx.all(
        "SELECT seq, key, workflow_id FROM owner_queue WHERE kind = :kind ORDER BY seq LIMIT :limit",
        {"kind": OWNER, "limit": limit},
        into=QueuedEnd,
    )


def take_queued(tx: Transaction, tools: Tools, queued: QueuedEnd) -> bool:
    """Takes one end in and removes it, together; False where another worker was faster.

    Two workers that come for the same end wait for each other at its row.
    """
    if not tx.run("DELETE FROM owner_queue WHERE seq = :seq", {"seq": queued.seq}):
        return False
    settle_workflow(tx, tools, queued.workflow_id)
    return True


def list_unsettled(tx: Transaction, limit: int) -> list[str]:
    """Workflows that ended a while ago, whose node is still shown as moved by them, and that no queue holds: what a
    database that was restored, or put right by hand, may show."""
    rows = tx.all(
        f"""
        SELECT workflows.id FROM provisions JOIN workflows ON workflows.id = provisions.workflow_id
        WHERE (provisions.state IN ({UNDER_WAY})
                OR (provisions.state = 'deployed' AND provisions.verb = 'remediate'
                    AND provisions.origin IS NOT NULL))
            AND workflows.state IN ('succeeded', 'failed', 'cancelled') AND workflows.finished_at < :before
            AND NOT EXISTS (SELECT 1 FROM owner_queue WHERE owner_queue.workflow_id = workflows.id)
        ORDER BY provisions.node_id LIMIT :limit
        """,
        {"before": tx.now() - _GRACE_MS, "limit": limit},
    )
    return [str(row[0]) for row in rows]


def list_left_behind(tx: Transaction, limit: int) -> list[tuple[str, str]]:
    """Tenant and id of nodes that are shown as moved by a workflow that is not there any more: nothing else would
    ever lead away from there."""
    rows = tx.all(
        f"""
        SELECT tenant_id, node_id FROM provisions
        WHERE state IN ({UNDER_WAY}) AND since < :before
            AND NOT EXISTS (SELECT 1 FROM workflows WHERE workflows.id = provisions.workflow_id)
        ORDER BY node_id LIMIT :limit
        """,
        {"before": tx.now() - _GRACE_MS, "limit": limit},
    )
    return [(str(tenant_id), str(node_id)) for tenant_id, node_id in rows]


def fail_left_behind(tx: Transaction, tenant_id: str, node_id: str) -> None:
    """Such a node has failed, and the worst is taken for what became of its disks."""
    node, row = lock_provision(tx, tenant_id, node_id)
    if not is_moved(row) or row.state is ProvisionState.DEPLOYED or get_workflow(tx, row.workflow_id) is not None:
        return
    residue = row.residue
    if row.verb is MetalVerb.RELEASE:
        residue = Residue.ERASING
    elif row.verb is not MetalVerb.RESCUE:
        residue = row.residue or Residue.CHANGED
    cause = WorkflowError(
        code="WORKFLOW_GONE",
        message=f"its workflow {row.workflow_id} is not there any more: nobody knows how far it came",
    )
    gone = replace(
        row, state=ProvisionState.FAILED, residue=residue, cause=_cause(row, cause), origin=None, aborting=False
    )
    store_provision(tx, node, row, gone)


def settle_workflow(tx: Transaction, tools: Tools, workflow_id: str) -> None:
    """Moves the node to where the workflow has brought it. Does nothing for a workflow that is not the node's present
    one, that was retried meanwhile (its next end comes too), or whose node is gone."""
    workflow = get_workflow(tx, workflow_id)
    if workflow is None or workflow.node_id is None:
        return
    try:
        node, row = lock_provision(tx, workflow.tenant_id, workflow.node_id)
    except RequestError as error:
        if error.code is not RequestCode.NOT_FOUND:
            raise
        return
    # Read again: a retry holds the node's row too.
    workflow = get_workflow(tx, workflow_id)
    if workflow is None or row.verb is None or not _counts(row, workflow_id):
        _log.info("the end of workflow %s does not move node %s any more", workflow_id, node.name)
        return
    if workflow.state in ACTIVE:
        return
    if workflow.state is WorkflowState.SUCCEEDED:
        missed = missed_erasure(row.verb, steps_of(tx, workflow.id)) or missed_return(tx, row.verb, node.id)
        if missed is None:
            _succeeded(tx, node, row, row.verb)
        else:
            _failed(tx, tools, node, row, replace(workflow, error=missed))
        return
    if row.aborting and workflow.state is WorkflowState.CANCELLED and workflow.started_at is None:
        back = replace(row, state=row.origin or row.base, origin=None, aborting=False)
        store_provision(tx, node, row, back)
        return
    _failed(tx, tools, node, row, workflow)


def _counts(row: ProvisionRow, workflow_id: str) -> bool:
    """A failed node still follows the workflow that it failed with: it may have been retried past us."""
    return row.workflow_id == workflow_id and (is_moved(row) or row.state is ProvisionState.FAILED)


def _succeeded(tx: Transaction, node: NodeRow, row: ProvisionRow, verb: MetalVerb) -> None:
    goal = GOAL[verb]
    if verb is MetalVerb.REMEDIATE:
        store_provision(tx, node, row, replace(row, origin=None, aborting=False, verb=None))
        run = get_run(tx, row.workflow_id or "")
        data: dict[str, object] = {
            "nodeId": node.id,
            "name": node.name,
            "workflowId": row.workflow_id,
            "reason": run.asked.reason if run is not None else None,
        }
        publish(tx, node.tenant_id, f"node/{node.id}", "node.remedied", data)
    elif verb is MetalVerb.RESCUE:
        # What had failed before is still so: recover, or another verb, decides about it.
        store_provision(tx, node, row, replace(row, state=goal, origin=None, aborting=False))
    else:
        reached = replace(row, state=goal, base=goal, residue=None, cause=None, origin=None, aborting=False)
        deployed_at = tx.now() if goal is ProvisionState.DEPLOYED else None
        store_provision(tx, node, row, replace(reached, deployed_at=deployed_at))
    if verb is MetalVerb.RELEASE:
        # Whoever had the machine may have kept its agent's key.
        supersede_agents_of(tx, node.id, "daemon")


def _failed(tx: Transaction, tools: Tools, node: NodeRow, row: ProvisionRow, workflow: WorkflowRow) -> None:
    error = workflow.error or WorkflowError(code=workflow.state.value.upper(), message="it says no reason")
    failed = store_provision(
        tx,
        node,
        row,
        replace(
            row,
            state=ProvisionState.FAILED,
            residue=residue_after(row, steps_of(tx, workflow.id)),
            cause=_cause(row, error),
            origin=None,
            aborting=False,
        ),
    )
    if error.rescue and row.verb is not MetalVerb.RESCUE:
        _start_rescue(tx, tools, node, failed, error)


def _start_rescue(tx: Transaction, tools: Tools, node: NodeRow, row: ProvisionRow, error: WorkflowError) -> None:
    """A step whose `onFailure` is `rescue` has failed. What keeps the rescue from starting is added to the cause."""
    try:
        begin(tx, tools, node, row, Wish(MetalVerb.RESCUE, OWNER, Asked(reason=error.message[:LONGEST_CAUSE])))
    except RequestError as refused:
        told = _lengthened(row.cause or error, f"and the rescue that it asks for cannot start: {refused.message}")
        store_provision(tx, node, row, replace(row, cause=told))


def _cause(row: ProvisionRow, error: WorkflowError) -> WorkflowError:
    """A rescue or recovery that fails does not hide what it was to help with."""
    what = {MetalVerb.RESCUE: "rescue", MetalVerb.RECOVER: "recovery"}.get(row.verb or MetalVerb.DEPLOY)
    if what is not None and row.cause is not None:
        return _lengthened(row.cause, f"and the {what} has failed: {error.message}")
    return error


def _lengthened(cause: WorkflowError, words: str) -> WorkflowError:
    return replace(cause, message=f"{cause.message}; {words}"[:LONGEST_CAUSE])
