"""Sensor readings with their status (IPMI 2.0, 35.14)."""

from dataclasses import dataclass
from typing import Final

from drivers.driver import Call
from drivers.ipmi import commands
from drivers.ipmi.connection import IpmiConnection
from drivers.ipmi.events import THRESHOLD, sensor_type_name, state_health
from drivers.ipmi.repository import read_sensor_records
from drivers.ipmi.sdr import Factors, SdrError, SensorRecord, parse_factors
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.management import Health, Sensor, Thresholds

__all__ = ["SensorReading", "parse_reading", "read_reading", "read_sensors", "sensor_of"]

_BMC_OWNER: Final = 0x20
_KINDS: Final = {"°C": "temperature", "°F": "temperature", "RPM": "fan", "V": "voltage", "A": "current", "W": "power"}
_NOT_THERE: Final = frozenset({0xC9, 0xCB, 0xCC, 0xCD, 0xCE, 0xD3, 0xD5, 0xD6})
"""Codes of a sensor that cannot be read now: an absent part, a machine that is off."""
_WARNING_BITS: Final = 0x09
_CRITICAL_BITS: Final = 0x36


@dataclass(frozen=True, slots=True)
class SensorReading:
    """What Get Sensor Reading says. `raw` None: there is no reading now; `states` is a mask of 15 bits."""

    raw: int | None
    states: int


def parse_reading(data: bytes) -> SensorReading:
    """Any answer gives a reading; a short one has no states."""
    if len(data) < 2 or data[1] & 0x20 or not data[1] & 0x40:
        return SensorReading(None, 0)
    states = int.from_bytes(data[2:4], "little") & 0x7FFF
    return SensorReading(data[0], states)


def sensor_of(
    record: SensorRecord, index: int, reading: SensorReading, factors: Factors | None
) -> tuple[Sensor, str | None]:
    """One sensor as the operations show it, and a discrete sensor's states in words.

    `index` counts the sensors that share the record.
    """
    name = record.name or f"sensor {record.number + index:#04x}"
    if record.share > 1:
        name = f"{name} {index + 1}"
    kind = _KINDS.get(record.unit or "", "") or sensor_type_name(record.sensor_type)
    if record.event_type == THRESHOLD or record.is_analog:
        value = record.value(reading.raw, factors) if reading.raw is not None else None
        status = _threshold_status(reading) if record.event_type == THRESHOLD else Health.OK
        analog = Sensor(
            name=name,
            kind=kind,
            reading=value,
            unit=record.unit,
            status=Health.UNKNOWN if reading.raw is None else status,
            thresholds=_thresholds(record, factors),
        )
        return analog, None
    if reading.raw is None:
        return Sensor(name=name, kind=kind), None
    health, words = state_health(record.sensor_type, record.event_type, reading.states)
    return Sensor(name=name, kind=kind, status=health), words


async def read_sensors(connection: IpmiConnection, call: Call) -> list[tuple[Sensor, str | None]]:
    """Every sensor, with a discrete one's states in words. Those of other controllers have no reading."""
    sensors = []
    for record in await read_sensor_records(connection, call):
        for index in range(record.share):
            reading = SensorReading(None, 0)
            if record.owner == _BMC_OWNER:
                reading = await read_reading(connection, record, index, call)
            factors = record.factors
            if record.is_non_linear and reading.raw is not None:
                factors = await _factors_at(connection, record, index, reading.raw, call)
            sensors.append(sensor_of(record, index, reading, factors))
    return sensors


async def read_reading(connection: IpmiConnection, record: SensorRecord, index: int, call: Call) -> SensorReading:
    """What the sensor says now; no reading for a part that is not there."""
    command = commands.GET_SENSOR_READING.with_data(bytes((record.number + index & 0xFF,)), record.lun)
    answer = await connection.ask(command, call)
    if answer.completion_code in _NOT_THERE:
        return SensorReading(None, 0)
    if answer.completion_code:
        raise commands.refusal(command, answer, connection.endpoint)
    return parse_reading(answer.data)


async def _factors_at(
    connection: IpmiConnection, record: SensorRecord, index: int, raw: int, call: Call
) -> Factors | None:
    """A non-linear sensor's factors at this reading (36.3): asked for each time, since they depend on it."""
    data = bytes((record.number + index & 0xFF, raw))
    command = commands.GET_SENSOR_READING_FACTORS.with_data(data, record.lun)
    try:
        return parse_factors(await connection.run(command, call))
    except SdrError as error:
        raise OperationError(ErrorCode.BMC_ERROR, f"{connection.endpoint} sent {error}") from error


def _threshold_status(reading: SensorReading) -> Health:
    if reading.states & _CRITICAL_BITS:
        return Health.CRITICAL
    return Health.WARNING if reading.states & _WARNING_BITS else Health.OK


def _thresholds(record: SensorRecord, factors: Factors | None) -> Thresholds | None:
    if not record.readable or record.is_non_linear:
        return None

    def at(mask: int) -> float | None:
        raw = record.threshold(mask)
        return None if raw is None else record.value(raw, factors)

    found = Thresholds(
        lower_warning=at(0x01), lower_critical=at(0x02), upper_warning=at(0x08), upper_critical=at(0x10)
    )
    return found if found != Thresholds() else None
