"""Unified kernel images (UAPI.5): a PE file whose sections are the kernel, its initrd and its command line."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ramdisk.volumes import Volume

__all__ = ["Section", "copy_section", "is_unified_image", "read_section", "sections_of"]

_MOST_SECTIONS = 96
_PIECE = 1 << 20


class Section(NamedTuple):
    """`size`: of its content, without padding."""

    offset: int
    size: int


def sections_of(file: BinaryIO) -> Mapping[str, Section]:
    """By name; of two with one name the first (others belong to further profiles). Raises ValueError for another kind
    of file. (Microsoft: PE Format, "COFF File Header" and "Section Table".)"""
    if file.read(2) != b"MZ":
        raise ValueError("this is no PE file")
    file.seek(0x3C)
    header = int.from_bytes(file.read(4), "little")
    file.seek(header)
    coff = file.read(24)
    if len(coff) < 24 or not coff.startswith(b"PE\0\0"):
        raise ValueError("this is no PE file")
    count, optional = int.from_bytes(coff[6:8], "little"), int.from_bytes(coff[20:22], "little")
    file.seek(header + 24 + optional)
    found: dict[str, Section] = {}
    for _ in range(min(count, _MOST_SECTIONS)):
        row = file.read(40)
        if len(row) < 40:
            raise ValueError("the PE file ends in its table of sections")
        name = row[:8].rstrip(b"\0").decode(errors="replace")
        virtual, raw, offset = (int.from_bytes(row[place : place + 4], "little") for place in (8, 16, 20))
        found.setdefault(name, Section(offset, min(virtual, raw) if virtual else raw))
    return found


def is_unified_image(volume: Volume, path: str | None) -> bool:
    file = volume.find(path) if path else None
    try:
        if file is None:
            return False
        with file.open("rb") as stream:
            return ".linux" in sections_of(stream)
    except (OSError, ValueError):
        return False


def read_section(file: Path, name: str, most: int = _PIECE) -> bytes | None:
    """A small section's content. Raises ValueError or OSError."""
    with file.open("rb") as stream:
        section = sections_of(stream).get(name)
        if section is None:
            return None
        stream.seek(section.offset)
        return stream.read(min(section.size, most))


def copy_section(file: Path, name: str, target: Path) -> bool:
    """Writes a section's content to a file of its own; False where there is none. Raises ValueError or OSError."""
    with file.open("rb") as stream:
        section = sections_of(stream).get(name)
        if section is None:
            return False
        if section.offset + section.size > os.fstat(stream.fileno()).st_size:
            raise ValueError(f"the section {name} is not whole")
        stream.seek(section.offset)
        left = section.size
        with target.open("wb") as copy:
            while left > 0 and (data := stream.read(min(left, _PIECE))):
                copy.write(data)
                left -= len(data)
    return True
