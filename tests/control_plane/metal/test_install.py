"""The steps that install: the image, by way of the site; the configuration drive; and the start of the system."""

from typing import Any

import msgspec
import pytest

from control_plane.metal.image_steps import daemon_ticket_wanted
from control_plane.metal.rows import Asked
from protocol.commands import Ending
from protocol.shapes.deploy import Image, RootDeviceHints
from tests.control_plane.metal.metal_rig import BOOT, IMAGE, MetalRig, done, observe_off, refused

WRITE = {"id": "write", "use": "metal.writeImage", "on": "ramdisk"}
START = {"id": "start", "use": "metal.bootInstalled"}
SITE_ADDRESS = "https://site.example/images/token/ab/debian-12.raw.zst"


async def begin(metal: MetalRig, *steps: dict[str, Any], asked: Asked | None = None) -> str:
    """A deploy whose ramdisk runs already."""
    await metal.define("deploy", *steps)
    await metal.force("available", base="available")
    metal.power = "on"
    return await metal.begin("deploy", asked=asked)


def args_of(metal: MetalRig, operation: str) -> Any:
    """Of the last command for this operation, by any agent."""
    for agent in metal.rig.agents:
        for row in reversed(agent.done):
            payload: Any = row.payload
            if row.kind == "driver.invoke" and f"{payload['concern']}.{payload['operation']}" == operation:
                return payload["args"]
    raise AssertionError(f"nobody was asked for {operation}")


async def test_what_was_asked_for_is_written_and_comes_before_the_profiles_own(metal: MetalRig) -> None:
    asked = Asked(
        image=Image(url="http://other/x.raw.gz", sha512="cd" * 64), root_device=RootDeviceHints(serial="S1")
    )
    profile = {**WRITE, "with": {"image": IMAGE, "rootDevice": {"smallest": True}}}
    await metal.finish(await begin(metal, profile, asked=asked))
    assert args_of(metal, "deploy.writeImage") == {
        "image": {"url": "http://other/x.raw.gz", "sha512": "cd" * 64},
        "rootDevice": {"serial": "S1"},
        "growRoot": True,
    }


async def test_the_image_goes_through_the_sites_cache_where_there_is_one(metal: MetalRig) -> None:
    offers: list[Any] = []

    def offer(what: str, row: Any) -> Ending | None:
        if what != "site.offerImage":
            return None
        offers.append(row.payload)
        return done(url=SITE_ADDRESS)

    metal.first = offer
    await metal.finish(await begin(metal, {**WRITE, "with": {"image": IMAGE}}))
    assert offers == [
        {
            "url": IMAGE["url"],
            "sha256": IMAGE["sha256"],
            "sha512": None,
            "name": "debian-12.raw.zst",
            "targetNodeId": metal.rig.node_id,
        }
    ]
    assert args_of(metal, "deploy.writeImage")["image"] == {"url": SITE_ADDRESS, "sha256": IMAGE["sha256"]}


async def test_a_site_without_a_cache_lets_the_ramdisk_fetch_from_the_origin_and_says_so(
    sqlite_metal: MetalRig,
) -> None:
    sqlite_metal.first = lambda what, row: refused("no boot server", "UNSUPPORTED") if "offer" in what else None
    workflow_id = await begin(sqlite_metal, {**WRITE, "with": {"image": IMAGE}})
    assert (await sqlite_metal.finish(workflow_id)).state.value == "succeeded"
    assert args_of(sqlite_metal, "deploy.writeImage")["image"]["url"] == IMAGE["url"]
    result = (await sqlite_metal.step(workflow_id, "write")).result
    assert result is not None
    assert "straight from its origin, not through the site: UNSUPPORTED: no boot server" in str(result["notes"])


async def test_what_the_site_finds_wrong_with_the_image_ends_it_with_the_sites_words(sqlite_metal: MetalRig) -> None:
    sqlite_metal.first = lambda what, row: (
        refused("the image's origin answers 404", "INVALID_ARGUMENT") if "offer" in what else None
    )
    workflow = await sqlite_metal.finish(await begin(sqlite_metal, {**WRITE, "with": {"image": IMAGE}}))
    assert workflow.error is not None
    assert workflow.error.message.endswith("INVALID_ARGUMENT: the image's origin answers 404")
    with pytest.raises(AssertionError, match=r"nobody was asked for deploy\.writeImage"):
        args_of(sqlite_metal, "deploy.writeImage")


async def test_a_machine_that_cannot_fetch_it_either_says_also_why_the_site_could_not(sqlite_metal: MetalRig) -> None:
    sqlite_metal.first = lambda what, row: (
        refused(f"{what} cannot reach it", "UNREACHABLE") if "offer" in what or "writeImage" in what else None
    )
    workflow = await sqlite_metal.finish(await begin(sqlite_metal, {**WRITE, "with": {"image": IMAGE}}))
    assert workflow.error is not None
    said = workflow.error.message
    assert "UNREACHABLE: deploy.writeImage https://images.example/debian-12.raw.zst cannot reach it; " in said
    assert "not through the site: UNREACHABLE: site.offerImage cannot reach it" in said


async def test_a_wrong_image_fails_the_node_with_the_ramdisks_own_words(sqlite_metal: MetalRig) -> None:
    sqlite_metal.first = lambda what, row: (
        refused("the checksum is wrong", "NOT_APPLIED") if "writeImage" in what else None
    )
    await sqlite_metal.finish(await begin(sqlite_metal, {**WRITE, "with": {"image": IMAGE, "viaSite": False}}))
    row = await sqlite_metal.provision()
    assert row.cause is not None
    assert "write (metal.writeImage): NOT_APPLIED: the checksum is wrong" in row.cause.message


@pytest.mark.case("B51")
async def test_a_machine_that_is_switched_off_while_it_is_written_is_not_waited_for(metal: MetalRig) -> None:
    usual = metal.rig.machine.ramdisk.answer

    def lose_power(row: Any) -> Ending | None:
        if row.kind == "driver.invoke" and row.payload["operation"] == "writeImage":
            metal.power, metal.rig.machine.up = "off", None
            return None
        return usual(row)

    metal.rig.machine.ramdisk.answer = lose_power
    write = {**WRITE, "with": {"image": IMAGE, "viaSite": False}, "timeout": "2h", "retries": 1}
    workflow_id = await begin(metal, BOOT, write)
    while metal.power == "on" or "site: power.setPower on" not in metal.acts:
        await metal.turn(workflow_id)
    metal.rig.clock.pass_by(30_000)
    cut_at = metal.rig.clock.now
    await metal.rig.store.write(observe_off, metal.rig.node_id, metal.rig.site.id)
    workflow = await metal.finish(workflow_id)
    assert workflow.error is not None
    assert workflow.error.code == "POWER_LOST"
    assert metal.rig.clock.now - cut_at < 300_000


async def test_the_configuration_drive_has_what_was_asked_and_names_the_machine(metal: MetalRig) -> None:
    drive = {"id": "drive", "use": "metal.configDrive", "with": {"userData": "profile's", "daemon": True}}
    workflow_id = await begin(metal, drive, asked=Asked(user_data="#cloud-config\nusers: []\n"))
    wanted: list[bool] = []

    async def see_it() -> None:
        wanted.append(await metal.rig.store.read(daemon_ticket_wanted, metal.rig.node_id))

    await see_it()
    await metal.rig.run(workflow_id, hinted=True)
    await see_it()
    await metal.finish(workflow_id)
    await see_it()
    # A ticket is made while the drive is being written, and at no other time.
    assert wanted == [False, True, False]
    args = args_of(metal, "deploy.writeConfigDrive")
    assert (args["userData"], args["daemon"]) == ("#cloud-config\nusers: []\n", True)
    assert msgspec.json.decode(args["metaData"]) == {
        "instance-id": workflow_id,
        "local-hostname": (await metal.rig.store.read(_name, metal.rig.node_id)),
    }


async def test_no_command_and_no_row_has_the_daemons_ticket(sqlite_metal: MetalRig) -> None:
    await sqlite_metal.finish(await begin(sqlite_metal, {"use": "metal.configDrive", "with": {"daemon": True}}))
    text = str([row.payload for row in sqlite_metal.rig.machine.ramdisk.done])
    assert "rwj" not in text
    assert "token" not in text


async def test_kexec_leads_into_the_installed_system(metal: MetalRig) -> None:
    workflow_id = await begin(metal, BOOT, START)
    assert (await metal.finish(workflow_id)).state.value == "succeeded"
    assert (await metal.step(workflow_id, "start")).result == {
        "bootId": "boot-3",
        "role": "daemon",
        "means": "kexec",
    }
    assert "ramdisk: node.reboot" not in metal.acts


@pytest.mark.case("B52")
async def test_b52_a_lasting_boot_from_the_disk_is_set_before_the_jump(sqlite_metal: MetalRig) -> None:
    await sqlite_metal.finish(await begin(sqlite_metal, BOOT, START))
    acts = sqlite_metal.acts
    assert acts.index("site: boot.setBootDevice disk") < acts.index("ramdisk: boot.kexec")
    # What tidies up after the ramdisk takes back its own override only.
    assert "site: boot.setBootDevice none" not in acts


@pytest.mark.case("B52")
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("UNSUPPORTED", "this kernel was built without kexec"),
        ("NOT_APPLIED", "kexec_file_load failed: Operation not permitted"),
    ],
)
async def test_b52_where_kexec_is_not_possible_the_ramdisk_restarts_the_machine(
    metal: MetalRig, code: str, words: str
) -> None:
    metal.first = lambda what, row: refused(words, code) if "kexec" in what else None
    workflow_id = await begin(metal, BOOT, START)
    assert (await metal.finish(workflow_id)).state.value == "succeeded"
    result = (await metal.step(workflow_id, "start")).result
    assert result is not None
    assert result["means"] == "reboot"


@pytest.mark.case("B52")
async def test_b52_a_kexec_that_hangs_is_followed_by_the_bmc_and_the_boot_medium_is_out_by_then(
    metal: MetalRig,
) -> None:
    metal.first = hanging(metal, "boot.kexec")
    workflow_id = await begin(metal, BOOT, START)
    assert (await metal.finish(workflow_id)).state.value == "succeeded"
    result = (await metal.step(workflow_id, "start")).result
    assert result is not None
    assert result["means"] == "reset"
    acts = metal.acts
    kexec = acts.index("ramdisk: boot.kexec")
    # The ramdisk is not there any more, so it is not asked to restart.
    assert acts[kexec + 1 : kexec + 4] == [
        "site: power.setPower off",
        "site: virtual-media.ejectMedia cd",
        "site: power.setPower on",
    ]
    assert acts.count("ramdisk: boot.kexec") == 1


@pytest.mark.case("B52")
@pytest.mark.parametrize("ends", ["succeeded", "unknown"])
async def test_b52_a_reset_that_takes_its_bmc_long_to_switch_off_switches_on_all_the_same(
    sqlite_metal: MetalRig, ends: str
) -> None:
    metal = sqlite_metal
    metal.first = hanging(metal, "boot.kexec")
    usual, held = metal.rig.site.answer, list[str]()

    def slow(row: Any) -> Ending | None:
        if row.key.endswith(":reset"):
            held.append(row.id)
            return None
        return usual(row)

    metal.rig.site.answer = slow
    start = {**START, "with": {"means": ["kexec", "reset"], "patience": "2m"}}
    workflow_id = await begin(metal, BOOT, start)
    while not held:
        await metal.turn(workflow_id)
    for _ in range(5):
        metal.rig.clock.pass_by(60_000)
        await metal.rig.run(workflow_id, hinted=True)
    metal.power, metal.rig.machine.up = "off", None
    ending = done(state="off") if ends == "succeeded" else refused("the agent was killed", "OUTCOME_UNKNOWN")
    await metal.rig.site.finish(held[0], ending)
    workflow = await metal.finish(workflow_id)
    assert workflow.state.value == "succeeded", workflow.error
    result = (await metal.step(workflow_id, "start")).result
    assert result is not None
    assert result["means"] == "reset"
    assert "site: power.setPower on" in metal.acts[-4:]


async def test_the_profile_says_which_means_there_are_and_how_long_each_is_given(sqlite_metal: MetalRig) -> None:
    sqlite_metal.first = hanging(sqlite_metal, "boot.kexec")
    start = {**START, "with": {"means": ["kexec"], "patience": "2m"}}
    workflow = await sqlite_metal.finish(await begin(sqlite_metal, BOOT, start))
    assert workflow.error is not None
    assert workflow.error.code == "REJOIN_TIMEOUT"
    assert "kexec: the machine did not come back in time" in workflow.error.message
    acts = sqlite_metal.acts
    assert acts[acts.index("ramdisk: boot.kexec") + 1] != "site: power.setPower off"


@pytest.mark.case("B51")
async def test_what_every_means_came_to_is_told_when_nothing_brings_it_back(sqlite_metal: MetalRig) -> None:
    def nothing_works(what: str, row: Any) -> Ending | None:
        if "kexec" in what:
            return refused("kexec_file_load: operation not permitted", "UNSUPPORTED")
        if "reboot" in what:
            return refused("it is busy", "BUSY")
        return None

    sqlite_metal.first = nothing_works
    starts = iter(["ramdisk"])
    sqlite_metal.boots_to = lambda: next(starts, None)
    workflow = await sqlite_metal.finish(await begin(sqlite_metal, BOOT, START))
    assert workflow.error is not None
    for words in (
        "kexec: UNSUPPORTED: kexec_file_load: operation not permitted",
        "reboot: BUSY: it is busy",
        "reset: the machine did not come back in time",
    ):
        assert words in workflow.error.message


async def test_a_machine_that_starts_its_ramdisk_once_more_is_told_so(sqlite_metal: MetalRig) -> None:
    sqlite_metal.first = lambda what, row: (
        refused(code="UNSUPPORTED") if "kexec" in what or "reboot" in what else None
    )
    sqlite_metal.boots_to = lambda: "ramdisk"
    workflow = await sqlite_metal.finish(await begin(sqlite_metal, BOOT, START))
    assert workflow.error is not None
    assert "reset: the machine has started its ramdisk once more" in workflow.error.message


@pytest.mark.case("B51")
async def test_b51_a_kexec_whose_report_is_lost_is_done_once_and_seen_by_the_systems_agent(metal: MetalRig) -> None:
    def lost(what: str, row: Any) -> Ending | None:
        if "kexec" in what:
            metal.rig.machine.up = None
            metal.pending_boot = "daemon"
        return None

    metal.first = lost
    metal.kexec_works = False
    metal.rig.machine.ramdisk.answer = _without_an_end(metal)
    workflow_id = await begin(metal, BOOT, START)
    assert (await metal.finish(workflow_id)).state.value == "succeeded"
    assert metal.acts.count("ramdisk: boot.kexec") == 1


@pytest.mark.case("B51")
async def test_a_system_that_came_late_is_not_restarted_by_the_retry(sqlite_metal: MetalRig) -> None:
    sqlite_metal.first = hanging(sqlite_metal, "boot.kexec")
    start = {**START, "retries": 1, "with": {"means": ["kexec"], "patience": "2m"}}
    workflow_id = await begin(sqlite_metal, BOOT, start)
    while not any(kind == "workflow.step.retrying" for kind, _ in await sqlite_metal.rig.events(workflow_id)):
        look = await sqlite_metal.rig.advance(workflow_id)
        if look.then.value == "run":
            await sqlite_metal.rig.settle(look, await sqlite_metal.rig.execute(look))
        elif look.then.value == "wait":
            await sqlite_metal.turn(workflow_id)
    sqlite_metal.rig.clock.pass_by(1_000)
    await sqlite_metal.rig.machine.boot("daemon")
    sqlite_metal.rig.clock.pass_by(1_000)
    assert (await sqlite_metal.finish(workflow_id)).state.value == "succeeded"
    assert sqlite_metal.acts.count("ramdisk: boot.kexec") == 1


@pytest.mark.parametrize(
    ("power", "acts"), [("off", ["site: power.setPower on"]), ("on", ["site: power.setPower reset"])]
)
async def test_a_machine_that_went_away_is_switched_on_or_reset(
    sqlite_metal: MetalRig, power: str, acts: list[str]
) -> None:
    await sqlite_metal.define("remediate", {"id": "up", "use": "metal.bringUp"})
    await sqlite_metal.force("deployed", base="deployed")
    await sqlite_metal.rig.machine.off()
    sqlite_metal.power, sqlite_metal.boots_to = power, lambda: "daemon"
    workflow = await sqlite_metal.do("remediate")
    assert workflow.state.value == "succeeded", workflow.error
    assert sqlite_metal.acts == acts
    assert await sqlite_metal.state() == "deployed"


async def test_a_machine_that_is_back_by_itself_is_left_alone(sqlite_metal: MetalRig) -> None:
    await sqlite_metal.define("remediate", {"id": "up", "use": "metal.bringUp"})
    await sqlite_metal.force("deployed", base="deployed")
    sqlite_metal.rig.clock.pass_by(1_000)
    await sqlite_metal.rig.machine.boot("daemon")
    assert (await sqlite_metal.do("remediate")).state.value == "succeeded"
    assert sqlite_metal.deeds == []


async def test_a_machine_whose_agent_comes_back_while_its_power_is_read_is_not_reset(sqlite_metal: MetalRig) -> None:
    metal = sqlite_metal
    await metal.define("remediate", {"id": "up", "use": "metal.bringUp"})
    await metal.force("deployed", base="deployed")
    metal.rig.clock.pass_by(1_000)
    await metal.rig.machine.boot("daemon")
    metal.power = "on"
    await metal.rig.machine.daemon.disconnect()
    metal.rig.machine.up = None
    workflow_id = await metal.begin("remediate")
    while not metal.deeds:
        await metal.rig.run(workflow_id, hinted=True)
        await metal.rig.agents_work()
    # Its network was away, and it never went down.
    metal.rig.machine.up = metal.rig.machine.daemon
    await metal.rig.machine.daemon.connect()
    workflow = await metal.finish(workflow_id)
    assert workflow.state.value == "succeeded", workflow.error
    assert metal.acts == []


def hanging(metal: MetalRig, kind: str) -> Any:
    """The jump was made, and nothing is heard of the machine any more."""

    def hang(what: str, row: Any) -> Ending | None:
        if what != kind:
            return None
        metal.rig.machine.up = None
        return done()

    return hang


def _without_an_end(metal: MetalRig) -> Any:
    """A ramdisk that ends with the command that ends it, before it could say so."""
    usual = metal.rig.machine.ramdisk.answer

    def answer(row: Any) -> Ending | None:
        ending = usual(row)
        return None if row.kind == "boot.kexec" else ending

    return answer


def _name(tx: Any, node_id: str) -> str:
    return str(tx.one("SELECT name FROM nodes WHERE id = :id", {"id": node_id})[0])
