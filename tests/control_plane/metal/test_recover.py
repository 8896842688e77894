"""Recovering a machine that was in service: it is so again once its own system is there, and not before."""

from typing import Any

import msgspec
import pytest

from control_plane.metal.verbs import is_moved
from control_plane.store import Transaction
from protocol.errors import RequestCode, RequestError
from tests.control_plane.engine.rig import power
from tests.control_plane.metal.metal_rig import BOOT, ERASE, IMAGE, MetalRig, bound, refused


async def rescued(metal: MetalRig) -> MetalRig:
    """A machine in service, in rescue: it runs the ramdisk."""
    await bound(metal)
    await metal.force("deployed", base="deployed")
    await metal.do("rescue")
    assert await metal.state() == "rescue"
    return metal


async def ended(metal: MetalRig) -> str:
    """The state once the workflow that moves it has ended."""
    row = await metal.provision()
    assert is_moved(row)
    await metal.finish(row.workflow_id or "")
    return await metal.state()


async def test_out_of_rescue_a_machine_is_started_from_its_disk_and_deployed_when_its_system_is_there(
    metal: MetalRig,
) -> None:
    await rescued(metal)
    done = len(metal.acts)
    assert await metal.recover() == "recovering"
    assert await ended(metal) == "deployed"
    assert metal.acts[done:] == [
        "site: power.setPower off",
        "site: virtual-media.ejectMedia cd",
        "site: power.setPower on",
    ]
    row = await metal.provision()
    assert (row.base.value, row.residue, row.cause, row.verb) == ("deployed", None, None, "recover")
    assert (await metal.moves())[-2:] == ["rescue > recovering", "recovering > deployed"]


async def test_a_rescued_machine_that_is_off_or_on_its_way_is_not_deployed_yet(metal: MetalRig) -> None:
    await rescued(metal)
    await metal.rig.machine.off()
    assert await metal.recover() == "recovering"
    assert await ended(metal) == "deployed"


async def test_a_machine_that_was_started_by_hand_is_deployed_at_once_and_nothing_is_done_to_it(
    metal: MetalRig,
) -> None:
    await rescued(metal)
    metal.rig.clock.pass_by(60_000)
    await metal.rig.machine.boot("daemon")
    done = list(metal.deeds)
    assert await metal.recover() == "deployed"
    assert metal.deeds == done


async def test_a_machine_whose_own_system_does_not_start_has_failed_and_can_be_recovered_again(
    metal: MetalRig,
) -> None:
    await rescued(metal)
    metal.boots_to = lambda: None
    await metal.recover()
    assert await ended(metal) == "failed"
    row = await metal.provision()
    assert row.cause is not None
    assert "its agent has not connected after it was started" in row.cause.message
    assert row.base.value == "deployed"
    metal.boots_to = lambda: "daemon"
    assert await metal.recover() == "recovering"
    assert await ended(metal) == "deployed"
    assert (await metal.provision()).cause is None


async def test_a_machine_that_starts_its_ramdisk_once_more_is_not_deployed(metal: MetalRig) -> None:
    await rescued(metal)
    metal.boots_to = lambda: "ramdisk"
    await metal.recover()
    assert await ended(metal) == "failed"


async def test_a_connection_of_before_the_ramdisk_that_nobody_has_found_broken_is_no_system_that_is_back(
    metal: MetalRig,
) -> None:
    await bound(metal)
    await metal.define("recover", {"use": "metal.bringUp"})
    await metal.force("deployed", base="deployed")
    machine = metal.rig.machine
    await machine.boot("daemon")
    metal.rig.clock.pass_by(60_000)
    machine.turn("ramdisk")
    await machine.ramdisk.connect(f"boot-{machine.boots}")
    await machine.ramdisk.disconnect()
    await metal.force("rescue")
    assert machine.daemon.session is not None
    assert await metal.recover() == "recovering"
    workflow_id = (await metal.provision()).workflow_id or ""
    await metal.rig.run(workflow_id, hinted=True)
    # The step has looked at the machine, and did not take the connection for its end.
    assert (await metal.rig.look(workflow_id)).workflow.state.value == "running"
    assert await ended(metal) == "deployed"


async def test_a_profile_that_waits_for_nobody_puts_nothing_into_service(metal: MetalRig) -> None:
    await rescued(metal)
    await metal.define("recover", power("off"), power("on"))
    metal.boots_to = lambda: None
    await metal.recover()
    assert await ended(metal) == "failed"
    row = await metal.provision()
    assert row.cause is not None
    assert row.cause.code == "NOT_BACK"
    # Every step of that workflow has succeeded, which proves as little now.
    assert await metal.recover() == "recovering"


async def test_a_system_without_an_agent_is_taken_at_the_operators_word_which_is_told(metal: MetalRig) -> None:
    await rescued(metal)
    with pytest.raises(RequestError, match="it runs the ramdisk, not its own system"):
        await metal.recover(as_it_is=True)
    await metal.rig.machine.off()
    assert await metal.recover(as_it_is=True) == "deployed"
    (told,) = await metal.rig.store.read(_asserted, metal.rig.node_id)
    assert (told["nodeId"], told["by"]) == (metal.rig.node_id, "test")


async def test_a_system_without_an_agent_is_not_reset_for_the_ramdisk_that_had_deployed_it(metal: MetalRig) -> None:
    await bound(metal)
    write = {"id": "write", "use": "metal.writeImage", "with": {"image": IMAGE, "viaSite": False}}
    await metal.define("deploy", {**BOOT, "with": {"keepRunning": True}}, write)
    await metal.force("available", base="available")
    await metal.do("deploy")
    assert await metal.state() == "deployed"
    # Its own system starts, of which nobody hears.
    await metal.rig.machine.off()
    metal.first = lambda what, row: refused() if what == "power.getPower" else None
    for _ in range(2):
        metal.rig.clock.pass_by(60_000)
        await metal.do("rescue")
        assert await metal.state() == "failed"
        with pytest.raises(RequestError, match="its own system's agent is not connected"):
            await metal.recover()
        assert await metal.recover(as_it_is=True) == "deployed"
    metal.first = lambda what, row: None
    metal.rig.clock.pass_by(60_000)
    await metal.do("rescue")
    assert await metal.recover() == "recovering"


async def test_a_machine_whose_ramdisk_fell_silent_is_switched_off_before_its_medium_is_taken_out(
    metal: MetalRig,
) -> None:
    await rescued(metal)
    await metal.rig.machine.ramdisk.disconnect()
    metal.rig.machine.up = None
    done = len(metal.acts)
    assert await metal.recover() == "recovering"
    assert await ended(metal) == "deployed"
    assert metal.acts[done:] == [
        "site: power.setPower off",
        "site: virtual-media.ejectMedia cd",
        "site: power.setPower on",
    ]


async def test_a_word_that_was_not_needed_is_not_told(metal: MetalRig) -> None:
    await rescued(metal)
    metal.rig.clock.pass_by(60_000)
    await metal.rig.machine.boot("daemon")
    assert await metal.recover(as_it_is=True) == "deployed"
    assert await metal.rig.store.read(_asserted, metal.rig.node_id) == []


async def test_without_the_profile_the_node_stays_in_rescue_and_the_way_out_is_told(metal: MetalRig) -> None:
    await rescued(metal)
    await metal.force("rescue", profiles={"recover": "my-recover"})
    with pytest.raises(RequestError, match="recover runs the profile 'my-recover', which is not there") as error:
        await metal.recover()
    assert error.value.code is RequestCode.INVALID_STATE
    assert await metal.state() == "rescue"


async def test_a_release_that_failed_before_it_did_anything_leaves_a_machine_in_service(metal: MetalRig) -> None:
    await bound(metal)
    await metal.force("deployed", base="deployed")
    metal.rig.clock.pass_by(60_000)
    await metal.rig.machine.boot("daemon")
    metal.power = "on"
    metal.first = lambda what, row: refused() if what == "power.getPower" else None
    await metal.do("release")
    assert await metal.state() == "failed"
    assert await metal.recover() == "deployed"


async def test_a_failed_machine_that_is_silent_without_a_ramdisk_is_neither_reset_nor_believed(
    metal: MetalRig,
) -> None:
    await bound(metal)
    await metal.force("deployed", base="deployed")
    metal.rig.clock.pass_by(60_000)
    await metal.rig.machine.boot("daemon")
    metal.first = lambda what, row: refused("the slot is empty") if "insertMedia" in what else None
    await metal.do("release")
    await metal.rig.machine.off()
    with pytest.raises(RequestError, match="its own system's agent is not connected"):
        await metal.recover()
    assert await metal.state() == "failed"
    assert await metal.recover(as_it_is=True) == "deployed"


async def test_a_recovery_that_fails_does_not_hide_what_it_was_to_help_with(metal: MetalRig) -> None:
    await bound(metal)
    await metal.define("release", BOOT, {**ERASE, "when": "disk.kind=tape"})
    await metal.force("deployed", base="deployed")
    await metal.do("release")
    metal.boots_to = lambda: None
    await metal.recover()
    await ended(metal)
    cause = (await metal.provision()).cause
    assert cause is not None
    assert cause.code == "NOT_ERASED"
    assert "it has erased nothing" in cause.message
    assert "and the recovery has failed" in cause.message


async def test_a_recovery_that_is_aborted_before_it_has_begun_leaves_the_node_in_rescue(metal: MetalRig) -> None:
    await rescued(metal)
    await metal.recover()
    await metal.abort("not yet")
    await metal.owner.take_all()
    assert await metal.state() == "rescue"


async def test_a_machine_in_rescue_that_was_not_in_service_is_as_before_and_is_not_started(metal: MetalRig) -> None:
    await bound(metal)
    await metal.force("available", base="available")
    await metal.do("rescue")
    done = list(metal.deeds)
    assert await metal.recover() == "available"
    assert metal.deeds == done


def _asserted(tx: Transaction, node_id: str) -> list[Any]:
    rows = tx.all(
        "SELECT data FROM events WHERE subject = :subject AND type = 'node.asserted' ORDER BY seq",
        {"subject": f"node/{node_id}"},
    )
    return [msgspec.json.decode(row[0]) for row in rows]
