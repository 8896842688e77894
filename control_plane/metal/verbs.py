"""What an operator does to a machine's provision state: each in the caller's transaction, with the node's row held.

Each raises RequestError INVALID_STATE, INVALID_INPUT, NOT_FOUND or CONFLICT, and then has changed nothing that the
caller's rollback does not undo.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from control_plane.engine import verbs as engine
from control_plane.engine.profiles import ProfileVersion, find_profile
from control_plane.engine.records import StepRow, WorkflowError, WorkflowRow
from control_plane.engine.registry import StepRegistry
from control_plane.engine.rejoining import presence_of
from control_plane.engine.rows import WORKFLOW_COLUMNS
from control_plane.engine.start import Start, start
from control_plane.engine.states import ACTIVE, Phase, RunsOn, StepState
from control_plane.engine.timing import Timing
from control_plane.events import publish
from control_plane.metal.bindings import Bindings
from control_plane.metal.own_system import own_system
from control_plane.metal.rows import Asked, ProvisionRow, RunRow, lock_provision, put_run, store_provision
from control_plane.metal.states import (
    AT_REST,
    BASES,
    MOVING,
    MetalVerb,
    Outlook,
    ProvisionState,
    Refusal,
    Residue,
    changes_disks,
    erasing,
    may_start,
    safe_state,
)
from control_plane.records import NodeRow
from control_plane.store import Transaction
from protocol.errors import Issue, RequestCode, RequestError

__all__ = [
    "LONGEST_CAUSE",
    "OWNER",
    "Tools",
    "Wish",
    "abort",
    "allow_retry",
    "begin",
    "end_maintenance",
    "get_workflow",
    "is_moved",
    "missed_erasure",
    "missed_return",
    "recover",
    "residue_after",
    "start_maintenance",
]

OWNER = "metal"
"""The kind under which the engine queues the ends of metal's workflows."""
LONGEST_CAUSE = 4_000
"""Characters of the reason that a node keeps."""
_DONE = (StepState.SUCCEEDED, StepState.SKIPPED)
_IN_RAMDISK = frozenset({"metal.writeImage", "metal.configDrive", "metal.bootInstalled"})
replace = msgspec.structs.replace


class Tools(NamedTuple):
    """What starting a workflow takes."""

    registry: StepRegistry
    timing: Timing
    bindings: Bindings


class Wish(NamedTuple):
    """What is to be started, and who asks for it."""

    verb: MetalVerb
    by: str
    asked: Asked = Asked()
    profile: str | None = None
    """In place of the bound one, by name or id."""
    version: int | None = None


def begin(tx: Transaction, tools: Tools, node: NodeRow, row: ProvisionRow, wish: Wish) -> ProvisionRow:
    """Starts the verb's workflow and notes what was asked of it; the state moves in the same transaction."""
    refusal = may_start(wish.verb, row.state, row.base, row.residue)
    if refusal is not None:
        raise _refused(node, wish.verb.value, refusal)
    version = _bound_profile(tx, tools, node, row, wish)
    wanted = Start(
        tenant_id=node.tenant_id,
        profile_id=version.profile_id,
        profile_version=version.version,
        node_id=node.id,
        owner=OWNER,
    )
    workflow = start(tx, tools.registry, tools.timing, wanted)
    steps = engine.steps_of(tx, workflow.id)
    issues = list(_unused(steps, wish.asked, version.name))
    if wish.verb is MetalVerb.RELEASE and not erasing(step.action for step in steps if step.phase is Phase.MAIN):
        issues.append(
            Issue(
                "profile",
                f"the profile {version.name!r} has no step that erases the disks: the machine would count as clean",
                "add a step deploy.eraseDisks (or task.run, a script of your own), or name another profile",
            )
        )
    if issues:
        raise RequestError.invalid(issues)
    put_run(
        tx,
        RunRow(
            workflow_id=workflow.id,
            tenant_id=node.tenant_id,
            node_id=node.id,
            verb=wish.verb,
            asked=wish.asked,
            started_at=tx.now(),
            started_by=wish.by,
        ),
    )
    moving = replace(
        row,
        state=MOVING[wish.verb],
        verb=wish.verb,
        workflow_id=workflow.id,
        origin=row.state,
        aborting=False,
    )
    return store_provision(tx, node, row, moving)


def abort(tx: Transaction, timing: Timing, node: NodeRow, row: ProvisionRow, reason: str | None) -> ProvisionRow:
    """Ends the workflow that moves the node. Once it has cleaned up, the node has failed, with the reason as its
    cause; where nothing was begun yet, it is as it was before."""
    workflow = get_workflow(tx, row.workflow_id) if is_moved(row) else None
    if workflow is None or workflow.state not in ACTIVE:
        raise _refused(node, "abort", Refusal(f"no workflow moves it: it is {row.state}"))
    aborted = store_provision(tx, node, row, replace(row, aborting=True))
    engine.abort(tx, timing, workflow.id, reason)
    return aborted


def allow_retry(tx: Transaction, workflow: WorkflowRow, from_step: str | None = None) -> None:
    """To be called before a workflow is retried: one of metal's is only while its node still stands where it failed,
    and with the ramdisk that its steps need; the node moves on with it."""
    if workflow.owner != OWNER or workflow.node_id is None:
        return
    node, row = lock_provision(tx, workflow.tenant_id, workflow.node_id)
    if (
        row.workflow_id != workflow.id
        or row.verb is None
        or not (row.state is ProvisionState.FAILED or is_moved(row))
    ):
        raise RequestError(
            RequestCode.INVALID_STATE,
            f"node {node.name!r} was moved on since this workflow failed, and is {row.state}: "
            "start anew what it needs",
        )
    steps = engine.steps_of(tx, workflow.id)
    missing = _lost_ramdisk(steps, from_step)
    presence = presence_of(tx, node.id)
    if missing is not None and (presence is None or presence.role != RunsOn.RAMDISK):
        raise RequestError(
            RequestCode.INVALID_STATE,
            "the clean-up has ended the ramdisk that the next steps need: go back to the step that starts it, "
            f"with --from-step {missing.id}",
        )
    # Its steps forget what they have begun once they are retried.
    residue = residue_after(row, steps)
    again = replace(row, state=MOVING[row.verb], origin=row.origin or row.state, residue=residue, aborting=False)
    store_provision(tx, node, row, again)


def recover(
    tx: Transaction, tools: Tools, node: NodeRow, row: ProvisionRow, by: str, *, as_it_is: bool = False
) -> ProvisionRow:
    """Takes a failed or rescued node back to where it stands by what can be seen: the workflow's steps, and the agent
    that is connected. A machine that was in service and was left in its ramdisk is started by a workflow, and is in
    service when that has ended; no other one is asked or changed.

    `as_it_is`: the operator's word takes the place of its own system's agent.
    """
    workflow = get_workflow(tx, row.workflow_id)
    if workflow is not None and workflow.state in ACTIVE:
        raise _refused(node, "recover", Refusal(f"workflow {workflow.id} is {workflow.state}: wait, or abort it"))
    seen = _look(tx, row, workflow)
    to = safe_state(seen, as_it_is=as_it_is)
    if isinstance(to, Refusal):
        raise _refused(node, "recover", to)
    if to is ProvisionState.RECOVERING:
        return begin(tx, tools, node, row, Wish(MetalVerb.RECOVER, by))
    if to is ProvisionState.DEPLOYED and to is not safe_state(seen):
        data: dict[str, object] = {"nodeId": node.id, "name": node.name, "by": by}
        publish(tx, node.tenant_id, f"node/{node.id}", "node.asserted", data)
    if to in BASES:
        reached = replace(row, state=to, base=to, residue=None, cause=None, origin=None, aborting=False)
        recovered = replace(reached, deployed_at=tx.now() if to is ProvisionState.DEPLOYED else None)
    else:
        recovered = replace(row, state=to, origin=None, aborting=False)
    return store_provision(tx, node, row, recovered)


def start_maintenance(tx: Transaction, node: NodeRow, row: ProvisionRow, reason: str | None) -> ProvisionRow:
    """Nothing is started for the node until the maintenance ends. Once more, it changes the reason only."""
    if row.state is ProvisionState.MAINTENANCE:
        return store_provision(tx, node, row, replace(row, note=reason))
    active = tx.one(
        "SELECT id FROM workflows WHERE node_id = :node AND state IN ('pending', 'running', 'paused')",
        {"node": node.id},
    )
    if active is not None or row.state not in AT_REST:
        why = f"it is {row.state}" + (f", with the workflow {active[0]}" if active is not None else "")
        raise _refused(node, "go into maintenance", Refusal(f"{why}: wait for the end, or abort it"))
    if is_moved(row) and get_workflow(tx, row.workflow_id) is not None:
        ended = Refusal(
            f"the workflow {row.workflow_id} has just ended, and what came of it is not noted yet: ask again"
        )
        raise _refused(node, "go into maintenance", ended)
    held = replace(row, state=ProvisionState.MAINTENANCE, origin=row.state, note=reason)
    return store_provision(tx, node, row, held)


def end_maintenance(tx: Transaction, node: NodeRow, row: ProvisionRow) -> ProvisionRow:
    """Back to the state that maintenance stood in for; a node that is not in maintenance stays as it is."""
    if row.state is not ProvisionState.MAINTENANCE:
        return row
    return store_provision(tx, node, row, replace(row, state=row.origin or row.base, origin=None, note=None))


def is_moved(row: ProvisionRow) -> bool:
    """Whether the node's workflow counts: it is under way, or its end was not taken in yet. One that is brought back
    stays in service meanwhile, and is told by where it came from."""
    if row.state is ProvisionState.DEPLOYED:
        return row.verb is MetalVerb.REMEDIATE and row.origin is not None
    return row.verb is not None and row.state is MOVING[row.verb]


def residue_after(row: ProvisionRow, steps: list[StepRow]) -> Residue | None:
    """What is left by this workflow if it goes no further, added to what was left before."""
    begun = any(step.started_at is not None and changes_disks(step.action) for step in steps)
    if not begun or row.residue is Residue.ERASING:
        return row.residue
    return Residue.ERASING if row.verb is MetalVerb.RELEASE else Residue.CHANGED


def missed_erasure(verb: MetalVerb | None, steps: list[StepRow]) -> WorkflowError | None:
    """Of a workflow whose steps have all ended: a release without its erasure. The profile goes on where that fails
    or its `when` was false, or somebody has retried from a later step. What is left on the disks, nobody knows."""
    if verb is not MetalVerb.RELEASE:
        return None
    main = [step for step in steps if step.phase is Phase.MAIN]
    wanted = erasing(step.action for step in main)
    erasures = [step for step in main if step.action in wanted]
    if all(step.state in _DONE for step in erasures) and any(step.state is StepState.SUCCEEDED for step in erasures):
        return None
    missed = next((step for step in erasures if step.state not in _DONE), None)
    what = f"its step {missed.id} has not" if missed is not None else "it has erased nothing"
    why = f": {missed.error.message}" if missed is not None and missed.error is not None else ""
    return WorkflowError(
        code="NOT_ERASED",
        message=f"the workflow has succeeded, and {what}, so that data may be left{why}"[:LONGEST_CAUSE],
    )


def missed_return(tx: Transaction, verb: MetalVerb | None, node_id: str) -> WorkflowError | None:
    """Of a workflow that has succeeded: it was to bring a machine's own system back, and nobody has heard of that."""
    if verb is not MetalVerb.RECOVER or own_system(tx, node_id).has_come:
        return None
    return WorkflowError(
        code="NOT_BACK",
        message="the workflow has succeeded, and the machine's own system has not connected since its ramdisk: let "
        "the profile wait for it (metal.bringUp). Where it has no agent, say that it is in service: rackwright nodes "
        "recover NODE --as-it-is",
    )


def get_workflow(tx: Transaction, workflow_id: str | None) -> WorkflowRow | None:
    if workflow_id is None:
        return None
    return tx.one(f"SELECT {WORKFLOW_COLUMNS} FROM workflows WHERE id = :id", {"id": workflow_id}, into=WorkflowRow)


def _lost_ramdisk(steps: list[StepRow], from_step: str | None) -> StepRow | None:
    """The step that has started a ramdisk for those that are to run now, where its clean-up has run since."""
    main = [step for step in steps if step.phase is Phase.MAIN]
    undone = [step for step in main if step.state not in _DONE]
    first = next((step for step in main if step.id == from_step), None) if from_step else next(iter(undone), None)
    if first is None:
        return None
    if not any(
        step.runs_on is RunsOn.RAMDISK or step.action in _IN_RAMDISK for step in main if step.seq >= first.seq
    ):
        return None
    cleaned = {step.owner_seq for step in steps if step.phase is Phase.CLEANUP and step.started_at is not None}
    boots = [step for step in main if step.action == "metal.bootRamdisk"]
    if any(step.seq >= first.seq for step in boots):
        return None
    return next((step for step in reversed(boots) if step.seq in cleaned), None)


def _look(tx: Transaction, row: ProvisionRow, workflow: WorkflowRow | None) -> Outlook:
    presence = presence_of(tx, row.node_id)
    steps = [] if workflow is None else engine.steps_of(tx, workflow.id)
    main = [step for step in steps if step.phase is Phase.MAIN]
    done = bool(main) and all(step.state in _DONE for step in main)
    missed = missed_erasure(row.verb, steps) or missed_return(tx, row.verb, row.node_id)
    own = own_system(tx, row.node_id, row.deployed_at or 0)
    return Outlook(
        state=row.state,
        base=row.base,
        residue=row.residue,
        verb=row.verb,
        done=done and missed is None,
        agent=None if presence is None else presence.role,
        agent_is_new=presence is not None
        and workflow is not None
        and presence.connected_at >= (workflow.started_at or workflow.created_at),
        is_back=own.is_there,
        ramdisk_is_last=own.ramdisk_is_last,
    )


def _bound_profile(tx: Transaction, tools: Tools, node: NodeRow, row: ProvisionRow, wish: Wish) -> ProfileVersion:
    name = tools.bindings.profile_of(wish.verb, row.profiles, wish.profile)
    try:
        return find_profile(tx, node.tenant_id, name, wish.version)
    except RequestError as error:
        if error.code is not RequestCode.NOT_FOUND or wish.profile is not None:
            raise
        # The request is sound and names what there is: it is the setting up that is not finished.
        raise RequestError(
            RequestCode.INVALID_STATE,
            f"{wish.verb} runs the profile {name!r}, which is not there: store it (rackwright profiles create FILE), "
            f"or bind another one (rackwright nodes update {node.name} --profile {wish.verb}=NAME)",
        ) from error


def _unused(steps: list[StepRow], asked: Asked, profile: str) -> Iterator[Issue]:
    """What was asked and no step would do, and what a step needs and nobody has said: told before anything begins."""
    main = [step for step in steps if step.phase is Phase.MAIN]
    writes = [step for step in main if step.action == "metal.writeImage"]
    if not writes and (asked.image is not None or asked.root_device is not None):
        yield Issue(
            "image" if asked.image is not None else "rootDevice",
            f"the profile {profile!r} has no step metal.writeImage, which would write it",
            "add the step, or ask without it",
        )
    if asked.image is None and any("image" not in step.spec.with_ for step in writes):
        yield Issue("image", f"the profile {profile!r} writes the image that is asked for", "name one")
    given = [
        name
        for name, value in (
            ("userData", asked.user_data),
            ("metaData", asked.meta_data),
            ("networkData", asked.network_data),
        )
        if value is not None
    ]
    if given and not any(step.action == "metal.configDrive" for step in main):
        for name in given:
            yield Issue(
                name,
                f"the profile {profile!r} has no step metal.configDrive, which would bring it to the machine",
                "add the step, or ask without it",
            )


def _refused(node: NodeRow, what: str, refusal: Refusal) -> RequestError:
    return RequestError(RequestCode.INVALID_STATE, f"node {node.name!r} cannot {what}: {refusal.message}")
