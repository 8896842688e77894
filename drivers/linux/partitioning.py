"""What becomes of an image's partition table on the disk that it is written to. Pure.

The table's backup goes to the end of this disk, the last partition grows where it is a Linux root, and room is left
behind it for the configuration drive.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

from drivers.linux import gpt, mbr
from drivers.linux.words import gibibytes

__all__ = [
    "CONFIG_DRIVE_BYTES",
    "CONFIG_DRIVE_NAME",
    "Layout",
    "Span",
    "check_head",
    "find_config_drive",
    "lay_out",
    "read_table",
    "spans_of",
    "with_config_drive",
]

CONFIG_DRIVE_BYTES = 16 << 20
CONFIG_DRIVE_NAME = "cidata"
_MIB = 1 << 20

Table = gpt.Gpt | mbr.Mbr


@dataclass(frozen=True, slots=True)
class Span:
    """Where a partition lies, in bytes."""

    number: int
    start: int
    size: int
    kind: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """The beginning of the disk with its table, and the table's backup (place and bytes), where there is one."""

    head: bytes
    spans: tuple[Span, ...] = ()
    backup: tuple[int, bytes] | None = None
    root: Span | None = None
    grown: bool = False
    note: str | None = None


def read_table(head: bytes, sector: int) -> Table | None:
    """Raises ValueError for a damaged one, and for one that was made for sectors of another size."""
    table = gpt.parse(head, sector)
    if table is not None:
        return table
    for other in (512, 4096):
        if other != sector and head[other : other + 8] == b"EFI PART":
            raise ValueError(
                f"its partition table was made for sectors of {other} bytes, and the disk's have {sector}: choose an "
                "image that was made for such disks"
            )
    return mbr.parse(head)


def spans_of(table: Table, sector: int) -> tuple[Span, ...]:
    """Where its partitions lie."""
    if isinstance(table, gpt.Gpt):
        return tuple(_gpt_spans(table))
    return tuple(_mbr_span(slot, sector) for slot in table.slots)


def check_head(head: bytes, sector: int, size: int) -> None:
    """Raises ValueError where an image that begins so cannot be of use on a disk of this size."""
    table = read_table(head, sector)
    if isinstance(table, gpt.Gpt):
        gpt.fitted(table, size // sector)
    elif table is not None and table.free_after * sector > size:
        raise ValueError(f"its partitions reach to {gibibytes(table.free_after * sector)}")


def lay_out(head: bytes, sector: int, size: int, *, grow: bool) -> Layout:
    """The table as the disk is to have it. A head without a table stays as it is. Raises ValueError."""
    table = read_table(head, sector)
    if table is None:
        return Layout(head, note="the image has no partition table: nothing was grown")
    if isinstance(table, mbr.Mbr):
        return _lay_out_mbr(table, head, sector, size, grow=grow)
    fitted = gpt.fitted(table, size // sector)
    root = _gpt_root(fitted)
    end = _aligned_end((fitted.last_usable + 1) * sector - CONFIG_DRIVE_BYTES, sector)
    grown = grow and root is not None and end - 1 > root.last
    if grown and root is not None:
        root = replace(root, last=end - 1)
        fitted = fitted.with_entry(root)
    new_head, place, data = gpt.encode(fitted, head)
    spans = tuple(_gpt_spans(fitted))
    number = root.number if root is not None else None
    return Layout(new_head, spans, (place, data), _of(spans, number), grown, None if root else _NO_ROOT)


def with_config_drive(head: bytes, sector: int, size: int) -> tuple[Layout, Span]:
    """The table with a configuration drive in it, and where that lies: the one that is there, or a new one behind
    everything else. Raises ValueError that says why there can be none."""
    table = read_table(head, sector)
    if table is None:
        raise ValueError("it has no partition table")
    there = find_config_drive(table, sector)
    if isinstance(table, mbr.Mbr):
        return _mbr_config_drive(table, head, sector, size, there)
    fitted = gpt.fitted(table, size // sector)
    if there is None:
        number = fitted.free_number()
        start = -(-fitted.free_after * sector // _MIB) * _MIB // sector
        last = start + CONFIG_DRIVE_BYTES // sector - 1
        if number is None or last > fitted.last_usable:
            # At the very end a MiB boundary may lie beyond the room that the growing left.
            start = _aligned_end((fitted.last_usable + 1) * sector - CONFIG_DRIVE_BYTES, sector)
            last = fitted.last_usable
        if number is None or start < fitted.free_after:
            raise ValueError(_no_room(fitted.free_after * sector, size))
        unique = uuid.uuid5(fitted.disk, CONFIG_DRIVE_NAME)
        fitted = fitted.with_entry(gpt.Entry(number, gpt.CONFIG_DRIVE, unique, start, last, 0, CONFIG_DRIVE_NAME))
    new_head, place, data = gpt.encode(fitted, head)
    spans = tuple(_gpt_spans(fitted))
    span = find_config_drive(fitted, sector)
    if span is None:
        raise ValueError("it takes no configuration drive")
    return Layout(new_head, spans, (place, data)), span


def find_config_drive(table: Table | None, sector: int) -> Span | None:
    """The partition of that name; in an MBR, which knows no names, the last one of our size and type."""
    if isinstance(table, gpt.Gpt):
        return next((span for span in _gpt_spans(table) if span.name.lower() == CONFIG_DRIVE_NAME), None)
    if table is None:
        return None
    own = [slot for slot in table.slots if slot.kind == mbr.FAT12 and slot.sectors * sector == CONFIG_DRIVE_BYTES]
    return _mbr_span(own[-1], sector) if own else None


_NO_ROOT = "the last partition holds no Linux root: nothing was grown"


def _gpt_root(table: gpt.Gpt) -> gpt.Entry | None:
    """The root, where it is the last partition of the disk: any other cannot grow."""
    last = max(table.entries, key=lambda entry: entry.last, default=None)
    return last if last is not None and last.kind in gpt.LINUX_TYPES else None


def _gpt_spans(table: gpt.Gpt) -> Iterator[Span]:
    for entry in table.entries:
        start, size = entry.first * table.sector, (entry.last + 1 - entry.first) * table.sector
        yield Span(entry.number, start, size, gpt.type_name(entry.kind), entry.name)


def _lay_out_mbr(table: mbr.Mbr, head: bytes, sector: int, size: int, *, grow: bool) -> Layout:
    if table.free_after * sector > size:
        raise ValueError(f"its partitions reach to {gibibytes(table.free_after * sector)}")
    last = max(table.slots, key=lambda slot: slot.last)
    spans = tuple(_mbr_span(slot, sector) for slot in table.slots)
    if last.kind != mbr.LINUX or table.extended:
        return Layout(head, spans, note=_NO_ROOT)
    end = min(_aligned_end(size - CONFIG_DRIVE_BYTES, sector), 1 << 32)
    if not grow or end <= last.last + 1:
        return Layout(head, spans, root=_mbr_span(last, sector))
    table = table.with_slot(replace(last, sectors=end - last.first))
    spans = tuple(_mbr_span(slot, sector) for slot in table.slots)
    return Layout(mbr.encode(table, head), spans, root=_of(spans, last.number), grown=True)


def _mbr_config_drive(table: mbr.Mbr, head: bytes, sector: int, size: int, there: Span | None) -> tuple[Layout, Span]:
    if there is not None:
        return Layout(head, tuple(_mbr_span(slot, sector) for slot in table.slots)), there
    number = table.free_number()
    start = _aligned_end(min(size, sector << 32) - CONFIG_DRIVE_BYTES, sector)
    if table.extended or number is None:
        raise ValueError("its MBR has no free entry for one more partition")
    if start < table.free_after:
        raise ValueError(_no_room(table.free_after * sector, size))
    slot = mbr.Slot(number, mbr.FAT12, start, CONFIG_DRIVE_BYTES // sector)
    table = table.with_slot(slot)
    layout = Layout(mbr.encode(table, head), tuple(_mbr_span(one, sector) for one in table.slots))
    return layout, _mbr_span(slot, sector)


def _mbr_span(slot: mbr.Slot, sector: int) -> Span:
    return Span(slot.number, slot.first * sector, slot.sectors * sector, f"0x{slot.kind:02x}")


def _of(spans: tuple[Span, ...], number: int | None) -> Span | None:
    return next((span for span in spans if span.number == number), None)


def _aligned_end(end: int, sector: int) -> int:
    """A place in sectors, on a MiB, at or before `end` bytes."""
    return max(0, end) // _MIB * _MIB // sector


def _no_room(used: int, size: int) -> str:
    return (
        f"its partitions reach to {gibibytes(used)} of {gibibytes(size)}, and a configuration drive needs "
        f"{CONFIG_DRIVE_BYTES >> 20} MiB behind them"
    )
