"""The folder of one machine: who it is, what its BMC and its firmware remember, its logs. One simulator at a time."""

import asyncio
import fcntl
import os
import struct
import uuid
from pathlib import Path

import msgspec

from simulators.machine.bmc_memory import write_private
from simulators.machine.spec import Disk, Identity

LOCK_SECONDS = 10.0
_LOCK_PAUSE = 0.1
_QCOW2 = struct.Struct(">4sIQIIQ")  # magic, version, backing file's offset and length, cluster bits, size
_QCOW2_MAGIC = b"QFI\xfb"


class StateError(RuntimeError):
    """The folder or a disk cannot be used; the text says what to do."""


class _Machine(msgspec.Struct, frozen=True):
    uuid: uuid.UUID


class StateFolder:
    """A folder, locked while this is open: by the simulator, and by its QEMU until that is gone too.

    So a machine whose simulator was killed is never run twice on one disk.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.lock = -1

    @property
    def nvram(self) -> Path:
        return self.path / "nvram.fd"

    @property
    def bmc(self) -> Path:
        return self.path / "bmc.json"

    @property
    def qemu_log(self) -> Path:
        return self.path / "qemu.log"

    @property
    def serial_log(self) -> Path:
        return self.path / "serial.log"

    def make(self) -> None:
        """Makes the folder, for its owner only, where it is not there. Raises StateError."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"{self.path} cannot be made: {error.strerror}: choose another folder") from error

    async def acquire(self, seconds: float = LOCK_SECONDS) -> None:
        """Locks the folder; waits for a QEMU that is about to end. Raises StateError where it stays in use."""
        self.make()
        file = self.path / "lock"
        lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            async with asyncio.timeout(seconds):
                while not taken(lock):  # noqa: ASYNC110 - the kernel tells nobody of a lock that is free again
                    await asyncio.sleep(_LOCK_PAUSE)
        except BaseException as error:
            owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            os.close(lock)
            if not isinstance(error, TimeoutError):
                raise
            raise StateError(
                f"{self.path} is in use by the simulator with process id {owner or 'unknown'}: stop it, or choose "
                "another folder"
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        self.lock = lock

    def release(self) -> None:
        """Unlocks the folder. Idempotent."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def identity(self, wanted: uuid.UUID | None = None) -> Identity:
        """Who the machine of this folder is; a new one where the folder is new. Raises StateError."""
        self.make()
        file = self.path / "machine.json"
        try:
            known = msgspec.json.decode(file.read_bytes(), type=_Machine).uuid
        except FileNotFoundError:
            known = wanted or uuid.uuid4()
            write_private(file, msgspec.json.encode(_Machine(known)))
        except (msgspec.DecodeError, OSError) as error:
            raise StateError(f"{file} cannot be read: {error}. Remove it to begin with a new machine") from error
        if wanted not in (None, known):
            raise StateError(f"{self.path} holds machine {known}, not {wanted}: choose another folder")
        return Identity.of(known)


def taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_disk(file: Path, serial: str, size: int | None = None) -> Disk:
    """A disk in a file, raw or qcow2 as it is; a sparse raw one of `size` bytes is made where there is none.

    A file that is there keeps its size. Raises StateError.
    """
    file = file.absolute()
    try:
        if not file.exists():
            if size is None:
                raise StateError(f"there is no disk {file}: give its size, so that it is made")
            with file.open("xb") as stream:
                stream.truncate(size)
        with file.open("rb") as stream:
            head = stream.read(_QCOW2.size)
            length = stream.seek(0, os.SEEK_END)
    except OSError as error:
        raise StateError(f"the disk {file} cannot be used: {error.strerror}") from error
    if head[:4] == _QCOW2_MAGIC and len(head) == _QCOW2.size:
        return Disk(file, _QCOW2.unpack(head)[5], serial, "qcow2")
    return Disk(file, length, serial)
