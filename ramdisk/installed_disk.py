"""The file systems of a disk, to be looked at: mounted read-only, without as much as a journal being replayed, and
unmounted again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from uuid import UUID

import structlog

from drivers.linux import gpt
from drivers.linux.block_device import BlockDevice
from drivers.linux.disks import Disk
from drivers.linux.filesystems import file_system_of, mounted
from drivers.linux.host import Host
from drivers.linux.partitioning import read_table
from protocol.errors import ErrorCode, OperationError
from ramdisk.volumes import SUPERBLOCK_BYTES, FileSystem, Volume, Volumes, names_of

__all__ = ["mounted_volumes", "system_partition_of"]

_log = structlog.get_logger("ramdisk.installed_disk")
_OPTIONS = {
    "ext4": ("noload",),
    "xfs": ("norecovery,nouuid",),
    # The default subvolume, which SUSE's GRUB starts from, and the top, which every other one does.
    "btrfs": ("rescue=nologreplay", "rescue=nologreplay,subvolid=5"),
    "vfat": ("",),
}
_TABLE_BYTES = 1 << 20
_EFI_SYSTEM = 0xEF


@contextlib.asynccontextmanager
async def mounted_volumes(host: Host, disk: Disk) -> AsyncIterator[Volumes]:
    """Every file system of the disk that can be read; the others are logged. Raises OperationError CONFLICT where
    there is none."""
    async with contextlib.AsyncExitStack() as stack:
        system = await asyncio.to_thread(system_partition_of, disk)
        volumes = []
        for number, name in _places(disk):
            volume = await _volume(host, stack, name, number, system=system is not None and number == system.number)
            if volume is not None:
                volumes.append(volume)
        if not volumes:
            raise OperationError(
                ErrorCode.CONFLICT,
                f"{disk.name} has no file system that can be read here ({', '.join(_OPTIONS)}): was an image written "
                "to it?",
            )
        yield Volumes(volumes)


def system_partition_of(disk: Disk) -> gpt.Entry | None:
    """The EFI system partition, by the disk's own table; of an MBR without an identity. Blocking."""
    try:
        with BlockDevice(disk.path) as device:
            table = read_table(device.read_bytes(0, min(_TABLE_BYTES, device.size)), device.sector)
    except (OperationError, ValueError):
        return None
    if isinstance(table, gpt.Gpt):
        return next((entry for entry in table.entries if entry.kind == gpt.SYSTEM_PARTITION), None)
    slots = table.slots if table is not None else ()
    found = next((slot for slot in slots if slot.kind == _EFI_SYSTEM), None)
    if found is None:
        return None
    return gpt.Entry(found.number, gpt.SYSTEM_PARTITION, UUID(int=0), found.first, found.last)


def _places(disk: Disk) -> Iterator[tuple[int, str]]:
    """Its partitions, or the disk itself where it has none."""
    if not disk.partitions:
        yield 0, disk.name
    for part in sorted(disk.partitions, key=lambda one: one.number):
        yield part.number, part.name


async def _volume(
    host: Host, stack: contextlib.AsyncExitStack, name: str, number: int, *, system: bool
) -> Volume | None:
    device = str(host.dev / name)
    try:
        head = await asyncio.to_thread(_head, device)
    except OperationError as error:
        _log.warning("partition_not_read", partition=name, reason=error.message)
        return None
    kind = file_system_of(head)
    if kind not in _OPTIONS:
        return None
    trees = []
    for options in _OPTIONS[kind]:
        try:
            root = await stack.enter_async_context(mounted(host, device, kind, options=options))
        except OperationError as error:
            _log.warning("partition_not_mounted", partition=name, reason=error.message)
        else:
            trees.append(FileSystem(root))
    if not trees:
        return None
    uuid, label = names_of(kind, head)
    return Volume(name, number, kind, tuple(trees), uuid, label, system)


def _head(device: str) -> bytes:
    with BlockDevice(device) as opened:
        return opened.read_bytes(0, SUPERBLOCK_BYTES)
