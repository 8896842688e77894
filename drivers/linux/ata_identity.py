"""What an ATA drive says of itself in its IDENTIFY DEVICE data (ACS-4, 7.12.7). Pure."""

import struct
from dataclasses import dataclass

__all__ = ["AtaIdentity", "from_vpd", "parse_identity"]

_PAGE = 0x89
_IDENTITY = slice(60, 572)
"""Where SAT-4 (12.4.2, ATA Information VPD page) keeps the IDENTIFY DEVICE data."""


@dataclass(frozen=True, slots=True)
class AtaIdentity:
    model: str
    serial: str
    firmware: str
    wwn: int | None
    rotation: int | None
    """Turns a minute; 1 for a drive without moving parts, None where it is not told."""


def from_vpd(page: bytes | None) -> AtaIdentity | None:
    """Out of the SCSI page that the kernel keeps of an ATA drive; None for any other drive."""
    if page is None or len(page) < _IDENTITY.stop or page[1] != _PAGE:
        return None
    return parse_identity(page[_IDENTITY])


def parse_identity(data: bytes) -> AtaIdentity | None:
    """None for data that is not the 512 bytes of an answer."""
    if len(data) < 512 or not any(data):
        return None
    words = struct.unpack("<256H", data[:512])
    name = words[108] << 48 | words[109] << 32 | words[110] << 16 | words[111]
    told = words[87] & 0xC100 == 0x4100
    return AtaIdentity(
        model=_swapped(data[54:94]),
        serial=_swapped(data[20:40]),
        firmware=_swapped(data[46:54]),
        wwn=name if told and name else None,
        rotation=words[217] if words[217] == 1 or 0x0401 <= words[217] < 0xFFFF else None,
    )


def _swapped(data: bytes) -> str:
    """ATA's texts: the two characters of each word the other way round."""
    turned = bytes(data[index ^ 1] for index in range(len(data)))
    return turned.decode("ascii", errors="replace").strip("\0 ")
