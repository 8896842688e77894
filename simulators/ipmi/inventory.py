"""FRU inventories in the layout of the Platform Management FRU Information Storage Definition 1.0."""

import datetime
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simulators.ipmi.packets import checksum

_VERSION: Final = 0x01
_ENGLISH: Final = 0x19
_TEXT: Final = 0xC0
_END_OF_FIELDS: Final = 0xC1
_RACK_MOUNT_CHASSIS: Final = 0x17
_EPOCH: Final = datetime.datetime(1996, 1, 1, tzinfo=datetime.UTC)
_LONGEST_FIELD: Final = 63


@dataclass(frozen=True, slots=True)
class Fru:
    """The fields of one inventory. A chassis without part and serial number has no chassis area."""

    name: str
    entity: tuple[int, int]
    manufacturer: str
    product: str
    part_number: str
    serial: str
    version: str = ""
    asset_tag: str = ""
    chassis_part: str = ""
    chassis_serial: str = ""
    made: datetime.datetime = datetime.datetime(2024, 3, 1, 8, 0, tzinfo=datetime.UTC)

    def encode(self, size: int = 512) -> bytearray:
        """The whole inventory: common header, chassis, board and product area, then free space."""
        chassis = (
            _area(bytes((_RACK_MOUNT_CHASSIS,)), (self.chassis_part, self.chassis_serial))
            if self.chassis_part or self.chassis_serial
            else b""
        )
        minutes = int((self.made - _EPOCH).total_seconds() // 60)
        board = _area(
            bytes((_ENGLISH,)) + struct.pack("<I", minutes)[:3],
            (self.manufacturer, self.product, self.serial, self.part_number, ""),
        )
        product = _area(
            bytes((_ENGLISH,)),
            (self.manufacturer, self.product, self.part_number, self.version, self.serial, self.asset_tag, ""),
        )
        offsets, body = [], b""
        for area in (chassis, board, product):
            offsets.append((8 + len(body)) // 8 if area else 0)
            body += area
        header = bytes((_VERSION, 0, *offsets, 0, 0))
        whole = header + bytes((checksum(header),)) + body
        if len(whole) > size:
            raise ValueError(f"the inventory of {self.name!r} needs {len(whole)} bytes, more than {size}")
        return bytearray(whole.ljust(size, b"\xff"))


def _area(head: bytes, fields: Sequence[str]) -> bytes:
    """One area: version, length in units of 8 bytes, head, fields, end mark, padding, checksum."""
    body = head + b"".join(_field(field) for field in fields) + bytes((_END_OF_FIELDS,))
    length = -(-(len(body) + 3) // 8)
    area = bytes((_VERSION, length)) + body
    area = area.ljust(8 * length - 1, b"\0")
    return area + bytes((checksum(area),))


def _field(text: str) -> bytes:
    """A type/length byte and the text. A length of 1 would read as the end mark, so one letter gets a space."""
    encoded = text.encode("latin-1")[:_LONGEST_FIELD]
    if len(encoded) == 1:
        encoded += b" "
    return bytes((_TEXT | len(encoded),)) + encoded


def default_frus(serial: str) -> list[Fru]:
    """The inventories of a plausible 1U server: the system board, and its power supply."""
    return [
        Fru(
            name="System Board",
            entity=(7, 1),
            manufacturer="Rackwright",
            product="Simulated 1U Server",
            part_number="RW-1U-SIM",
            serial=serial,
            version="A00",
            asset_tag="rack-7-u12",
            chassis_part="RW-CHASSIS-1U",
            chassis_serial=f"{serial}-C",
        ),
        Fru(
            name="PSU1",
            entity=(0x0A, 1),
            manufacturer="Rackwright",
            product="Simulated PSU 800W",
            part_number="RW-PSU-800",
            serial=f"{serial}-P1",
            version="B1",
        ),
    ]
