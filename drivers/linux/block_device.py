"""One disk opened for good: exclusive, past the page cache, with the kernel's calls beside plain reads and writes.

All of it blocks, and belongs in a thread.
"""

import errno
import fcntl
import hashlib
import mmap
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from types import TracebackType

from drivers.linux.words import gibibytes
from protocol.errors import ErrorCode, OperationError

__all__ = ["ALIGNMENT", "BlockDevice", "Buffer", "is_zero"]

ALIGNMENT = 4096
"""Memory, places and lengths of direct I/O: the largest logical sector that disks have."""
_BLKDISCARD, _BLKZEROOUT, _BLKGETSIZE64, _BLKSSZGET = 0x1277, 0x127F, 0x80081272, 0x1268
_ZEROS = bytes(1 << 20)
_PROBES = 16
_PATTERN = 16
"""What shrinks to less than this part of itself is a pattern."""

Buffer = mmap.mmap
"""Memory on page bounds, as direct I/O needs it; made by `mmap.mmap(-1, size)`."""


class BlockDevice:
    """A disk, or a file in its place (tests). As a context manager it is closed at the end.

    Opening it for writing is exclusive: the kernel refuses while a part of it is mounted or stands under an array,
    and refuses others as long as it is open (open(2), O_EXCL on a block device).
    """

    def __init__(self, path: str, *, writing: bool = False) -> None:
        """Raises OperationError CONFLICT where it is in use, or NOT_APPLIED with the kernel's words."""
        self.path = path
        self.handle = -1
        flags = os.O_CLOEXEC | os.O_DIRECT | (os.O_RDWR if writing else os.O_RDONLY)
        is_block = _is_block(path)
        try:
            # Without O_CREAT, O_EXCL means something on block devices only.
            self.handle = os.open(path, flags | (os.O_EXCL if writing and is_block else 0))
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise OperationError(
                    ErrorCode.CONFLICT,
                    f"{path} is in use: something on it is mounted, or belongs to an array or a volume group",
                ) from error
            raise OperationError(
                ErrorCode.NOT_APPLIED, f"{path} cannot be opened: {error.strerror}; nothing was changed"
            ) from error
        self.is_block = is_block
        self.size, self.sector = self._geometry()

    def __enter__(self) -> "BlockDevice":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Opened in a thread whose caller was cancelled meanwhile: nobody else lets go of the disk.
        self.close()

    def close(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    def write(self, offset: int, data: memoryview) -> None:
        """All of it. `data` must lie in a `Buffer`, and all bounds on sectors. Raises OperationError NOT_APPLIED with
        the place and the kernel's words."""
        done = 0
        while done < len(data):
            try:
                done += os.pwrite(self.handle, data[done:], offset + done)
            except OSError as error:
                raise self._failed("written", offset + done, error) from error

    def read(self, offset: int, data: memoryview) -> None:
        """Fills `data`, under the same conditions; what lies beyond the end reads as zeros."""
        done = 0
        while done < len(data):
            try:
                count = os.preadv(self.handle, [data[done:]], offset + done)
            except OSError as error:
                raise self._failed("read", offset + done, error) from error
            if not count:
                data[done:] = bytes(len(data) - done)
                return
            done += count

    def read_bytes(self, offset: int, size: int) -> bytes:
        """Any part of it, wherever its bounds lie."""
        first = offset // ALIGNMENT * ALIGNMENT
        span = -(-(offset + size - first) // ALIGNMENT) * ALIGNMENT
        with mmap.mmap(-1, span) as memory:
            with memoryview(memory) as view:
                self.read(first, view)
            return memory[offset - first : offset - first + size]

    def write_bytes(self, offset: int, data: bytes) -> None:
        """Writes a small part; its bounds must lie on sectors."""
        with mmap.mmap(-1, max(len(data), 1)) as memory:
            memory[: len(data)] = data
            with memoryview(memory) as view:
                self.write(offset, view[: len(data)])

    def clear(self, offset: int, size: int) -> None:
        """Writes zeros, as far as the disk reaches."""
        end = min(offset + size, self.size)
        with mmap.mmap(-1, 1 << 20) as memory, memoryview(memory) as view:
            while offset < end:
                count = min(len(view), end - offset)
                self.write(offset, view[:count])
                offset += count

    def discard(self, offset: int, size: int) -> bool:
        """Tells the disk that a part is not needed any more; False where it does not take that, for whatever reason.
        What it reads as afterwards must be looked at: a discard is a hint."""
        return self._range(_BLKDISCARD, offset, size)

    def zero_out(self, offset: int, size: int) -> bool:
        """Has a part read as zeros from now on, by the disk's own command where it has one that works. Raises
        OperationError NOT_APPLIED."""
        if not self._range(_BLKZEROOUT, offset, size):
            self.clear(offset, size)
        return True

    def sync(self) -> None:
        """Returns when everything is on the medium. Raises OperationError NOT_APPLIED when it is not."""
        try:
            os.fsync(self.handle)
        except OSError as error:
            raise OperationError(
                ErrorCode.NOT_APPLIED, f"{self.path} did not keep what was written: {error.strerror}"
            ) from error

    def reads_zero(self, probes: int = _PROBES) -> bool:
        """Whether places all over the disk, both ends among them, read as zeros."""
        return not any(self.probe(probes))

    def probe(self, probes: int = _PROBES) -> list[int]:
        """The probed places (offsets) that do not read as zeros."""
        return [place for place, _ in self._probed(probes)]

    def traces(self, probes: int = _PROBES) -> dict[int, bytes]:
        """Digests of what the probed places hold, where that is more than a pattern that is repeated, which an erased
        drive may show as well."""
        return {
            place: hashlib.sha256(data).digest()
            for place, data in self._probed(probes)
            if len(zlib.compress(data, 1)) > len(data) // _PATTERN
        }

    def _probed(self, probes: int) -> Iterator[tuple[int, memoryview]]:
        """The probed places that do not read as zeros, each with what it holds until the next one is asked for."""
        size = 64 << 10
        last = max(0, (self.size - size) // ALIGNMENT * ALIGNMENT)
        places = sorted({last * index // max(1, probes - 1) // ALIGNMENT * ALIGNMENT for index in range(probes)})
        with mmap.mmap(-1, size) as memory, memoryview(memory) as view:
            for place in places:
                self.read(place, view)
                if not is_zero(view):
                    yield place, view

    def _range(self, request: int, offset: int, size: int) -> bool:
        if not self.is_block:
            return False
        try:
            fcntl.ioctl(self.handle, request, struct.pack("=QQ", offset, size))
        except OSError:
            return False
        return True

    def _geometry(self) -> tuple[int, int]:
        if not self.is_block:
            return os.fstat(self.handle).st_size, 512
        answer = fcntl.ioctl(self.handle, _BLKGETSIZE64, bytes(8))
        sector = fcntl.ioctl(self.handle, _BLKSSZGET, bytes(4))
        return int.from_bytes(answer, "little"), int.from_bytes(sector, "little")

    def _failed(self, what: str, offset: int, error: OSError) -> OperationError:
        return OperationError(
            ErrorCode.NOT_APPLIED,
            f"{self.path} could not be {what} at byte {offset} ({gibibytes(offset)}): {error.strerror}",
            details={"offset": offset, "errno": errno.errorcode.get(error.errno or 0, str(error.errno))},
        )


def _is_block(path: str) -> bool:
    try:
        return stat.S_ISBLK(os.stat(path).st_mode)
    except OSError:
        return False


def is_zero(data: memoryview) -> bool:
    """Whether every byte is zero. A few places are looked at first: most data is seen to be none at once."""
    size = len(data)
    if size and any(data[place] for place in (0, size // 3, size // 2, size - 1)):
        return False
    for start in range(0, size, len(_ZEROS)):
        part = data[start : start + len(_ZEROS)]
        if bytes(part) != (_ZEROS if len(part) == len(_ZEROS) else _ZEROS[: len(part)]):
            return False
    return True
