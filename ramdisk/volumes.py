"""The file systems of an installed system as its boot loader sees them: by name, UUID and label, and by path. Pure,
but for the files that are read."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from uuid import UUID

__all__ = ["SUPERBLOCK_BYTES", "FileSystem", "Located", "Names", "Volume", "Volumes", "names_of"]

SUPERBLOCK_BYTES = 68 << 10
"""So much of a partition's beginning `names_of` needs."""
_LARGEST_TEXT = 4 << 20


class Names(NamedTuple):
    """As `blkid` and GRUB write them."""

    uuid: str | None
    label: str | None


def names_of(kind: str, head: bytes) -> Names:
    """A file system's own names, from its superblock. Pure."""
    match kind:
        case "ext4":
            return Names(_uuid(head[0x468:0x478]), _text(head[0x478:0x488]))
        case "xfs":
            return Names(_uuid(head[32:48]), _text(head[108:120]))
        case "btrfs":
            return Names(_uuid(head[0x10020:0x10030]), _text(head[0x1012B:0x1022B]))
        case "vfat":
            wide = head[82:87] == b"FAT32"
            serial = head[67:71] if wide else head[39:43]
            label = _text(head[71:82] if wide else head[43:54])
            high, low = serial[2:4][::-1].hex().upper(), serial[:2][::-1].hex().upper()
            return Names(f"{high}-{low}", None if label == "NO NAME" else label)
        case _:
            return Names(None, None)


def _uuid(raw: bytes) -> str | None:
    return str(UUID(bytes=raw)) if len(raw) == 16 and any(raw) else None


def _text(raw: bytes) -> str | None:
    return raw.partition(b"\0")[0].decode(errors="replace").strip() or None


@dataclass(frozen=True)
class FileSystem:
    """A tree of files. Symbolic links are followed inside it only, as a boot loader does: an absolute one begins at
    its root again."""

    root: Path

    def find(self, path: str) -> Path | None:
        """Where the file or folder lies; None where it is not there, or a link leads out or round in circles."""
        here = self.root
        left = [part for part in reversed(path.split("/")) if part]
        links = 0
        while left:
            part = left.pop()
            if part in (".", ""):
                continue
            if part == "..":
                here = here.parent if here != self.root else here
                continue
            here = self._child(here, part) or here / part
            try:
                if here.is_symlink():
                    links += 1
                    target = PurePosixPath(os.readlink(here))
                    here = self.root if target.is_absolute() else here.parent
                    left += [piece for piece in reversed(target.parts) if not piece.startswith("/")]
                elif not here.exists():
                    return None
            except OSError:
                return None
            if links > 40:
                return None
        return here

    def read(self, path: str, most: int = _LARGEST_TEXT) -> bytes | None:
        """A small file's bytes; None where it is none, or larger than that."""
        found = self.find(path)
        try:
            if found is None or not found.is_file() or found.stat().st_size > most:
                return None
            return found.read_bytes()
        except OSError:
            return None

    def names(self, path: str) -> list[str]:
        """What a folder holds, sorted; nothing where it is none."""
        found = self.find(path)
        try:
            return [] if found is None else sorted(os.listdir(found))
        except OSError:
            return []

    def is_file(self, path: str) -> bool:
        found = self.find(path)
        return found is not None and found.is_file()

    def is_dir(self, path: str) -> bool:
        found = self.find(path)
        return found is not None and found.is_dir()

    def _child(self, folder: Path, name: str) -> Path | None:
        """FAT knows no case, and how it is mounted decides what the kernel shows."""
        exact = folder / name
        if exact.is_symlink() or exact.exists():
            return exact
        try:
            return next((folder / found for found in os.listdir(folder) if found.lower() == name.lower()), None)
        except OSError:
            return None


@dataclass(frozen=True)
class Volume:
    """One file system of the installed system. `trees`: its files, in every way in which a loader may see them
    (btrfs: its default subvolume, and its top)."""

    name: str
    number: int
    kind: str
    trees: tuple[FileSystem, ...]
    uuid: str | None = None
    label: str | None = None
    system_partition: bool = False

    def find(self, path: str) -> Path | None:
        return next((found for tree in self.trees if (found := tree.find(path)) is not None), None)

    def read(self, path: str) -> bytes | None:
        return next((data for tree in self.trees if (data := tree.read(path)) is not None), None)

    def names(self, path: str) -> list[str]:
        return next((names for tree in self.trees if (names := tree.names(path))), [])

    def is_file(self, path: str) -> bool:
        return any(tree.is_file(path) for tree in self.trees)

    def is_dir(self, path: str) -> bool:
        return any(tree.is_dir(path) for tree in self.trees)


class Located(NamedTuple):
    """A path on one of the volumes."""

    volume: Volume
    path: str

    @property
    def file(self) -> Path | None:
        found = self.volume.find(self.path)
        return found if found is not None and found.is_file() else None

    def __str__(self) -> str:
        return f"{self.volume.name}:{self.path}"


class Volumes:
    """All of them, in the order of their partitions."""

    def __init__(self, volumes: Iterable[Volume]) -> None:
        self.all = tuple(volumes)

    def named(self, name: str) -> Volume | None:
        """By our own name, or by GRUB's: `hd0,gpt2` and `hd1,msdos1` are partitions of the one disk that is looked
        at, whatever number a firmware gave it."""
        for volume in self.all:
            if volume.name == name:
                return volume
        place = name.rpartition(",")[2] if name.startswith(("hd", "ahci", "ieee1275", "nvme")) else ""
        number = "".join(letter for letter in place if letter.isdecimal())
        return next((volume for volume in self.all if number and volume.number == int(number)), None)

    def by_uuid(self, uuid: str) -> Volume | None:
        return next((one for one in self.all if one.uuid and one.uuid.lower() == uuid.lower()), None)

    def by_label(self, label: str) -> Volume | None:
        return next((one for one in self.all if one.label == label), None)

    def with_file(self, path: str) -> Volume | None:
        return next((one for one in self.all if one.is_file(path)), None)

    @property
    def system_partition(self) -> Volume | None:
        return next((one for one in self.all if one.system_partition), None)
