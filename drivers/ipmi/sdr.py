"""Sensor data records: which sensors there are, and how their bytes become numbers.

Source: IPMI 2.0 revision 1.1, chapter 43 (records), 36.3 (conversion), table 43-1, 43.17 (units); 33.9 to 33.12 and
35.2 to 35.4 (reading the repository or the BMC's device records).
"""

import math
import struct
from dataclasses import dataclass, replace
from typing import Final

__all__ = ["UNITS", "Factors", "SdrError", "SensorRecord", "parse_factors", "parse_record"]

_FULL, _COMPACT = 0x01, 0x02
_NON_LINEAR_FROM: Final = 0x70
_LOWER_WARNING, _LOWER_CRITICAL = 0x01, 0x02
_UPPER_WARNING, _UPPER_CRITICAL = 0x08, 0x10

UNITS: Final[dict[int, str]] = {
    1: "°C",
    2: "°F",
    3: "K",
    4: "V",
    5: "A",
    6: "W",
    7: "J",
    8: "C",
    9: "VA",
    10: "nit",
    11: "lm",
    12: "lx",
    13: "cd",
    14: "kPa",
    15: "psi",
    16: "N",
    17: "CFM",
    18: "RPM",
    19: "Hz",
    20: "µs",
    21: "ms",
    22: "s",
    23: "min",
    24: "h",
    25: "d",
    26: "weeks",
    28: "in",
    29: "ft",
    32: "mm",
    33: "cm",
    34: "m",
    37: "l",
    54: "Ω",
    58: "ppm",
    60: "dB",
    61: "dBA",
    66: "bit",
    67: "kbit",
    68: "Mbit",
    69: "Gbit",
    70: "B",
    71: "kB",
    72: "MB",
    73: "GB",
}
_PER: Final = ("", "/µs", "/ms", "/s", "/min", "/h", "/d", "")


class SdrError(ValueError):
    """A sensor data record that does not follow the specification."""


@dataclass(frozen=True, slots=True)
class Factors:
    """y = L((M·x + B·10^b_exponent)·10^r_exponent), L by the linearization's number."""

    m: int
    b: int
    b_exponent: int
    r_exponent: int

    def value(self, raw: int, linearization: int) -> float | None:
        """None where the function has no value there, such as the logarithm of nothing."""
        straight = (self.m * raw + self.b * 10.0**self.b_exponent) * 10.0**self.r_exponent
        try:
            result = _linearized(straight, linearization)
        except (ValueError, OverflowError, ZeroDivisionError):
            return None
        return result if math.isfinite(result) else None


@dataclass(frozen=True, slots=True)
class SensorRecord:
    """One sensor. `factors` is None where it is no number; `share` counts the sensors that share the record."""

    owner: int
    lun: int
    number: int
    entity: int
    entity_instance: int
    sensor_type: int
    event_type: int
    name: str
    share: int = 1
    unit: str | None = None
    data_format: int = 3
    linearization: int = 0
    factors: Factors | None = None
    readable: int = 0
    """Which thresholds may be read: a mask, lower warning first."""
    thresholds: bytes = bytes(6)
    """Raw upper non-recoverable, critical, warning, then lower ones, as the record holds them."""

    @property
    def is_analog(self) -> bool:
        return self.data_format < 3

    @property
    def is_non_linear(self) -> bool:
        """Its factors depend on the reading, and must be asked for."""
        return self.is_analog and self.linearization >= _NON_LINEAR_FROM

    def signed(self, raw: int) -> int:
        """The raw byte as the number that the record's format means."""
        if self.data_format == 1:
            return raw - 0xFF if raw & 0x80 else raw
        if self.data_format == 2:
            return raw - 0x100 if raw & 0x80 else raw
        return raw

    def value(self, raw: int, factors: Factors | None = None) -> float | None:
        """A raw byte as a number, rounded to what the sensor can resolve."""
        used = factors or self.factors
        if used is None or not self.is_analog:
            return None
        linearization = 0 if self.linearization >= _NON_LINEAR_FROM else self.linearization
        number = used.value(self.signed(raw), linearization)
        return None if number is None else float(f"{number:.6g}")

    def threshold(self, mask: int) -> int | None:
        """The raw value of one threshold, where the record says that it is readable."""
        index = {_UPPER_CRITICAL: 1, _UPPER_WARNING: 2, _LOWER_CRITICAL: 4, _LOWER_WARNING: 5}[mask]
        return self.thresholds[index] if self.readable & mask else None


def parse_record(record: bytes) -> SensorRecord | None:
    """A whole record with its five header bytes. None for records that are no readable sensor. Raises SdrError."""
    if len(record) < 5:
        raise SdrError(f"a sensor data record of {len(record)} bytes is cut short")
    kind = record[3]
    if kind not in (_FULL, _COMPACT):
        return None
    least = 48 if kind == _FULL else 32
    if len(record) < least:
        raise SdrError(f"a sensor record of type {kind} has {len(record)} bytes, not {least}")
    sensor = SensorRecord(
        owner=record[5],
        lun=record[6] & 0x03,
        number=record[7],
        entity=record[8],
        entity_instance=record[9],
        sensor_type=record[12],
        event_type=record[13] & 0x7F,
        name=_name(record[47:] if kind == _FULL else record[31:]),
    )
    if kind == _COMPACT:
        return replace(sensor, share=max(1, record[23] & 0x0F))
    return replace(
        sensor,
        unit=_unit(record[20], record[21], record[22]),
        data_format=record[20] >> 6,
        linearization=record[23] & 0x7F,
        factors=_factors(record[24:30]),
        readable=record[18] & 0x3F,
        thresholds=record[36:42],
    )


def parse_factors(data: bytes) -> Factors:
    """The answer to Get Sensor Reading Factors. Raises SdrError."""
    if len(data) < 7:
        raise SdrError(f"sensor reading factors of {len(data)} bytes are cut short")
    return _factors(data[1:7])


def _factors(data: bytes) -> Factors:
    """M, tolerance, B, accuracy and the exponents: two's complement fields of 10 and 4 bits."""
    m_low, m_high, b_low, b_high, _, exponents = struct.unpack("6B", data)
    return Factors(
        m=_twos(m_low | (m_high & 0xC0) << 2, 10),
        b=_twos(b_low | (b_high & 0xC0) << 2, 10),
        b_exponent=_twos(exponents & 0xF, 4),
        r_exponent=_twos(exponents >> 4, 4),
    )


def _twos(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value


def _linearized(x: float, function: int) -> float:
    match function:
        case 1:
            return math.log(x)
        case 2:
            return math.log10(x)
        case 3:
            return math.log2(x)
        case 4:
            return math.exp(x)
        case 5:
            return math.pow(10.0, x)
        case 6:
            return math.pow(2.0, x)
        case 7:
            return 1.0 / x
        case 8:
            return x * x
        case 9:
            return x * x * x
        case 10:
            return math.sqrt(x)
        case 11:
            return math.copysign(abs(x) ** (1.0 / 3.0), x)
        case _:
            return x


def _unit(units_1: int, base: int, modifier: int) -> str | None:
    if units_1 & 0x01:
        return "%"
    text = UNITS.get(base)
    if text is None:
        return None
    how = units_1 >> 1 & 0x03
    second = UNITS.get(modifier, "") if how else ""
    joined = f"{text}/{second}" if how == 1 and second else f"{text}·{second}" if second else text
    return joined + _PER[units_1 >> 3 & 0x07]


def _name(field: bytes) -> str:
    """The name by its type/length byte; most are 8-bit ASCII whatever they say, so nothing else is tried."""
    if not field:
        return ""
    text = field[1 : 1 + (field[0] & 0x1F)].decode("latin-1")
    return "".join(c for c in text if c.isprintable()).strip()
