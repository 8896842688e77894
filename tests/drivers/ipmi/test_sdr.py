"""Sensor data records and their conversions, by hand from the specification's formulas."""

import math

import pytest

from drivers.ipmi.sdr import Factors, SdrError, SensorRecord, parse_factors, parse_record

TEMPERATURE = bytes.fromhex(
    "0100 51 01 31 20 00 01 07 01 67 68 01 01 8003 8003 3838 00 01 00 00 01 00 00 00 00 00 03 60 b0 00 ff 00"
    "a0 90 70 00 00 00 00 00 00 00 00 c6 444a54656d70"
)
"""A full record in the layout of table 43-1: a temperature sensor named DJTemp, y = x, in degrees Celsius."""


def record(**changes: int) -> SensorRecord:
    """The record with bytes changed, by the names of the fields that hold them."""
    positions = {"units": 20, "base": 21, "modifier": 22, "linearization": 23, "m": 24, "m_high": 25, "b": 26}
    positions |= {"b_high": 27, "exponents": 29, "readable": 18, "kind": 3}
    data = bytearray(TEMPERATURE)
    for name, value in changes.items():
        data[positions[name]] = value
    parsed = parse_record(bytes(data))
    assert parsed is not None
    return parsed


def test_a_full_record_is_read() -> None:
    sensor = record()
    assert (sensor.name, sensor.number, sensor.sensor_type, sensor.event_type) == ("DJTemp", 1, 1, 1)
    assert (sensor.unit, sensor.value(0x60)) == ("°C", 96.0)
    assert [sensor.threshold(mask) for mask in (0x01, 0x02, 0x08, 0x10)] == [None, None, 0x70, 0x90]


def test_factors_are_two_complement_fields_of_ten_and_four_bits() -> None:
    sensor = record(m=0xFE, m_high=0xC0, b=0x05, exponents=0xE1)
    assert sensor.factors == Factors(m=-2, b=5, b_exponent=1, r_exponent=-2)
    assert sensor.value(10) == pytest.approx((-2 * 10 + 5 * 10) * 0.01)


@pytest.mark.parametrize(("units", "raw", "value"), [(0x00, 0xFE, 254), (0x40, 0xFE, -1), (0x80, 0xFE, -2)])
def test_raw_bytes_are_unsigned_ones_or_twos_complement(units: int, raw: int, value: int) -> None:
    assert record(units=units).value(raw) == value


@pytest.mark.parametrize(
    ("linearization", "raw", "value"),
    [
        (0, 9, 9.0),
        (1, 9, math.log(9)),
        (2, 100, 2.0),
        (3, 8, 3.0),
        (4, 2, math.exp(2)),
        (5, 3, 1000.0),
        (6, 5, 32.0),
        (7, 4, 0.25),
        (8, 7, 49.0),
        (9, 3, 27.0),
        (10, 16, 4.0),
        (11, 27, 3.0),
    ],
)
def test_every_linearization_is_applied(linearization: int, raw: int, value: float) -> None:
    assert record(linearization=linearization).value(raw) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("linearization", [1, 2, 3, 7])
def test_a_function_without_a_value_there_gives_none(linearization: int) -> None:
    assert record(linearization=linearization).value(0) is None


def test_a_value_too_large_for_a_number_gives_none() -> None:
    assert record(linearization=5, exponents=0x70).value(255) is None


def test_a_non_linear_sensor_is_converted_by_the_factors_of_its_reading() -> None:
    sensor = record(linearization=0x70)
    assert sensor.is_non_linear
    factors = parse_factors(bytes.fromhex("00 03 00 01 00 00 00"))
    assert sensor.value(10, factors) == 31.0


@pytest.mark.parametrize(
    ("units", "base", "modifier", "text"),
    [
        (0, 18, 0, "RPM"),
        (1, 0, 0, "%"),
        (2, 6, 29, "W/ft"),
        (4, 4, 5, "V·A"),
        (0x18, 37, 0, "l/s"),
        (0, 200, 0, None),
    ],
)
def test_units_are_named(units: int, base: int, modifier: int, text: str | None) -> None:
    assert record(units=units, base=base, modifier=modifier).unit == text


def test_a_compact_record_may_stand_for_several_sensors() -> None:
    data = bytearray(32) + b"PSU"
    data[3], data[4], data[7], data[12], data[13], data[23], data[31] = 2, 30, 0x10, 8, 0x6F, 3, 0xC3
    sensor = parse_record(bytes(data))
    assert sensor is not None
    assert (sensor.name, sensor.share, sensor.value(1)) == ("PSU", 3, None)


@pytest.mark.parametrize("kind", [0x03, 0x08, 0x11, 0x12, 0xC0])
def test_records_of_other_kinds_are_no_sensors(kind: int) -> None:
    assert parse_record(bytes((0, 0, 0x51, kind, 0))) is None


def test_a_record_that_is_cut_short_is_an_error() -> None:
    for length in range(48):
        if length != 5 or TEMPERATURE[3] == 1:
            with pytest.raises(SdrError):
                parse_record(TEMPERATURE[:length])
    with pytest.raises(SdrError):
        parse_factors(b"\x00\x01")
