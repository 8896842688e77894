"""What a member of a Linux software RAID says of its array: the superblock of version 1
(linux/raid/md_p.h, struct mdp_superblock_1). Pure."""

import struct
import uuid
from dataclasses import dataclass

__all__ = ["MdSuperblock", "parse_superblock", "superblock_places"]

_MAGIC = 0xA92B4EFC
_FIXED = struct.Struct("<IIII16s32sQiiQII")
_SIZE = 256
_SPARE, _FAULTY, _JOURNAL = 0xFFFF, 0xFFFE, 0xFFFD
_MOST_DEVICES = 1920
_SECTOR = 512


@dataclass(frozen=True, slots=True)
class MdSuperblock:
    """`component_bytes`: what the array takes of each member. `role`: the member's place; None for a spare."""

    array: uuid.UUID
    name: str
    level: int
    devices: int
    component_bytes: int
    role: int | None
    faulty: bool
    events: int


def superblock_places(size: int) -> list[int]:
    """Where it may lie on a member of this size: versions 1.1, 1.2 and 1.0."""
    return [0, 4096, (size // _SECTOR - 16) // 8 * 8 * _SECTOR]


def parse_superblock(data: bytes) -> MdSuperblock | None:
    """None for what is none, or damaged."""
    if len(data) < _SIZE:
        return None
    magic, version, _, _, array, name, _, level, _, size, _, devices = _FIXED.unpack_from(data)
    entries = int.from_bytes(data[220:224], "little")
    if magic != _MAGIC or version != 1 or entries > _MOST_DEVICES or len(data) < _SIZE + 2 * entries:
        return None
    if _checksum(data[: _SIZE + 2 * entries]) != int.from_bytes(data[216:220], "little"):
        return None
    number = int.from_bytes(data[160:164], "little")
    place = _SIZE + 2 * number
    role = int.from_bytes(data[place : place + 2], "little") if number < entries else _SPARE
    text = name.partition(b"\0")[0].decode("utf-8", errors="replace")
    return MdSuperblock(
        array=uuid.UUID(bytes=array),
        name=text.rpartition(":")[2],
        level=level,
        devices=devices,
        component_bytes=size * _SECTOR,
        role=role if role < _JOURNAL else None,
        faulty=role == _FAULTY,
        events=int.from_bytes(data[200:208], "little"),
    )


def _checksum(data: bytes) -> int:
    """The sum of all words but its own, the carry added once (md.c, calc_sb_1_csum)."""
    filled = data[:216] + bytes(4) + data[220:]
    words = filled[: len(filled) // 4 * 4]
    total: int = sum(struct.unpack(f"<{len(words) // 4}I", words))
    if len(filled) % 4 == 2:
        total += int.from_bytes(filled[-2:], "little")
    return ((total & 0xFFFFFFFF) + (total >> 32)) & 0xFFFFFFFF
