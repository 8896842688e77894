"""Puts the bytes of an image on a disk so that it looks like nothing until all of it is there.

The first MiB, where partition tables and boot sectors are, is kept back. In its place the disk says that it is half
written; `reveal` puts it there once everything else is on the medium and has been checked.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from drivers.linux.block_device import ALIGNMENT, BlockDevice, Buffer, is_zero
from drivers.linux.pipeline import CHUNK
from drivers.linux.words import gibibytes
from protocol.errors import ErrorCode, OperationError

__all__ = ["HEAD", "UNFINISHED", "DiskWriter", "Samples", "cover_up", "finished_head", "reveal"]

HEAD = 1 << 20
"""What is kept back: a protective MBR, a GPT with 4096-byte sectors, boot code and LVM's superblocks fit."""
UNFINISHED = b"RACKWRIGHT: THE WRITING OF AN IMAGE TO THIS DISK WAS NOT FINISHED\n"
_BLOCK = 256 << 10
"""Zeros are looked for in pieces of this size."""
_SAMPLE = 256 << 10
_MOST_SAMPLES = 32


@dataclass(slots=True)
class Samples:
    """Digests of pieces all over what was written, to be held against what is read back: each time there are too
    many, every second one is let go."""

    stride: int = 1
    kept: dict[int, bytes] = field(default_factory=dict)
    _number: int = 0

    def take(self, offset: int, data: memoryview) -> None:
        """The beginning of a piece that was written at `offset`."""
        if self._number % self.stride == 0:
            self.kept[offset] = hashlib.sha256(data[:_SAMPLE]).digest()
            if len(self.kept) > _MOST_SAMPLES:
                self.stride *= 2
                self.kept = dict(list(self.kept.items())[::2])
        self._number += 1

    def check(self, device: BlockDevice) -> int:
        """Reads them back; how many there were. Raises OperationError NOT_APPLIED where the disk differs."""
        memory = Buffer(-1, _SAMPLE)
        with memoryview(memory) as view:
            for offset, digest in self.kept.items():
                device.read(offset, view)
                if hashlib.sha256(view).digest() != digest:
                    raise OperationError(
                        ErrorCode.NOT_APPLIED,
                        f"{device.path} does not hold what was written at byte {offset} ({gibibytes(offset)}): the "
                        "disk is damaged, or smaller than it says",
                    )
        return len(self.kept)


class DiskWriter:
    """A `Sink` that fills a disk from its beginning. `known_zero`: the disk was discarded and read as zeros where it
    was probed, so that zeros need not be written where they are read back. `whole_check`: `finish` reads all of it
    back. `check_head`: raises what speaks against an image that begins so."""

    def __init__(
        self,
        device: BlockDevice,
        *,
        known_zero: bool = False,
        whole_check: bool = False,
        check_head: Callable[[bytes], None] = lambda _head: None,
    ) -> None:
        self._device = device
        self._known_zero = known_zero
        self._whole = hashlib.sha256() if whole_check else None
        self._check_head = check_head
        self._spare = Buffer(-1, CHUNK)
        self._probe = Buffer(-1, CHUNK)
        self.samples = Samples()
        self.head = b""
        self.size = 0
        self.skipped = 0
        """Bytes that were not written because the disk has zeros there."""

    def begin(self, expected: int | None) -> None:
        """Raises OperationError INVALID_ARGUMENT at once for an image that will not fit."""
        self._check_room(expected or 0, exact=expected is not None)

    def put(self, data: memoryview) -> None:
        offset = self.size
        self.size += len(data)
        self._check_room(self.size, exact=False)
        if self._whole is not None:
            self._whole.update(data)
        rest = -len(data) % ALIGNMENT
        if rest:
            # The last piece: the memory behind it is ours as well, and the disk takes whole sectors only.
            data = self._padded(data, rest)
        start = 0
        if not offset:
            self.head = bytes(data[:HEAD])
            self._check_head(self.head)
            start = min(HEAD, len(data))
        self._fill(offset, data, start)

    def finish(self, going_on: Callable[[], None] = lambda: None) -> str:
        """Everything but the head on the medium and looked at; what was checked, in words. `going_on` is called now
        and then and may raise. Raises OperationError."""
        if not self.size:
            raise OperationError(ErrorCode.INVALID_ARGUMENT, "the image is empty")
        self._device.sync()
        if self._whole is None:
            return f"{self.samples.check(self._device)} samples read back"
        self._check_whole(self._whole.digest(), going_on)
        return "all of it read back"

    def _fill(self, offset: int, data: memoryview, start: int) -> None:
        """Writes what holds something, and leaves out zeros where it may."""
        if not self._known_zero:
            self._write(offset + start, data[start:])
            return
        for first, end, blank in _runs(data, start):
            if blank and self._is_zero_on_disk(offset + first, end - first):
                self.skipped += end - first
            else:
                self._write(offset + first, data[first:end])

    def _is_zero_on_disk(self, offset: int, size: int) -> bool:
        with memoryview(self._probe) as view:
            self._device.read(offset, view[:size])
            return is_zero(view[:size])

    def _write(self, offset: int, data: memoryview) -> None:
        if not data:
            return
        room = self._device.size - offset
        self._device.write(offset, data[:room])
        if len(data) >= _SAMPLE and room >= len(data):
            self.samples.take(offset, data)

    def _padded(self, data: memoryview, rest: int) -> memoryview:
        with memoryview(self._spare) as spare:
            spare[: len(data)] = data
            spare[len(data) : len(data) + rest] = bytes(rest)
        return memoryview(self._spare)[: len(data) + rest]

    def _check_whole(self, digest: bytes, going_on: Callable[[], None]) -> None:
        found, left, offset = hashlib.sha256(self.head[: self.size]), self.size - min(self.size, HEAD), HEAD
        with memoryview(self._spare) as view:
            while left > 0:
                going_on()
                count = min(left, CHUNK)
                whole = -(-count // ALIGNMENT) * ALIGNMENT
                self._device.read(offset, view[:whole])
                found.update(view[:count])
                offset, left = offset + count, left - count
        if found.digest() != digest:
            raise OperationError(
                ErrorCode.NOT_APPLIED,
                f"{self._device.path} does not hold what was written to it: the disk is damaged",
            )

    def _check_room(self, size: int, *, exact: bool) -> None:
        if size > self._device.size:
            needs = f"is {gibibytes(size)} long" if exact else "is longer"
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT,
                f"the image {needs}, and {self._device.path} has only {gibibytes(self._device.size)}: choose a "
                "larger disk or a smaller image",
                details={"diskBytes": self._device.size},
            )


def _runs(data: memoryview, start: int) -> Iterator[tuple[int, int, bool]]:
    """The pieces of it (start, end) that are all zeros, and those that are not."""
    first, before = start, False
    for place in range(start, len(data), _BLOCK):
        blank = is_zero(data[place : place + _BLOCK])
        if place > first and blank is not before:
            yield first, place, before
            first = place
        before = blank
    if first < len(data):
        yield first, len(data), before


def cover_up(device: BlockDevice, mark: bytes) -> None:
    """Makes both ends of a disk say nothing of what it held, so that no firmware starts a half-written system: also
    not by the backup of an older partition table."""
    head = (UNFINISHED + mark)[: device.sector - 2].ljust(HEAD, b"\0")
    device.write_bytes(0, head)
    device.clear(max(HEAD, device.size - HEAD) // ALIGNMENT * ALIGNMENT, HEAD + ALIGNMENT)
    device.sync()


def reveal(device: BlockDevice, head: bytes) -> None:
    """Puts the head in its place, and reads it back. The first sector goes last: until then the disk says that it is
    half written. Raises OperationError NOT_APPLIED."""
    padded = head.ljust(-(-len(head) // device.sector) * device.sector, b"\0")
    for offset, part in ((device.sector, padded[device.sector :]), (0, padded[: device.sector])):
        device.write_bytes(offset, part)
        device.sync()
        if device.read_bytes(offset, len(part)) != part:
            raise OperationError(
                ErrorCode.NOT_APPLIED, f"{device.path} does not hold its beginning as written: the disk is damaged"
            )


def finished_head(device: BlockDevice) -> str | None:
    """The digest of what the disk begins with; None for one that is marked as half written."""
    head = device.read_bytes(0, min(HEAD, device.size))
    return None if head.startswith(UNFINISHED) else hashlib.sha256(head).hexdigest()
