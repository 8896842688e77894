"""FRU inventory: who made the machine, its model and serial numbers.

Source: IPMI Platform Management FRU Information Storage Definition 1.0 revision 1.3, chapters 8 (common header),
10 (chassis), 11 (board), 12 (product), 13 (type/length bytes); IPMI 2.0, 34.1 and 34.2 (commands).
"""

import struct
from dataclasses import dataclass
from typing import Final

from drivers.driver import Call
from drivers.ipmi import commands
from drivers.ipmi.commands import refusal
from drivers.ipmi.connection import IpmiConnection

__all__ = ["Fru", "FruError", "area_end", "area_offsets", "parse_areas", "read_fru"]

_UNIT: Final = 8
_END_OF_FIELDS: Final = 0xC1
_CHUNKS: Final = (32, 16, 8)
"""Bytes per read: the largest that the BMC takes; some refuse more than 16 over LAN."""
_TOO_MUCH: Final = frozenset({0xC4, 0xC7, 0xC8, 0xCA, 0xFF})
_BUSY: Final = 0x81
_BUSY_TRIES: Final = 10
_BCD_PLUS: Final = "0123456789 -.???"


class FruError(ValueError):
    """FRU data that does not follow the specification."""


@dataclass(frozen=True, slots=True)
class Fru:
    """The fields that identify a machine. None: the area or the field is not there, or is blank."""

    chassis_part: str | None = None
    chassis_serial: str | None = None
    board_maker: str | None = None
    board_name: str | None = None
    board_serial: str | None = None
    board_part: str | None = None
    product_maker: str | None = None
    product_name: str | None = None
    product_part: str | None = None
    product_version: str | None = None
    product_serial: str | None = None
    asset_tag: str | None = None

    @property
    def maker(self) -> str | None:
        return self.product_maker or self.board_maker

    @property
    def model(self) -> str | None:
        return self.product_name or self.board_name

    @property
    def serial(self) -> str | None:
        return self.product_serial or self.chassis_serial or self.board_serial


def area_offsets(header: bytes) -> tuple[int, int, int]:
    """Where the chassis, board and product areas begin, in bytes; 0 where there is none. Raises FruError."""
    if len(header) < _UNIT:
        raise FruError(f"a FRU header of {len(header)} bytes is cut short")
    if header[0] & 0xF != 1:
        raise FruError(f"FRU format version {header[0] & 0xF} is not known; a blank FRU reads so")
    return header[2] * _UNIT, header[3] * _UNIT, header[4] * _UNIT


def area_end(offset: int, start: bytes) -> int:
    """Where the area ends whose first two bytes these are."""
    return offset + start[1] * _UNIT if len(start) > 1 else offset


def parse_areas(chassis: bytes, board: bytes, product: bytes) -> Fru:
    """The fields of the areas; an empty area is one that is not there. A wrong checksum alone spoils nothing."""
    chassis_fields = _fields(chassis, 3, english=True)
    board_fields = _fields(board, 6, english=_is_english(board))
    product_fields = _fields(product, 3, english=_is_english(product))

    def at(fields: list[str | None], index: int) -> str | None:
        return fields[index] if index < len(fields) else None

    return Fru(
        chassis_part=at(chassis_fields, 0),
        chassis_serial=at(chassis_fields, 1),
        board_maker=at(board_fields, 0),
        board_name=at(board_fields, 1),
        board_serial=at(board_fields, 2),
        board_part=at(board_fields, 3),
        product_maker=at(product_fields, 0),
        product_name=at(product_fields, 1),
        product_part=at(product_fields, 2),
        product_version=at(product_fields, 3),
        product_serial=at(product_fields, 4),
        asset_tag=at(product_fields, 5),
    )


async def read_fru(connection: IpmiConnection, device: int, call: Call) -> Fru:
    """The three areas of one FRU device, without the rest of it. Raises FruError, or OperationError."""
    info = await connection.run(commands.GET_FRU_AREA_INFO.with_data(bytes((device,))), call)
    if len(info) < 3:
        raise FruError(f"FRU area info of {len(info)} bytes is cut short")
    reader = _Reader(connection, device, int.from_bytes(info[:2], "little"), bool(info[2] & 1), call)
    areas = []
    for offset in area_offsets(await reader.read(0, _UNIT)):
        if not offset:
            areas.append(b"")
            continue
        start = await reader.read(offset, _UNIT)
        areas.append(start + await reader.read(offset + len(start), area_end(offset, start) - offset - len(start)))
    return parse_areas(*areas)


class _Reader:
    def __init__(self, connection: IpmiConnection, device: int, size: int, by_words: bool, call: Call) -> None:
        self._connection = connection
        self._device = device
        self._size = size
        self._unit = 2 if by_words else 1
        self._call = call
        self._chunks = list(_CHUNKS)

    async def read(self, offset: int, length: int) -> bytes:
        """So many bytes, or fewer where the FRU ends before."""
        data = b""
        end = min(offset + length, self._size)
        while offset + len(data) < end:
            part = await self._part(offset + len(data), min(self._chunks[0], end - offset - len(data)))
            if not part:
                break
            data += part
        return data[:length]

    async def _part(self, offset: int, length: int) -> bytes:
        unit, busy = self._unit, 0
        while True:
            request = struct.pack("<BHB", self._device, offset // unit, -(-length // unit))
            command = commands.READ_FRU_DATA.with_data(request)
            answer = await self._connection.ask(command, self._call)
            code = answer.completion_code
            if not code:
                return answer.data[1 : 1 + answer.data[0] * unit] if answer.data else b""
            if code == _BUSY and busy < _BUSY_TRIES:
                busy += 1
                await self._call.sleep(0.2, "reading the FRU, which is busy")
            elif code in _TOO_MUCH and len(self._chunks) > 1:
                self._chunks.pop(0)
                length = min(length, self._chunks[0])
            else:
                raise refusal(command, answer, self._connection.endpoint)


def _is_english(area: bytes) -> bool:
    return len(area) > 2 and area[2] in (0, 25)


def _fields(area: bytes, start: int, *, english: bool) -> list[str | None]:
    """The texts from `start` to the end mark, or to where the area is cut off."""
    fields: list[str | None] = []
    position = start
    while position < len(area) and area[position] != _END_OF_FIELDS:
        kind, length = area[position] >> 6, area[position] & 0x3F
        fields.append(_text(kind, area[position + 1 : position + 1 + length], english))
        position += 1 + length
    return fields


def _text(kind: int, data: bytes, english: bool) -> str | None:
    """Text by its type bits: binary (shown as hexadecimal), BCD plus, six-bit ASCII, Latin-1 or UTF-16."""
    if kind == 0:
        text = data.hex() if any(data) else ""
    elif kind == 1:
        text = "".join(_BCD_PLUS[byte >> 4] + _BCD_PLUS[byte & 0xF] for byte in data)
    elif kind == 2:
        bits = int.from_bytes(data, "little")
        text = "".join(chr(0x20 + (bits >> 6 * n & 0x3F)) for n in range(len(data) * 8 // 6))
    elif english:
        text = data.decode("latin-1")
    else:
        # Other languages are UTF-16 by the specification; makers that set no language write ASCII all the same.
        text = data.decode("utf-16-le", "replace") if b"\0" in data else data.decode("latin-1")
    return "".join(c for c in text if c.isprintable()).strip() or None
