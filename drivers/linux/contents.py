"""What a disk is seen to hold, and the places where that is written: the places that a metadata erasure clears.

Sources: the layouts of the formats named; util-linux' wipefs looks in the same places.
"""

from collections.abc import Iterable, Iterator

from drivers.linux.block_device import ALIGNMENT, BlockDevice
from drivers.linux.disk_writer import UNFINISHED
from drivers.linux.filesystems import file_system_of
from drivers.linux.gpt import Gpt
from drivers.linux.partitioning import Span, read_table, spans_of

__all__ = ["clear_places", "contents", "places"]

_ENDS = 4 << 20
"""At each end: tables, boot code, superblocks, LVM and its text, ZFS labels (512 KiB, both ends), md (both ends)."""
_LATER_SUPERBLOCKS = (64 << 20, 256 << 30)
"""Where btrfs keeps its copies (btrfs(5))."""
_SUPERBLOCK = 64 << 10
_MD_MAGIC = b"\xfc\x4e\x2b\xa9"
_HEAD = 72 << 10


def places(size: int, spans: Iterable[tuple[int, int]] = ()) -> list[tuple[int, int]]:
    """Every place (start, length) that may describe what is on a disk of this size: of the disk and of each partition
    on it (`spans`: start, size). Overlapping ones are one place. Pure."""
    found = []
    for start, length in ((0, size), *spans):
        end = min(start + length, size)
        found += [(start, min(start + _ENDS, end)), (max(start, end - _ENDS), end)]
        found += [(start + at, min(start + at + _SUPERBLOCK, end)) for at in _LATER_SUPERBLOCKS if start + at < end]
    return list(_joined(found))


def _joined(found: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """As whole blocks, from (start, end) to (start, length)."""
    current: tuple[int, int] | None = None
    for start, end in sorted(found):
        if start >= end:
            continue
        first = start // ALIGNMENT * ALIGNMENT
        if current is not None and first <= current[1]:
            current = current[0], max(current[1], end)
            continue
        if current is not None:
            yield current[0], current[1] - current[0]
        current = first, end
    if current is not None:
        yield current[0], current[1] - current[0]


def clear_places(device: BlockDevice, spans: Iterable[tuple[int, int]]) -> int:
    """Zeros in all of them; how many bytes that were."""
    cleared = 0
    for start, length in places(device.size, spans):
        device.clear(start, length)
        cleared += length
    device.sync()
    return cleared


def contents(device: BlockDevice) -> tuple[list[str], tuple[Span, ...]]:
    """What is seen on the disk, in words, and its partitions by its own table. Blocking."""
    head = device.read_bytes(0, min(1 << 20, device.size))
    if head.startswith(UNFINISHED):
        return ["an image that was not written to its end"], ()
    found = []
    spans: tuple[Span, ...] = ()
    try:
        table = read_table(head, device.sector)
        if table is not None:
            spans = spans_of(table, device.sector)
            found.append(f"{'GPT' if isinstance(table, Gpt) else 'MBR'} with {len(spans)} partitions")
    except ValueError as error:
        found.append(f"a partition table that is damaged: {error}")
    if head[4096:4100] == _MD_MAGIC or head[:4] == _MD_MAGIC or _md_at_the_end(device):
        found.append("a member of a Linux software RAID")
    if not found:
        found += _alone(device, head)
    return found, spans


def _alone(device: BlockDevice, head: bytes) -> list[str]:
    """What a disk without partitions holds."""
    found = []
    kind = file_system_of(head[:_HEAD])
    if kind is not None:
        found.append(kind)
    if not found and device.size > 1 << 20:
        end = device.read_bytes(device.size - device.sector, device.sector)
        if end.startswith(b"EFI PART"):
            found.append("the backup of a GPT whose beginning is gone")
    return found


def _md_at_the_end(device: BlockDevice) -> bool:
    """Version 1.0 lies 8 to 12 KiB before the end, on 4 KiB; version 0.90 64 to 128 KiB before it, on 64 KiB."""
    newer = (device.size - 8192) // 4096 * 4096
    older = device.size // 65536 * 65536 - 65536
    return any(place > 0 and device.read_bytes(place, 4) == _MD_MAGIC for place in (newer, older))
