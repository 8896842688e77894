"""Workflows put into the store as rows, in whatever state a test wants them."""

from typing import Any

import msgspec

from control_plane.engine.records import StepRow, StepSpec, WorkflowRow
from control_plane.engine.states import Phase, RunsOn, StepState, WorkflowState
from control_plane.engine.timing import shard_of
from control_plane.records import CommandRow
from control_plane.store import Transaction, params_of
from protocol.commands import CommandState
from protocol.ids import new_id
from protocol.operations import Repeat

__all__ = ["put_command", "put_workflow", "step"]


def step(seq: int = 0, **changes: Any) -> StepRow:
    """A main step, pending, that an agent of the site does."""
    row = StepRow(
        workflow_id="",
        seq=seq,
        id=f"step-{seq}",
        phase=Phase.MAIN,
        action="power.getPower",
        runs_on=RunsOn.SITE,
        spec=StepSpec(kind="operation", driver="simulated", timeout_ms=600_000),
        owner_seq=None,
        state=StepState.PENDING,
        attempt=1,
        first_attempt=1,
        command_id=None,
        deadline=None,
        wake_at=None,
        rejoin=None,
        result=None,
        error=None,
        started_at=None,
        finished_at=None,
    )
    return msgspec.structs.replace(row, **changes)


def put_workflow(
    tx: Transaction,
    node_id: str | None,
    state: WorkflowState = WorkflowState.RUNNING,
    steps: list[StepRow] | None = None,
    *,
    tenant: str = "acme",
    **changes: Any,
) -> str:
    """Stores it, and returns its id. Nothing is due, unless `wake_at` says so."""
    now = tx.now()
    workflow_id = str(changes.pop("id", new_id("wf")))
    ended = state in (WorkflowState.SUCCEEDED, WorkflowState.FAILED, WorkflowState.CANCELLED)
    row = WorkflowRow(
        id=workflow_id,
        tenant_id=tenant,
        profile_id="prof_1",
        profile_version=1,
        node_id=node_id,
        instance_id=None,
        shard=shard_of(node_id or workflow_id),
        owner=None,
        state=state,
        ending=None,
        step_seq=None,
        step_id=None,
        error=None,
        wake_at=None,
        created_at=now,
        started_at=None if state is WorkflowState.PENDING else now,
        finished_at=now if ended else None,
        updated_at=now,
    )
    row = msgspec.structs.replace(row, **changes)
    _insert(tx, "workflows", params_of(row))
    _insert(tx, "workflow_documents", {"workflow_id": workflow_id, "document": "{}"})
    for each in [step()] if steps is None else steps:
        columns = params_of(msgspec.structs.replace(each, workflow_id=workflow_id))
        plan = {name: columns.pop(name) for name in ("id", "action", "runs_on", "spec")}
        _insert(tx, "workflow_steps", columns)
        _insert(tx, "step_plans", {"workflow_id": workflow_id, "seq": each.seq, **plan})
    return workflow_id


def put_command(
    tx: Transaction, node_id: str, agent_id: str, workflow_id: str | None = None, **changes: Any
) -> CommandRow:
    """A command of the workflow, queued unless `state` says otherwise."""
    now, command_id = tx.now(), new_id("cmd")
    row = CommandRow(
        id=command_id,
        tenant_id="acme",
        node_id=node_id,
        agent_id=agent_id,
        kind="driver.invoke",
        payload={"concern": "power", "operation": "getPower", "args": {}},
        key=command_id,
        repeat=Repeat.READ,
        state=CommandState.QUEUED,
        created_at=now,
        created_by="test",
        not_after=now + 60_000,
        sent_session=None,
        sent_journal=None,
        started_at=None,
        finished_at=None,
        cancel_reason=None,
        ending=None,
        late_ending=None,
        workflow_id=workflow_id,
    )
    row = msgspec.structs.replace(row, **changes)
    _insert(tx, "commands", params_of(row))
    return row


def _insert(tx: Transaction, table: str, params: dict[str, object]) -> None:
    tx.run(f"INSERT INTO {table} ({', '.join(params)}) VALUES ({', '.join(':' + name for name in params)})", params)
