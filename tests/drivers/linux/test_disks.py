"""Which disks there are, which of them must be left alone, and which one is meant."""

import json
from pathlib import Path

import msgspec
import pytest

from drivers.linux.ata_identity import from_vpd
from drivers.linux.disks import NEVER_MEANT, Disk, read_disks, wwn_of
from drivers.linux.hints import matching, misses, root_disk
from drivers.linux.words import real
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.deploy import RootDeviceHints
from tests.drivers.linux.machine import Machine, vpd_of_ata

GIB = 1 << 30
NVME = "pci0000:40/0000:41:00.0/nvme/nvme0"
USB = "pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0/host7/target7:0:0/7:0:0:0"


def disk(name: str, gib: float = 100, **facts: object) -> Disk:
    given = {"path": f"/dev/{name}", "size_bytes": int(gib * GIB), "rotational": False, **facts}
    return Disk(name=name, **given)  # type: ignore[arg-type]


def test_a_sata_disk_is_known_by_its_own_word_and_not_by_scsis_short_one(machine: Machine) -> None:
    page = vpd_of_ata(
        model="Samsung SSD 850 EVO 2TB", serial="F2LNVH3Z450090H", firmware="EMT02B6Q", wwn=0x5002538D40FF0EEA
    )
    machine.add_disk("sda", 1 << 20, device__vendor="ATA", device__model="Samsung SSD 850", device__vpd_pg89=page)
    found = machine.disk("sda")
    assert (found.model, found.serial, found.firmware) == ("Samsung SSD 850 EVO 2TB", "F2LNVH3Z450090H", "EMT02B6Q")
    assert (found.wwn, found.transport, found.controller) == ("0x5002538d40ff0eea", "sata", "0000:00:1f.2")


def test_an_nvme_disk_is_known_by_its_serial_number_and_eui(machine: Machine) -> None:
    machine.add_disk(
        "nvme0n1",
        1 << 20,
        device=NVME,
        wwid="eui.0025385b71b0a1c2",
        device__model="Micron_9300_MTFDHAL3T8TDP         ",
        device__serial="991523C769E3        ",
        device__firmware_rev="11300DN0",
    )
    found = machine.disk("nvme0n1")
    assert (found.serial, found.model) == ("991523C769E3", "Micron_9300_MTFDHAL3T8TDP")
    assert (found.wwn, found.transport) == ("eui.0025385b71b0a1c2", "nvme")
    assert found.partition_name(2) == "nvme0n1p2"


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("naa.5000c500a1b2c3d4", "0x5000c500a1b2c3d4"),
        ("eui.0025385b71b0a1c2", "eui.0025385b71b0a1c2"),
        ("eui.0000000000000000", None),
        ("t10.ATA     Samsung SSD", None),
        ("nvme.144d-5334", None),
        (None, None),
    ],
)
def test_world_wide_names_are_written_as_the_inventory_writes_them(word: str | None, meant: str | None) -> None:
    assert wwn_of(word) == meant


def test_what_is_no_disk_is_not_listed(machine: Machine) -> None:
    for name in ("sr0", "ram0", "zram0", "dm-0", "loop0", "mmcblk0boot0", "fd0"):
        machine.add_disk(name, 1 << 20, device=f"virtual/{name}")
    machine.add_disk("nvme0c0n1", 1 << 20, device=NVME + "c", hidden="1")
    machine.add_disk("vda", 1 << 20, device="pci0000:00/0000:00:05.0/virtio2", serial="disk-1")
    assert [found.name for found in read_disks(machine.host)] == ["vda"]
    assert machine.disk("vda").serial == "disk-1"


def test_names_are_sorted_as_people_count(machine: Machine) -> None:
    for name in ("sdaa", "sdb", "sda"):
        machine.add_disk(name, 1 << 20, device=f"pci0000:00/{name}")
    assert [found.name for found in read_disks(machine.host)] == ["sda", "sdb", "sdaa"]


def test_every_kind_of_use_bars_a_disk(machine: Machine) -> None:
    for name in ("sda", "sdb", "sdc", "sdd", "sde", "sdf"):
        machine.add_disk(name, 1 << 20, device=f"pci0000:00/{name}", dev=f"8:{ord(name[2])}")
    machine.write("block/sda/sda1/partition", "1")
    machine.write("block/sda/sda1/dev", "8:1")
    machine.mount("8:1", "/boot/efi")
    machine.write("block/sdb/sdb1/partition", "1")
    machine.write("block/sdb/sdb1/holders/md0/x", "")
    machine.write("block/sdc/removable", "1")
    machine.write("block/sdd/ro", "1")
    (machine.host.proc / "swaps").write_text("Filename Type Size Used Priority\n/dev/sde partition 1 0 -2\n")
    reasons = {found.name: found.unsuitable for found in read_disks(machine.host)}
    assert reasons == {
        "sda": "is in use: mounted at /boot/efi",
        "sdb": "is in use by md0",
        "sdc": "is removable",
        "sdd": "is read-only",
        "sde": "is in use: mounted at swap",
        "sdf": None,
    }


def test_a_file_system_with_a_device_number_of_its_own_is_known_by_its_source(machine: Machine) -> None:
    machine.add_disk("sda", 1 << 20, dev="8:0")
    machine.mount("0:33", "/", "/dev/sda")
    assert machine.disk("sda").unsuitable == "is in use: mounted at /"


def put_label(file: Path) -> None:
    """That of our boot medium."""
    descriptor = b"\x01CD001\x01\0" + b" " * 32 + b"RACKWRIGHT".ljust(32)
    with file.open("r+b") as handle:
        handle.seek(32768)
        handle.write(descriptor)


def test_our_own_boot_medium_is_never_a_target_also_as_a_stick(machine: Machine) -> None:
    put_label(machine.add_disk("sda", 4 << 20, device=USB))
    found = machine.disk("sda")
    assert found.transport == "usb"
    assert found.unsuitable == "is the medium that this machine was started from"
    assert not found.in_the_way


def put_in_memory(machine: Machine, *, modules: int) -> Disk:
    """A disk in memory with our label, as a virtual machine shows it after UEFI HTTP boot, where `modules` is 0."""
    region = "LNXSYSTM:00/LNXSYBUS:00/ACPI0012:00/ndbus0/region0"
    put_label(machine.add_disk("pmem0", 4 << 20, device=f"{region}/namespace0.0"))
    machine.write(f"devices/{region}/mappings", str(modules))
    device = machine.host.sys / "devices" / region / "namespace0.0"
    (device / "block" / "pmem0" / "device").symlink_to(device)
    return machine.disk("pmem0")


def test_the_medium_that_firmware_has_fetched_into_memory_is_never_a_target(machine: Machine) -> None:
    found = put_in_memory(machine, modules=0)
    assert found.unsuitable == "is the medium that this machine was started from"
    assert not found.in_the_way


def test_memory_that_keeps_what_is_in_it_is_built_in_and_not_passed_by_for_our_label(machine: Machine) -> None:
    found = put_in_memory(machine, modules=2)
    assert found.transport == "nvdimm"
    assert "carries the label of a boot medium" in (found.unsuitable or "")
    assert found.in_the_way


@pytest.mark.parametrize(
    "device", ["pci0000:00/ata1/host0/target0:0:0/0:0:0:0", "pci0000:40/0000:41:00.0/nvme/nvme0"]
)
def test_our_label_on_a_disk_that_is_built_in_keeps_it_from_being_passed_by(machine: Machine, device: str) -> None:
    """A tenant could write it there, for the disk to outlive the release."""
    name = "nvme0n1" if "nvme" in device else "sda"
    put_label(machine.add_disk(name, 4 << 20, device=device))
    found = machine.disk(name)
    assert "carries the label of a boot medium" in (found.unsuitable or "")
    assert found.in_the_way
    assert found.unsuitable not in NEVER_MEANT


@pytest.mark.parametrize(
    ("hints", "names"),
    [
        ({"serial": " s-1 "}, ["sda"]),
        ({"wwn": "naa.5000C500A1B2C3D4"}, ["sdb"]),
        ({"wwn": "5000:c500:a1b2:c3d4"}, ["sdb"]),
        ({"model": "micron 9300"}, ["nvme0n1"]),
        ({"name": "/dev/sda"}, ["sda"]),
        ({"minSizeGiB": 150}, ["sdb", "nvme0n1"]),
        ({"maxSizeGiB": 150}, ["sda"]),
        ({"rotational": True}, ["sdb"]),
        ({"rotational": False, "minSizeGiB": 150}, ["nvme0n1"]),
        ({"smallest": True}, ["sda"]),
        ({"smallest": True, "minSizeGiB": 101}, ["sdb"]),
        ({"serial": "none of them"}, []),
    ],
)
def test_hints_name_disks(hints: dict[str, object], names: list[str]) -> None:
    disks = [
        disk("sda", 100, serial="S-1"),
        disk("sdb", 200, wwn="0x5000c500a1b2c3d4", rotational=True),
        disk("nvme0n1", 300, model="Micron_9300_MTFDHAL3T8TDP"),
    ]
    asked = msgspec.convert(hints, RootDeviceHints)
    assert [found.name for found in matching(disks, asked)] == names


def test_a_stick_is_only_taken_by_its_own_name() -> None:
    stick = disk("sda", 10, transport="usb", serial="U-1")
    assert matching([stick, disk("sdb")], RootDeviceHints(smallest=True))[0].name == "sdb"
    assert misses(stick, RootDeviceHints(serial="U-1")) == []


def test_the_smallest_is_chosen_among_those_that_may_be_written_to() -> None:
    small = disk("sda", 10, mounted=("/",))
    assert root_disk([small, disk("sdb", 20), disk("sdc", 20)], RootDeviceHints(smallest=True)).name == "sdb"


def test_no_guess_is_made_between_disks_that_fit_equally_well() -> None:
    with pytest.raises(OperationError, match=r"2 disks fit the hints: sda \(S-1\), sdb \(S-2\)") as refused:
        root_disk([disk("sda", serial="S-1"), disk("sdb", serial="S-2")], RootDeviceHints(rotational=False))
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


def test_every_disk_and_every_fault_of_it_is_told() -> None:
    disks = [disk("sda", 50, serial="S-1", rotational=True), disk("sdb", 500, serial="S-2", mounted=("/",))]
    with pytest.raises(OperationError) as refused:
        root_disk(disks, RootDeviceHints(serial="S-3", min_size_gib=100, rotational=False))
    assert "its 50 GiB are less than 100 GiB, it rotates" in refused.value.message
    told = json.dumps(refused.value.details)
    assert "its serial number is S-2, not S-3" in told
    assert "is in use: mounted at /" in told


def test_the_only_disk_that_fits_may_be_in_use() -> None:
    with pytest.raises(OperationError, match="mounted at /") as refused:
        root_disk([disk("sda", mounted=("/",))], RootDeviceHints(name="sda"))
    assert refused.value.code is ErrorCode.CONFLICT


def test_a_machine_without_disks_says_so() -> None:
    with pytest.raises(OperationError, match="no disk at all"):
        root_disk([], RootDeviceHints(smallest=True))


@pytest.mark.parametrize(
    "word",
    ["To Be Filled By O.E.M.", "  Not Specified", "0000000000", "Default string", "N/A", "....", " \t", "NO DIMM"],
)
def test_placeholders_are_no_words(word: str) -> None:
    assert real(word) is None


@pytest.mark.parametrize("page", [None, b"", b"\0\x89" + bytes(100), b"\0\x80" + bytes(600), b"\0\x89" + bytes(600)])
def test_a_page_that_tells_no_identity_is_none(page: bytes | None) -> None:
    assert from_vpd(page) is None


def test_recorded_names_with_padding_and_a_twice_used_name_are_taken_as_they_are(
    machine: Machine, shared: Path
) -> None:
    """misc/lsblk.json: models and serial numbers end in blanks, a revision is null, two controllers have one name."""
    listed = json.loads((shared / "mockups/inband/misc/lsblk.json").read_text())["blockdevices"]
    for row in listed:
        node = Path(row["kname"].strip()).name
        name = f"{node}n1" if row["tran"] == "nvme" else node
        place = NVME.replace("nvme0", node) if row["tran"] == "nvme" else f"pci0000:00/ata{ord(node[-1])}/x{node}"
        machine.add_disk(name, 1 << 20, device=place, device__model=row["model"], device__serial=row["serial"])
    found = [(one.name, one.model, one.serial, one.transport) for one in read_disks(machine.host)]
    assert found == [
        ("sda", "MTFDDAV240TDU", "143839E30335", "sata"),
        ("sdb", "MTFDDAV240TDU", "803064D52704", "sata"),
        ("nvme0n1", "Micron_9300_MTFDHAL3T8TDP", "991523C769E3", "nvme"),
        ("nvme1n1", "Micron_9300_MTFDHAL3T8TDP", "287079A529A9", "nvme"),
    ]
    hints = RootDeviceHints(serial="991523C769E3", model="Micron_9300")
    assert root_disk(read_disks(machine.host), hints).name == "nvme0n1"
