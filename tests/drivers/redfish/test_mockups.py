"""Recorded trees of real BMCs: what is read from them is what they hold, and changes go the way each vendor needs.

The values were written down by looking at the trees, not by running the driver.
"""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode, OperationError
from protocol.operations import OPERATIONS, Concern, Repeat
from simulators.redfish import FaultRule, PowerState
from tests.drivers.redfish.harness import Bench, bench, without_waiting

DELL, HPE, LENOVO = "dell-r750-idrac9-7.10", "hpe-dl385-ilo5", "lenovo-sr670v2-xcc"
SUPERMICRO, OPENBMC, GH200 = "supermicro-821ge", "openbmc-stock", "nvidia-gh200-openbmc"
TREES = [
    "cray-ex235a",
    "dell-r750-idrac9-6.00",
    DELL,
    "dmtf-catfish",
    "dmtf-rackmount1",
    "dmtf-tower",
    "gigabyte-h262-megarac",
    "hpe-dl380a-ilo6",
    HPE,
    "intel-s2600bpb",
    LENOVO,
    "nvidia-bluefield3",
    "nvidia-dgx-h100-ami",
    GH200,
    OPENBMC,
    SUPERMICRO,
    "supermicro-x10",
]
IMAGE = "http://192.0.2.1/images/debian.iso"

INFO: dict[str, dict[str, Any]] = {
    DELL: {
        "vendor": "Dell Inc.",
        "model": "PowerEdge R750",
        "serial": "UTUD2X3",
        "uuid": "2c2d7337-9eaa-4cc1-8538-6981d25cc74e",
        "bmcType": "iDRAC",
        "bmcVersion": "7.10.30.00",
        "redfishVersion": "1.18.0",
        "ipmiVersion": None,
    },
    HPE: {
        "vendor": "HPE",
        "model": "ProLiant DL385 Gen10 Plus v2",
        "serial": "HCN182801L",
        "uuid": "043E32BA-81DE-500C-5499-7EA693D80E8D",
        "bmcType": "iLO 5",
        "bmcVersion": "iLO 5 v2.72",
        "redfishVersion": "1.6.0",
        "ipmiVersion": None,
    },
    LENOVO: {
        "vendor": "Lenovo",
        "model": "ThinkSystem SR670 V2",
        "serial": "D037210K",
        "uuid": "dcde7095-12ac-1d66-8ebd-e5f230582e3f",
        "bmcType": "XCC",
        "bmcVersion": "TGBT42S 2.83 2023-07-05",
        "redfishVersion": "1.15.0",
        "ipmiVersion": None,
    },
    SUPERMICRO: {
        "vendor": "Supermicro",
        "model": "SYS-821GE-TNHR",
        "serial": "S245024F8446486",
        "uuid": "00000000-0000-0000-0000-4E61CBF1A248",
        "bmcType": "ASPEED",
        "bmcVersion": "11.01.01",
        "redfishVersion": "1.11.0",
        "ipmiVersion": None,
    },
    OPENBMC: {
        "vendor": None,
        "model": None,
        "serial": None,
        "uuid": None,
        "bmcType": "OpenBMC",
        "bmcVersion": "2.15.0-dev-686-g100c36de90",
        "redfishVersion": "1.17.0",
        "ipmiVersion": None,
    },
    GH200: {
        "vendor": "NVIDIA",
        "model": None,
        "serial": None,
        "uuid": "6deaedfc-2dcd-957c-2ae3-a4492c3e2fb2",
        "bmcType": "OpenBMC",
        "bmcVersion": "GH200-24.05-2",
        "redfishVersion": "1.9.0",
        "ipmiVersion": None,
    },
}

BOOT: dict[str, dict[str, Any]] = {
    DELL: {
        "target": "none",
        "enabled": "disabled",
        "mode": "uefi",
        "order": ["Boot0000", "Boot0001"],
        "allowedTargets": [
            "None",
            "Pxe",
            "Floppy",
            "Cd",
            "Hdd",
            "BiosSetup",
            "Utilities",
            "UefiTarget",
            "SDCard",
            "UefiHttp",
        ],
        "allowedModes": [],
    },
    LENOVO: {
        "target": "none",
        "enabled": "disabled",
        "mode": "uefi",
        "order": ["Boot0003", "Boot0002"],
        "allowedTargets": ["None", "Pxe", "Cd", "Usb", "Hdd", "BiosSetup", "Diags", "UefiTarget"],
        "allowedModes": [],
    },
    SUPERMICRO: {
        "target": "pxe",
        "rawTarget": "Pxe",
        "enabled": "disabled",
        "mode": "uefi",
        "allowedTargets": [
            "None",
            "Pxe",
            "Floppy",
            "Cd",
            "Usb",
            "Hdd",
            "BiosSetup",
            "UsbCd",
            "UefiBootNext",
            "UefiHttp",
        ],
    },
    OPENBMC: {
        "target": "none",
        "enabled": "disabled",
        "mode": "uefi",
        "order": [],
        "allowedModes": ["Legacy", "UEFI"],
    },
    GH200: {
        "target": "disk",
        "rawTarget": "Hdd",
        "enabled": "continuous",
        "mode": None,
        "allowedTargets": ["None", "Pxe", "Hdd", "Cd", "Diags", "BiosSetup", "Usb"],
    },
    HPE: {
        "target": "none",
        "enabled": "disabled",
        "mode": "uefi",
        "allowedTargets": [
            "None",
            "Cd",
            "Hdd",
            "Usb",
            "SDCard",
            "Utilities",
            "Diags",
            "BiosSetup",
            "Pxe",
            "UefiShell",
            "UefiHttp",
            "UefiTarget",
        ],
    },
    "nvidia-dgx-h100-ami": {"target": "none", "mode": None, "allowedModes": ["UEFI"]},
    "gigabyte-h262-megarac": {"target": "none", "mode": "bios", "allowedModes": ["Legacy", "UEFI"]},
    "nvidia-bluefield3": {"target": "uefiHttp", "enabled": "disabled", "mode": "uefi"},
    "dmtf-catfish": {"target": "pxe", "enabled": "once", "mode": "uefi"},
    "supermicro-x10": {"target": "none", "enabled": "disabled", "mode": None},
    "cray-ex235a": {"target": None, "rawTarget": None, "enabled": "disabled", "allowedTargets": []},
}

SLOTS: dict[str, list[tuple[str, list[str], str]]] = {
    DELL: [
        ("1", ["CD", "DVD", "USBStick"], "action"),
        ("2", ["CD", "DVD", "USBStick"], "action"),
        ("CD", ["CD", "DVD"], "action"),
        ("RemovableDisk", ["USBStick"], "action"),
    ],
    HPE: [("1", ["Floppy", "USBStick"], "action"), ("2", ["CD", "DVD"], "action")],
    LENOVO: [
        *((f"EXT{n}", ["CD", "DVD", "Floppy", "USBStick"], "patch") for n in range(1, 5)),
        *((f"RDOC{n}", ["CD", "DVD", "Floppy", "USBStick"], "upload") for n in range(1, 3)),
        *((f"Remote{n}", ["CD", "DVD", "Floppy", "USBStick"], "patch") for n in range(1, 5)),
    ],
    SUPERMICRO: [(f"VirtualMedia{n}", ["CD", "DVD", "Floppy", "USBStick"], "action") for n in range(1, 4)],
    OPENBMC: [],
    GH200: [("USB1", ["CD", "USBStick"], "action"), ("USB2", ["CD", "USBStick"], "action")],
    "gigabyte-h262-megarac": [("CD1", [], "action")],
    "supermicro-x10": [],
}

RESETS = {
    DELL: "On, ForceOff, ForceRestart, GracefulRestart, GracefulShutdown, PushPowerButton, Nmi, PowerCycle",
    HPE: "On, ForceOff, GracefulShutdown, ForceRestart, Nmi, PushPowerButton, GracefulRestart",
    LENOVO: "On, Nmi, GracefulShutdown, GracefulRestart, ForceOn, ForceOff, ForceRestart",
    SUPERMICRO: "On, ForceOff, GracefulShutdown, GracefulRestart, ForceRestart, Nmi, ForceOn, PowerCycle",
    OPENBMC: "On, ForceOff, ForceOn, ForceRestart, GracefulRestart, GracefulShutdown, PowerCycle, Nmi",
}
NOT_OFFERED: dict[str, set[str]] = {
    DELL: set(),
    HPE: set(),
    LENOVO: {"bios.resetBios"},
    SUPERMICRO: set(),
    OPENBMC: {
        "boot.setBootOrder",
        "boot.getSecureBoot",
        "boot.setSecureBoot",
        "virtual-media.listMedia",
        "virtual-media.insertMedia",
        "virtual-media.ejectMedia",
    },
}


@pytest.mark.parametrize("tree", INFO)
@without_waiting
async def test_who_it_is(tree: str, shared: Path) -> None:
    async with bench(shared / "mockups" / tree) as bmc:
        assert await bmc("management.getInfo") == INFO[tree]


@pytest.mark.parametrize("tree", TREES)
@without_waiting
async def test_the_power_state(tree: str, shared: Path) -> None:
    async with bench(shared / "mockups" / tree) as bmc:
        wanted = "off" if tree == OPENBMC else "on"
        assert (await bmc("power.getPower"))["state"] == wanted
        before = len(bmc.bmc.journal)
        await bmc("power.getPower")
        assert len(bmc.bmc.journal) == before + 1


@pytest.mark.parametrize("tree", BOOT)
@without_waiting
async def test_the_boot_override(tree: str, shared: Path) -> None:
    async with bench(shared / "mockups" / tree) as bmc:
        reading = await bmc("boot.getBoot")
        assert {key: reading[key] for key in BOOT[tree]} == BOOT[tree]


@pytest.mark.parametrize("tree", SLOTS)
@without_waiting
async def test_the_media_slots(tree: str, shared: Path) -> None:
    async with bench(shared / "mockups" / tree) as bmc:
        slots = (await bmc("virtual-media.listMedia"))["slots"]
        assert sorted((s["id"], s["mediaTypes"], s["insertMethod"]) for s in slots) == SLOTS[tree]
        assert not any(slot["inserted"] or slot["image"] for slot in slots)


@pytest.mark.parametrize("tree", RESETS)
@without_waiting
async def test_what_it_can_do(tree: str, shared: Path) -> None:
    async with bench(shared / "mockups" / tree) as bmc:
        report = await bmc("management.qualify")
        lines = {line["operation"]: line for line in report["operations"]}
        assert list(lines) == list(OPERATIONS)
        assert RESETS[tree] in lines["power.setPower"]["evidence"]
        assert report["info"] == INFO[tree]
        own = {Concern.POWER, Concern.MANAGEMENT, Concern.BOOT, Concern.VIRTUAL_MEDIA}
        for operation in OPERATIONS.values():
            offered = operation.id not in NOT_OFFERED[tree]
            if operation.concern in own:
                wanted = "supported" if offered else "unsupported"
                assert lines[operation.id]["support"] == wanted, lines[operation.id]
            if operation.concern is Concern.DEPLOY:
                assert lines[operation.id]["support"] == "unsupported"
        assert {entry.method for entry in bmc.bmc.journal.entries()} == {"GET", "POST"}
        assert len(bmc.requests("POST")) == 1


class Unsupported(Exception):
    """The BMC has no such thing, and the driver said so."""


async def answer(bmc: Bench, operation: str) -> dict[str, Any]:
    try:
        return await bmc(operation)
    except OperationError as error:
        if error.code is ErrorCode.UNSUPPORTED and error.message:
            raise Unsupported from error
        raise


READS = [
    operation.id
    for operation in OPERATIONS.values()
    if operation.repeat is Repeat.READ
    and operation.concern in (Concern.POWER, Concern.MANAGEMENT, Concern.BOOT, Concern.VIRTUAL_MEDIA)
]


@pytest.mark.parametrize("tree", TREES)
@without_waiting
async def test_every_read_gives_an_answer_or_says_that_there_is_none(tree: str, shared: Path) -> None:
    async with bench(shared / "mockups" / tree) as bmc:
        for operation in READS:
            with contextlib.suppress(Unsupported):
                await answer(bmc, operation)


POWERED: dict[str, list[str]] = {
    DELL: ["ForceOff", "On", "GracefulShutdown", "On", "ForceRestart", "PowerCycle", "Nmi"],
    HPE: ["ForceOff", "On", "GracefulShutdown", "On", "ForceRestart", "ForceRestart", "Nmi"],
    LENOVO: ["ForceOff", "On", "GracefulShutdown", "On", "ForceRestart", "ForceRestart", "Nmi"],
    SUPERMICRO: ["ForceOff", "On", "GracefulShutdown", "On", "ForceRestart", "PowerCycle", "Nmi"],
    OPENBMC: ["ForceOff", "On", "GracefulShutdown", "On", "ForceRestart", "PowerCycle", "Nmi"],
    "cray-ex235a": ["ForceOff", "On", "ForceOff", "On", "ForceOff", "On", "ForceOff", "On"],
}


@pytest.mark.parametrize("tree", POWERED)
@without_waiting
async def test_the_power_is_changed_with_the_reset_types_it_has(tree: str, shared: Path) -> None:
    async with bench(shared / "mockups" / tree) as bmc:
        bmc.bmc.state.set_power(PowerState.ON)
        for action in ("off", "on", "softOff", "on", "reset", "cycle", "nmi"):
            if (tree, action) == ("cray-ex235a", "nmi"):
                assert (await bmc.fails("power.setPower", {"action": action})).code is ErrorCode.UNSUPPORTED
                continue
            result = await bmc("power.setPower", {"action": action})
            assert result["state"] == ("off" if action in ("off", "softOff") else "on")
        assert [reset.reset_type for reset in bmc.bmc.state.resets] == POWERED[tree]


BOOTED: dict[str, tuple[str, str, bool | None, dict[str, str]]] = {
    DELL: ("/redfish/v1/Systems/System.Embedded.1", "Cd", None, {}),
    HPE: ("/redfish/v1/Systems/1", "Cd", None, {}),
    LENOVO: ("/redfish/v1/Systems/1", "Cd", False, {}),
    SUPERMICRO: ("/redfish/v1/Systems/1", "UsbCd", None, {"BootSourceOverrideMode": "UEFI"}),
    OPENBMC: ("/redfish/v1/Systems/system", "Cd", None, {}),
    GH200: ("/redfish/v1/Systems/System_0/Settings", "Cd", True, {}),
    "nvidia-dgx-h100-ami": ("/redfish/v1/Systems/DGX/SD", "Cd", True, {"BootSourceOverrideMode": "UEFI"}),
    "gigabyte-h262-megarac": ("/redfish/v1/Systems/Self", "Cd", True, {"BootSourceOverrideMode": "Legacy"}),
    "supermicro-x10": ("/redfish/v1/Systems/1", "UsbCd", None, {}),
}


@pytest.mark.parametrize("tree", BOOTED)
@without_waiting
async def test_the_boot_override_is_set_where_the_vendor_keeps_it_and_used_once(tree: str, shared: Path) -> None:
    path, target, lasting, more = BOOTED[tree]
    async with bench(shared / "mockups" / tree) as bmc:
        result = await bmc("boot.setBootDevice", {"device": "cd"})
        assert (result["target"], result["rawTarget"], result["enabled"]) == ("cd", target, "once")
        assert result["persistentSupported"] is lasting
        (patch,) = bmc.bmc.journal.entries("PATCH")
        assert patch.path == path
        assert patch.body == {
            "Boot": {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": target, **more}
        }
        bmc.bmc.state.set_power(PowerState.ON)
        await bmc("power.setPower", {"action": "reset"})
        assert bmc.bmc.state.boots[-1].target == target
        lasting_result = await bmc("boot.setBootDevice", {"device": "pxe", "persistent": True})
        assert lasting_result["enabled"] == ("once" if lasting is False else "continuous")


INSERTED = {
    DELL: ("1", "POST"),
    HPE: ("2", "POST"),
    LENOVO: ("EXT1", "PATCH"),
    SUPERMICRO: ("VirtualMedia1", "POST"),
    GH200: ("USB1", "POST"),
    "gigabyte-h262-megarac": ("CD1", "POST"),
}


@pytest.mark.parametrize("tree", INSERTED)
@without_waiting
async def test_an_image_goes_in_and_out_the_way_the_vendor_needs(tree: str, shared: Path) -> None:
    slot, method = INSERTED[tree]
    async with bench(shared / "mockups" / tree) as bmc:
        result = await bmc("virtual-media.insertMedia", {"image": IMAGE})
        assert result == {"slot": slot, "image": IMAGE, "changed": True}
        assert len(bmc.requests(method, "*VirtualMedia/*")) == 1
        assert (await bmc("virtual-media.insertMedia", {"image": IMAGE}))["changed"] is False
        assert slot in (await bmc("virtual-media.ejectMedia"))["ejected"]
        assert not any(media.inserted for media in bmc.bmc.state.media.values())


@pytest.mark.case("B37")
@without_waiting
async def test_a_gpu_baseboard_that_is_away_while_the_host_is_off_does_not_stop_its_power(shared: Path) -> None:
    away = FaultRule(method="GET", path="/redfish/v1/Systems/HGX_Baseboard_0", status=503)
    for tree in ("nvidia-dgx-h100-ami", GH200):
        async with bench(shared / "mockups" / tree, faults=[away]) as bmc:
            assert (await bmc("power.setPower", {"action": "off"}))["state"] == "off"
            assert (await bmc("power.setPower", {"action": "on"}))["state"] == "on"


@without_waiting
async def test_a_supermicro_x10_says_why_it_takes_no_image(shared: Path) -> None:
    async with bench(shared / "mockups" / "supermicro-x10") as bmc:
        error = await bmc.fails("virtual-media.insertMedia", {"image": IMAGE})
        assert error.code is ErrorCode.UNSUPPORTED
        assert "/redfish/v1/Managers/1/VM1" in error.message


@without_waiting
async def test_a_boot_order_of_a_dell_waits_on_its_settings_object(shared: Path) -> None:
    async with bench(shared / "mockups" / DELL) as bmc:
        result = await bmc("boot.setBootOrder", {"order": ["Boot0001"]})
        assert result == {"order": ["Boot0001", "Boot0000"], "pending": True}
        assert bmc.requests("PATCH") == ["/redfish/v1/Systems/System.Embedded.1/Settings"]


@without_waiting
async def test_the_log_that_is_the_hardware_s_own_is_chosen(shared: Path) -> None:
    chosen = {
        DELL: "/redfish/v1/Managers/iDRAC.Embedded.1/LogServices/Sel/Entries",
        HPE: "/redfish/v1/Systems/1/LogServices/IML/Entries",
        LENOVO: "/redfish/v1/Systems/1/LogServices/PlatformLog/Entries",
        SUPERMICRO: "/redfish/v1/Systems/1/LogServices/Log1/Entries",
        GH200: "/redfish/v1/Systems/System_0/LogServices/SEL/Entries",
        "gigabyte-h262-megarac": "/redfish/v1/Managers/Self/LogServices/SEL/Entries",
    }
    for tree, path in chosen.items():
        async with bench(shared / "mockups" / tree) as bmc:
            await bmc("management.getEventLog")
            assert bmc.requests("GET", "*/Entries") == [path], tree
