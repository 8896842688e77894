"""What a workflow leaves for others: events, its owner's queue, the node's desired state (A09, A48, A49)."""

import itertools
from typing import Any

import msgspec
import pytest

from control_plane import events
from control_plane.engine.context import StepContext, StepFailed
from control_plane.engine.states import WorkflowState
from control_plane.engine.transitions import Settlement, settle
from tests.control_plane.engine.rig import TENANT, Rig, power, work


async def broken(context: StepContext) -> None:
    raise StepFailed("the image is not there")


async def end_as(rig: Rig, how: str, **more: Any) -> str:
    if how == "failed":
        rig.code["work"] = broken
    workflow_id = await rig.start(work(), **more)
    if how == "cancelled":
        await rig.abort(workflow_id)
    seen = await rig.finish(workflow_id)
    assert seen.workflow.state.value == how
    return workflow_id


@pytest.mark.line("A09")
@pytest.mark.parametrize("how", ["succeeded", "failed", "cancelled"])
async def test_a09_the_owner_is_queued_once_whatever_the_end(rig: Rig, how: str) -> None:
    await end_as(rig, how, owner="metal")
    assert await rig.owner_queue() == [("metal", rig.node_id)]


@pytest.mark.line("A09")
async def test_a09_without_a_node_the_workflow_is_the_key_and_without_an_owner_nothing_is_queued(rig: Rig) -> None:
    await end_as(rig, "succeeded")
    workflow_id = await end_as(rig, "succeeded", owner="health", node=False)
    assert await rig.owner_queue() == [("health", workflow_id)]


@pytest.mark.line("A08")
async def test_a08_a_workflow_without_a_node_runs_to_its_end(rig: Rig) -> None:
    one = await rig.start(work("one", when="!gpu"), node=False)
    two = await rig.start(work("two"), node=False)
    for workflow_id in (one, two):
        assert (await rig.finish(workflow_id)).workflow.state is WorkflowState.SUCCEEDED


@pytest.mark.line("A48")
async def test_a48_every_event_once_and_in_order(rig: Rig) -> None:
    async def lucky(context: StepContext) -> None:
        if context.attempt == 1:
            raise StepFailed("not yet")

    rig.code |= {"one": lucky, "two": broken}
    workflow_id = await rig.start(
        work("one", retries=1), power("on", id="act"), work("two", onFailure={"use": "plane.work"}), work("three")
    )
    await rig.run(workflow_id)
    await rig.pause(workflow_id)
    await rig.resume(workflow_id)
    await rig.finish(workflow_id)
    await rig.retry(workflow_id, "two")
    await rig.run(workflow_id)
    await rig.abort(workflow_id)
    await rig.finish(workflow_id)
    assert await rig.event_names(workflow_id) == [
        "created",
        "started",
        "step.started one",
        "step.retrying one",
        "step.started one",
        "step.succeeded one",
        "step.started act",
        "paused",
        "resumed",
        "step.succeeded act",
        "step.started two",
        "step.failed two",
        "step.started two.on-failure",
        "step.succeeded two.on-failure",
        "failed",
        "retried",
        "step.started two",
        "step.failed two",
        "step.started two.on-failure",
        "step.succeeded two.on-failure",
        "failed",
        "cancelled",
    ]


@pytest.mark.line("A48")
async def test_a48_events_carry_whose_they_are_and_what_they_are_about(rig: Rig) -> None:
    workflow_id = await end_as(rig, "failed")
    workflow = (await rig.look(workflow_id)).workflow
    facts = {
        "workflowId": workflow_id,
        "nodeId": rig.node_id,
        "profileId": workflow.profile_id,
        "profileVersion": 1,
    }
    # `events` reads by tenant and subject.
    events = dict(await rig.events(workflow_id))
    step = {"stepId": "work", "action": "plane.work", "phase": "main", "attempt": 1}
    error = {"code": "STEP_FAILED", "message": "the image is not there"}
    assert events["workflow.created"] == events["workflow.started"] == facts
    assert events["workflow.step.started"] == facts | step
    assert events["workflow.step.failed"] == facts | step | {"error": error}
    assert events["workflow.failed"]["error"]["message"] == "work (plane.work): the image is not there"
    assert workflow.tenant_id == TENANT


@pytest.mark.line("A48")
async def test_a48_an_event_is_stored_with_its_transition_or_not_at_all(rig: Rig) -> None:
    workflow_id = await rig.start(work())

    class Undone(Exception):
        pass

    def settle_then_fail(tx: Any) -> None:
        assert look.step is not None
        assert look.workflow is not None
        assert settle(tx, rig.timing, look.step, rig.grip(look.workflow.shard), Settlement(result={}))
        raise Undone

    look = await rig.advance(workflow_id)
    before = await rig.event_names(workflow_id)
    with pytest.raises(Undone):
        await rig.store.write(settle_then_fail)
    assert await rig.event_names(workflow_id) == before
    await rig.settle(look, Settlement(result={}))
    assert await rig.event_names(workflow_id) == [*before, "step.succeeded work"]


async def test_events_of_one_transition_keep_their_order_whatever_their_ids(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database sorts texts by its language: in some, `z` comes before `t`, and `ch` after `h`."""
    numbers = itertools.count(99, -1)
    monkeypatch.setattr(events, "new_id", lambda prefix: f"{prefix}_{next(numbers):02}")
    kinds = [f"kind-{number}" for number in range(20)]
    told = [events.NewEvent(TENANT, "workflow/wf_1", kind, {}) for kind in kinds]
    await rig.store.write(events.publish_all, told)
    assert [kind for kind, _ in await rig.events("wf_1")] == kinds


async def desired_state(rig: Rig) -> tuple[int, dict[str, Any]] | None:
    row = await rig.store.read(
        lambda tx: tx.one("SELECT generation, spec FROM desired_states WHERE node_id = :id", {"id": rig.node_id})
    )
    return None if row is None else (row[0], msgspec.json.decode(row[1]))


@pytest.mark.line("A49")
async def test_a49_success_makes_the_host_configuration_the_nodes_desired_state(rig: Rig) -> None:
    for generation, packages in enumerate((["nginx"], ["nginx", "chrony"]), 1):
        await end_as(rig, "succeeded", hostConfig={"packages": packages})
        assert await desired_state(rig) == (generation, {"packages": packages})


@pytest.mark.line("A49")
async def test_a49_the_nodes_own_name_is_filled_into_its_host_configuration(rig: Rig) -> None:
    config = {"hostname": "{node.name}", "users": [{"name": "ada", "keys": ["k {node.id} {other}"]}], "n": 1}
    await end_as(rig, "succeeded", hostConfig=config)
    state = await desired_state(rig)
    assert state is not None
    row = await rig.store.read(lambda tx: tx.one("SELECT name FROM nodes WHERE id = :id", {"id": rig.node_id}))
    assert row is not None
    assert state[1] == {
        "hostname": row[0],
        "users": [{"name": "ada", "keys": [f"k {rig.node_id} {{other}}"]}],
        "n": 1,
    }


@pytest.mark.line("A49")
@pytest.mark.parametrize("how", ["failed", "cancelled", "succeeded"])
async def test_a49_failure_or_no_host_configuration_changes_nothing(rig: Rig, how: str) -> None:
    await end_as(rig, how, **({} if how == "succeeded" else {"hostConfig": {"packages": ["nginx"]}}))
    assert await desired_state(rig) is None
