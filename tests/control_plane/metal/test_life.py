"""A machine's life, from the loading dock to its release, by the real engine and a machine that behaves."""

import pytest

from control_plane.engine import verbs
from control_plane.metal.rows import Asked, lock_provision
from control_plane.metal.settling import list_queued, settle_workflow, take_queued
from control_plane.metal.states import MetalVerb
from control_plane.metal.verbs import Wish, allow_retry, begin, get_workflow
from control_plane.sessions import record_certificate
from control_plane.store import Transaction
from protocol.errors import RequestCode, RequestError
from protocol.shapes.deploy import Image
from tests.control_plane.engine.rig import work
from tests.control_plane.metal.metal_rig import BOOT, ERASE, IMAGE, MetalRig, bound, refused


async def test_from_enrolled_to_deployed_and_back_to_available(metal: MetalRig) -> None:
    await bound(metal)
    assert await metal.state() == "enrolled"
    for verb, state in (("commission", "available"), ("deploy", "deployed"), ("release", "available")):
        workflow = await metal.do(verb)
        assert (workflow.state.value, workflow.owner) == ("succeeded", "metal"), workflow.error
        assert await metal.state() == state
    assert await metal.moves() == [
        "enrolled > commissioning",
        "commissioning > available",
        "available > deploying",
        "deploying > deployed",
        "deployed > releasing",
        "releasing > available",
    ]
    assert [act for act in metal.acts if "eraseDisks" in act or "writeImage" in act] == [
        "ramdisk: deploy.eraseDisks metadata",
        f"ramdisk: deploy.writeImage {IMAGE['url']}",
        "ramdisk: deploy.eraseDisks metadata",
    ]


async def test_the_workflow_and_the_state_are_begun_together_or_not_at_all(metal: MetalRig) -> None:
    await bound(metal)

    class Undone(Exception):
        pass

    def begin_and_fail(tx: Transaction) -> None:
        node, row = lock_provision(tx, "acme", metal.rig.node_id)
        begin(tx, metal.tools, node, row, Wish(MetalVerb.COMMISSION, "test"))
        raise Undone

    with pytest.raises(Undone):
        await metal.rig.store.write(begin_and_fail)
    assert await metal.state() == "enrolled"
    assert (await metal.provision()).workflow_id is None
    assert await metal.moves() == []


async def test_a_verb_that_the_state_does_not_allow_is_refused_and_says_what_to_do(metal: MetalRig) -> None:
    await bound(metal)
    with pytest.raises(RequestError, match="cannot deploy: it is enrolled: commission it first") as error:
        await metal.begin("deploy")
    assert error.value.code is RequestCode.INVALID_STATE
    await metal.begin("commission")
    with pytest.raises(RequestError, match="it is commissioning: wait for the end, or abort it"):
        await metal.begin("rescue")


async def test_a_verb_whose_profile_is_not_there_says_which_and_how_to_store_it(metal: MetalRig) -> None:
    with pytest.raises(RequestError, match="commission runs the profile 'commission', which is not there") as error:
        await metal.begin("commission")
    assert error.value.code is RequestCode.INVALID_STATE
    with pytest.raises(RequestError, match="there is no profile 'mine'") as error:
        await metal.begin("commission", profile="mine")
    assert error.value.code is RequestCode.NOT_FOUND


async def test_the_requests_profile_comes_before_the_nodes_and_that_before_the_settings(metal: MetalRig) -> None:
    for name in ("commission", "own", "asked"):
        await metal.define(name, work(name))
    workflow = await metal.do("commission")
    assert "commission" in (await metal.rig.look(workflow.id)).steps
    await metal.force("enrolled", profiles={"commission": "own"})
    workflow = await metal.do("commission")
    assert "own" in (await metal.rig.look(workflow.id)).steps
    workflow = await metal.do("commission", profile="asked")
    assert "asked" in (await metal.rig.look(workflow.id)).steps


async def test_an_image_that_no_step_would_write_is_refused_before_anything_begins(metal: MetalRig) -> None:
    await metal.define("deploy", BOOT, ERASE)
    await metal.force("available")
    asked = Asked(image=Image(url=IMAGE["url"], sha256=IMAGE["sha256"]), user_data="#cloud-config\n")
    with pytest.raises(RequestError) as error:
        await metal.begin("deploy", asked=asked)
    assert {issue.path for issue in error.value.issues} == {"image", "userData"}
    assert await metal.state() == "available"


async def test_a_profile_that_writes_what_is_asked_for_needs_an_image(metal: MetalRig) -> None:
    await metal.define("deploy", BOOT, {"use": "metal.writeImage"})
    await metal.force("available")
    with pytest.raises(RequestError) as error:
        await metal.begin("deploy")
    assert [issue.path for issue in error.value.issues] == ["image"]


async def test_a_failed_workflow_fails_the_node_which_keeps_the_cause_and_the_bmcs_words(metal: MetalRig) -> None:
    await bound(metal)
    metal.first = lambda what, row: refused("the slot is empty") if "insertMedia" in what else None
    workflow = await metal.do("commission")
    assert workflow.state.value == "failed"
    row = await metal.provision()
    assert (row.state.value, row.residue) == ("failed", None)
    assert row.cause is not None
    assert row.cause.code == "DRIVER_ERROR"
    assert "the slot is empty" in row.cause.message
    # Nothing was changed on it, so it is what it was.
    assert await metal.recover() == "enrolled"
    assert (await metal.provision()).cause is None


async def test_a_failed_deploy_is_tried_again_or_taken_back_to_enrolled(metal: MetalRig) -> None:
    await bound(metal)
    await metal.force("available", base="available")
    metal.first = lambda what, row: refused("no space left") if "writeImage" in what else None
    await metal.do("deploy")
    row = await metal.provision()
    assert (row.state.value, row.residue, row.base.value) == ("failed", "changed", "available")
    metal.first = lambda what, row: None
    await metal.do("deploy")
    row = await metal.provision()
    assert (row.state.value, row.residue, row.cause) == ("deployed", None, None)


async def test_a_failed_deploy_that_is_not_tried_again_has_to_be_commissioned_anew(metal: MetalRig) -> None:
    await bound(metal)
    await metal.force("available", base="available")
    metal.first = lambda what, row: refused() if "writeImage" in what else None
    await metal.do("deploy")
    assert await metal.recover() == "enrolled"
    with pytest.raises(RequestError, match="commission it first"):
        await metal.begin("deploy")


async def test_a_release_that_has_begun_to_erase_leads_to_nothing_but_a_release(metal: MetalRig) -> None:
    await bound(metal)
    await metal.force("deployed", base="deployed")
    metal.first = lambda what, row: refused("disk sdb is frozen") if "eraseDisks" in what else None
    await metal.do("release")
    assert (await metal.provision()).residue == "erasing"
    for verb in ("commission", "deploy"):
        with pytest.raises(RequestError, match="release it again"):
            await metal.begin(verb)
    with pytest.raises(RequestError, match="data may be left on it"):
        await metal.recover()
    # Neither does a rescue wash it clean.
    await metal.do("rescue")
    assert await metal.state() == "rescue"
    with pytest.raises(RequestError, match="data may be left on it"):
        await metal.recover()
    metal.first = lambda what, row: None
    await metal.do("release")
    row = await metal.provision()
    assert (row.state.value, row.residue, row.cause) == ("available", None, None)


async def test_a_release_whose_erasure_was_skipped_has_failed(metal: MetalRig) -> None:
    await bound(metal)
    await metal.define("release", BOOT, {**ERASE, "when": "disk.kind=tape"})
    await metal.force("deployed", base="deployed")
    workflow = await metal.do("release")
    assert workflow.state.value == "succeeded"
    row = await metal.provision()
    assert row.state.value == "failed"
    assert row.cause is not None
    assert (row.cause.code, "it has erased nothing" in row.cause.message) == ("NOT_ERASED", True)


async def test_recovering_does_not_make_a_machine_clean_whose_erasure_was_skipped(metal: MetalRig) -> None:
    await bound(metal)
    await metal.define("release", BOOT, {**ERASE, "when": "disk.kind=tape"})
    await metal.force("deployed", base="deployed")
    await metal.do("release")
    # Its ramdisk was there, so that it has to be started; nothing was erased, so that it is in service then.
    assert await metal.recover() == "recovering"
    await metal.finish((await metal.provision()).workflow_id or "")
    row = await metal.provision()
    assert (row.state.value, row.base.value) == ("deployed", "deployed")


async def test_a_release_that_goes_on_without_its_erasure_has_failed(metal: MetalRig) -> None:
    await bound(metal)
    await metal.define("release", BOOT, {**ERASE, "onFailure": "continue"})
    await metal.force("deployed", base="deployed")
    metal.first = lambda what, row: refused("disk sdb is frozen") if "eraseDisks" in what else None
    workflow = await metal.do("release")
    assert workflow.state.value == "succeeded"
    row = await metal.provision()
    assert (row.state.value, row.residue) == ("failed", "erasing")
    assert row.cause is not None
    assert row.cause.code == "NOT_ERASED"
    assert "disk sdb is frozen" in row.cause.message


async def test_a_release_that_is_retried_behind_its_erasure_has_not_erased(metal: MetalRig) -> None:
    await bound(metal)
    await metal.define("release", BOOT, ERASE, {**work("think"), "id": "last"})
    await metal.force("deployed", base="deployed")
    metal.first = lambda what, row: refused("disk sdb is frozen") if "eraseDisks" in what else None
    workflow = await metal.do("release")
    await metal.rig.store.write(_retry, workflow.id, "last")
    assert (await metal.finish(workflow.id)).state.value == "succeeded"
    assert (await metal.provision()).state.value == "failed"
    with pytest.raises(RequestError, match="release it again"):
        await metal.begin("deploy")


async def test_a_release_by_a_profile_that_erases_nothing_is_refused(metal: MetalRig) -> None:
    await bound(metal)
    await metal.force("deployed", base="deployed")
    with pytest.raises(RequestError, match="has no step that erases the disks"):
        await metal.begin("release", profile="quiet")
    assert await metal.state() == "deployed"


async def test_what_a_released_machines_agent_was_given_is_of_no_use_any_more(metal: MetalRig) -> None:
    await bound(metal)
    await metal.force("deployed", base="deployed")
    await metal.rig.store.write(_give_certificates, metal.rig.node_id)
    await metal.do("release")
    assert await metal.rig.store.read(_good_certificates, metal.rig.node_id) == ["ramdisk"]


async def test_a_step_that_asks_for_a_rescue_gets_one_and_the_cause_is_kept(metal: MetalRig) -> None:
    await bound(metal)
    await metal.define("release", BOOT, {**ERASE, "onFailure": "rescue"})
    await metal.force("deployed", base="deployed")
    metal.first = lambda what, row: refused("disk sdb is frozen") if "eraseDisks" in what else None
    await metal.do("release")
    row = await metal.provision()
    assert (row.state.value, row.verb) == ("rescuing", "rescue")
    await metal.finish(row.workflow_id or "")
    row = await metal.provision()
    assert row.state.value == "rescue"
    assert row.cause is not None
    assert "disk sdb is frozen" in row.cause.message
    assert (await metal.moves())[-4:] == [
        "deployed > releasing",
        "releasing > failed",
        "failed > rescuing",
        "rescuing > rescue",
    ]


async def test_a_rescue_that_cannot_start_is_told_with_the_cause_and_one_that_fails_too(metal: MetalRig) -> None:
    await metal.define("release", BOOT, {**ERASE, "onFailure": "rescue"})
    await metal.force("deployed", base="deployed")
    metal.first = lambda what, row: refused("it is frozen") if "eraseDisks" in what else None
    await metal.do("release")
    row = await metal.provision()
    assert row.state.value == "failed"
    assert row.cause is not None
    assert "it is frozen" in row.cause.message
    assert "the profile 'rescue', which is not there" in row.cause.message
    await metal.define("rescue", {**BOOT, "retries": 0, "onFailure": "rescue"})
    metal.first = lambda what, row: refused("no media") if "insertMedia" in what else None
    await metal.do("rescue")
    row = await metal.provision()
    assert (row.state.value, row.residue) == ("failed", "erasing")
    assert row.cause is not None
    assert "it is frozen" in row.cause.message
    assert "and the rescue has failed" in row.cause.message
    assert "no media" in row.cause.message


async def test_an_abort_before_anything_was_begun_leaves_the_node_as_it_was(metal: MetalRig) -> None:
    await bound(metal)
    workflow_id = await metal.begin("commission")
    await metal.abort("the wrong machine")
    workflow = await metal.finish(workflow_id)
    assert workflow.state.value == "cancelled"
    assert await metal.state() == "enrolled"
    assert metal.deeds == []


async def test_an_abort_of_what_was_begun_cleans_up_and_fails_the_node_with_the_reason(metal: MetalRig) -> None:
    await bound(metal)
    workflow_id = await metal.begin("commission")
    metal.boots_to = lambda: None
    for _ in range(6):
        await metal.rig.run(workflow_id, hinted=True)
        await metal.rig.agents_work()
    assert metal.medium is not None
    await metal.abort("the wrong machine")
    assert (await metal.provision()).aborting
    await metal.finish(workflow_id)
    row = await metal.provision()
    assert (row.state.value, row.aborting) == ("failed", False)
    assert row.cause is not None
    assert (row.cause.code, row.cause.message) == ("ABORTED", "the wrong machine")
    assert metal.medium is None


async def test_the_workflows_own_abort_fails_the_node_even_before_it_has_begun(metal: MetalRig) -> None:
    await bound(metal)
    workflow_id = await metal.begin("commission")
    await metal.rig.abort(workflow_id)
    await metal.finish(workflow_id)
    row = await metal.provision()
    assert row.state.value == "failed"
    assert row.cause is not None
    assert row.cause.code == "ABORTED"


async def test_nothing_moves_it_so_there_is_nothing_to_abort(metal: MetalRig) -> None:
    with pytest.raises(RequestError, match="no workflow moves it: it is enrolled"):
        await metal.abort()


async def test_a_retry_takes_the_node_along(metal: MetalRig) -> None:
    await bound(metal)
    metal.first = lambda what, row: refused() if "eraseDisks" in what else None
    workflow = await metal.do("commission")
    metal.first = lambda what, row: None
    # The clean-up has switched the machine off, and with it the ramdisk in which the next step would run.
    with pytest.raises(RequestError, match=r"with --from-step metal\.bootRamdisk"):
        await metal.rig.store.write(_retry, workflow.id)
    assert await metal.state() == "failed"
    await metal.rig.store.write(_retry, workflow.id, "metal.bootRamdisk")
    assert await metal.state() == "commissioning"
    await metal.finish(workflow.id)
    assert await metal.state() == "available"


async def test_a_retry_that_comes_before_metal_has_heard_of_the_failure_loses_nothing(metal: MetalRig) -> None:
    await bound(metal)
    await metal.force("deployed", base="deployed")
    metal.first = lambda what, row: refused() if "eraseDisks" in what else None
    workflow_id = await metal.begin("release")
    await metal.finish(workflow_id, take=False)
    await metal.rig.store.write(_retry, workflow_id, "metal.bootRamdisk")
    # Two ends are queued: of the failure, which counts no more, and of this abort.
    await metal.abort()
    await metal.finish(workflow_id)
    row = await metal.provision()
    assert (row.state.value, row.residue) == ("failed", "erasing")


async def test_a_workflow_that_the_node_has_left_behind_cannot_be_retried(metal: MetalRig) -> None:
    await bound(metal)
    metal.first = lambda what, row: refused() if "insertMedia" in what else None
    workflow = await metal.do("commission")
    await metal.recover()
    with pytest.raises(RequestError, match="was moved on since this workflow failed, and is enrolled"):
        await metal.rig.store.write(_retry, workflow.id)


async def test_each_end_is_taken_in_once_by_whichever_worker_comes_first(metal: MetalRig) -> None:
    await bound(metal)
    await metal.finish(await metal.begin("commission"), take=False)
    (queued,) = await metal.rig.store.read(list_queued, 10)
    assert await metal.rig.store.write(take_queued, metal.tools, queued)
    assert not await metal.rig.store.write(take_queued, metal.tools, queued)
    assert await metal.moves() == ["enrolled > commissioning", "commissioning > available"]


async def test_two_ends_of_one_node_are_taken_in_in_their_order(metal: MetalRig) -> None:
    await bound(metal)
    first = await metal.begin("commission")
    await metal.finish(first, take=False)
    # Somebody else has put the node forward meanwhile, as after a restored database.
    await metal.force("available", base="available", workflow_id=None)
    await metal.finish(await metal.begin("deploy"), take=False)
    assert await metal.owner.take_all() == 2
    assert await metal.state() == "deployed"


@pytest.mark.parametrize(("verb", "residue"), [("commission", "changed"), ("release", "erasing")])
async def test_a_node_whose_workflow_is_gone_has_failed_and_the_worst_is_taken_for_its_disks(
    metal: MetalRig, verb: str, residue: str
) -> None:
    await bound(metal)
    await metal.force("deployed" if verb == "release" else "enrolled", base="deployed")
    workflow_id = await metal.begin(verb)
    await metal.rig.store.write(lambda tx: tx.run("DELETE FROM workflows WHERE id = :id", {"id": workflow_id}))
    metal.rig.clock.pass_by(61_000)
    await metal.owner.settle_forgotten()
    row = await metal.provision()
    assert (row.state.value, row.residue) == ("failed", residue)
    assert row.cause is not None
    assert row.cause.code == "WORKFLOW_GONE"


async def test_a_forgotten_end_that_cannot_be_taken_in_ends_nothing(
    metal: MetalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bound(metal)
    await metal.finish(await metal.begin("commission"), take=False)
    await metal.rig.store.write(lambda tx: tx.run("DELETE FROM owner_queue"))
    metal.rig.clock.pass_by(61_000)

    def broken(tx: Transaction, tools: object, workflow_id: str) -> None:
        raise ValueError(workflow_id)

    with monkeypatch.context() as patch:
        patch.setattr("control_plane.metal.owner.settle_workflow", broken)
        await metal.owner.settle_forgotten()
    await metal.owner.settle_forgotten()
    assert await metal.state() == "available"


async def test_an_end_that_nobody_queued_is_found_by_the_sweep(metal: MetalRig) -> None:
    await bound(metal)
    await metal.finish(await metal.begin("commission"), take=False)
    await metal.rig.store.write(lambda tx: tx.run("DELETE FROM owner_queue"))
    await metal.owner.settle_forgotten()
    assert await metal.state() == "commissioning"
    metal.rig.clock.pass_by(61_000)
    await metal.owner.settle_forgotten()
    assert await metal.state() == "available"


async def test_one_end_that_cannot_be_taken_in_does_not_hold_up_the_others(
    metal: MetalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bound(metal)
    await metal.finish(await metal.begin("commission"), take=False)

    def poisoned(tx: Transaction, tools: object, workflow_id: str) -> None:
        if workflow_id == "wf_poison":
            raise ZeroDivisionError
        settle_workflow(tx, metal.tools, workflow_id)

    monkeypatch.setattr("control_plane.metal.settling.settle_workflow", poisoned)
    await metal.rig.store.write(_queue_poison)
    assert await metal.owner.take_all() == 1
    assert await metal.state() == "available"
    # It stays, to be looked at, and is tried again.
    assert [end.workflow_id for end in await metal.rig.store.read(list_queued, 10)] == ["wf_poison"]


async def test_the_end_of_a_workflow_whose_node_is_gone_is_let_go(metal: MetalRig) -> None:
    await bound(metal)
    await metal.finish(await metal.begin("commission"), take=False)
    await metal.rig.store.write(lambda tx: tx.run("DELETE FROM nodes WHERE id = :id", {"id": metal.rig.node_id}))
    assert await metal.owner.take_all() == 1
    assert await metal.rig.store.read(list_queued, 10) == []


async def test_maintenance_keeps_everything_off_and_gives_the_state_back(metal: MetalRig) -> None:
    await bound(metal)
    await metal.force("deployed", base="deployed")
    assert await metal.maintenance("on", "a new fan") == "maintenance"
    assert (await metal.provision()).note == "a new fan"
    with pytest.raises(RequestError, match="end the maintenance first"):
        await metal.begin("release")
    with pytest.raises(RequestError, match="only a machine that has failed"):
        await metal.recover()
    assert await metal.maintenance("off") == "deployed"
    assert (await metal.provision()).note is None
    assert await metal.maintenance("off") == "deployed"


async def test_a_machine_that_is_moved_does_not_go_into_maintenance(metal: MetalRig) -> None:
    await bound(metal)
    workflow_id = await metal.begin("commission")
    with pytest.raises(RequestError, match=f"it is commissioning, with the workflow {workflow_id}"):
        await metal.maintenance("on")


async def test_a_failure_survives_maintenance_with_its_cause(metal: MetalRig) -> None:
    await bound(metal)
    metal.first = lambda what, row: refused() if "insertMedia" in what else None
    await metal.do("commission")
    await metal.maintenance("on")
    assert await metal.maintenance("off") == "failed"
    assert (await metal.provision()).cause is not None


async def test_a_late_daemon_makes_a_failed_deploy_a_deployed_machine(metal: MetalRig) -> None:
    await bound(metal)
    await metal.force("available", base="available")
    metal.kexec_works = False
    metal.boots_to = lambda: "ramdisk" if metal.override == "cd" else None
    workflow = await metal.do("deploy")
    assert workflow.error is not None
    assert workflow.error.code == "REJOIN_TIMEOUT"
    await metal.rig.machine.boot("daemon")
    assert await metal.recover() == "deployed"


async def test_where_only_the_clean_up_failed_recovering_reaches_the_goal(metal: MetalRig) -> None:
    await bound(metal)
    metal.first = lambda what, row: refused("in use") if "ejectMedia" in what else None
    workflow = await metal.do("commission")
    assert workflow.state.value == "failed"
    assert await metal.recover() == "available"


def _retry(tx: Transaction, workflow_id: str, from_step: str | None = None) -> None:
    workflow = get_workflow(tx, workflow_id)
    assert workflow is not None
    allow_retry(tx, workflow, from_step)
    verbs.retry(tx, workflow_id, from_step)


def _queue_poison(tx: Transaction) -> None:
    tx.run(
        "INSERT INTO owner_queue (kind, key, workflow_id, tenant_id, queued_at) "
        "VALUES ('metal', 'a', 'wf_poison', 'acme', 0)"
    )


def _give_certificates(tx: Transaction, node_id: str) -> None:
    for (agent_id,) in tx.all("SELECT id FROM agents WHERE node_id = :node", {"node": node_id}):
        record_certificate(tx, agent_id, f"serial of {agent_id}", tx.now() + 1_000_000)


def _good_certificates(tx: Transaction, node_id: str) -> list[str]:
    """The roles of the machine's agents that still have one."""
    rows = tx.all(
        "SELECT agents.role FROM certificates JOIN agents ON agents.id = certificates.agent_id "
        "WHERE agents.node_id = :node AND certificates.revoked_at IS NULL ORDER BY agents.role",
        {"node": node_id},
    )
    return [str(row[0]) for row in rows]
