"""Drives as a RAID plan sees them: which may be used, which suit a selector, and which of those are taken. Pure."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from protocol.shapes.raid import DriveSelector, RaidDrive

__all__ = ["Fits", "Key", "choose", "drive_named", "key_of", "natural", "selected", "unusable"]

Key = tuple[str, str]
"""A drive's controller and id: ids are unique on one controller only (HPE numbers them from 0 on each)."""
Fits = Callable[[Sequence[RaidDrive]], bool]
_GIB = 1 << 30
_ALIKE = 0.01
"""By how much the drives of one volume may differ in size: makers round differently."""
_DIGITS = re.compile(r"(\d+)")


def key_of(drive: RaidDrive) -> Key:
    return drive.controller, drive.id


def drive_named(drives: Mapping[Key, RaidDrive], controller: str, name: str) -> RaidDrive | None:
    """The controller's drive of that id, else the first of that serial number."""
    by_id = drives.get((controller, name))
    if by_id is not None:
        return by_id
    same = (drive for drive in drives.values() if drive.controller == controller and drive.serial == name)
    return min(same, key=lambda drive: natural(drive.id), default=None)


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts `Disk.10` after `Disk.9`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name) if part]


def unusable(drive: RaidDrive) -> str | None:
    """Why a drive may not be put into a volume; None where it may."""
    if drive.state == "failed" or drive.health == "critical":
        return "has failed"
    if drive.state == "foreign":
        return "holds another controller's configuration: clear it first (raid.clearRaid, or at the controller)"
    if drive.spare is not None:
        return f"is a {drive.spare} hot spare"
    return None


def selected(drive: RaidDrive, selector: DriveSelector, *, making: bool = False) -> bool:
    """Whether the drive is of the kind that is asked for. When a volume is made, the boot drive may be ruled out; a
    volume that is there is not judged by it: once installed, it is what the machine boots from."""
    gib = None if drive.size_bytes is None else drive.size_bytes / _GIB
    return (
        (selector.media is None or drive.media is selector.media)
        and (selector.min_size_gib is None or (gib is not None and gib >= selector.min_size_gib))
        and (selector.max_size_gib is None or (gib is not None and gib <= selector.max_size_gib))
        and (selector.enclosure is None or drive.enclosure == selector.enclosure)
        and not (making and selector.not_boot_drive and drive.boot)
    )


def choose(drives: Iterable[RaidDrive], selector: DriveSelector, fits: Fits) -> list[RaidDrive] | None:
    """As many drives as are asked for, of one media and size: the smallest that `fits`, by their ids; None where
    there are too few."""
    matching = [drive for drive in drives if selected(drive, selector, making=True)]
    for group in _alike(matching):
        found = sorted(group, key=lambda drive: natural(drive.id))[: selector.count]
        if len(found) == selector.count and fits(found):
            return found
    return None


def _alike(drives: list[RaidDrive]) -> Iterator[list[RaidDrive]]:
    """Groups of drives of one media and, within a hundredth, one size; the smallest size first."""
    order = sorted(drives, key=lambda drive: (drive.size_bytes or 0, str(drive.media), natural(drive.id)))
    for first in order:
        size = first.size_bytes or 0
        group = [
            drive
            for drive in order
            if drive.media is first.media and size <= (drive.size_bytes or 0) <= size * (1 + _ALIKE)
        ]
        yield group
