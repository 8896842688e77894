"""The firmware's boot entries: made, first in the order, and no more of them with each deployment."""

import struct
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.linux.boot_entry import choose_loader
from drivers.linux.connection import LinuxConnection
from drivers.linux.deploy import LinuxDeploy
from drivers.linux.efi_variables import EfiVariables, decode_entry, device_path_of_file, encode_entry
from drivers.linux.host import Host
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.deploy import RootDeviceHints, SetBootEntry, SetBootEntryResult
from tests.drivers.linux.disk_images import DISK, LINUX_ROOT, SYSTEM, gpt_image
from tests.drivers.linux.machine import Machine, call

MIB = 1 << 20
GUID = "8be4df61-93ca-11d2-aa0d-00e098032b8c"


class Firmware:
    """A folder of variables."""

    def __init__(self, machine: Machine) -> None:
        self.folder = machine.host.sys / "firmware" / "efi" / "efivars"
        self.folder.mkdir(parents=True)
        self.set("BootCurrent", b"\0\0")

    def set(self, name: str, value: bytes) -> None:
        (self.folder / f"{name}-{GUID}").write_bytes(b"\7\0\0\0" + value)

    @property
    def order(self) -> list[int]:
        return EfiVariables(self.folder).order()

    @property
    def entries(self) -> dict[str, str]:
        return {entry.name: entry.label for entry in EfiVariables(self.folder).entries()}


@pytest.fixture
def firmware(machine: Machine) -> Firmware:
    machine.add_disk("sda", 40 * MIB).write_bytes(
        gpt_image(40 * MIB, [(15, SYSTEM, 2048, 6143), (1, LINUX_ROOT, 6144, 70000)])
    )
    return Firmware(machine)


async def set_entry(machine: Machine, **given: str) -> SetBootEntryResult:
    asked = SetBootEntry(
        loader=given.get("loader", r"\EFI\debian\shimx64.efi"), root_device=RootDeviceHints(name="sda")
    )
    return await LinuxDeploy(LinuxConnection(machine.host)).set_boot_entry(asked, call("deploy.setBootEntry"))


async def test_the_entry_leads_to_the_loader_on_the_disks_own_system_partition(
    machine: Machine, firmware: Firmware
) -> None:
    firmware.set("Boot0000", encode_entry("UEFI PXE", b"\x7f\xff\4\0"))
    firmware.set("BootOrder", bytes([0, 0]))
    result = await set_entry(machine)
    assert (result.entry, result.order) == ("Boot0001", ["Boot0001", "Boot0000"])
    entry = next(entry for entry in EfiVariables(firmware.folder).entries() if entry.number == 1)
    kind, sub, length, number, start, size, unique, form, signature = struct.unpack("<BBHIQQ16sBB", entry.path[:42])
    assert (kind, sub, length, number, start, size, form, signature) == (4, 1, 42, 15, 2048, 4096, 2, 2)
    assert uuid.UUID(bytes_le=unique) == uuid.uuid5(DISK, "15")
    assert r"\EFI\debian\shimx64.efi".encode("utf-16-le") in entry.path[42:]


async def test_repeating_it_changes_nothing(machine: Machine, firmware: Firmware) -> None:
    first = await set_entry(machine)
    before = {path.name: path.read_bytes() for path in firmware.folder.iterdir()}
    assert await set_entry(machine) == first
    assert {path.name: path.read_bytes() for path in firmware.folder.iterdir()} == before


@pytest.mark.case("B55")
@pytest.mark.parametrize(
    "label",
    [b"\xff\xff\xff\xff\0\0", "Rückwärts".encode() + b"\0\0\0", b"\x3d\xd8A\0\0\0", b"\xff\xfeD\0\0\0", b"", b"\xff"],
    ids=["0xFF", "UTF-8", "half a pair", "byte order mark", "empty", "one byte"],
)
async def test_b55_entries_with_unreadable_labels_are_kept_and_ours_are_still_found_and_removed(
    label: bytes, machine: Machine, firmware: Firmware
) -> None:
    """LP 2072336, 2015602: labels that are no UTF-16 made the reader fail, and old entries stayed for ever."""
    strange = struct.pack("<IH", 1, 4) + label + b"\x7f\xff\4\0"
    firmware.set("Boot0001", strange)
    elsewhere = device_path_of_file(1, 2048, 2048, uuid.UUID(int=7), r"\EFI\old.efi")
    firmware.set("Boot0002", encode_entry("Rackwright", elsewhere))
    # The same label as another system's tools wrote it: the bytes of ASCII.
    firmware.set("Boot0003", struct.pack("<IH", 1, len(elsewhere)) + b"Rackwright\0\0" + elsewhere)
    firmware.set("BootOrder", struct.pack("<3H", 1, 2, 3))
    result = await set_entry(machine)
    assert result.order == [result.entry, "Boot0001"]
    assert set(firmware.entries) == {"Boot0001", result.entry}
    assert (firmware.folder / f"Boot0001-{GUID}").read_bytes()[4:] == strange


async def test_an_entry_that_cannot_be_read_is_not_written_over(machine: Machine, firmware: Firmware) -> None:
    firmware.set("Boot0000", b"\1")
    result = await set_entry(machine)
    assert result.entry == "Boot0001"
    assert (firmware.folder / f"Boot0000-{GUID}").read_bytes()[4:] == b"\1"


async def test_an_entry_that_was_switched_off_is_made_anew(machine: Machine, firmware: Firmware) -> None:
    """Firmware passes over an entry that is not active, wherever it stands in the order (UEFI 2.10, 3.1.3)."""
    first = await set_entry(machine)
    file = firmware.folder / f"{first.entry}-{GUID}"
    file.write_bytes(file.read_bytes()[:4] + bytes(4) + file.read_bytes()[8:])
    again = await set_entry(machine)
    (entry,) = EfiVariables(firmware.folder).entries()
    assert (entry.name, entry.is_active) == (again.entry, True)


@given(st.binary(max_size=200))
def test_no_bytes_of_an_entry_make_the_reader_fail(data: bytes) -> None:
    entry = decode_entry(1, data)
    assert entry.label.isprintable()


@given(st.text(st.characters(codec="utf-16-le", exclude_categories=("Cc", "Cs", "Cf", "Zl", "Zp", "Co", "Cn"))))
def test_a_label_that_can_be_read_is_read(label: str) -> None:
    assert decode_entry(1, encode_entry(f"x{label}ü", b"")).label == f"x{label}ü".strip() or not label.isprintable()


async def test_a_firmware_that_keeps_nothing_is_found_out(
    machine: Machine, firmware: Firmware, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EfiVariables, "write_order", lambda *_: None)
    with pytest.raises(OperationError, match="did not keep Boot0000 as the first") as failed:
        await set_entry(machine)
    assert failed.value.code is ErrorCode.NOT_APPLIED


async def test_a_machine_that_a_bios_started_has_no_entries(machine: Machine) -> None:
    with pytest.raises(OperationError, match="started by a BIOS") as refused:
        await set_entry(machine)
    assert refused.value.code is ErrorCode.UNSUPPORTED


async def test_an_image_without_a_system_partition_cannot_be_entered(machine: Machine, firmware: Firmware) -> None:
    (machine.host.dev / "sda").write_bytes(gpt_image(40 * MIB, [(1, LINUX_ROOT, 6144, 70000)]))
    with pytest.raises(OperationError, match="no EFI system partition"):
        await set_entry(machine)


@pytest.mark.parametrize(
    ("files", "loader"),
    [
        (["EFI/debian/grubx64.efi", "EFI/debian/shimx64.efi", "EFI/BOOT/BOOTX64.EFI"], r"\EFI\debian\shimx64.efi"),
        (["EFI/fedora/grubx64.efi", "EFI/BOOT/BOOTX64.EFI"], r"\EFI\fedora\grubx64.efi"),
        (["EFI/systemd/systemd-bootx64.efi", "EFI/BOOT/BOOTX64.EFI"], r"\EFI\systemd\systemd-bootx64.efi"),
        (["EFI/BOOT/BOOTX64.EFI", "EFI/BOOT/fbx64.efi"], r"\EFI\BOOT\BOOTX64.EFI"),
        (["EFI/BOOT/BOOTAA64.EFI", "EFI/debian/shimaa64.efi"], None),
        ([], None),
    ],
)
def test_the_loader_is_the_one_that_starts_this_kind_of_machine(files: list[str], loader: str | None) -> None:
    assert choose_loader(files, "x64") == loader


async def test_the_loader_is_looked_for_on_the_system_partition(
    machine: Machine, firmware: Firmware, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "EFI" / "debian").mkdir(parents=True)
    for name in ("shimx64.efi", "shimaa64.efi"):
        (tmp_path / "EFI" / "debian" / name).write_bytes(b"")

    @asynccontextmanager
    async def mounted(host: Host, device: str, kind: str) -> AsyncIterator[Path]:
        assert (Path(device).name, kind) == ("sda15", "vfat")
        yield tmp_path

    monkeypatch.setattr("drivers.linux.boot_entry.mounted", mounted)
    asked = SetBootEntry(root_device=RootDeviceHints(name="sda"))
    result = await LinuxDeploy(LinuxConnection(machine.host)).set_boot_entry(asked, call())
    entry = next(iter(EfiVariables(firmware.folder).entries()))
    assert entry.name == result.entry
    assert r"\EFI\debian\shim".encode("utf-16-le") in entry.path
