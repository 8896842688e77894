"""Which disk is meant: hints against disks, with the reason for every disk that is left out. Pure."""

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from drivers.linux.disks import Disk, natural_name
from drivers.linux.words import gibibytes
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.deploy import RootDeviceHints

__all__ = ["DiskFacts", "matching", "misses", "root_disk"]

_GIB = 1 << 30
_BY_NAME_ONLY = ("usb", "loop")
"""What is attached this way is only taken where a hint names this very disk: a BMC's virtual stick is one too."""


class DiskFacts(Protocol):
    """What hints go by; of a disk here as well as of one that was told."""

    @property
    def name(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def serial(self) -> str | None: ...
    @property
    def wwn(self) -> str | None: ...
    @property
    def model(self) -> str | None: ...
    @property
    def transport(self) -> str | None: ...
    @property
    def rotational(self) -> bool | None: ...


def misses(disk: DiskFacts, hints: RootDeviceHints) -> list[str]:
    """Every hint that the disk does not fit."""
    return list(_misses(disk, hints))


def _misses(disk: DiskFacts, hints: RootDeviceHints) -> Iterator[str]:
    gib = disk.size_bytes / _GIB
    if hints.serial is not None and _plain(hints.serial) != _plain(disk.serial):
        yield f"its serial number is {disk.serial or 'not told'}, not {hints.serial}"
    if hints.wwn is not None and _hex(hints.wwn) != _hex(disk.wwn):
        yield f"its WWN is {disk.wwn or 'not told'}, not {hints.wwn}"
    if hints.model is not None and _plain(hints.model) not in _plain(disk.model):
        yield f"its model is {disk.model or 'not told'}, not {hints.model}"
    if hints.name is not None and hints.name.strip().removeprefix("/dev/") != disk.name:
        yield f"its name is not {hints.name}"
    if hints.min_size_gib is not None and gib < hints.min_size_gib:
        yield f"its {gibibytes(disk.size_bytes)} are less than {hints.min_size_gib:g} GiB"
    if hints.max_size_gib is not None and gib > hints.max_size_gib:
        yield f"its {gibibytes(disk.size_bytes)} are more than {hints.max_size_gib:g} GiB"
    if hints.rotational is not None and disk.rotational is not hints.rotational:
        yield "it does not rotate" if hints.rotational else "it rotates, or does not say"
    if disk.transport in _BY_NAME_ONLY and not (hints.serial or hints.wwn or hints.name):
        yield f"it is attached by {disk.transport}, and no hint gives its name, serial number or WWN"


def matching(disks: Sequence[Disk], hints: RootDeviceHints) -> list[Disk]:
    """The disks that every hint fits, also those that may not be touched; with `smallest` the smallest one alone of
    those that may."""
    found = [disk for disk in disks if not misses(disk, hints)]
    if not hints.smallest:
        return found
    usable = [disk for disk in found if disk.unsuitable is None]
    return sorted(usable, key=lambda disk: (disk.size_bytes, natural_name(disk.name)))[:1] or found


def root_disk(disks: Sequence[Disk], hints: RootDeviceHints) -> Disk:
    """The one disk that is meant.

    Raises OperationError with every disk and what speaks against it: INVALID_ARGUMENT where none fits, or several fit
    equally well (a guess could destroy the wrong one); CONFLICT where the one that fits may not be written to.
    """
    found = matching(disks, hints)
    usable = [disk for disk in found if disk.unsuitable is None]
    if len(usable) == 1:
        return usable[0]
    details: dict[str, object] = {"disks": [_told(disk, hints) for disk in disks]}
    if usable:
        names = ", ".join(disk.known_as() for disk in usable)
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT,
            f"{len(usable)} disks fit the hints: {names}. Name one by its serial number or WWN, or ask for the "
            "smallest",
            details=details,
        )
    if found:
        reasons = "; ".join(f"{disk.known_as()} {disk.unsuitable}" for disk in found)
        raise OperationError(
            ErrorCode.CONFLICT, f"the disk that fits the hints may not be written to: {reasons}", details=details
        )
    reasons = "; ".join(f"{disk.known_as()}: {', '.join(misses(disk, hints))}" for disk in disks)
    raise OperationError(
        ErrorCode.INVALID_ARGUMENT,
        f"no disk fits the hints: {reasons}" if disks else "this machine shows no disk at all",
        details=details,
    )


def _told(disk: Disk, hints: RootDeviceHints) -> dict[str, object]:
    faults = [*misses(disk, hints), *([disk.unsuitable] if disk.unsuitable else [])]
    return {
        "name": disk.name,
        "serial": disk.serial,
        "wwn": disk.wwn,
        "model": disk.model,
        "sizeBytes": disk.size_bytes,
        "faults": faults,
    }


def _plain(word: str | None) -> str:
    """Without the differences in spelling between the places that tell it: udev writes blanks as `_`."""
    return re.sub(r"[\s_]+", " ", word or "").strip().casefold()


def _hex(word: str | None) -> str:
    lowered = re.sub(r"[:\s-]", "", (word or "").lower())
    return lowered.removeprefix("0x").removeprefix("naa.").removeprefix("eui.").removeprefix("wwn0x")
