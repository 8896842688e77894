"""Starting: rows, snapshot and event in the caller's own transaction, and one active workflow at a time."""

import asyncio
from typing import Any

import msgspec
import pytest

from control_plane.commands import WORKFLOWS_CHANNEL
from control_plane.engine.context import StepContext, StepFailed
from control_plane.engine.profiles import create_profile
from control_plane.engine.records import WorkflowRow
from control_plane.engine.registry import default_registry
from control_plane.engine.start import Start, start
from control_plane.engine.states import Phase, RunsOn, StepState, WorkflowState
from control_plane.engine.timing import SHARDS, shard_of
from control_plane.nodes import find_node, update_node
from control_plane.store import Transaction
from protocol.errors import RequestCode, RequestError
from protocol.ids import is_id, new_id
from protocol.operations import CONCERNS
from tests.control_plane.engine.operations import EXAMPLES
from tests.control_plane.engine.rig import DRIVERS, TENANT, Rig, kexec, power, work


def document(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"profile": "deploy", "drivers": DRIVERS, "steps": list(steps or (work(),)), **more}


async def stored(rig: Rig, *steps: dict[str, Any], **more: Any) -> str:
    """The id of the profile deploy, whose next version this is."""
    made = document(*steps, **more)
    created = await rig.store.write(create_profile, rig.registry, rig.timing, TENANT, made, "tok_1")
    return created.version.profile_id


async def begin(rig: Rig, **wanted: Any) -> WorkflowRow:
    asked = Start(**{"tenant_id": TENANT, "profile_id": "deploy", **wanted})
    return await rig.store.write(start, rig.registry, rig.timing, asked)


async def count(rig: Rig, table: str) -> int:
    row = await rig.store.read(lambda tx: tx.one(f"SELECT COUNT(*) FROM {table}"))
    assert row is not None
    return int(row[0])


async def node_name(rig: Rig) -> str:
    """Gives the rig's node a name."""

    def rename(tx: Transaction) -> str:
        node = find_node(tx, TENANT, rig.node_id, lock=True)
        return update_node(tx, msgspec.structs.replace(node, name="by-its-name")).name

    return await rig.store.write(rename)


async def refused(rig: Rig, code: RequestCode, **wanted: Any) -> RequestError:
    before = await count(rig, "workflows"), await count(rig, "events")
    with pytest.raises(RequestError) as error:
        await begin(rig, **wanted)
    assert error.value.code is code
    assert before == (await count(rig, "workflows"), await count(rig, "events"))
    return error.value


@pytest.mark.line("A01")
async def test_a_start_stores_one_workflow_and_one_row_for_each_step(rig: Rig) -> None:
    profile_id = await stored(
        rig,
        work("first", retries=2, when="a"),
        kexec(onFailure=power("reset")),
        {"id": "mount", "use": "plane.mount"},
        cleanup=[{"use": "virtual-media.ejectMedia", "on": "site", "onFailure": "continue"}],
    )
    workflow = await begin(rig, node_id=rig.node_id, owner="metal", instance_id="i-1")
    assert is_id(workflow.id, "wf")
    seen = await rig.look(workflow.id)
    assert seen.workflow == workflow
    assert (workflow.profile_id, workflow.profile_version) == (profile_id, 1)
    assert (workflow.state, workflow.ending, workflow.error) == (WorkflowState.PENDING, None, None)
    assert (workflow.node_id, workflow.instance_id, workflow.owner) == (rig.node_id, "i-1", "metal")
    assert workflow.created_at == workflow.updated_at == workflow.wake_at == rig.clock.now
    assert [(step.seq, step.id, step.phase, step.runs_on) for step in seen.steps.values()] == [
        (1, "first", Phase.MAIN, RunsOn.CONTROL_PLANE),
        (2, "kexec", Phase.MAIN, RunsOn.RAMDISK),
        (3, "mount", Phase.MAIN, RunsOn.CONTROL_PLANE),
        (4, "kexec.on-failure", Phase.ON_FAILURE, RunsOn.SITE),
        (5, "mount.cleanup", Phase.CLEANUP, RunsOn.CONTROL_PLANE),
        (6, "virtual-media.ejectMedia", Phase.CLEANUP, RunsOn.SITE),
    ]
    assert {step.state for step in seen.steps.values()} == {StepState.PENDING}
    assert {(step.attempt, step.first_attempt) for step in seen.steps.values()} == {(1, 1)}
    assert [step.owner_seq for step in seen.steps.values()] == [None, None, None, 2, 3, None]
    assert (seen.steps["first"].spec.retries, seen.steps["first"].spec.when) == (2, "a")


@pytest.mark.line("A01")
async def test_a_rollback_of_the_caller_leaves_no_workflow_and_no_event(rig: Rig) -> None:
    await stored(rig)

    class Undone(Exception):
        pass

    def undone(tx: Transaction) -> None:
        start(tx, rig.registry, rig.timing, Start(tenant_id=TENANT, profile_id="deploy", node_id=rig.node_id))
        raise Undone

    with pytest.raises(Undone):
        await rig.store.write(undone)
    told = "events WHERE subject LIKE 'workflow/%'"
    assert [await count(rig, table) for table in ("workflows", "workflow_steps", told)] == [0, 0, 0]
    row = await rig.store.read(lambda tx: tx.one("SELECT used_at FROM profile_versions"))
    assert row == (None,)
    assert (await begin(rig, node_id=rig.node_id)).state is WorkflowState.PENDING


async def test_a_start_is_told_by_one_event(rig: Rig) -> None:
    profile_id = await stored(rig)
    workflow = await begin(rig, node_id=rig.node_id)
    facts = {"workflowId": workflow.id, "nodeId": rig.node_id, "profileId": profile_id, "profileVersion": 1}
    assert await rig.events(workflow.id) == [("workflow.created", facts)]


async def test_a_start_wakes_the_workers(rig: Rig) -> None:
    woken: asyncio.Queue[str] = asyncio.Queue()
    stop = rig.store.listen(WORKFLOWS_CHANNEL, woken.put_nowait)
    # The first, empty hint says that listening is in place.
    assert await woken.get() == ""
    await stored(rig)
    workflow = await begin(rig, node_id=rig.node_id)
    assert await woken.get() == workflow.id
    stop()


@pytest.mark.line("A02")
async def test_the_document_is_kept_as_it_was(rig: Rig) -> None:
    await stored(rig, work("first"))
    workflow = await begin(rig, node_id=rig.node_id)
    await stored(rig, work("other"), work("more"), hostConfig={"hostname": "new"})
    row = await rig.store.read(
        lambda tx: tx.one("SELECT document FROM workflow_documents WHERE workflow_id = :id", {"id": workflow.id})
    )
    assert row is not None
    assert msgspec.json.decode(row[0])["steps"] == [work("first")]
    assert list((await rig.look(workflow.id)).steps) == ["first"]
    assert (await rig.finish(workflow.id)).states == {"first": "succeeded"}
    assert await count(rig, "desired_states") == 0


async def test_the_latest_version_is_started_unless_one_is_named(rig: Rig) -> None:
    profile_id = await stored(rig, work("first"))
    await stored(rig, work("second"))
    assert (await begin(rig)).profile_version == 2
    assert (await begin(rig, profile_id=profile_id, profile_version=1)).profile_version == 1


@pytest.mark.line("A04")
async def test_a_second_active_workflow_of_a_node_is_a_conflict(rig: Rig) -> None:
    await stored(rig)
    first = await begin(rig, node_id=rig.node_id)
    error = await refused(rig, RequestCode.CONFLICT, node_id=await node_name(rig))
    assert f"{first.id}, which is pending" in error.message
    await rig.finish(first.id)
    assert (await begin(rig, node_id=rig.node_id)).id != first.id


@pytest.mark.line("A04")
async def test_a_second_active_workflow_of_an_instance_is_a_conflict(rig: Rig) -> None:
    await stored(rig)
    first = await begin(rig, instance_id="i-1")
    await refused(rig, RequestCode.CONFLICT, instance_id="i-1")
    assert (await begin(rig, instance_id="i-2")).instance_id == "i-2"
    await rig.abort(first.id)
    assert (await begin(rig, instance_id="i-1")).instance_id == "i-1"


@pytest.mark.line("A04")
@pytest.mark.parametrize("subject", ["node_id", "instance_id"])
async def test_of_many_that_start_at_once_one_is_stored(rig: Rig, subject: str) -> None:
    await stored(rig)
    wanted = {subject: rig.node_id if subject == "node_id" else "i-1"}
    answers = await asyncio.gather(*(begin(rig, **wanted) for _ in range(10)), return_exceptions=True)
    started = [answer for answer in answers if isinstance(answer, WorkflowRow)]
    conflicts = [answer for answer in answers if isinstance(answer, RequestError)]
    assert (len(started), len(conflicts)) == (1, 9)
    assert {error.code for error in conflicts} == {RequestCode.CONFLICT}
    assert await count(rig, "workflows") == 1
    assert await count(rig, "workflow_steps") == 1


@pytest.mark.line("A05")
async def test_what_is_unknown_is_not_found(rig: Rig) -> None:
    await stored(rig)
    await refused(rig, RequestCode.NOT_FOUND, profile_id="nothing")
    await refused(rig, RequestCode.NOT_FOUND, profile_id=new_id("prof"))
    await refused(rig, RequestCode.NOT_FOUND, profile_version=2)
    await refused(rig, RequestCode.NOT_FOUND, node_id=new_id("node"))
    await refused(rig, RequestCode.NOT_FOUND, node_id=rig.node_id, tenant_id="globex")


@pytest.mark.line("A06")
async def test_steps_that_do_not_resolve_any_more_are_all_listed(rig: Rig) -> None:
    await stored(rig, work("a"), power(), {"use": "plane.mount"}, cleanup=[work("b")])
    rig.registry = default_registry()
    error = await refused(rig, RequestCode.INVALID_INPUT, node_id=rig.node_id)
    assert [issue.path for issue in error.issues] == ["steps[0].use", "steps[2].use", "cleanup[0].use"]


@pytest.mark.line("A06")
async def test_agents_steps_without_a_node_are_all_listed(rig: Rig) -> None:
    await stored(rig, power(), work(), kexec())
    error = await refused(rig, RequestCode.INVALID_INPUT)
    assert [issue.path for issue in error.issues] == ["steps[0].use", "steps[2].use"]


@pytest.mark.line("A07")
async def test_512_steps_can_be_started(rig: Rig) -> None:
    await stored(rig, *[{"use": "plane.work"}] * 512)
    workflow = await begin(rig, node_id=rig.node_id)
    assert len((await rig.look(workflow.id)).steps) == 512


@pytest.mark.line("A08")
async def test_a_workflow_without_a_node_is_keyed_by_its_own_id(rig: Rig) -> None:
    await stored(rig, work("a", when="!missing"), work("b", when="missing"))
    first, second = await begin(rig, owner="metal"), await begin(rig)
    assert (first.node_id, first.shard, second.shard) == (None, shard_of(first.id), shard_of(second.id))
    assert (await rig.finish(first.id)).states == {"a": "succeeded", "b": "skipped"}
    assert await rig.owner_queue() == [("metal", first.id)]


@pytest.mark.line("A09")
@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
@pytest.mark.parametrize("owner", ["metal", None])
async def test_the_owner_is_queued_once_at_each_end(sqlite_rig: Rig, outcome: str, owner: str | None) -> None:
    rig = sqlite_rig

    async def fail(context: StepContext) -> None:
        raise StepFailed("no")

    if outcome == "failed":
        rig.code["work"] = fail
    await stored(rig)
    workflow = await begin(rig, node_id=rig.node_id, owner=owner)
    assert await rig.owner_queue() == []
    if outcome == "cancelled":
        await rig.abort(workflow.id)
    assert (await rig.finish(workflow.id)).workflow.state == outcome
    if outcome == "cancelled":
        await rig.abort(workflow.id)
    assert await rig.owner_queue() == ([] if owner is None else [(owner, rig.node_id)])


@pytest.mark.line("A12")
@pytest.mark.parametrize("concern", CONCERNS)
async def test_an_operation_of_each_concern_becomes_one_command_with_its_driver(
    sqlite_rig: Rig, concern: str
) -> None:
    rig = sqlite_rig
    operation, arguments = EXAMPLES[concern]
    use = {"use": f"{concern}.{operation}", "on": "site", "with": arguments}
    await stored(rig, use, drivers={concern: "simulated"})
    workflow = await begin(rig, node_id=rig.node_id)
    await rig.run(workflow.id)
    (command,) = await rig.commands(workflow.id)
    assert (command.kind, command.not_after - rig.clock.now) == ("driver.invoke", 600_000)
    target = command.payload.pop("target")
    assert isinstance(target, dict)
    assert "address" in target
    assert command.payload == {
        "driver": "simulated",
        "concern": concern,
        "operation": operation,
        "args": arguments,
        "targetNodeId": rig.node_id,
    }


async def test_workflows_of_one_node_are_in_one_shard(rig: Rig) -> None:
    await stored(rig)
    first = await begin(rig, node_id=rig.node_id)
    await rig.finish(first.id)
    second = await begin(rig, node_id=await node_name(rig))
    assert first.shard == second.shard == shard_of(rig.node_id)
    assert {shard_of(new_id("node")) for _ in range(1000)} == set(range(SHARDS))


def test_a_shard_is_the_same_in_every_version() -> None:
    # Rows of an older version are looked for under these numbers.
    assert [shard_of(key) for key in ("node_01", "node_02", "wf_01", "")] == [17, 11, 25, 0]
