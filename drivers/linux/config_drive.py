"""The configuration drive: a small partition `cidata` at the end of the disk, which cloud-init reads at the first
start (NoCloud data source) and our own agent as well.

Written in an order that holds after a crash: first the file system into free room, then the table's backup, then the
table. Repeating it writes the same bytes to the same place.
"""

import asyncio
import hashlib
from collections.abc import Mapping

from drivers.linux.block_device import BlockDevice
from drivers.linux.disk_writer import HEAD, UNFINISHED
from drivers.linux.disks import Disk, read_disks
from drivers.linux.fat import make_fat
from drivers.linux.hints import root_disk
from drivers.linux.host import Host
from drivers.linux.kernel_partitions import show_partitions
from drivers.linux.partitioning import CONFIG_DRIVE_BYTES, with_config_drive
from drivers.linux.records import Records
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.deploy import ConfigDriveResult, DiskStage, RootDeviceHints, WriteConfigDrive

__all__ = ["config_files", "write_config_drive", "written_disk"]

_LABEL = "CIDATA"
_EMPTY_USER_DATA = "#cloud-config\n"
_MOST_BYTES = CONFIG_DRIVE_BYTES - (2 << 20)


def config_files(arguments: WriteConfigDrive, extra: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files by name. Without `metaData` the instance is named by what it is given, so that another configuration
    is another instance. Pure. Raises OperationError INVALID_ARGUMENT for too much."""
    files = {"user-data": (arguments.user_data or _EMPTY_USER_DATA).encode()}
    if arguments.network_data is not None:
        files["network-config"] = arguments.network_data.encode()
    files.update(extra)
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    made_up = f"instance-id: rackwright-{digest.hexdigest()[:16]}\n"
    files["meta-data"] = (arguments.meta_data or made_up).encode()
    total = sum(len(content) for content in files.values())
    if total > _MOST_BYTES:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT,
            f"the configuration drive holds {_MOST_BYTES >> 20} MiB, and {total >> 20} MiB are given",
        )
    return files


def written_disk(host: Host, hints: RootDeviceHints | None, what_for: str) -> Disk:
    """The disk that holds the new system: by hints, else the one to which an image was written. Blocking.

    Raises OperationError: CONFLICT (none was written since the machine was started, or not to its end, or it is in
    use), and what `root_disk` raises.
    """
    disks, records = read_disks(host), Records(host.state)
    images = {disk.name: records.read(disk.name, disk.serial, disk.size_bytes).image for disk in disks}
    if hints is not None:
        disk = root_disk(disks, hints)
        image = images[disk.name]
        if image is not None and image.stage is not DiskStage.DONE:
            raise OperationError(
                ErrorCode.CONFLICT,
                f"the image on {disk.name} was not written to its end: use deploy.writeImage again",
            )
        return disk
    found = [disk for disk in disks if (image := images[disk.name]) is not None and image.stage is DiskStage.DONE]
    if len(found) != 1:
        many = f"images were written to {', '.join(disk.name for disk in found)}" if found else "no image was written"
        raise OperationError(
            ErrorCode.CONFLICT,
            f"{many} since this machine was started, so {what_for} has no certain disk: use deploy.writeImage first, "
            "or name it by rootDevice",
        )
    return found[0]


async def write_config_drive(
    host: Host, arguments: WriteConfigDrive, extra: Mapping[str, bytes]
) -> ConfigDriveResult:
    """`extra`: more files for it. Raises OperationError: CONFLICT (no disk, no room, in use), INVALID_ARGUMENT,
    NOT_APPLIED (the disk failed)."""
    files = config_files(arguments, extra)
    disk = await asyncio.to_thread(written_disk, host, arguments.root_device, "the configuration drive")
    return await asyncio.to_thread(_write, disk, files)


def _write(disk: Disk, files: Mapping[str, bytes]) -> ConfigDriveResult:
    with BlockDevice(disk.path, writing=True) as device:
        head = device.read_bytes(0, HEAD)
        if head.startswith(UNFINISHED):
            raise OperationError(
                ErrorCode.CONFLICT,
                f"the image on {disk.name} was not written to its end: use deploy.writeImage again",
            )
        try:
            layout, span = with_config_drive(head, device.sector, device.size)
            serial = int.from_bytes(hashlib.sha256(repr(sorted(files.items())).encode()).digest()[:4], "little")
            data = make_fat(files, size=span.size, sector=device.sector, label=_LABEL, serial=serial)
        except ValueError as error:
            raise OperationError(ErrorCode.CONFLICT, f"{disk.name} takes no configuration drive: {error}") from error
        device.write_bytes(span.start, data.ljust(-(-len(data) // device.sector) * device.sector, b"\0"))
        device.sync()
        if device.read_bytes(span.start, len(data)) != data:
            raise OperationError(
                ErrorCode.NOT_APPLIED, f"{disk.name} does not hold the configuration drive as written"
            )
        if layout.head != head:
            if layout.backup is not None:
                device.write_bytes(*layout.backup)
                device.sync()
            device.write_bytes(0, layout.head)
            device.sync()
        show_partitions(device, layout.spans, [part.number for part in disk.partitions])
    return ConfigDriveResult(partition=disk.partition_name(span.number))
