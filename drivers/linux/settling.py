"""After a crash of the agent: what the disks say of a command that was begun and whose result was lost. Pure.

A write is done when a disk's record says so and the disk still begins as it did then. It was provably broken off when
its record says that it was under way: the threads that wrote ended with the process, and the disk is marked. A disk
that erases itself goes on by itself, so that nothing is said of it.
"""

from collections.abc import Mapping

import msgspec

from drivers.linux.disks import NEVER_MEANT
from drivers.linux.hints import misses
from drivers.linux.image_source import shown_address
from protocol.shapes.deploy import (
    DiskErased,
    Disks,
    DiskStage,
    DiskState,
    EraseDisks,
    EraseDisksResult,
    EraseMode,
    RootDeviceHints,
    WriteImage,
    WriteImageResult,
)

__all__ = ["erased", "erasure_broken_off", "write_broken_off", "written"]

Json = Mapping[str, object]


def written(arguments: Json, reading: Json) -> dict[str, object] | None:
    """The result of `deploy.writeImage`, where one disk holds what it was to write."""
    for disk in _asked(arguments, reading):
        image = disk.image
        if image is None or image.stage is not DiskStage.DONE or not image.unchanged:
            continue
        result = WriteImageResult(
            disk=disk.name,
            bytes=image.bytes or 0,
            seconds=image.seconds or 0.0,
            checksum=image.checksum or "",
            partition=image.partition,
            proof="the disk still begins as it did when the write was done",
        )
        built: dict[str, object] = msgspec.to_builtins(result)
        return built
    return None


def write_broken_off(arguments: Json, reading: Json) -> str | None:
    """In words, where the write provably did not come to its end."""
    found = [disk for disk in _asked(arguments, reading) if disk.image and disk.image.stage is not DiskStage.DONE]
    if not found:
        return None
    names = ", ".join(disk.name for disk in found)
    return f"the image was not written to its end: {names} is marked as half written, and starts nothing"


def erased(arguments: Json, reading: Json) -> dict[str, object] | None:
    """The result of `deploy.eraseDisks`, where every disk that it was to erase says that it is."""
    mode, disks = _to_erase(arguments, reading)
    if not disks:
        return None
    found = []
    for disk in disks:
        if disk.unsuitable is not None:
            return None
        erasure = disk.erasure
        if erasure is None or erasure.stage is not DiskStage.DONE or not erasure.unchanged:
            return None
        if erasure.mode is not mode and erasure.mode is not EraseMode.FULL:
            return None
        found.append(
            DiskErased(
                disk=disk.name, method=erasure.method or "", seconds=erasure.seconds or 0.0, proof=erasure.proof
            )
        )
    built: dict[str, object] = msgspec.to_builtins(EraseDisksResult(disks=found))
    return built


def erasure_broken_off(arguments: Json, reading: Json) -> str | None:
    """In words, where a metadata erasure provably did not come to its end. A full one may go on inside the drives."""
    mode, disks = _to_erase(arguments, reading)
    if mode is not EraseMode.METADATA:
        return None
    left = [disk.name for disk in disks if disk.erasure and disk.erasure.stage is not DiskStage.DONE]
    return f"the erasure of {', '.join(left)} was broken off" if left else None


def _asked(arguments: Json, reading: Json) -> list[DiskState]:
    """The disks whose record is of this very image."""
    try:
        asked = msgspec.convert(arguments, WriteImage)
        disks = msgspec.convert(reading, Disks).disks
    except msgspec.ValidationError:
        return []
    expected = (asked.image.sha256 or asked.image.sha512 or "").lower() or None
    hints = msgspec.structs.replace(asked.root_device, smallest=None)
    return [
        disk
        for disk in disks
        if disk.image is not None
        and disk.image.image == shown_address(asked.image.url)
        and disk.image.expected == expected
        and not misses(disk, hints)
    ]


def _to_erase(arguments: Json, reading: Json) -> tuple[EraseMode | None, list[DiskState]]:
    try:
        asked = msgspec.convert(arguments, EraseDisks)
        disks = msgspec.convert(reading, Disks).disks
    except msgspec.ValidationError:
        return None, []
    hints = msgspec.structs.replace(asked.disks or RootDeviceHints(), smallest=None)
    found = [disk for disk in disks if not misses(disk, hints) and disk.transport != "md"]
    return asked.mode, [disk for disk in found if asked.disks is not None or disk.unsuitable not in NEVER_MEANT]
