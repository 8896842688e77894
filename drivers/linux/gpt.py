"""GUID partition tables (UEFI 2.10, section 5.3): read, fitted to a disk, written. Pure."""

import binascii
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

__all__ = [
    "CONFIG_DRIVE",
    "LINUX_TYPES",
    "SYSTEM_PARTITION",
    "Entry",
    "Gpt",
    "encode",
    "fitted",
    "parse",
    "type_name",
]

_SIGNATURE = b"EFI PART"
_HEADER = struct.Struct("<8sIIIIQQQQ16sQIII")
_ENTRY = struct.Struct("<16s16sQQQ72s")
_PROTECTIVE = 0xEE

SYSTEM_PARTITION = uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
CONFIG_DRIVE = uuid.UUID("ebd0a0a2-b9e5-4433-87c0-68b6b72699c7")
"""Basic data: what a FAT file system lies in."""
LINUX_TYPES = {
    uuid.UUID("0fc63daf-8483-4772-8e79-3d69d8477de4"): "linux",
    uuid.UUID("4f68bce3-e8cd-4db1-96e7-fbcaf984b709"): "linux root (x86-64)",
    uuid.UUID("b921b045-1df0-41c3-af44-4c6f280d3fae"): "linux root (arm64)",
    uuid.UUID("44479540-f297-41b2-9af7-d131d5f0458a"): "linux root (x86)",
    uuid.UUID("69dad710-2ce4-4e3c-b16c-21a1d49abed3"): "linux root (arm)",
}
"""Types that a root file system has (Discoverable Partitions Specification)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One partition. `first`, `last`: sectors, both inside."""

    number: int
    kind: uuid.UUID
    unique: uuid.UUID
    first: int
    last: int
    attributes: int = 0
    name: str = ""
    rest: bytes = b""
    """What a longer entry holds beyond the fields of today."""


@dataclass(frozen=True, slots=True)
class Gpt:
    """A table. `sector` in bytes, all places in sectors."""

    sector: int
    disk: uuid.UUID
    first_usable: int
    last_usable: int
    last: int
    """The sector of the backup header: the last one of the disk that the table was made for."""
    slots: int
    entry_size: int
    entries: tuple[Entry, ...]

    @property
    def table_sectors(self) -> int:
        return -(-self.slots * self.entry_size // self.sector)

    @property
    def free_after(self) -> int:
        """The first sector behind the last partition."""
        return max((entry.last + 1 for entry in self.entries), default=self.first_usable)

    def with_entry(self, entry: Entry) -> "Gpt":
        """With a partition added, or replaced where it has the number of one that is there."""
        others = [one for one in self.entries if one.number != entry.number]
        return replace(self, entries=tuple(sorted([*others, entry], key=lambda one: one.number)))

    def free_number(self) -> int | None:
        """The next number after the highest, else the first free one; None where the table is full."""
        taken = {entry.number for entry in self.entries}
        highest = max(taken, default=0)
        if highest < self.slots:
            return highest + 1
        return next((number for number in range(1, self.slots + 1) if number not in taken), None)


def parse(head: bytes, sector: int) -> Gpt | None:
    """The table that a disk begins with, of which `head` are the first bytes; None where there is none.

    Raises ValueError for one that is damaged, or does not lie in what was given.
    """
    header = head[sector : sector + _HEADER.size]
    if len(header) < _HEADER.size or not header.startswith(_SIGNATURE):
        return None
    _, _, size, checksum, _, _, last, first_usable, last_usable, disk, table, slots, entry_size, table_checksum = (
        _HEADER.unpack(header)
    )
    if not _HEADER.size <= size <= sector or entry_size < _ENTRY.size or not 1 <= slots <= 1024:
        raise ValueError("its GPT header has impossible sizes")
    if table != 2:
        raise ValueError("the entries of its GPT do not follow its header")
    full = bytearray(head[sector : sector + size])
    full[16:20] = bytes(4)
    if binascii.crc32(full) != checksum:
        raise ValueError("the checksum of its GPT header is wrong")
    data = head[table * sector : table * sector + slots * entry_size]
    if len(data) < slots * entry_size:
        raise ValueError("the entries of its GPT do not lie at its beginning")
    if binascii.crc32(data) != table_checksum:
        raise ValueError("the checksum of its GPT entries is wrong")
    return Gpt(
        sector=sector,
        disk=uuid.UUID(bytes_le=disk),
        first_usable=first_usable,
        last_usable=last_usable,
        last=last,
        slots=slots,
        entry_size=entry_size,
        entries=tuple(_entries(data, entry_size)),
    )


def _entries(data: bytes, size: int) -> Iterator[Entry]:
    for number, place in enumerate(range(0, len(data), size), 1):
        kind, unique, first, last, attributes, name = _ENTRY.unpack_from(data, place)
        if any(kind):
            text = name.decode("utf-16-le", errors="replace").partition("\0")[0]
            rest = data[place + _ENTRY.size : place + size]
            yield Entry(
                number, uuid.UUID(bytes_le=kind), uuid.UUID(bytes_le=unique), first, last, attributes, text, rest
            )


def fitted(table: Gpt, sectors: int) -> Gpt:
    """The same partitions for a disk of so many sectors. Raises ValueError where they do not fit."""
    last_usable = sectors - table.table_sectors - 2
    if any(entry.last > last_usable for entry in table.entries):
        raise ValueError(f"its partitions need {table.free_after + table.table_sectors + 1} sectors, of {sectors}")
    return replace(table, last=sectors - 1, last_usable=last_usable)


def encode(table: Gpt, head: bytes) -> tuple[bytes, int, bytes]:
    """The table as a disk holds it: `head` with the protective MBR and the primary table in it, then the place (in
    bytes) and the bytes of the backup."""
    data = bytearray(table.slots * table.entry_size)
    for entry in table.entries:
        packed = _ENTRY.pack(
            entry.kind.bytes_le,
            entry.unique.bytes_le,
            entry.first,
            entry.last,
            entry.attributes,
            entry.name.encode("utf-16-le")[:72],
        )
        place = (entry.number - 1) * table.entry_size
        data[place : place + table.entry_size] = (packed + entry.rest).ljust(table.entry_size, b"\0")[
            : table.entry_size
        ]
    span = table.table_sectors * table.sector
    backup = table.last - table.table_sectors
    result = bytearray(head)
    primary = _header(table, data, own=1, other=table.last, entries=2)
    result[table.sector : 2 * table.sector] = primary
    result[2 * table.sector : 2 * table.sector + span] = bytes(data).ljust(span, b"\0")
    _protect(result, table.last)
    tail = bytes(data).ljust(span, b"\0") + _header(table, data, own=table.last, other=1, entries=backup)
    return bytes(result), backup * table.sector, tail


def _header(table: Gpt, data: bytes | bytearray, *, own: int, other: int, entries: int) -> bytes:
    def packed(checksum: int) -> bytes:
        return _HEADER.pack(
            _SIGNATURE,
            0x10000,
            _HEADER.size,
            checksum,
            0,
            own,
            other,
            table.first_usable,
            table.last_usable,
            table.disk.bytes_le,
            entries,
            table.slots,
            table.entry_size,
            binascii.crc32(data),
        )

    return packed(binascii.crc32(packed(0))).ljust(table.sector, b"\0")


def _protect(head: bytearray, last: int) -> None:
    """The protective partition covers the whole disk, whatever the disk was that the table was made for. A hybrid MBR
    keeps its other entries."""
    for place in range(446, 510, 16):
        if head[place + 4] == _PROTECTIVE:
            first = int.from_bytes(head[place + 8 : place + 12], "little")
            sectors = max(1, min(last + 1 - first, 0xFFFFFFFF))
            head[place + 12 : place + 16] = sectors.to_bytes(4, "little")


def type_name(kind: uuid.UUID) -> str:
    """A word for an operator."""
    named = {**LINUX_TYPES, SYSTEM_PARTITION: "EFI system", CONFIG_DRIVE: "basic data"}
    return named.get(kind, str(kind))
