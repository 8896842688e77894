"""The System Event Log: records of 16 bytes under record numbers (IPMI 2.0, chapters 31 and 32)."""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

RECORD_LENGTH: Final = 16
FIRST_RECORD: Final = 0x0000
LAST_RECORD: Final = 0xFFFF
_SYSTEM_EVENT: Final = 0x02
_FIRST_OEM_WITHOUT_TIME: Final = 0xE0
_EVENT_REVISION: Final = 0x04
_BMC_GENERATOR: Final = 0x0020


@dataclass(frozen=True, slots=True)
class Event:
    """A system event. `data` are event data 1 to 3; `asserted` False is a deassertion."""

    sensor_type: int
    sensor_number: int
    data: bytes
    event_type: int = 0x6F
    asserted: bool = True


class LogFull(RuntimeError):
    """The log has no room (completion code 0xC4)."""


class EventLog:
    """The log of one BMC. `time` gives SEL time: seconds since 1970."""

    def __init__(self, time: Callable[[], float], events: Iterable[Event] = (), capacity: int = 512) -> None:
        self._wall_clock = time
        self.offset = 0
        self.capacity = capacity
        self.last_addition = 0xFFFF_FFFF
        self.last_erase = 0xFFFF_FFFF
        self.overflowed = False
        self._records: dict[int, bytes] = {}
        self._next = 1
        self._reservation = 0
        self._is_reserved = False
        for event in events:
            self.record(event)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def time(self) -> int:
        """SEL time now, with the offset that Set SEL Time made."""
        return int(self._wall_clock()) + self.offset & 0xFFFF_FFFF

    def records(self) -> list[bytes]:
        """Every record, oldest first."""
        return list(self._records.values())

    def record(self, event: Event) -> int:
        """Log an event of the BMC itself; gives its record number, or 0 where the log is full."""
        direction = event.event_type | (0 if event.asserted else 0x80)
        body = struct.pack(
            "<HBIHBBBB3s",
            0,
            _SYSTEM_EVENT,
            0,
            _BMC_GENERATOR,
            _EVENT_REVISION,
            event.sensor_type,
            event.sensor_number,
            direction,
            event.data.ljust(3, b"\xff"),
        )
        try:
            return self.add(body)
        except LogFull:
            return 0

    def add(self, record: bytes) -> int:
        """Append 16 bytes; the log sets the record number and, where the type has one, the time. Raises LogFull."""
        if len(record) != RECORD_LENGTH:
            raise ValueError(f"a SEL record has {RECORD_LENGTH} bytes, not {len(record)}")
        if len(self._records) >= self.capacity:
            self.overflowed = True
            raise LogFull("the SEL is full")
        number, now = self._next, self.time
        self._next = self._next % (LAST_RECORD - 1) + 1
        stamped = record[3:] if record[2] >= _FIRST_OEM_WITHOUT_TIME else struct.pack("<I", now) + record[7:]
        self._records[number] = struct.pack("<HB", number, record[2]) + stamped
        self.last_addition = now
        return number

    def get(self, number: int) -> tuple[int, bytes] | None:
        """The record under a number (0 first, 0xFFFF last) and the next number; None where there is none."""
        numbers = list(self._records)
        if not numbers:
            return None
        if number in (FIRST_RECORD, LAST_RECORD):
            number = numbers[0] if number == FIRST_RECORD else numbers[-1]
        if number not in self._records:
            return None
        place = numbers.index(number) + 1
        following = numbers[place] if place < len(numbers) else LAST_RECORD
        return following, self._records[number]

    def delete(self, number: int) -> int | None:
        """Remove a record; gives its number, or None where there is none."""
        found = self.get(number)
        if found is None:
            return None
        real = int.from_bytes(found[1][:2], "little")
        del self._records[real]
        self.last_erase = self.time
        self._reservation_lost()
        return real

    def clear(self) -> None:
        """Remove every record."""
        self._records.clear()
        self.overflowed = False
        self.last_erase = self.time
        self._reservation_lost()

    def reserve(self) -> int:
        """A new reservation; older ones are void."""
        self._reservation = self._reservation % 0xFFFF + 1
        self._is_reserved = True
        return self._reservation

    def holds(self, reservation: int) -> bool:
        """Whether a reservation is still good."""
        return self._is_reserved and reservation == self._reservation

    def _reservation_lost(self) -> None:
        self._is_reserved = False
