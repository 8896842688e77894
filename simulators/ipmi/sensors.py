"""Sensors and the SDR records that describe them (IPMI 2.0, chapters 35, 36, 43).

A reading in units is `(multiplier * raw + offset * 10 ** offset_exponent) * 10 ** exponent`; all sensors here
are unsigned and linear.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Final

SDR_VERSION: Final = 0x51
_FULL, _COMPACT, _FRU_LOCATOR, _MC_LOCATOR = 0x01, 0x02, 0x11, 0x12
_OWNER: Final = 0x20
_THRESHOLD_EVENTS: Final = 0x01
_SENSOR_SPECIFIC_EVENTS: Final = 0x6F
_TEXT_8_BIT: Final = 0xC0
# Bits 14:12 of both event masks: the threshold comparisons that Get Sensor Reading returns.
_COMPARISONS_RETURNED: Final = 0x7000


class SensorType(IntEnum):
    """Sensor types used here (IPMI 2.0, table 42-3)."""

    TEMPERATURE = 0x01
    VOLTAGE = 0x02
    FAN = 0x04
    POWER_SUPPLY = 0x08
    POWER_UNIT = 0x09
    OTHER_UNITS = 0x0B
    EVENT_LOGGING = 0x10
    SYSTEM_BOOT = 0x1D


class Unit(IntEnum):
    """Base units (IPMI 2.0, table 43-15)."""

    NONE = 0
    DEGREES_C = 1
    VOLTS = 4
    AMPERES = 5
    WATTS = 6
    RPM = 18


class Threshold(IntFlag):
    """The six thresholds, as masks and comparison bits order them."""

    LOWER_NON_CRITICAL = 0x01
    LOWER_CRITICAL = 0x02
    LOWER_NON_RECOVERABLE = 0x04
    UPPER_NON_CRITICAL = 0x08
    UPPER_CRITICAL = 0x10
    UPPER_NON_RECOVERABLE = 0x20


@dataclass(slots=True)
class AnalogSensor:
    """A threshold sensor. `value` is in `unit`; `needs_power` makes it unavailable while the machine is off."""

    number: int
    name: str
    type: SensorType
    unit: Unit
    value: float
    multiplier: int
    exponent: int = 0
    entity: tuple[int, int] = (7, 1)
    thresholds: dict[Threshold, float] = field(default_factory=dict)
    hysteresis: int = 1
    needs_power: bool = True

    def raw(self, value: float) -> int:
        """A value in units as the byte that the sensor delivers, clamped to what fits."""
        return max(0, min(255, round(value / (self.multiplier * 10.0**self.exponent))))

    def raw_thresholds(self) -> bytes:
        """Six bytes: LNC, LC, LNR, UNC, UC, UNR; 0 where there is none."""
        return bytes(self.raw(self.thresholds.get(threshold, 0)) for threshold in Threshold)

    def mask(self) -> int:
        """Which thresholds exist."""
        return sum(self.thresholds)

    def crossed(self) -> int:
        """The comparison bits of the present value."""
        bits = 0
        for threshold, limit in self.thresholds.items():
            lower = threshold <= Threshold.LOWER_NON_RECOVERABLE
            if (self.raw(self.value) <= self.raw(limit)) if lower else (self.raw(self.value) >= self.raw(limit)):
                bits |= threshold
        return bits

    def record(self, number: int) -> bytes:
        """The sensor's full sensor record."""
        mask, events = self.mask(), _COMPARISONS_RETURNED | _assertions(self.mask())
        multiplier_high = self.multiplier >> 2 & 0xC0
        body = struct.pack("<9B", _OWNER, 0, self.number, *self.entity, 0x7F, 0x58, self.type, _THRESHOLD_EVENTS)
        body += struct.pack("<HH", events, events) + bytes((mask, mask))
        # Unsigned, per no time, modified by nothing, linear.
        body += bytes((0x00, self.unit, 0x00, 0x00))
        # M, B, tolerance, accuracy, exponents of the result and of B.
        body += bytes((self.multiplier & 0xFF, multiplier_high, 0, 0, 0, (self.exponent & 0xF) << 4))
        # No nominal reading given; readings run from 0 to 0xFF.
        body += bytes((0, 0, 0, 0, 0xFF, 0))
        body += self.raw_thresholds()[::-1] + bytes((self.hysteresis, self.hysteresis, 0, 0, 0))
        return _record(number, _FULL, body + _text(self.name))


@dataclass(slots=True)
class DiscreteSensor:
    """A sensor of states: bit N of `states` is offset N of its type."""

    number: int
    name: str
    type: SensorType
    states: int
    entity: tuple[int, int] = (7, 1)
    needs_power: bool = False

    def record(self, number: int) -> bytes:
        """The sensor's compact sensor record."""
        body = struct.pack(
            "<9B", _OWNER, 0, self.number, *self.entity, 0x67, 0x40, self.type, _SENSOR_SPECIFIC_EVENTS
        )
        body += struct.pack("<HHH", 0x00FF, 0x00FF, 0x00FF)
        # No analog reading; shared by one sensor; no hysteresis.
        body += bytes((0xC0, 0, 0)) + struct.pack("<H", 0x0001) + bytes(6)
        return _record(number, _COMPACT, body + _text(self.name))


Sensor = AnalogSensor | DiscreteSensor


def _assertions(mask: int) -> int:
    """Event bits of the thresholds that exist: going low for the lower ones, going high for the upper ones."""
    bits = 0
    for place, threshold in enumerate(Threshold):
        if mask & threshold:
            bits |= 1 << (2 * place + (1 if place >= 3 else 0))
    return bits


def _text(name: str) -> bytes:
    encoded = name.encode("ascii")
    if len(encoded) > 16:
        raise ValueError(f"the sensor name {name!r} is longer than 16 characters: shorten it")
    return bytes((_TEXT_8_BIT | len(encoded),)) + encoded


def _record(number: int, kind: int, body: bytes) -> bytes:
    return struct.pack("<HBBB", number, SDR_VERSION, kind, len(body)) + body


def fru_locator(number: int, device: int, name: str, entity: tuple[int, int]) -> bytes:
    """An SDR that says where a FRU inventory is: a logical FRU device behind the BMC."""
    return _record(number, _FRU_LOCATOR, bytes((_OWNER, device, 0x80, 0, 0, 0x10, 0, *entity, 0)) + _text(name))


def controller_locator(number: int, name: str) -> bytes:
    """The SDR of the BMC itself."""
    return _record(number, _MC_LOCATOR, bytes((_OWNER, 0, 0, 0x8F, 0, 0, 0, 0x2E, 1, 0)) + _text(name))


class SensorRepository:
    """Sensors by number, and the SDR records in their order."""

    def __init__(self, sensors: Iterable[Sensor], frus: Sequence[tuple[int, str, tuple[int, int]]]) -> None:
        self.sensors = {sensor.number: sensor for sensor in sensors}
        self.records: dict[int, bytes] = {1: controller_locator(1, "BMC")}
        for device, name, entity in frus:
            number = len(self.records) + 1
            self.records[number] = fru_locator(number, device, name, entity)
        for sensor in self.sensors.values():
            number = len(self.records) + 1
            self.records[number] = sensor.record(number)
        self.reservation = 0

    def named(self, name: str) -> Sensor:
        """The sensor of this name. Raises KeyError."""
        return next(sensor for sensor in self.sensors.values() if sensor.name == name)

    def find(self, number: int) -> tuple[int, bytes] | None:
        """The record under a number (0 first, 0xFFFF last) and the next number; None where there is none."""
        last = len(self.records)
        wanted = {0: 1, 0xFFFF: last}.get(number, number)
        if wanted not in self.records:
            return None
        return (wanted + 1 if wanted < last else 0xFFFF), self.records[wanted]

    def reserve(self) -> int:
        """A new reservation; the older one is void."""
        self.reservation = self.reservation % 0xFFFF + 1
        return self.reservation


def default_sensors() -> list[Sensor]:
    """The sensors of a plausible 1U server."""
    hot = {
        Threshold.UPPER_NON_CRITICAL: 40.0,
        Threshold.UPPER_CRITICAL: 45.0,
        Threshold.UPPER_NON_RECOVERABLE: 50.0,
        Threshold.LOWER_CRITICAL: 2.0,
    }
    hotter = {
        Threshold.UPPER_NON_CRITICAL: 90.0,
        Threshold.UPPER_CRITICAL: 95.0,
        Threshold.UPPER_NON_RECOVERABLE: 100.0,
    }
    slow = {Threshold.LOWER_NON_CRITICAL: 2000.0, Threshold.LOWER_CRITICAL: 1000.0}
    low_12 = {Threshold.LOWER_CRITICAL: 10.8, Threshold.UPPER_CRITICAL: 13.2}
    low_3 = {Threshold.LOWER_CRITICAL: 2.97, Threshold.UPPER_CRITICAL: 3.63}
    temperature, fan, volts = SensorType.TEMPERATURE, SensorType.FAN, SensorType.VOLTAGE
    fans: list[Sensor] = [
        AnalogSensor(0x30 + n, f"FAN{n}", fan, Unit.RPM, 8400.0, 100, 0, (0x1D, n), dict(slow)) for n in (1, 2, 3)
    ]
    return [
        AnalogSensor(0x01, "Inlet Temp", temperature, Unit.DEGREES_C, 24.0, 1, 0, (0x37, 1), hot, needs_power=False),
        AnalogSensor(0x02, "CPU1 Temp", temperature, Unit.DEGREES_C, 52.0, 1, 0, (3, 1), hotter),
        *fans,
        AnalogSensor(0x20, "P12V", volts, Unit.VOLTS, 12.06, 6, -2, (7, 1), low_12),
        AnalogSensor(0x21, "P3V3", volts, Unit.VOLTS, 3.32, 2, -2, (7, 1), low_3),
        AnalogSensor(
            0x40, "PSU1 Input", SensorType.OTHER_UNITS, Unit.WATTS, 184.0, 4, 0, (0x0A, 1), needs_power=False
        ),
        DiscreteSensor(0x41, "PSU1 Status", SensorType.POWER_SUPPLY, 0x01, (0x0A, 1)),
        DiscreteSensor(0x42, "PSU2 Status", SensorType.POWER_SUPPLY, 0x01, (0x0A, 2)),
    ]
