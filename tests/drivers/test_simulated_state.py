"""A simulated machine is coherent: what one operation does, the others see."""

from typing import Any

import pytest

from drivers import Target, ainvoke, simulated
from protocol.errors import ErrorCode, OperationError

MACHINE = Target(address="simulated://m")


async def do(operation: str, **arguments: object) -> dict[str, Any]:
    return await ainvoke(MACHINE, operation, arguments)


async def fails(operation: str, **arguments: object) -> OperationError:
    with pytest.raises(OperationError) as caught:
        await do(operation, **arguments)
    return caught.value


async def test_power_follows_the_action_and_tells_whether_anything_changed() -> None:
    assert await do("power.setPower", action="on") == {
        "state": "on",
        "changed": False,
        "verbUsed": None,
        "forced": False,
    }
    assert (await do("power.setPower", action="off"))["verbUsed"] == "ForceOff"
    assert (await do("power.getPower"))["state"] == "off"
    assert (await do("power.setPower", action="softOff"))["changed"] is False
    assert (await do("power.setPower", action="cycle"))["state"] == "on"


async def test_a_machine_that_is_off_cannot_be_reset() -> None:
    await do("power.setPower", action="off")
    error = await fails("power.setPower", action="reset")
    assert error.code is ErrorCode.CONFLICT
    assert simulated.act_counts("m") == {"power.setPower": 1}


async def test_soft_off_cuts_the_power_of_a_host_that_does_not_listen() -> None:
    simulated.script("m", state={"osResponds": False})
    result = await do("power.setPower", action="softOff", softTimeout=0.01)
    assert (result["state"], result["forced"], result["verbUsed"]) == ("off", True, "ForceOff")


async def test_soft_off_without_waiting_leaves_a_host_on_that_does_not_listen() -> None:
    simulated.script("m", state={"osResponds": False})
    result = await do("power.setPower", action="softOff", wait=False)
    assert (result["state"], result["forced"]) == ("on", False)
    assert (await do("power.getPower"))["state"] == "on"


async def test_a_one_time_boot_override_is_used_up_by_one_boot() -> None:
    await do("boot.setBootDevice", device="uefiHttp", httpBootUri="http://boot.example/a.efi")
    assert (await do("boot.getBoot"))["enabled"] == "once"
    await do("power.setPower", action="reset")
    assert simulated.state("m").booted_from == "uefiHttp"
    reading = await do("boot.getBoot")
    assert (reading["target"], reading["enabled"], reading["httpBootUri"]) == ("none", "disabled", None)
    await do("power.setPower", action="reset")
    assert simulated.state("m").booted_from == "disk"


async def test_a_lasting_boot_override_stays() -> None:
    await do("boot.setBootDevice", device="pxe", persistent=True)
    await do("power.setPower", action="reset")
    await do("power.setPower", action="reset")
    assert simulated.state("m").booted_from == "pxe"
    assert (await do("boot.getBoot"))["enabled"] == "continuous"


async def test_turning_off_does_not_use_up_the_boot_override() -> None:
    await do("boot.setBootDevice", device="cd")
    await do("power.setPower", action="off")
    assert (await do("boot.getBoot"))["enabled"] == "once"
    await do("power.setPower", action="on")
    assert simulated.state("m").booted_from == "cd"


async def test_the_boot_order_and_secure_boot_apply_with_the_next_boot() -> None:
    order = ["Boot0001", "Boot0000", "Boot0002", "Boot0003"]
    assert (await do("boot.setBootOrder", order=order))["pending"] is True
    assert await do("boot.setSecureBoot", enabled=True) == {"enabled": False, "pending": True}
    assert (await do("boot.getBoot"))["order"] != order
    await do("power.setPower", action="cycle")
    assert (await do("boot.getBoot"))["order"] == order
    assert await do("boot.getSecureBoot") == {"enabled": True, "pending": None}
    assert simulated.state("m").booted_from == "pxe"


async def test_a_boot_order_that_leaves_an_entry_out_is_refused() -> None:
    assert (await fails("boot.setBootOrder", order=["Boot0000"])).code is ErrorCode.INVALID_ARGUMENT


async def test_media_go_in_and_out() -> None:
    image = "https://images.example/a.iso"
    assert await do("virtual-media.insertMedia", image=image) == {"slot": "Cd.1", "image": image, "changed": True}
    assert (await do("virtual-media.insertMedia", image=image))["changed"] is False
    await do("virtual-media.insertMedia", image="http://images.example/b.img", device="usb")
    listed = (await do("virtual-media.listMedia"))["slots"]
    assert {slot["id"]: slot["image"] for slot in listed} == {
        "Cd.1": image,
        "Usb.1": "http://images.example/b.img",
        "Floppy.1": None,
    }
    assert await do("virtual-media.ejectMedia", device="cd") == {"ejected": ["Cd.1"]}
    assert await do("virtual-media.ejectMedia") == {"ejected": ["Usb.1"]}
    assert await do("virtual-media.ejectMedia") == {"ejected": []}


async def test_bios_attributes_wait_for_a_boot() -> None:
    result = await do("bios.setBios", attributes={"SystemProfile": "Performance", "QuietBoot": False})
    assert result["changed"] == {"SystemProfile": "Performance"}
    waiting = (await do("bios.getBios", pending=True))["attributes"]
    assert [(row["name"], row["value"], row["pending"]) for row in waiting] == [
        ("SystemProfile", "Balanced", "Performance")
    ]
    await do("power.setPower", action="reset")
    assert (await do("bios.getBios", pending=True))["attributes"] == []
    values = {row["name"]: row["value"] for row in (await do("bios.getBios"))["attributes"]}
    assert values["SystemProfile"] == "Performance"


async def test_a_bios_reset_brings_the_defaults_with_the_next_boot() -> None:
    simulated.script("m", state={"bios": {"AssetTag": "A-1"}})
    await do("bios.resetBios")
    values = {row["name"]: row for row in (await do("bios.getBios"))["attributes"]}
    assert (values["AssetTag"]["value"], values["AssetTag"]["pending"]) == ("A-1", "")
    await do("power.setPower", action="reset")
    values = {row["name"]: row for row in (await do("bios.getBios"))["attributes"]}
    assert (values["AssetTag"]["value"], values["AssetTag"]["pending"]) == ("", None)


async def test_every_fault_of_bios_attributes_is_told_at_once_and_none_is_set() -> None:
    error = await fails(
        "bios.setBios", attributes={"Nothing": 1, "WatchdogMinutes": 99, "BiosVendor": "me", "QuietBoot": True}
    )
    assert error.code is ErrorCode.INVALID_ARGUMENT
    assert all(name in error.message for name in ("Nothing", "WatchdogMinutes", "BiosVendor"))
    assert "QuietBoot:" not in error.message
    assert (await do("bios.getBios", pending=True))["attributes"] == []


async def test_asked_for_volumes_are_made_once_and_then_kept() -> None:
    wanted = [{"level": "RAID1", "name": "system", "drives": {"count": 2, "media": "ssd"}}]
    dry = await do("raid.applyRaid", volumes=wanted, dryRun=True)
    assert [step["act"] for step in dry["plan"]] == ["create"]
    assert (await do("raid.getRaid"))["volumes"] == []
    made = (await do("raid.applyRaid", volumes=wanted))["made"]
    assert [(volume["level"], volume["drives"]) for volume in made] == [("RAID1", ["Disk.0", "Disk.1"])]
    again = await do("raid.applyRaid", volumes=wanted)
    assert ([step["act"] for step in again["plan"]], again["made"], again["kept"]) == (["keep"], [], made)


async def test_other_volumes_are_deleted_only_when_that_is_asked() -> None:
    await do("raid.createVolume", controller="RAID.1", level="RAID0", drives=["Disk.0"])
    wanted = [{"level": "RAID5", "drives": ["Disk.2", "Disk.3", "Disk.4"]}]
    await do("raid.applyRaid", volumes=wanted)
    assert len((await do("raid.getRaid"))["volumes"]) == 2
    await do("raid.applyRaid", volumes=wanted, deleteOthers=True)
    assert [volume["level"] for volume in (await do("raid.getRaid"))["volumes"]] == ["RAID5"]


async def test_spares_stand_by_until_the_controller_is_cleared() -> None:
    wanted = [{"level": "RAID5", "drives": {"count": 3, "media": "hdd"}, "spares": {"count": 1, "media": "hdd"}}]
    done = await do("raid.applyRaid", volumes=wanted, hotSpares=["Disk.7"])
    assert [step["act"] for step in done["plan"]] == ["create", "spare", "spare"]
    kinds = {drive["id"]: drive["spare"] for drive in (await do("raid.getRaid"))["drives"] if drive["spare"]}
    assert kinds == {"Disk.5": "dedicated", "Disk.7": "global"}
    again = await do("raid.applyRaid", volumes=wanted, hotSpares=["Disk.7"])
    assert [step["act"] for step in again["plan"]] == ["keep"]
    assert (await do("raid.clearRaid", controller="RAID.1"))["deleted"] == ["Volume.0"]
    assert not any(drive["spare"] for drive in (await do("raid.getRaid"))["drives"])


async def test_a_raid_that_cannot_be_made_changes_nothing() -> None:
    await do("raid.createVolume", controller="RAID.1", level="RAID0", drives=["Disk.0"])
    before = await do("raid.getRaid")
    error = await fails(
        "raid.applyRaid",
        deleteOthers=True,
        volumes=[
            {"level": "RAID1", "drives": {"count": 2, "media": "ssd"}},
            {"level": "RAID1", "drives": {"count": 2, "media": "ssd"}},
        ],
    )
    assert error.code is ErrorCode.INVALID_ARGUMENT
    assert await do("raid.getRaid") == before


@pytest.mark.parametrize(
    ("level", "drives", "reason"),
    [
        ("RAID5", ["Disk.2", "Disk.3"], "at least 3"),
        ("RAID1", ["Disk.2", "Disk.2"], "twice"),
        ("RAID0", ["Disk.9"], "no Disk.9"),
    ],
)
async def test_drives_that_cannot_be_used_are_named(level: str, drives: list[str], reason: str) -> None:
    error = await fails("raid.createVolume", controller="RAID.1", level=level, drives=drives)
    assert reason in error.message


async def test_bmc_firmware_is_new_at_once_and_the_bios_after_a_boot() -> None:
    updated = await do("firmware.updateFirmware", image="https://images.example/BMC-4.0.1.bin", expectVersion="4.0.1")
    assert (updated["before"], updated["after"]) == ({"BMC": "3.10.0"}, {"BMC": "4.0.1"})
    assert (await do("management.getInfo"))["bmcVersion"] == "4.0.1"
    owed = await do("firmware.updateFirmware", image="/srv/images/bios_2.0.0.cap", targets=["BIOS"])
    assert (owed["after"], owed["resetOwed"]) == ({"BIOS": "1.4.2"}, True)
    await do("power.setPower", action="reset")
    versions = {row["id"]: row["version"] for row in (await do("firmware.getFirmware"))["components"]}
    assert (versions["BIOS"], versions["BMC"]) == ("2.0.0", "4.0.1")


async def test_firmware_of_another_version_than_expected_is_not_applied() -> None:
    error = await fails(
        "firmware.updateFirmware", image="https://images.example/BMC-4.0.1.bin", expectVersion="4.0.2"
    )
    assert error.code is ErrorCode.NOT_APPLIED


async def test_a_list_of_updates_ends_at_the_first_that_is_not_applied() -> None:
    bmc = {"image": "https://images.example/BMC-4.0.1.bin", "expectVersion": "4.0.1"}
    nic = {"image": "https://images.example/NIC.1-23.0.0.bin", "targets": ["NIC.1"], "expectVersion": "24.0.0"}
    raid = {"image": "https://images.example/RAID.1-60.0.0.bin", "targets": ["RAID.1"]}
    done = await do("firmware.updateFirmware", updates=[bmc, bmc, raid])
    assert [outcome["changed"] for outcome in done["updates"]] == [True, False, True]
    assert (done["before"], done["after"]) == (
        {"BMC": "3.10.0", "RAID.1": "52.16.1"},
        {"BMC": "4.0.1", "RAID.1": "60.0.0"},
    )
    error = await fails("firmware.updateFirmware", updates=[bmc, nic, raid])
    assert error.code is ErrorCode.NOT_APPLIED
    assert "update 2 of 3 failed" in error.message
    assert error.details["notDone"] == [raid["image"]]


async def test_an_exported_configuration_can_be_imported_by_another_machine() -> None:
    await do("config.setConfig", ntpServers=["192.0.2.1"], hostName="bmc-a")
    document = (await do("config.exportConfig"))["document"]
    other = Target(address="simulated://other")
    await ainvoke(other, "config.importConfig", {"document": document})
    assert (await ainvoke(other, "config.getConfig"))["ntpServers"] == ["192.0.2.1"]


async def test_the_event_log_tells_what_happened_newest_first() -> None:
    await do("power.setPower", action="off")
    await do("power.setPower", action="on")
    entries = (await do("management.getEventLog"))["entries"]
    assert [entry["text"] for entry in entries] == ["the host started from disk", "the host is off"]
    assert len((await do("management.getEventLog", limit=1))["entries"]) == 1
    assert (await do("management.getEventLog", since="2999-01-01T00:00:00Z"))["entries"] == []
    assert (await do("management.clearEventLog"))["remaining"] == 1


async def test_one_console_at_a_time_unless_it_is_taken_over() -> None:
    first = (await do("console.openConsole"))["stream"]
    assert (await fails("console.openConsole")).code is ErrorCode.CONFLICT
    second = (await do("console.openConsole", takeOver=True))["stream"]
    assert second != first
    assert (await do("console.closeConsole", stream=first))["closed"] is False
    assert (await do("console.closeConsole", stream=second))["closed"] is True


async def test_an_image_goes_to_the_disk_that_the_hints_name() -> None:
    image = {"url": "https://images.example/a.raw.zst"}
    assert (await fails("deploy.setBootEntry")).code is ErrorCode.CONFLICT
    assert (await do("deploy.writeImage", image=image))["disk"] == "nvme0n1"
    hints = {"rotational": True, "minSizeGiB": 1000}
    assert (await do("deploy.writeImage", image=image, rootDevice=hints))["disk"] == "Disk.2"
    assert (await fails("deploy.writeImage", image=image, rootDevice={"serial": "none"})).code is (
        ErrorCode.INVALID_ARGUMENT
    )
    entry = await do("deploy.setBootEntry")
    assert entry == await do("deploy.setBootEntry")
    assert entry["order"][0] == entry["entry"]


async def test_an_installed_boot_entry_can_be_part_of_the_boot_order() -> None:
    await do("deploy.writeImage", image={"url": "https://images.example/a.raw"})
    entry = (await do("deploy.setBootEntry"))["entry"]
    order = ["Boot0000", "Boot0001", "Boot0002", "Boot0003", entry]
    assert (await do("boot.setBootOrder", order=order))["order"] == order


async def test_sensors_of_a_machine_that_is_off_show_no_turning_fans() -> None:
    await do("power.setPower", action="off")
    sensors = (await do("management.getSensors"))["sensors"]
    assert {sensor["reading"] for sensor in sensors if sensor["kind"] == "fan"} == {0}
