"""What was done to each disk since the machine was started, so that a crash of the agent leaves no doubt.

Before a disk is changed the record says that the change is under way; it says that it is done only after everything
is on the medium and was checked. The records lie in memory and end with the boot, as do the threads that write: one
that says "under way" while no such operation runs was provably broken off.
"""

import os
from pathlib import Path

import msgspec

from protocol.errors import ErrorCode, OperationError
from protocol.shapes.deploy import DiskErasure, DiskImage

__all__ = ["DiskRecord", "Records"]


class DiskRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One disk. `serial` and `size_bytes` tell whether it still is the disk that has this name."""

    serial: str | None
    size_bytes: int
    image: DiskImage | None = None
    head: str | None = None
    """The digest of what the disk began with when the image was done."""
    erasure: DiskErasure | None = None


class Records:
    """One file per disk in a folder that no reboot keeps."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, disk: str, serial: str | None, size: int) -> DiskRecord:
        """What is known of this disk; nothing of another one that had its name before, and of a damaged record."""
        nothing = DiskRecord(serial=serial, size_bytes=size)
        try:
            found = msgspec.json.decode(self._path(disk).read_bytes(), type=DiskRecord)
        except (OSError, msgspec.DecodeError):
            return nothing
        return found if (found.serial, found.size_bytes) == (serial, size) else nothing

    def write(self, disk: str, record: DiskRecord) -> None:
        """Raises OperationError NOT_APPLIED where it cannot be kept: then the disk must not be touched."""
        path = self._path(disk)
        fresh = path.with_suffix(".new")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh.write_bytes(msgspec.json.encode(record))
            os.replace(fresh, path)
        except OSError as error:
            raise OperationError(
                ErrorCode.NOT_APPLIED,
                f"{self._folder} takes no record of what is done to {disk}: {error.strerror}; nothing was changed",
            ) from error

    def _path(self, disk: str) -> Path:
        return self._folder / f"{disk}.json"
