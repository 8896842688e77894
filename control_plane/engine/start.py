"""The start of a workflow, in the transaction of whoever starts it."""

from collections.abc import Iterable

import msgspec

from control_plane.commands import WORKFLOWS_CHANNEL
from control_plane.engine import outbox
from control_plane.engine.expansion import RowSeed, expand
from control_plane.engine.profiles import ProfileVersion, find_profile, mark_used, require_sound
from control_plane.engine.records import WorkflowRow
from control_plane.engine.registry import StepRegistry
from control_plane.engine.states import ACTIVE, WorkflowState
from control_plane.engine.timing import Timing, shard_of
from control_plane.engine.work import Work
from control_plane.nodes import find_node
from control_plane.store import Transaction, json_text, params_of
from protocol.errors import RequestCode, RequestError
from protocol.ids import new_id

__all__ = ["Start", "insert_steps", "start"]

_ACTIVE = ", ".join(f"'{state.value}'" for state in sorted(ACTIVE))
_COLUMNS = WorkflowRow.__struct_fields__
_INSERT = (
    f"INSERT INTO workflows ({', '.join(_COLUMNS)}) VALUES ({', '.join(':' + name for name in _COLUMNS)}) "
    "ON CONFLICT DO NOTHING"
)
_INSERT_DOCUMENT = "INSERT INTO workflow_documents (workflow_id, document) VALUES (:id, :document)"
_INSERT_STEPS = """
INSERT INTO workflow_steps (workflow_id, seq, phase, owner_seq, state, attempt, first_attempt)
SELECT new.workflow_id, new.seq, new.phase, new.owner_seq, 'pending', 1, 1
FROM ROWS(:rows AS new (workflow_id TEXT, seq BIGINT, phase TEXT, owner_seq BIGINT))
"""
_INSERT_PLANS = """
INSERT INTO step_plans (workflow_id, seq, id, action, runs_on, spec)
SELECT new.workflow_id, new.seq, new.id, new.action, new.runs_on, new.spec
FROM ROWS(:rows AS new (workflow_id TEXT, seq BIGINT, id TEXT, action TEXT, runs_on TEXT, spec TEXT))
"""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be started."""

    tenant_id: str
    profile_id: str
    """The profile's id or name."""
    profile_version: int | None = None
    """The latest one where it is None."""
    node_id: str | None = None
    """The machine's id or name; None for a workflow that needs none."""
    instance_id: str | None = None
    """The instance that it is about, where there is one."""
    owner: str | None = None
    """The kind of work that is queued once the workflow has ended."""


def start(tx: Transaction, registry: StepRegistry, timing: Timing, wanted: Start) -> WorkflowRow:
    """Stores the workflow, pending, with every row that its profile makes, and has a worker look at it.

    It is all in the caller's transaction: rolled back, nothing of it was. Raises RequestError NOT_FOUND for an
    unknown profile, version or node; INVALID_INPUT with every fault of the profile; CONFLICT while another workflow
    of the node or instance is active.
    """
    version = find_profile(tx, wanted.tenant_id, wanted.profile_id, wanted.profile_version)
    # The node's row is held: of two that start at the same moment, the second one sees the first.
    node_id = None if wanted.node_id is None else find_node(tx, wanted.tenant_id, wanted.node_id, lock=True).id
    seeds = require_sound(expand(version.document, registry, timing, has_node=node_id is not None)).seeds
    _refuse_second(tx, wanted, node_id)
    workflow = _new_workflow(tx, version, wanted, node_id)
    if not tx.run(_INSERT, params_of(workflow)):
        # Nothing locks an instance: another transaction was faster.
        raise RequestError(
            RequestCode.CONFLICT, "another workflow was started for the same subject at the same moment"
        )
    tx.run(_INSERT_DOCUMENT, {"id": workflow.id, "document": json_text(version.document)})
    insert_steps(tx, ((workflow.id, seed) for seed in seeds))
    mark_used(tx, version)
    work = Work(tx)
    outbox.workflow_event(work, workflow, "created")
    work.flush()
    tx.notify(WORKFLOWS_CHANNEL, workflow.id)
    return workflow


def _new_workflow(tx: Transaction, version: ProfileVersion, wanted: Start, node_id: str | None) -> WorkflowRow:
    workflow_id, now = new_id("wf"), tx.now()
    return WorkflowRow(
        id=workflow_id,
        tenant_id=wanted.tenant_id,
        profile_id=version.profile_id,
        profile_version=version.version,
        node_id=node_id,
        instance_id=wanted.instance_id,
        shard=shard_of(node_id or workflow_id),
        owner=wanted.owner,
        state=WorkflowState.PENDING,
        ending=None,
        step_seq=None,
        step_id=None,
        error=None,
        wake_at=now,
        created_at=now,
        started_at=None,
        finished_at=None,
        updated_at=now,
    )


def insert_steps(tx: Transaction, seeds: Iterable[tuple[str, RowSeed]]) -> None:
    """The rows of workflows' steps, all pending, each with its workflow's id."""
    steps, plans = [], []
    for workflow_id, seed in seeds:
        steps.append((workflow_id, seed.seq, seed.phase.value, seed.owner_seq))
        plans.append((workflow_id, seed.seq, seed.id, seed.action, seed.runs_on.value, json_text(seed.spec)))
    tx.run(_INSERT_STEPS, {"rows": steps})
    tx.run(_INSERT_PLANS, {"rows": plans})


def _refuse_second(tx: Transaction, wanted: Start, node_id: str | None) -> None:
    """Raises CONFLICT naming the workflow that is active."""
    subjects = [("node", "node_id", node_id), ("instance", "instance_id", wanted.instance_id)]
    for word, column, subject in subjects:
        if subject is None:
            continue
        active = tx.one(
            f"SELECT id, state FROM workflows WHERE tenant_id = :tenant_id AND {column} = :subject "
            f"AND state IN ({_ACTIVE}) LIMIT 1",
            {"tenant_id": wanted.tenant_id, "subject": subject},
        )
        if active is not None:
            message = f"{word} {subject} has the workflow {active[0]}, which is {active[1]}"
            raise RequestError(RequestCode.CONFLICT, f"{message}: wait for it, or abort it first")
