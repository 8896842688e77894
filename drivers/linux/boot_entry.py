"""The firmware's boot entry for the installed system: made, or made right, and first in the order.

Entries of the same label that lead elsewhere are removed: each deployment would leave one more behind, until the
firmware's memory for variables is full.
"""

import asyncio
import platform
from dataclasses import dataclass
from pathlib import Path

from drivers.linux import gpt
from drivers.linux.block_device import BlockDevice
from drivers.linux.config_drive import written_disk
from drivers.linux.disk_writer import HEAD
from drivers.linux.disks import Disk
from drivers.linux.efi_variables import BootEntry, EfiVariables, device_path_of_file, encode_entry
from drivers.linux.filesystems import mounted
from drivers.linux.host import Host
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.deploy import SetBootEntry, SetBootEntryResult

__all__ = ["choose_loader", "set_boot_entry"]

_SUFFIX = {"x86_64": "x64", "aarch64": "aa64", "i686": "ia32"}
_MOST = 0x10000


@dataclass(frozen=True, slots=True)
class _SystemPartition:
    disk: Disk
    entry: gpt.Entry


async def set_boot_entry(host: Host, arguments: SetBootEntry) -> SetBootEntryResult:
    """Repeating it changes nothing.

    Raises OperationError: UNSUPPORTED (started by a BIOS), CONFLICT (no disk was written, it has no EFI system
    partition, or that has no loader), NOT_APPLIED (the firmware refuses).
    """
    variables = EfiVariables(host.sys / "firmware" / "efi" / "efivars")
    variables.check()
    disk = await asyncio.to_thread(written_disk, host, arguments.root_device, "the boot entry")
    system = await asyncio.to_thread(_system_partition, disk)
    loader = arguments.loader or await _find_loader(host, system)
    unique, entry = system.entry.unique, system.entry
    path = device_path_of_file(entry.number, entry.first, entry.last + 1 - entry.first, unique, loader)
    return await asyncio.to_thread(_enter, variables, arguments.label, path)


def choose_loader(files: list[str], suffix: str) -> str | None:
    """The loader to start, of a system partition's files (`/`-separated, below its root). Pure.

    A signed shim first, which starts under Secure Boot as well; then a boot loader of the system's own; then the
    fallback that removable media have.
    """
    by_lower = {file.lower().lstrip("/"): file.lstrip("/") for file in files}

    def rank(path: str) -> tuple[int, str] | None:
        parts = path.split("/")
        if len(parts) != 3 or parts[0] != "efi":
            return None
        own = parts[1] not in ("boot", "tools")
        known = [f"shim{suffix}.efi", f"grub{suffix}.efi", f"systemd-boot{suffix}.efi", f"refind_{suffix}.efi"]
        if own and parts[2] in known:
            return known.index(parts[2]), path
        return (len(known), path) if parts[1:] == ["boot", f"boot{suffix}.efi"] else None

    ranked = sorted((found, path) for path in by_lower if (found := rank(path)) is not None)
    return "\\" + by_lower[ranked[0][1]].replace("/", "\\") if ranked else None


def _system_partition(disk: Disk) -> _SystemPartition:
    with BlockDevice(disk.path) as device:
        try:
            table = gpt.parse(device.read_bytes(0, HEAD), device.sector)
        except ValueError as error:
            raise OperationError(ErrorCode.CONFLICT, f"{disk.name}: {error}") from error
    found = [entry for entry in table.entries if entry.kind == gpt.SYSTEM_PARTITION] if table is not None else []
    if not found:
        raise OperationError(
            ErrorCode.CONFLICT, f"the image on {disk.name} has no EFI system partition: UEFI cannot start it"
        )
    return _SystemPartition(disk, found[0])


async def _find_loader(host: Host, system: _SystemPartition) -> str:
    device = str(host.dev / system.disk.partition_name(system.entry.number))
    async with mounted(host, device, "vfat") as place:
        files = await asyncio.to_thread(_files, place)
    suffix = _SUFFIX.get(platform.machine(), "x64")
    loader = choose_loader(files, suffix)
    if loader is None:
        raise OperationError(
            ErrorCode.CONFLICT,
            f"{device} holds no loader for this machine ({suffix}): name it by `loader`; there are "
            f"{', '.join(sorted(files)) or 'no files'}",
        )
    return loader


def _files(place: Path) -> list[str]:
    found = []
    for folder in place.glob("[Ee][Ff][Ii]/*"):
        if folder.is_dir():
            found += [str(file.relative_to(place)) for file in folder.iterdir() if file.suffix.lower() == ".efi"]
    return found


def _enter(variables: EfiVariables, label: str, path: bytes) -> SetBootEntryResult:
    entries = list(variables.entries())
    # One that is not active is passed over by the firmware.
    same = [entry for entry in entries if entry.path == path and entry.label == label and entry.is_active]
    ours = same[0] if same else None
    stale = [entry for entry in entries if entry.label == label and entry is not ours]
    if ours is None:
        number = _free_number(variables.numbers())
        variables.write_entry(number, encode_entry(label, path))
        ours = BootEntry(number, label, path)
    order, gone = variables.order(), {entry.number for entry in stale}
    wanted = [ours.number, *(number for number in order if number != ours.number and number not in gone)]
    if wanted != order:
        variables.write_order(wanted)
    for entry in stale:
        variables.remove_entry(entry.number)
    after = variables.order()
    if after[:1] != [ours.number] or not any(entry.number == ours.number for entry in variables.entries()):
        raise OperationError(
            ErrorCode.NOT_APPLIED, f"the firmware did not keep {ours.name} as the first of its boot order"
        )
    return SetBootEntryResult(entry=ours.name, order=[f"Boot{number:04X}" for number in after])


def _free_number(taken: set[int]) -> int:
    return next(number for number in range(_MOST) if number not in taken)
