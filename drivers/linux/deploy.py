"""Deploy, on the machine itself. What is done and how it holds after a crash is told where it is done:
`erase`, `write_image`, `config_drive`, `boot_entry`."""

import asyncio

import msgspec

from drivers.driver import Call
from drivers.linux.block_device import BlockDevice
from drivers.linux.boot_entry import set_boot_entry
from drivers.linux.config_drive import write_config_drive
from drivers.linux.connection import LinuxConnection
from drivers.linux.contents import contents
from drivers.linux.devices import settled
from drivers.linux.disk_writer import finished_head
from drivers.linux.disks import Disk, read_disks
from drivers.linux.erase import erase_disks
from drivers.linux.hints import root_disk
from drivers.linux.host import Host
from drivers.linux.image_source import shown_address
from drivers.linux.records import DiskRecord, Records
from drivers.linux.write_image import ImageWriting
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.deploy import (
    ConfigDriveResult,
    DiskErasure,
    DiskImage,
    Disks,
    DiskStage,
    DiskState,
    EraseDisks,
    EraseDisksResult,
    SetBootEntry,
    SetBootEntryResult,
    WriteConfigDrive,
    WriteImage,
    WriteImageResult,
)

__all__ = ["LinuxDeploy"]

_FEW_PROBES = 16


class LinuxDeploy:
    def __init__(self, connection: LinuxConnection) -> None:
        self._connection = connection
        self._host = connection.host

    async def get_disks(self, arguments: Nothing, call: Call) -> Disks:
        """Every disk, which of them may be touched, and what this boot did to them. A disk that cannot be read is
        listed without its contents."""
        await settled(self._host, call)
        return await asyncio.to_thread(_states, self._host)

    async def erase_disks(self, arguments: EraseDisks, call: Call) -> EraseDisksResult:
        """See `drivers.linux.erase.erase_disks`."""
        await settled(self._host, call)
        return await erase_disks(self._host, arguments, call)

    async def write_image(self, arguments: WriteImage, call: Call) -> WriteImageResult:
        """Raises OperationError: INVALID_ARGUMENT or CONFLICT with every disk and what speaks against it where the
        hints name none; else see `drivers.linux.write_image.ImageWriting.run`."""
        await settled(self._host, call)
        disk = root_disk(await asyncio.to_thread(read_disks, self._host), arguments.root_device)
        call.progress(f"writing {shown_address(arguments.image.url)} to {disk.known_as()}", 0.0)
        return await ImageWriting(self._host, disk, arguments, call).run()

    async def write_config_drive(self, arguments: WriteConfigDrive, call: Call) -> ConfigDriveResult:
        """See `drivers.linux.config_drive.write_config_drive`. With `daemon`, the agent's own files are made first;
        raises OperationError UNSUPPORTED where it makes none."""
        make = self._connection.config_drive_files
        if arguments.daemon and make is None:
            raise OperationError(
                ErrorCode.UNSUPPORTED, "only the agent of a ramdisk can bring the installed system's agent its ticket"
            )
        await settled(self._host, call)
        own = await make() if arguments.daemon and make is not None else {}
        return await write_config_drive(self._host, arguments, own)

    async def set_boot_entry(self, arguments: SetBootEntry, call: Call) -> SetBootEntryResult:
        """See `drivers.linux.boot_entry.set_boot_entry`."""
        await settled(self._host, call)
        return await set_boot_entry(self._host, arguments)


def _states(host: Host) -> Disks:
    records = Records(host.state)
    found = [
        _state(disk, records.read(disk.name, disk.serial, disk.size_bytes))
        for disk in read_disks(host)
        if disk.size_bytes
    ]
    return Disks(disks=found)


def _state(disk: Disk, record: DiskRecord) -> DiskState:
    try:
        with BlockDevice(disk.path) as device:
            shown = contents(device)[0]
            image, erasure = _image(device, record), _erasure(device, record, shown)
    except OperationError as error:
        shown, image, erasure = [f"unreadable: {error.message}"], record.image, record.erasure
    return DiskState(
        name=disk.name,
        size_bytes=disk.size_bytes,
        serial=disk.serial,
        wwn=disk.wwn,
        vendor=disk.vendor,
        model=disk.model,
        transport=disk.transport,
        rotational=disk.rotational,
        unsuitable=disk.unsuitable,
        contents=shown,
        image=image,
        erasure=erasure,
    )


def _image(device: BlockDevice, record: DiskRecord) -> DiskImage | None:
    if record.image is None or record.image.stage is not DiskStage.DONE:
        return record.image
    # A disk that says that it is half written has no head to compare.
    unchanged = record.head is not None and finished_head(device) == record.head
    return msgspec.structs.replace(record.image, unchanged=unchanged)


def _erasure(device: BlockDevice, record: DiskRecord, shown: list[str]) -> DiskErasure | None:
    if record.erasure is None or record.erasure.stage is not DiskStage.DONE:
        return record.erasure
    blank = not shown and record.image is None and not set(device.probe(_FEW_PROBES)) & {0}
    return msgspec.structs.replace(record.erasure, unchanged=blank)
