"""`metal.bootRamdisk` and what tidies up after it, on machines that behave and on machines that do not."""

from typing import Any

import pytest

from control_plane.engine.transitions import Then
from protocol.commands import Ending
from tests.control_plane.engine.rig import work
from tests.control_plane.metal.metal_rig import BOOT, MetalRig, done, observe_off, refused

STARTED = [
    "site: virtual-media.insertMedia rackwright:ramdisk",
    "site: boot.setBootDevice cd",
    "site: power.setPower on",
]


async def begin(metal: MetalRig, *after: dict[str, Any], **options: Any) -> str:
    await metal.define("commission", {"id": "boot", **BOOT, **options}, *after)
    return await metal.begin("commission")


async def test_a_machine_that_is_off_is_given_its_image_and_switched_on(metal: MetalRig) -> None:
    workflow_id = await begin(metal)
    workflow = await metal.finish(workflow_id)
    assert workflow.state.value == "succeeded", workflow.error
    assert metal.acts[:3] == STARTED
    step = await metal.step(workflow_id, "boot")
    assert step.result == {"bootId": "boot-2", "role": "ramdisk"}


async def test_a_machine_that_is_on_is_switched_off_before(sqlite_metal: MetalRig) -> None:
    sqlite_metal.power = "on"
    await sqlite_metal.finish(await begin(sqlite_metal))
    assert sqlite_metal.acts[:4] == ["site: power.setPower off", *STARTED]


async def test_a_running_system_is_asked_to_end_where_the_profile_says_so(sqlite_metal: MetalRig) -> None:
    sqlite_metal.power = "on"
    await sqlite_metal.finish(await begin(sqlite_metal, **{"with": {"shutdown": "soft", "softTimeout": 60}}))
    assert sqlite_metal.acts[0] == "site: power.setPower softOff"


@pytest.mark.parametrize("method", ["uefiHttp", "pxe"])
async def test_by_the_network_no_medium_is_needed(sqlite_metal: MetalRig, method: str) -> None:
    seen: list[Any] = []

    def note(what: str, row: Any) -> Ending | None:
        if "setBootDevice" in what:
            seen.append(row.payload["args"])
        return None

    sqlite_metal.first = note
    workflow = await sqlite_metal.finish(await begin(sqlite_metal, **{"with": {"method": method, "mode": "uefi"}}))
    assert workflow.state.value == "succeeded"
    assert not any("virtual-media" in act for act in sqlite_metal.acts)
    address = {"httpBootUri": "rackwright:ramdisk"} if method == "uefiHttp" else {}
    assert seen == [{"device": method, "mode": "uefi", **address}, {"device": "none"}]


async def test_the_profiles_drivers_serve_it_and_the_target_is_the_nodes_own(sqlite_metal: MetalRig) -> None:
    await sqlite_metal.finish(await begin(sqlite_metal))
    payloads: list[Any] = [row.payload for row in sqlite_metal.rig.site.done]
    assert {payload["driver"] for payload in payloads} == {"redfish"}
    assert all(payload["target"]["credentialRef"] == "bmc-n1" for payload in payloads)
    assert all(payload["targetNodeId"] == sqlite_metal.rig.node_id for payload in payloads)


async def test_a_ramdisk_that_ran_before_and_only_reconnects_is_not_the_one_that_was_started(
    metal: MetalRig,
) -> None:
    await metal.rig.machine.boot("ramdisk")
    metal.boots_to = lambda: None
    workflow_id = await begin(metal)
    for _ in range(8):
        await metal.rig.run(workflow_id, hinted=True)
        await metal.rig.agents_work()
    # The machine never went down, whatever its BMC says: the same boot is back.
    metal.rig.machine.up = metal.rig.machine.ramdisk
    await metal.rig.machine.ramdisk.disconnect()
    await metal.rig.machine.ramdisk.connect()
    look = await metal.rig.run(workflow_id, hinted=True)
    assert (look.then, (await metal.step(workflow_id, "boot")).state.value) == (Then.WAIT, "waiting")


async def test_a_ramdisk_whose_end_nobody_has_noticed_is_not_the_one_that_was_started(metal: MetalRig) -> None:
    """It came up just as this attempt began, was switched off by it, and its connection has not run out yet."""
    metal.boots_to = lambda: None
    workflow_id = await begin(metal)
    await metal.rig.run(workflow_id, hinted=True)
    metal.rig.clock.pass_by(1_000)
    await metal.rig.machine.boot("ramdisk")
    metal.rig.clock.pass_by(1_000)
    for _ in range(8):
        await metal.rig.run(workflow_id, hinted=True)
        await metal.rig.agents_work()
    assert (await metal.step(workflow_id, "boot")).state.value == "waiting"
    assert "site: power.setPower on" in metal.acts
    await metal.rig.machine.boot("ramdisk")
    await metal.finish(workflow_id)
    assert (await metal.step(workflow_id, "boot")).result == {"bootId": "boot-3", "role": "ramdisk"}


async def test_waiting_for_the_ramdisk_writes_no_commands(sqlite_metal: MetalRig) -> None:
    sqlite_metal.boots_to = lambda: None
    workflow_id = await begin(sqlite_metal)
    for _ in range(8):
        await sqlite_metal.rig.run(workflow_id, hinted=True)
        await sqlite_metal.rig.agents_work()
    before = len(await sqlite_metal.rig.commands(workflow_id))
    for _ in range(20):
        sqlite_metal.rig.clock.pass_by(5_000)
        await sqlite_metal.rig.run(workflow_id)
    assert len(await sqlite_metal.rig.commands(workflow_id)) == before == 4


@pytest.mark.case("B56")
async def test_b56_what_something_else_has_switched_on_is_switched_off_again_and_its_boot_device_set_anew(
    metal: MetalRig,
) -> None:
    intruders = iter([True, False])

    def intrude(what: str, row: Any) -> Ending | None:
        if what == "power.setPower on" and next(intruders):
            metal.power = "on"
        return None

    metal.first = intrude
    workflow = await metal.finish(await begin(metal))
    assert workflow.state.value == "succeeded", workflow.error
    again = ["site: power.setPower off", "site: boot.setBootDevice cd", "site: power.setPower on"]
    assert metal.acts[:6] == [*STARTED, *again]


@pytest.mark.case("B56")
async def test_b56_something_that_never_lets_go_is_a_failure_that_says_so_once_the_retries_are_spent(
    sqlite_metal: MetalRig,
) -> None:
    def intrude(what: str, row: Any) -> Ending | None:
        if what == "power.setPower on":
            sqlite_metal.power = "on"
        return None

    sqlite_metal.first = intrude
    workflow = await sqlite_metal.finish(await begin(sqlite_metal, retries=1))
    assert workflow.error is not None
    assert workflow.error.code == "POWER_CONTESTED"
    assert "something else has switched the machine on 3 times" in workflow.error.message
    row = await sqlite_metal.provision()
    assert row.cause is not None
    assert row.cause.message == workflow.error.message


@pytest.mark.case("B56")
async def test_b56_a_retry_reads_the_machines_real_state_and_plans_anew(metal: MetalRig) -> None:
    """The first attempt has switched it off and failed; somebody switches it on; the second one must see that."""
    broken = iter([True])

    def breaks(what: str, row: Any) -> Ending | None:
        if "insertMedia" in what and next(broken, False):
            metal.power = "on"
            return refused("the slot is busy")
        return None

    metal.power, metal.first = "on", breaks
    workflow_id = await begin(metal, retries=1)
    workflow = await metal.finish(workflow_id)
    assert workflow.state.value == "succeeded", workflow.error
    events = await metal.rig.events(workflow_id)
    (error,) = [data["error"] for kind, data in events if kind == "workflow.step.retrying"]
    assert "the slot is busy" in error["message"]
    assert metal.acts[:5] == [
        "site: power.setPower off",
        "site: virtual-media.insertMedia rackwright:ramdisk",
        "site: power.setPower off",
        *STARTED[:2],
    ]


async def test_a_machine_that_starts_its_own_system_instead_fails_the_attempt_at_once(metal: MetalRig) -> None:
    metal.boots_to = lambda: "daemon"
    workflow_id = await begin(metal, retries=0)
    begun = metal.rig.clock.now
    workflow = await metal.finish(workflow_id)
    assert workflow.error is not None
    assert workflow.error.code == "WRONG_BOOT"
    assert "its firmware did not follow the boot override" in workflow.error.message
    assert metal.rig.clock.now - begun < 120_000


@pytest.mark.case("B56")
async def test_a_machine_that_is_seen_off_again_fails_the_attempt_and_is_started_by_the_next(metal: MetalRig) -> None:
    starts = iter([None, "ramdisk"])
    metal.boots_to = lambda: next(starts)
    workflow_id = await begin(metal, retries=1)
    for _ in range(8):
        await metal.rig.run(workflow_id, hinted=True)
        await metal.rig.agents_work()
    metal.power = "off"
    metal.rig.clock.pass_by(30_000)
    await metal.rig.store.write(observe_off, metal.rig.node_id, metal.rig.site.id)
    workflow = await metal.finish(workflow_id)
    assert workflow.state.value == "succeeded", workflow.error
    events = await metal.rig.events(workflow_id)
    (error,) = [data["error"] for kind, data in events if kind == "workflow.step.retrying"]
    assert error["code"] == "POWER_LOST"


async def test_a_ramdisk_that_never_comes_is_told_with_what_the_bmc_says_of_the_machine(metal: MetalRig) -> None:
    metal.boots_to = lambda: None
    workflow = await metal.finish(await begin(metal, retries=0, timeout="10m"))
    assert workflow.error is not None
    assert workflow.error.code == "REJOIN_TIMEOUT"
    assert "has not connected in time; the BMC says that it is on" in workflow.error.message
    assert "rackwright console" in workflow.error.message


@pytest.mark.parametrize("late", [False, True], ids=["of an attempt before", "of this attempt"])
async def test_a_machine_that_came_and_was_refused_is_told_with_the_refusal_of_this_attempt(
    metal: MetalRig, late: bool
) -> None:
    metal.boots_to = lambda: None
    if not late:
        await metal.rig.store.write(_refuse, metal.rig.node_id)
        metal.rig.clock.pass_by(1_000)
    workflow_id = await begin(metal, retries=0, timeout="10m")
    if late:
        await metal.turn(workflow_id)
        metal.rig.clock.pass_by(1_000)
        await metal.rig.store.write(_refuse, metal.rig.node_id)
    workflow = await metal.finish(workflow_id)
    assert workflow.error is not None
    assert workflow.error.code == "REJOIN_TIMEOUT"
    told = "an agent that came for it was refused: AMBIGUOUS_MACHINE: another serial number"
    assert (told in workflow.error.message) is late


async def test_a_bmc_that_does_not_answer_at_the_end_keeps_the_cause_all_the_same(sqlite_metal: MetalRig) -> None:
    reads = iter([None])

    def silent(what: str, row: Any) -> Ending | None:
        if what == "power.getPower":
            return next(reads, refused("no route to host", "UNREACHABLE"))
        return None

    sqlite_metal.first, sqlite_metal.boots_to = silent, lambda: None
    workflow = await sqlite_metal.finish(await begin(sqlite_metal, retries=0, timeout="10m"))
    assert workflow.error is not None
    assert workflow.error.code == "REJOIN_TIMEOUT"
    assert "its BMC does not answer: UNREACHABLE: no route to host" in workflow.error.message


@pytest.mark.case("B12")
async def test_b12_a_machine_that_still_runs_the_ramdisk_is_switched_off_and_then_its_image_taken_out(
    metal: MetalRig,
) -> None:
    await metal.finish(await begin(metal, work("think")))
    assert metal.acts[-2:] == ["site: power.setPower off", "site: virtual-media.ejectMedia cd"]
    assert (metal.power, metal.medium) == ("off", None)


async def test_a_ramdisk_that_is_to_go_on_running_is_not_switched_off(sqlite_metal: MetalRig) -> None:
    await sqlite_metal.finish(await begin(sqlite_metal, **{"with": {"keepRunning": True}}))
    assert sqlite_metal.acts[-1] == "site: virtual-media.ejectMedia cd"
    assert (sqlite_metal.power, sqlite_metal.medium) == ("on", None)


async def test_a_ramdisk_that_nobody_hears_of_any_more_is_switched_off_as_well(metal: MetalRig) -> None:
    """Its agent has died, or its network; nothing has told the machine to leave it."""
    workflow_id = await begin(metal, {**work("think")})

    async def lost(_: object) -> None:
        metal.rig.machine.up = None
        await metal.rig.machine.ramdisk.disconnect()

    metal.rig.code["think"] = lost
    await metal.finish(workflow_id)
    assert metal.acts[-2:] == ["site: power.setPower off", "site: virtual-media.ejectMedia cd"]


@pytest.mark.parametrize("way", ["boot.kexec", "node.reboot", "task.run"])
async def test_a_machine_that_has_left_its_ramdisk_for_a_system_without_an_agent_is_left_on(
    sqlite_metal: MetalRig, way: str
) -> None:
    def leaves(what: str, row: Any) -> Ending | None:
        if what != way:
            return None
        sqlite_metal.rig.machine.up = None
        return done(then="reboot") if way == "task.run" else done()

    sqlite_metal.first = leaves
    step = {"use": way, "on": "ramdisk", **({"with": {"script": "exit 0"}} if way == "task.run" else {})}
    workflow_id = await begin(sqlite_metal, step, timeout="5m")
    await sqlite_metal.finish(workflow_id)
    assert "site: power.setPower off" not in sqlite_metal.acts


async def test_a_machine_that_runs_its_own_system_is_left_on(sqlite_metal: MetalRig) -> None:
    workflow_id = await begin(sqlite_metal, {"use": "boot.kexec", "on": "ramdisk"})
    await sqlite_metal.finish(workflow_id)
    assert sqlite_metal.power == "on"
    assert sqlite_metal.acts[-1] == "site: virtual-media.ejectMedia cd"


async def test_an_override_that_was_not_used_is_taken_back_and_anybody_elses_is_left(sqlite_metal: MetalRig) -> None:
    sqlite_metal.first = lambda what, row: refused() if what == "power.setPower on" else None
    await sqlite_metal.finish(await begin(sqlite_metal, retries=0))
    assert sqlite_metal.acts[-1] == "site: boot.setBootDevice none"
    sqlite_metal.deeds.clear()
    sqlite_metal.first = lambda what, row: done(target="disk", enabled="continuous") if "getBoot" in what else None
    await sqlite_metal.recover()
    await sqlite_metal.finish(await begin(sqlite_metal, retries=0))
    assert "site: boot.setBootDevice none" not in sqlite_metal.acts


@pytest.mark.parametrize(("method", "ended"), [("uefiHttp", True), ("pxe", True), ("virtualMedia", False)])
async def test_what_the_site_holds_ready_over_the_network_ends_with_the_workflow_also_where_its_override_was_used_up(
    sqlite_metal: MetalRig, method: str, ended: bool
) -> None:
    """Else a machine whose ramdisk never came could start it long after, when nobody expects it."""
    sqlite_metal.boots_to = lambda: None
    await sqlite_metal.finish(await begin(sqlite_metal, retries=0, timeout="10m", **{"with": {"method": method}}))
    assert sqlite_metal.override is None
    assert ("site: boot.setBootDevice none" in sqlite_metal.acts) is ended


async def test_nothing_is_tidied_up_where_nothing_was_started(sqlite_metal: MetalRig) -> None:
    await sqlite_metal.define("commission", work("first"), BOOT)

    async def fails(_: object) -> None:
        raise ValueError("broken")

    sqlite_metal.rig.code["first"] = fails
    await sqlite_metal.do("commission")
    assert sqlite_metal.deeds == []


def _refuse(tx: Any, node_id: str) -> None:
    tx.run(
        "INSERT INTO node_refusals (node_id, role, reason, refused_at) "
        "VALUES (:node, 'ramdisk', 'AMBIGUOUS_MACHINE: another serial number', :now)",
        {"node": node_id, "now": tx.now()},
    )
