"""Where a file lies in an ISO 9660 image (ECMA-119), by the names that Rock Ridge gives it (IEEE P1282)."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

__all__ = ["Extent", "find_file", "volume_label"]

_SECTOR = 2048
_DESCRIPTOR = 16 * _SECTOR
_ROOT_RECORD = 156
_FOLDER, _CONTINUES = 0x02, 0x80
_SHORTEST_RECORD = 34
_LARGEST_FOLDER = 1 << 20


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes from the image's beginning."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class _Record:
    name: str
    extent: Extent
    flags: int


def volume_label(image: BinaryIO) -> str:
    """Raises ValueError where it is no ISO 9660 image."""
    return _descriptor(image)[40:72].decode("ascii", errors="replace").rstrip()


def find_file(image: BinaryIO, path: str) -> Extent:
    """The one stretch that holds the file. Raises ValueError where it is not there, or in several pieces."""
    here = _record(_descriptor(image), _ROOT_RECORD).extent
    names = [name for name in path.split("/") if name]
    for depth, name in enumerate(names):
        found = [record for record in _folder(image, here) if record.name == name]
        if not found:
            raise ValueError(f"there is no {path} in the image")
        if len(found) > 1 or found[0].flags & _CONTINUES:
            raise ValueError(f"{path} is not in one piece in the image")
        if bool(found[0].flags & _FOLDER) != (depth < len(names) - 1):
            raise ValueError(f"{path} is no file in the image")
        here = found[0].extent
    return here


def _descriptor(image: BinaryIO) -> bytes:
    image.seek(_DESCRIPTOR)
    data = image.read(_SECTOR)
    if len(data) != _SECTOR or data[:6] != b"\x01CD001":
        raise ValueError("this is no ISO 9660 image")
    return data


def _folder(image: BinaryIO, extent: Extent) -> Iterator[_Record]:
    if extent.size > _LARGEST_FOLDER:
        raise ValueError("a folder of the ISO 9660 image is larger than any that this reads")
    image.seek(extent.offset)
    data = image.read(extent.size)
    if len(data) != extent.size:
        raise ValueError("the ISO 9660 image is cut off")
    place = 0
    while place < len(data):
        if data[place] == 0:
            # No record crosses a sector's end.
            place = (place // _SECTOR + 1) * _SECTOR
            continue
        yield _record(data, place)
        place += data[place]


def _record(data: bytes, place: int) -> _Record:
    """Raises ValueError for a damaged one."""
    if data[place] < _SHORTEST_RECORD or place + data[place] > len(data):
        raise ValueError("a folder of the ISO 9660 image is damaged")
    length, sector, size, flags, name_length = (
        data[place],
        struct.unpack_from("<I", data, place + 2)[0],
        struct.unpack_from("<I", data, place + 10)[0],
        data[place + 25],
        data[place + 32],
    )
    plain = data[place + 33 : place + 33 + name_length].decode("ascii", errors="replace")
    uses = data[place + 33 + name_length + (name_length + 1) % 2 : place + length]
    return _Record(_long_name(uses) or plain.partition(";")[0], Extent(sector * _SECTOR, size), flags)


def _long_name(uses: bytes) -> str:
    """The NM entries of the system use area."""
    name, place = b"", 0
    while place + 4 <= len(uses) and uses[place + 2] >= 4:
        length = uses[place + 2]
        if uses[place : place + 2] == b"NM":
            name += uses[place + 5 : place + length]
        place += length
    return name.decode(errors="replace")
