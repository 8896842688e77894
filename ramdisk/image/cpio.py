"""An initial ramdisk's archive (cpio, `newc`; Linux: driver-api/early-userspace/buffer-format.rst). Pure.

The same members give the same bytes: they stand in order, are numbered from 1, belong to root, and are of one time.
"""

import stat
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Member", "archive_around", "device", "file", "folder", "link", "make_archive"]

_END = "TRAILER!!!"


@dataclass(frozen=True, slots=True)
class Member:
    """`mode` has the kind of file in it, as in stat(2)."""

    name: str
    mode: int
    data: bytes = b""
    major: int = 0
    minor: int = 0


def folder(name: str, mode: int = 0o755) -> Member:
    return Member(name, stat.S_IFDIR | mode)


def file(name: str, data: bytes, mode: int = 0o644) -> Member:
    return Member(name, stat.S_IFREG | mode, data)


def link(name: str, target: str) -> Member:
    return Member(name, stat.S_IFLNK | 0o777, target.encode())


def device(name: str, major: int, minor: int, mode: int = 0o600) -> Member:
    """A character device."""
    return Member(name, stat.S_IFCHR | mode, b"", major, minor)


def make_archive(members: Iterable[Member], time: int) -> bytes:
    """`time`: seconds since 1970, of every member. Raises ValueError for a name twice, or in no folder."""
    ordered = sorted(members, key=lambda member: member.name)
    folders = {"": True}
    pieces = []
    for number, member in enumerate(ordered, 1):
        parent = member.name.rpartition("/")[0]
        if member.name in folders:
            raise ValueError(f"{member.name} is there twice")
        if not folders.get(parent):
            raise ValueError(f"{member.name} is in {parent}, which is no folder")
        folders[member.name] = stat.S_ISDIR(member.mode)
        pieces.append(_encoded(number, member, time))
    return b"".join(pieces) + _encoded(0, Member(_END, 0), 0)


def archive_around(name: str, size: int, mode: int = 0o600) -> tuple[bytes, bytes]:
    """What stands before and behind a file's own `size` bytes, a multiple of four, to make an archive of it."""
    if size % 4:
        raise ValueError(f"{size} bytes would need filling up")
    archive = _encoded(1, file(name, bytes(size), mode), 0) + _encoded(0, Member(_END, 0), 0)
    end = len(_encoded(0, Member(_END, 0), 0))
    return archive[: len(archive) - end - size], archive[-end:]


def _encoded(number: int, member: Member, time: int) -> bytes:
    links = 2 if stat.S_ISDIR(member.mode) else 1
    name = member.name.encode() + b"\0"
    fields = (
        number,
        member.mode,
        0,
        0,
        links,
        time,
        len(member.data),
        0,
        0,
        member.major,
        member.minor,
        len(name),
        0,
    )
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    return _padded(head) + _padded(member.data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
