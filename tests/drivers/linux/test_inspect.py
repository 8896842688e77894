"""The inventory as the machine itself tells it: recorded machines, and what their makers' programs say."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.linux.connection import LinuxConnection
from drivers.linux.drive_health import parse_nvme_health, parse_smartctl
from drivers.linux.inspect import LinuxInspect, with_told_drives
from drivers.linux.network_ports import PortFacts, ask_kernel, boot_macs, macs_of_path, network_ports
from drivers.linux.pci import PciFunction, PciNames, graphics, pci_devices
from drivers.linux.smbios import parse_tables
from drivers.linux.vendor_tools import (
    parse_dsu,
    parse_ipmicfg,
    parse_mlxup,
    parse_msecli,
    parse_mvcli_drives,
    parse_mvcli_hba,
    parse_mvcli_volumes,
    parse_storcli,
)
from protocol.shapes import Nothing
from protocol.shapes.inspect import Drive, Inventory
from tests.drivers.linux.machine import Machine, call
from tests.drivers.linux.recorded import Recorded, smbios

Read = Callable[[str], str]


@pytest.fixture
def read(shared: Path) -> Read:
    return lambda name: (shared / "mockups/inband" / name).read_text()


@pytest.fixture
def recorded(shared: Path, machine: Machine) -> Callable[[str], Recorded]:
    return lambda name: Recorded(shared / "mockups/inband" / name, machine)


async def inventory(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> Inventory:
    names = recorded.names
    monkeypatch.setattr(PciNames, "installed", classmethod(lambda _: names))
    ask = recorded.ports.__getitem__
    connection = LinuxConnection(recorded.machine.host)
    return await LinuxInspect(connection, ask).get_inventory(Nothing(), call("inspect.getInventory"))


async def test_a_white_box_is_known_by_its_board_and_the_bmcs_own_devices_are_left_out(
    recorded: Callable[[str], Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ASRockRack E3C246D4I: placeholders everywhere, a BMC that plugs in a CD, a floppy, a disk and a NIC."""
    found = await inventory(recorded("asrockrack-e3c246d4i"), monkeypatch)
    system = found.system
    assert (system.vendor, system.model, system.serial) == ("Packet", "c3.small.x86", "J1W2R8093562")
    assert (system.uuid, system.sku, system.part_number) == (
        "00000000-0000-0000-0000-0ece827fabb4",
        None,
        "E3C246D4I-NL",
    )
    assert (system.memory_mib, system.processor_count, system.core_count, system.thread_count) == (32768, 1, 8, 16)
    assert [(one.kind, one.serial, one.vendor) for one in found.chassis] == [
        ("MainServerChassis", "D13750978521232", None)
    ]
    assert [(one.socket, one.model) for one in found.processors] == [
        ("CPU1", "Intel(R) Xeon(R) E-2278G CPU @ 3.40GHz")
    ]
    assert [(one.slot, one.size_mib, one.kind, one.speed_mts, one.vendor) for one in found.memory] == [
        ("ChannelA-DIMM0", 16384, "DDR4", 2400, "Micron"),
        ("ChannelB-DIMM0", 16384, "DDR4", 2400, "Micron"),
    ]
    assert [(drive.name, drive.serial) for drive in found.drives] == [
        ("sda", "UXNK200655KP243WML"),
        ("sdb", "JDZM127454GV801ZUW"),
    ]
    # Two ports with one address: they were bonded when it was recorded.
    assert [(nic.name, nic.mac, nic.link, nic.speed_mbps) for nic in found.nics] == [
        ("eno1", "c6:83:d7:13:15:60", "up", 10000),
        ("eno2", "c6:83:d7:13:15:60", "up", 10000),
    ]
    assert [version.version for version in found.firmware if version.name == "BIOS"] == ["L2.07B"]
    assert found.incomplete == []


async def test_a_dell_with_what_its_programs_tell(
    recorded: Callable[[str], Recorded], read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = recorded("dell-r6515")
    smart = {name: read(f"dell-r6515/smartctl-{name[:5]}.json") for name in ("sda", "nvme0n1")}
    machine.answer("smartctl", **smart)
    machine.answer("dsu", any=read("dell-r6515/dsu-inventory.txt"))
    machine.answer("mvcli", hba=read("misc/mvcli-info-hba.txt"), pd=read("misc/mvcli-info-pd.txt"))
    found = await inventory(machine, monkeypatch)
    scanned = json.loads(read("dell-r6515/smartctl-scan.json"))["devices"]
    by_name = {drive.name: drive for drive in found.drives}
    shown = {name.removesuffix("n1") for name in by_name if " " not in name}
    assert {Path(row["name"]).name for row in scanned} == shown
    sda, nvme = by_name["sda"], by_name["nvme0n1"]
    assert (sda.model, sda.firmware, sda.health) == ("MTFDDAV240TDU", "J004", "ok")
    assert sda.wwn == f"0x{5 << 60 | 41077 << 36 | 7602424834:016x}"
    assert (nvme.serial, nvme.protocol, nvme.media, nvme.health) == ("991523C769E3", "NVMe", "ssd", "ok")
    # The drives behind the boot controller, which the kernel shows as one.
    assert by_name["Marvell 0:0"].serial == "10976C4837B2"
    versions = {version.name: version.version for version in found.firmware}
    assert versions["BIOS"] == "1.7.4"
    assert versions["iDRAC"] == "4.40.00.00"
    assert versions["Marvell 1b4b-9230"] == "2.5.13.1210"
    assert not any("Diagnostics" in name or "COLLECTOR" in name for name in versions)
    assert [(psu.serial, psu.watts, psu.model) for psu in found.power_supplies] == [
        ("GFTCF6274Y2TWH", 550, "PWR SPLY,550W,RDNT,DELTA"),
        ("NNWFH4053V8WFW", 550, "PWR SPLY,550W,RDNT,DELTA"),
    ]
    assert found.trusted_modules == []


async def test_a_supermicro_with_what_its_programs_tell(
    recorded: Callable[[str], Recorded], read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = recorded("supermicro-x11dph-t")
    machine.answer("smartctl", sdc=read("supermicro-x11dph-t/smartctl-sda.json"))
    machine.answer("storcli64", J=read("supermicro-x11dph-t/storcli-show.json"))
    machine.answer("ipmicfg", any=read("supermicro-x11dph-t/ipmicfg-summary.txt"))
    machine.answer("mlxup", any=read("supermicro-x11dph-t/mlxup.txt"))
    found = await inventory(machine, monkeypatch)
    scanned = json.loads(read("supermicro-x11dph-t/smartctl-scan.json"))["devices"]
    assert {Path(row["name"]).name for row in scanned} == {drive.name.removesuffix("n1") for drive in found.drives}
    drive = next(drive for drive in found.drives if drive.serial == "NYUEK8AT")
    assert (drive.name, drive.model, drive.controller) == ("sdc", "HGST HUS728T8TALE6L4", "0000:3d:00.0")
    assert drive.wwn == f"0x{5 << 60 | 3274 << 36 | 8930762824:016x}"
    assert drive.health == "ok"
    assert [(nic.name, nic.link, nic.adapter) for nic in found.nics] == [
        ("eno1", "down", "0000:1a:00"),
        ("eno2", "down", "0000:1a:00"),
        ("enp216s0f0", "up", "0000:d8:00"),
        ("enp216s0f1", "up", "0000:d8:00"),
    ]
    versions = {version.name: version.version for version in found.firmware}
    assert (versions["BMC"], versions["BIOS"], versions["CPLD"]) == ("1.71.11", "3.4", "02.b6.04")
    assert versions["MCX4121A-ACA_Ax 0000:d8:00.0"] == "14.29.2002"
    assert versions["LSI3008-IT"] == "16.00.01.00"
    assert [(tpm.kind, tpm.firmware) for tpm in found.trusted_modules] == [("TPM2_0", "7.62")]
    assert [psu.name for psu in found.power_supplies] == ["PSU1", "PSU2"]
    assert not any(processor.kind == "gpu" for processor in found.processors)


async def test_a_machine_that_describes_nothing_says_what_is_missing(machine: Machine) -> None:
    (machine.host.proc / "cpuinfo").write_text(
        "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon\ncore id\t: 0\nphysical id\t: 0\n\n"
        "processor\t: 1\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon\ncore id\t: 0\nphysical id\t: 0\n\n"
    )
    (machine.host.proc / "meminfo").write_text("MemTotal:        2048000 kB\n")
    ask = LinuxInspect(LinuxConnection(machine.host), lambda _: PortFacts())
    found = await ask.get_inventory(Nothing(), call("inspect.getInventory"))
    assert found.incomplete == ["system", "chassis", "memory", "power_supplies"]
    assert found.unread[0].reason == "the firmware shows no tables"
    assert [(one.model, one.cores, one.threads) for one in found.processors] == [("Xeon", 1, 2)]
    assert found.system.memory_mib == 2000


# Programs of makers


def test_storcli_without_a_controller_tells_nothing(read: Read) -> None:
    told = parse_storcli(read("misc/storcli-show-nocontrollers.json"))
    assert (told.drives, told.firmware) == ((), ())


def test_storcli_lists_drives_in_their_bays(read: Read) -> None:
    told = parse_storcli(read("supermicro-x11dph-t/storcli-show.json"))
    assert len(told.drives) == 12
    first = told.drives[0]
    assert (first.name, first.bay, first.media, first.protocol) == ("0000:3d:00.0 12:0", "12:0", "hdd", "SATA")
    assert first.size_bytes == int(7.277 * (1 << 40))


def test_msecli_tells_the_health_of_drives_that_the_kernel_shows(read: Read) -> None:
    told = parse_msecli(read("misc/msecli-list.txt"))
    shown = [Drive(name="sda", serial="774640992DBE"), Drive(name="sdx", serial="878264104804", health="warning")]
    joined = with_told_drives(shown, told.drives)
    assert [(drive.name, drive.health, drive.firmware) for drive in joined] == [
        ("sda", "ok", "D1MU020"),
        ("sdx", "warning", "D1MU020"),
    ]


def test_mvcli_tells_volumes_and_the_drives_behind_them(read: Read) -> None:
    assert parse_mvcli_volumes(read("misc/mvcli-info-vd.txt")) == {"Test_MvcliCreateVirtualDisk": "functional"}
    drives = parse_mvcli_drives(read("misc/mvcli-info-pd.txt")).drives
    assert [(drive.serial, drive.size_bytes, drive.media) for drive in drives] == [
        ("10976C4837B2", 234431064 * 1024, "ssd"),
        ("88448C8597AC", 234431064 * 1024, "ssd"),
    ]
    versions = {one.name: one.version for one in parse_mvcli_hba(read("misc/mvcli-info-hba.txt")).firmware}
    assert versions["Marvell 1b4b-9230 BIOS"] == "1.0.13.1003"


@pytest.mark.parametrize(
    "parse",
    [parse_storcli, parse_msecli, parse_mvcli_drives, parse_mvcli_hba, parse_dsu, parse_ipmicfg, parse_mlxup],
)
@given(noise=st.text(max_size=300))
def test_no_words_make_a_reader_fail(parse: Callable[[str], object], noise: str) -> None:
    for words in (
        noise,
        f'{{"Controllers": [{{"Response Data": {{"PD LIST": "{noise}"}}}}]}}',
        f"Adapter: {noise}\n",
    ):
        parse(words)


# Drives


@pytest.mark.parametrize(
    ("file", "protocol", "rotational", "health"),
    [
        ("supermicro-x11dph-t/smartctl-sda.json", "SATA", True, "ok"),
        ("supermicro-x11dph-t/smartctl-sdm.json", "SATA", False, "ok"),
        ("supermicro-x11dph-t/smartctl-nvme0.json", "NVMe", False, "ok"),
        ("dell-r6515/smartctl-nvme0.json", "NVMe", False, "ok"),
        ("dell-r6515/smartctl-sda.json", "SATA", False, "ok"),
        ("misc/smartctl-sdc.json", "SATA", False, "ok"),
    ],
)
def test_recorded_drives_tell_how_they_fare(
    file: str, protocol: str, rotational: bool, health: str, read: Read
) -> None:
    facts = parse_smartctl(json.loads(read(file)))
    assert (facts.protocol, facts.rotational, facts.health) == (protocol, rotational, health)
    assert facts.serial
    assert facts.firmware


def test_world_wide_names_of_smartctl_are_written_as_everywhere(read: Read) -> None:
    told = json.loads(read("misc/smartctl-sdc.json"))
    assert parse_smartctl(told).wwn == f"0x{5 << 60 | 6083300 << 36 | 2929974825:016x}"
    nvme = parse_smartctl(json.loads(read("supermicro-x11dph-t/smartctl-nvme0.json")))
    assert nvme.wwn == f"eui.{9233294:06x}{55492032267:010x}"


@pytest.mark.parametrize(
    ("told", "health"),
    [
        ({"smart_status": {"passed": True}, "smartctl": {"exit_status": 8}}, "critical"),
        ({"smart_status": {"passed": False}}, "critical"),
        ({"smart_status": {"passed": "yes"}}, None),
        ([], None),
        ({}, None),
    ],
)
def test_a_failing_drive_is_critical_and_silence_is_no_health(told: object, health: str | None) -> None:
    assert parse_smartctl(told).health == health


@pytest.mark.parametrize(
    ("warning", "used", "health"),
    [(0, 3, "ok"), (0, 100, "warning"), (1, 0, "warning"), (4, 0, "critical"), (8, 0, "critical")],
)
def test_an_nvme_drive_tells_its_health_itself(warning: int, used: int, health: str) -> None:
    log = bytearray(512)
    log[0], log[5] = warning, used
    assert parse_nvme_health(bytes(log)) == health


def test_a_program_that_lists_drives_without_serial_numbers_doubles_none() -> None:
    shown = [Drive(name="sda", model="HUS 1", controller="c"), Drive(name="sdb", model="HUS 1", controller="c")]
    told = [Drive(name="c 12:0", model="HUS_1", controller="c"), Drive(name="c 12:1", model="OTHER", controller="c")]
    assert [drive.name for drive in with_told_drives(shown, told)] == ["sda", "sdb", "c 12:1"]


# Buses


def test_the_firmwares_boot_order_is_the_order_of_the_ports(machine: Machine) -> None:
    for name, mac in (("eth0", "02:00:00:00:00:01"), ("eth1", "02:00:00:00:00:02"), ("eth2", "02:00:00:00:00:03")):
        machine.write(f"class/net/{name}/address", mac)
        machine.write(f"class/net/{name}/type", "1")
        (machine.host.sys / f"class/net/{name}/device").mkdir()
    guid = "8be4df61-93ca-11d2-aa0d-00e098032b8c"

    def option(mac: str) -> bytes:
        node = bytes([3, 11, 37, 0]) + bytes.fromhex(mac.replace(":", "")) + bytes(27)
        path = node + b"\x7f\xff\x04\0"
        return (
            b"\7\0\0\0" + b"\1\0\0\0" + len(path).to_bytes(2, "little") + "PXE".encode("utf-16-le") + b"\0\0" + path
        )

    place = "firmware/efi/efivars"
    machine.write(f"{place}/Boot0003-{guid}", option("02:00:00:00:00:03"))
    machine.write(f"{place}/Boot0001-{guid}", option("02:00:00:00:00:02"))
    machine.write(f"{place}/BootOrder-{guid}", b"\7\0\0\0" + bytes([3, 0, 9, 0, 1, 0]))
    assert boot_macs(machine.host) == ["02:00:00:00:00:03", "02:00:00:00:00:02"]
    found = network_ports(machine.host, PciNames(), lambda _: PortFacts())
    assert [(nic.name, nic.boot_position) for nic in found] == [("eth2", 1), ("eth1", 2), ("eth0", None)]


def test_without_a_boot_order_the_port_that_pxe_came_by_is_the_first(machine: Machine) -> None:
    (machine.host.proc / "cmdline").write_text("console=ttyS0 BOOTIF=01-02-00-00-00-00-0a quiet\n")
    assert boot_macs(machine.host) == ["02:00:00:00:00:0a"]


def test_a_bonded_ports_own_address_is_its_permanent_one(machine: Machine) -> None:
    machine.write("class/net/eth0/address", "02:00:00:00:00:01")
    machine.write("class/net/eth0/type", "1")
    machine.write("class/net/eth0/device/vendor", "0x8086")
    found = network_ports(machine.host, PciNames(), lambda _: PortFacts("1.2", "02:00:00:00:00:09"))
    assert (found[0].mac, found[0].permanent_mac) == ("02:00:00:00:00:01", "02:00:00:00:00:09")


def test_the_kernel_tells_nothing_of_a_port_that_is_not_there() -> None:
    assert ask_kernel("no-such-port0") == PortFacts()


@given(st.binary(max_size=200))
def test_no_device_path_makes_the_reader_fail(path: bytes) -> None:
    assert all(len(mac) == 17 for mac in macs_of_path(path))


def test_graphics_that_compute_are_processors_and_a_bmcs_display_is_none() -> None:
    functions = [
        PciFunction("0000:3b:00.0", 0x10DE, 0x2331, 0x0302),
        PciFunction("0000:04:00.0", 0x1A03, 0x2000, 0x0300),
        PciFunction("0000:00:02.0", 0x8086, 0x3E98, 0x0300),
        PciFunction("0000:00:1f.0", 0x8086, 0xA303, 0x0601),
        PciFunction("0000:3b:00.1", 0x10DE, 0x1AEF, 0x0403),
    ]
    names = PciNames.parse(
        "10de  NVIDIA Corporation\n\t2331  GH100 [H100 PCIe]\n\t\t10de 1626  H100\nC 01  Mass storage\n"
    )
    assert [(gpu.model, gpu.vendor) for gpu in graphics(functions, names)] == [
        ("GH100 [H100 PCIe]", "NVIDIA Corporation")
    ]
    listed = pci_devices(functions, names)
    assert [(one.slot, one.name) for one in listed] == [
        ("0000:3b:00.0", "GH100 [H100 PCIe]"),
        ("0000:04:00.0", "1a03:2000"),
        ("0000:00:02.0", "8086:3e98"),
    ]


@given(st.binary(max_size=300), st.integers(0, 2000))
def test_damaged_tables_give_what_stands_before_the_damage(noise: bytes, place: int) -> None:
    data = bytearray(
        smbios(
            "Handle 0x0001, DMI type 1, 27 bytes\nSystem Information\n\tManufacturer: A\n\tUUID: " + "1" * 32 + "\n\n"
        )
    )
    data[place : place + len(noise)] = noise
    tables = parse_tables(bytes(data))
    for part in (tables.system, tables.chassis, tables.memory, tables.trusted_modules, tables.power_supplies):
        part()
    tables.processors("x86_64")
