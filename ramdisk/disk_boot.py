"""The firmware's boot order: the installed disk first, so that no later start goes through the network again.

(Case B52: a machine without it starts its ramdisk over and over.)
"""

import asyncio
import uuid

from drivers.linux.boot_entry import set_boot_entry
from drivers.linux.disks import Disk
from drivers.linux.efi_variables import BootEntry, EfiVariables
from drivers.linux.host import Host
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.deploy import RootDeviceHints, SetBootEntry
from ramdisk.installed_disk import system_partition_of

__all__ = ["is_uefi", "loader_default", "prefer_disk", "reordered"]

_LOADER = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
"""The vendor of systemd-boot's variables (Boot Loader Interface)."""


def is_uefi(host: Host) -> bool:
    return (host.sys / "firmware" / "efi").is_dir()


def loader_default(host: Host) -> str | None:
    """The entry that systemd-boot's variables name: for the next start, or for good."""
    for name in ("LoaderEntryOneShot", "LoaderEntryDefault"):
        try:
            raw = (host.sys / "firmware" / "efi" / "efivars" / f"{name}-{_LOADER}").read_bytes()[4:]
        except OSError:
            continue
        if text := raw.decode("utf-16-le", errors="replace").rstrip("\0"):
            return text
    return None


async def prefer_disk(host: Host, disk: Disk, hints: RootDeviceHints | None) -> str:
    """The name of the entry that is first now: one that leads to this disk already, else one that is made.

    Raises OperationError: UNSUPPORTED (a BIOS has no such order), CONFLICT, NOT_APPLIED.
    """
    variables = EfiVariables(host.sys / "firmware" / "efi" / "efivars")
    variables.check()
    system = await asyncio.to_thread(system_partition_of, disk)
    if system is not None and system.unique.int:
        known = await asyncio.to_thread(lambda: list(variables.entries()))
        order = await asyncio.to_thread(variables.order)
        wanted = reordered(known, order, system.unique)
        if wanted is not None:
            return await asyncio.to_thread(_put, variables, order, wanted)
    return (await set_boot_entry(host, SetBootEntry(root_device=hints))).entry


def reordered(entries: list[BootEntry], order: list[int], partition: uuid.UUID) -> list[int] | None:
    """The boot order with an entry first that leads to this partition; None where there is no such entry. Pure."""
    leading = {entry.number for entry in entries if entry.is_active and partition.bytes_le in entry.path}
    first = next((number for number in order if number in leading), min(leading, default=None))
    return None if first is None else [first, *(number for number in order if number != first)]


def _put(variables: EfiVariables, before: list[int], wanted: list[int]) -> str:
    if before != wanted:
        variables.write_order(wanted)
    if variables.order()[:1] != wanted[:1]:
        raise OperationError(
            ErrorCode.NOT_APPLIED, f"the firmware did not keep Boot{wanted[0]:04X} as the first of its boot order"
        )
    return f"Boot{wanted[0]:04X}"
