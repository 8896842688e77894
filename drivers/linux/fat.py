"""A small FAT12 file system with a few files in its root, as bytes (Microsoft FAT specification, 2000). Pure.

Not ISO 9660, which no Linux mounts on a disk with sectors of 4096 bytes; and not mkfs.vfat, so that the same input is
the same bytes.
"""

import struct
from collections.abc import Mapping

__all__ = ["make_fat"]

_MOST_CLUSTERS = 4084
"""More of them would make it FAT16."""
_ROOT_ENTRIES = 512
_END = 0xFFF
_MEDIA = 0xF8
_LONG_NAME = 0x0F
_VOLUME_LABEL = 0x08
_READ_ONLY_FILE = 0x21
_DATE = (2020 - 1980) << 9 | 1 << 5 | 1
"""1 January 2020: no file says when it was made, so that the same input is the same bytes."""


def make_fat(files: Mapping[str, bytes], *, size: int, sector: int, label: str, serial: int) -> bytes:
    """The beginning of the file system, up to its last used cluster; what follows may be anything.

    `size`: the partition's, in bytes. Raises ValueError where the files do not fit.
    """
    sectors = size // sector
    cluster = sector
    while sectors * sector // cluster > _MOST_CLUSTERS:
        cluster *= 2
    per_cluster = cluster // sector
    root_sectors = -(-_ROOT_ENTRIES * 32 // sector)
    fat_sectors = -(-(_MOST_CLUSTERS + 2) * 3 // (2 * sector))
    first_data = 1 + 2 * fat_sectors + root_sectors
    clusters = (sectors - first_data) // per_cluster
    needed = sum(-(-len(content) // cluster) for content in files.values())
    if needed > clusters:
        raise ValueError(f"the files need {needed * cluster} bytes, and {clusters * cluster} are there")
    table, root, data = [_END - 0xFF + _MEDIA, _END], [_label_entry(label)], bytearray()
    for number, (name, content) in enumerate(files.items(), 1):
        first = len(table) if content else 0
        count = -(-len(content) // cluster)
        table += [*range(len(table) + 1, len(table) + count), _END] if count else []
        data += content.ljust(count * cluster, b"\0")
        root += _entries(name, number, first, len(content))
    if len(root) > _ROOT_ENTRIES:
        raise ValueError(f"{len(files)} files are too many")
    boot = _boot_sector(sector, per_cluster, fat_sectors, sectors, label, serial)
    fat = _packed(table).ljust(fat_sectors * sector, b"\0")
    return boot + fat + fat + b"".join(root).ljust(root_sectors * sector, b"\0") + bytes(data)


def _boot_sector(sector: int, per_cluster: int, fat_sectors: int, sectors: int, label: str, serial: int) -> bytes:
    small, large = (sectors, 0) if sectors < 0x10000 else (0, sectors)
    fixed = struct.pack(
        "<3s8sHBHBHHBHHHII",
        b"\xeb\x3c\x90",
        b"MSWIN4.1",
        sector,
        per_cluster,
        1,
        2,
        _ROOT_ENTRIES,
        small,
        _MEDIA,
        fat_sectors,
        63,
        255,
        0,
        large,
    )
    extended = struct.pack("<BBBI11s8s", 0x80, 0, 0x29, serial & 0xFFFFFFFF, _padded(label, 11), b"FAT12   ")
    result = bytearray((fixed + extended).ljust(sector, b"\0"))
    result[510:512] = b"\x55\xaa"
    return bytes(result)


def _packed(table: list[int]) -> bytes:
    """Two entries of twelve bits in three bytes."""
    result = bytearray()
    for low, high in zip(table[::2], [*table[1::2], 0], strict=False):
        result += (low | high << 12).to_bytes(3, "little")
    return bytes(result)


def _label_entry(label: str) -> bytes:
    return _padded(label, 11) + struct.pack("<B10sHHHI", _VOLUME_LABEL, bytes(10), 0, _DATE, 0, 0)


def _entries(name: str, number: int, first: int, size: int) -> list[bytes]:
    """The long name's pieces, the last one first, then the short name that they belong to."""
    short = _padded(f"FILE{number:04d}", 11)
    checksum = 0
    for byte in short:
        checksum = ((checksum & 1) << 7 | checksum >> 1) + byte & 0xFF
    units = name.encode("utf-16-le") + b"\0\0"
    units = units.ljust(-(-len(units) // 26) * 26, b"\xff") if (len(units) - 2) % 26 else units[:-2]
    pieces = [units[place : place + 26] for place in range(0, len(units), 26)]
    result = []
    for index, piece in enumerate(pieces, 1):
        order = index | (0x40 if index == len(pieces) else 0)
        result.append(
            struct.pack("<B10sBBB12sH4s", order, piece[:10], _LONG_NAME, 0, checksum, piece[10:22], 0, piece[22:26])
        )
    plain = short + struct.pack("<B8sHHHHI", _READ_ONLY_FILE, bytes(8), 0, 0, _DATE, first, size)
    return [*reversed(result), plain]


def _padded(word: str, size: int) -> bytes:
    return word.encode("ascii", errors="replace")[:size].ljust(size, b" ")
