"""The system event log: its records in words, reading its newest entries, clearing it.

Source: IPMI 2.0 revision 1.1, chapter 32 (record formats), 31.2 to 31.9 (commands).
"""

import struct
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from drivers.driver import Call
from drivers.ipmi import commands
from drivers.ipmi.commands import refusal
from drivers.ipmi.connection import IpmiConnection
from drivers.ipmi.events import event_text, sensor_type_name
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.management import Health, LogRecord

__all__ = ["SelError", "SelInfo", "clear_sel", "parse_entry", "parse_sel_info", "read_newest", "read_sel_info"]

_FIRST: Final = 0x0000
_LAST: Final = 0xFFFF
_SYSTEM_EVENT: Final = 0x02
_OEM_WITH_TIME: Final = range(0xC0, 0xE0)
_TIME_SINCE_START: Final = 0x2000_0000
"""Lower timestamps count seconds since the BMC started (37.1): no time of day is known for them."""
_NO_TIME: Final = 0xFFFF_FFFF
_NOT_PRESENT: Final = frozenset({0xC9, 0xCB, 0xCC, 0xCD})
_LOST_RESERVATION: Final = 0xC5
_ERASE_IN_PROGRESS: Final = 0x81
_START_ERASE, _ERASE_STATUS = 0xAA, 0x00


class SelError(ValueError):
    """A record of the event log that does not follow the specification."""


@dataclass(frozen=True, slots=True)
class SelInfo:
    entries: int
    reservable: bool
    overflowed: bool


def parse_sel_info(data: bytes) -> SelInfo:
    """The answer to Get SEL Info. Raises SelError."""
    if len(data) < 14:
        raise SelError(f"event log information of {len(data)} bytes is cut short")
    return SelInfo(int.from_bytes(data[1:3], "little"), bool(data[13] & 0x02), bool(data[13] & 0x80))


def parse_entry(record: bytes) -> LogRecord:
    """One record of 16 bytes in words. Raises SelError. A record of the maker's own keeps its bytes as text."""
    if len(record) < 16:
        raise SelError(f"an event log record of {len(record)} bytes is cut short")
    identifier, kind, seconds = struct.unpack_from("<HBI", record)
    if kind != _SYSTEM_EVENT:
        timed = kind in _OEM_WITH_TIME
        return LogRecord(
            id=f"{identifier:#06x}",
            time=_time(seconds) if timed else None,
            text=f"OEM record {kind:#04x}: {record[7 if timed else 3 : 16].hex(' ')}",
        )
    sensor_type, number, event_type = record[10], record[11], record[12] & 0x7F
    deasserted = bool(record[12] & 0x80)
    text, severity = event_text(sensor_type, event_type, record[13] & 0xF)
    if deasserted:
        severity = Health.OK
    return LogRecord(
        id=f"{identifier:#06x}",
        time=_time(seconds),
        severity=severity,
        text=f"{sensor_type_name(sensor_type)}: {text}" + (" (no longer)" if deasserted else ""),
        source=f"sensor {number:#04x}",
    )


def _time(seconds: int) -> str | None:
    """RFC 3339. The BMC's clock is taken for UTC: IPMI gives no zone, and makers are asked to set it so (37.1)."""
    if seconds < _TIME_SINCE_START or seconds == _NO_TIME:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def read_sel_info(connection: IpmiConnection, call: Call) -> SelInfo:
    """Raises OperationError."""
    data = await connection.run(commands.GET_SEL_INFO, call)
    try:
        return parse_sel_info(data)
    except SelError as error:
        raise OperationError(ErrorCode.BMC_ERROR, f"{connection.endpoint} sent {error}") from error


async def read_newest(connection: IpmiConnection, limit: int, call: Call) -> list[LogRecord]:
    """The newest entries, newest first.

    The log is chained forwards only. Where it is longer than `limit`, ids are tried downwards from the last entry,
    which spares most of the commands; where those ids are not in one row, it is read through from its first entry.
    """
    info = await read_sel_info(connection, call)
    if not info.entries:
        return []
    if info.entries > limit:
        backwards = await _read_backwards(connection, limit, call)
        if backwards is not None:
            return backwards
    newest: deque[LogRecord] = deque(maxlen=limit)
    following = _FIRST
    seen: set[int] = set()
    # A chain of ids that runs in a circle ends where it closes.
    while following not in seen:
        seen.add(following)
        found = await _entry(connection, following, call)
        if found is None:
            break
        following, record = found
        newest.append(record)
        if following == _LAST:
            break
    return list(reversed(newest))


async def _read_backwards(connection: IpmiConnection, limit: int, call: Call) -> list[LogRecord] | None:
    last = await _entry(connection, _LAST, call)
    if last is None:
        return None
    entries = [last[1]]
    identifier = int(last[1].id, 16)
    while len(entries) < limit:
        expected, identifier = identifier, identifier - 1
        found = await _entry(connection, identifier, call) if identifier > 0 else None
        if found is None or found[0] != expected:
            return None
        entries.append(found[1])
    return entries


async def _entry(connection: IpmiConnection, identifier: int, call: Call) -> tuple[int, LogRecord] | None:
    """The next entry's id and this entry; None where there is none of this id."""
    command = commands.GET_SEL_ENTRY.with_data(struct.pack("<HHBB", 0, identifier, 0, 0xFF))
    answer = await connection.ask(command, call)
    if answer.completion_code in _NOT_PRESENT:
        return None
    if answer.completion_code:
        raise refusal(command, answer, connection.endpoint, {_ERASE_IN_PROGRESS: ErrorCode.BUSY})
    following, record = int.from_bytes(answer.data[:2], "little"), answer.data[2:]
    if len(answer.data) < 2:
        raise OperationError(ErrorCode.BMC_ERROR, f"{connection.endpoint} sent an event log record without an id")
    try:
        return following, parse_entry(record)
    except SelError as error:
        # One bad record must not hide the others.
        return following, LogRecord(id=f"{identifier:#06x}", time=None, text=f"{error}: {record.hex(' ') or 'empty'}")


async def clear_sel(connection: IpmiConnection, call: Call) -> int:
    """Empties the log and waits until the BMC has erased it; gives the entries that it then holds.

    Raises OperationError. After a crash the log is whole or empty; clearing it again is harmless.
    """
    info = await read_sel_info(connection, call)
    for _ in range(3):
        reservation = await _reserve(connection, info, call)
        if await _erase(connection, reservation, call):
            return (await read_sel_info(connection, call)).entries
    raise OperationError(
        ErrorCode.CONFLICT,
        f"{connection.endpoint} cancelled the reservation of its event log three times: another client writes to it",
    )


async def _reserve(connection: IpmiConnection, info: SelInfo, call: Call) -> bytes:
    if not info.reservable:
        return b"\0\0"
    data = await connection.run(commands.RESERVE_SEL, call)
    return data[:2].ljust(2, b"\0")


async def _erase(connection: IpmiConnection, reservation: bytes, call: Call) -> bool:
    """Starts the erasure and waits for its end. False where the reservation was lost."""
    action = _START_ERASE
    while True:
        command = commands.CLEAR_SEL.with_data(reservation + b"CLR" + bytes((action,)))
        answer = await connection.ask(command, call)
        if answer.completion_code == _LOST_RESERVATION:
            return False
        if answer.completion_code:
            raise refusal(command, answer, connection.endpoint)
        if answer.data and answer.data[0] & 0xF == 1:
            return True
        action = _ERASE_STATUS
        await call.sleep(0.2, "waiting for the BMC to erase its event log")
