"""Reads a BMC's sensor records: from its SDR repository, or from the BMC's own device records where it has none."""

import struct
from dataclasses import dataclass
from typing import Final

from drivers.driver import Call
from drivers.ipmi import commands
from drivers.ipmi.commands import Command, refusal
from drivers.ipmi.connection import IpmiConnection
from drivers.ipmi.device import read_device_id
from drivers.ipmi.sdr import SdrError, SensorRecord, parse_record
from protocol.errors import ErrorCode, OperationError

__all__ = ["read_sensor_records"]

_FACT: Final = "sensor-records"
_LAST: Final = 0xFFFF
_HEADER: Final = 5
_WHOLE: Final = 0xFF
_SIZES: Final = (_WHOLE, 32, 16, 8)
"""Bytes per read, the whole record first: many BMCs refuse more than a few over LAN (0xCA)."""
_TOO_MUCH: Final = frozenset({0xC4, 0xC7, 0xC8, 0xCA, 0xFF})
_LOST_RESERVATION: Final = 0xC5
_MOST_RESERVATIONS: Final = 8
_MOST_RECORDS: Final = 4096
"""More records than any BMC has: a chain of ids that runs in a circle ends there."""


@dataclass(frozen=True, slots=True)
class _Known:
    stamp: bytes
    records: list[SensorRecord]


@dataclass(frozen=True, slots=True)
class _Source:
    reserve: Command
    get: Command


_REPOSITORY: Final = _Source(commands.RESERVE_SDR_REPOSITORY, commands.GET_SDR)
_DEVICE: Final = _Source(commands.RESERVE_DEVICE_SDRS, commands.GET_DEVICE_SDR)


async def read_sensor_records(connection: IpmiConnection, call: Call) -> list[SensorRecord]:
    """Every sensor record, in the BMC's order. They are kept for the connection until the repository changes."""
    device = await read_device_id(connection, call)
    source, stamp = _REPOSITORY, b""
    if device.has_sdr_repository or not device.provides_device_sdrs:
        info = await connection.run(commands.GET_SDR_REPOSITORY_INFO, call)
        # Count, last addition and last erasure: what changes when the records do.
        stamp = info[1:3] + info[5:13]
    else:
        source = _DEVICE
    known = connection.facts.get(_FACT)
    if isinstance(known, _Known) and known.stamp == stamp:
        return known.records
    records = await _Walk(connection, source, call).run()
    connection.facts[_FACT] = _Known(stamp, records)
    return records


class _Walk:
    """One pass over the records, which are chained by their ids."""

    def __init__(self, connection: IpmiConnection, source: _Source, call: Call) -> None:
        self._connection = connection
        self._source = source
        self._call = call
        self._sizes = list(_SIZES)
        self._reservation = b""
        self._reservations = 0

    async def run(self) -> list[SensorRecord]:
        records, identifier = [], 0
        seen: set[int] = set()
        while identifier not in seen and len(seen) < _MOST_RECORDS:
            seen.add(identifier)
            identifier, data = await self._record(identifier)
            try:
                record = parse_record(data)
            except SdrError:
                # One bad record must not hide the other sensors.
                record = None
            if record is not None:
                records.append(record)
            if identifier == _LAST:
                break
        return records

    async def _record(self, identifier: int) -> tuple[int, bytes]:
        """The next record's id, and this record: whole where the BMC gives it, in parts else."""
        following, data = await self._part(identifier, 0, _HEADER)
        length = _HEADER + data[4] if len(data) >= _HEADER else len(data)
        while len(data) < length:
            part = (await self._part(identifier, len(data), length - len(data)))[1]
            if not part:
                break
            data += part
        return following, data[:length]

    async def _part(self, identifier: int, offset: int, wanted: int) -> tuple[int, bytes]:
        """Up to `wanted` bytes from `offset`, or the whole record while the BMC is not known to refuse that."""
        while True:
            whole = self._sizes[0] == _WHOLE and not offset
            if not whole and not self._reservation:
                await self._reserve()
            size = _WHOLE if whole else min(wanted, self._sizes[0])
            request = (self._reservation or b"\0\0") + struct.pack("<HBB", identifier, offset, size)
            command = self._source.get.with_data(request)
            answer = await self._connection.ask(command, self._call)
            if not answer.completion_code:
                if len(answer.data) < 2:
                    raise OperationError(
                        ErrorCode.BMC_ERROR, f"{self._connection.endpoint} sent a sensor record that is cut short"
                    )
                return int.from_bytes(answer.data[:2], "little"), answer.data[2:]
            if answer.completion_code == _LOST_RESERVATION and self._reservations < _MOST_RESERVATIONS:
                await self._reserve()
            elif answer.completion_code in _TOO_MUCH and len(self._sizes) > 1:
                self._sizes.pop(0)
            else:
                raise refusal(command, answer, self._connection.endpoint)

    async def _reserve(self) -> None:
        """Parts of a record need a reservation; a BMC that knows none takes zero."""
        self._reservations += 1
        answer = await self._connection.ask(self._source.reserve, self._call)
        self._reservation = answer.data[:2] if not answer.completion_code and len(answer.data) >= 2 else b"\0\0"
