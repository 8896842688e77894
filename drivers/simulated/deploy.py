"""What a simulated machine's agent would do to its disks."""

import asyncio
import hashlib

from drivers.driver import Call
from drivers.simulated.machine import SimulatedConnection
from drivers.simulated.state import BOOT_ENTRIES, MachineState, note
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.deploy import (
    ConfigDriveResult,
    DiskErased,
    Disks,
    DiskState,
    EraseDisks,
    EraseDisksResult,
    EraseMode,
    Image,
    RootDeviceHints,
    SetBootEntry,
    SetBootEntryResult,
    WriteConfigDrive,
    WriteImage,
    WriteImageResult,
)
from protocol.shapes.inspect import Drive

__all__ = ["SimulatedDeploy", "matching_disks"]

_GIB = 1 << 30


class SimulatedDeploy:
    def __init__(self, connection: SimulatedConnection) -> None:
        self._connection = connection

    async def get_disks(self, arguments: Nothing, call: Call) -> Disks:
        """The drives; what was done to them is not told."""

        def look(state: MachineState) -> Disks:
            return Disks(
                disks=[
                    DiskState(
                        name=drive.name,
                        size_bytes=drive.size_bytes or 0,
                        serial=drive.serial,
                        wwn=drive.wwn,
                        vendor=drive.vendor,
                        model=drive.model,
                        rotational=drive.rotational,
                    )
                    for drive in self._connection.identity.drives
                ]
            )

        return await self._connection.read(call, look)

    async def erase_disks(self, arguments: EraseDisks, call: Call) -> EraseDisksResult:
        begun = asyncio.get_running_loop().time()

        def deed(state: MachineState) -> tuple[bool, EraseDisksResult]:
            disks = self._disks(arguments.disks or RootDeviceHints())
            state.disk = None if state.disk in {disk.name for disk in disks} else state.disk
            note(state, f"{len(disks)} disks were erased ({arguments.mode})", source="agent")
            method = "partition tables" if arguments.mode is EraseMode.METADATA else "overwritten with zeros"
            erased = [
                DiskErased(disk=disk.name, method=method, seconds=_since(begun), proof="simulated") for disk in disks
            ]
            return True, EraseDisksResult(disks=erased)

        return await self._connection.change(call, arguments, deed, ("erasing",))

    async def write_image(self, arguments: WriteImage, call: Call) -> WriteImageResult:
        """The size and, where none was given, the checksum follow from the image's address."""
        begun = asyncio.get_running_loop().time()

        def deed(state: MachineState) -> tuple[bool, WriteImageResult]:
            disk = self._disks(arguments.root_device)[0]
            state.disk = disk.name
            note(state, f"an image was written to {disk.name}", source="agent")
            size, checksum = _content(arguments.image)
            return True, WriteImageResult(disk=disk.name, bytes=size, seconds=_since(begun), checksum=checksum)

        return await self._connection.change(call, arguments, deed, ("fetching", "writing", "reading back"))

    async def write_config_drive(self, arguments: WriteConfigDrive, call: Call) -> ConfigDriveResult:
        def deed(state: MachineState) -> tuple[bool, ConfigDriveResult]:
            disk = _written(state)
            return True, ConfigDriveResult(partition=f"{disk}p4" if disk.startswith("nvme") else f"{disk}4")

        return await self._connection.change(call, arguments, deed)

    async def set_boot_entry(self, arguments: SetBootEntry, call: Call) -> SetBootEntryResult:
        """An entry of this label is used again; it becomes the first of the order at once."""

        def deed(state: MachineState) -> tuple[bool, SetBootEntryResult]:
            _written(state)
            before = list(state.boot_order)
            entries = state.boot.entries
            entry = next((name for name, label in entries.items() if label == arguments.label), None)
            if entry is None:
                entry = f"Boot{len(BOOT_ENTRIES) + len(entries):04X}"
                entries[entry] = arguments.label
            state.boot.order = [entry, *(name for name in before if name != entry)]
            return state.boot.order != before, SetBootEntryResult(entry=entry, order=state.boot.order)

        return await self._connection.change(call, arguments, deed)

    def _disks(self, hints: RootDeviceHints) -> list[Drive]:
        drives = self._connection.identity.drives
        found = matching_disks(drives, hints)
        if not found:
            known = ", ".join(f"{drive.name} ({drive.serial})" for drive in drives)
            raise OperationError(ErrorCode.INVALID_ARGUMENT, f"no disk matches the hints; there are {known}")
        return found


def matching_disks(drives: list[Drive], hints: RootDeviceHints) -> list[Drive]:
    """The disks that every given hint fits; with `smallest` the smallest one alone."""

    def fits(drive: Drive) -> bool:
        gib = (drive.size_bytes or 0) / _GIB
        return (
            (hints.serial is None or drive.serial == hints.serial)
            and (hints.wwn is None or drive.wwn == hints.wwn)
            and (hints.model is None or hints.model in (drive.model or ""))
            and (hints.name is None or hints.name.removeprefix("/dev/") == drive.name)
            and (hints.min_size_gib is None or gib >= hints.min_size_gib)
            and (hints.max_size_gib is None or gib <= hints.max_size_gib)
            and (hints.rotational is None or drive.rotational is hints.rotational)
        )

    found = [drive for drive in drives if fits(drive)]
    return sorted(found, key=lambda drive: drive.size_bytes or 0)[:1] if hints.smallest else found


def _content(image: Image) -> tuple[int, str]:
    digest = hashlib.sha256(image.url.encode())
    size = _GIB + int.from_bytes(digest.digest()[:4]) // 512 * 512
    return size, image.sha256 or image.sha512 or digest.hexdigest()


def _written(state: MachineState) -> str:
    if state.disk is None:
        raise OperationError(
            ErrorCode.CONFLICT, "no image was written to this machine yet: use deploy.writeImage first"
        )
    return state.disk


def _since(begun: float) -> float:
    return round(asyncio.get_running_loop().time() - begun, 3)
