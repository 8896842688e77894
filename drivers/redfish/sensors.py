"""Sensors: from a chassis's Sensors collection, else from the older Thermal and Power, else from its subsystems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish.document import Document, dig, link, number, text
from drivers.redfish.health import health_of, is_absent
from drivers.redfish.walking import read_collection, read_members
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.management import Sensor, Sensors, Thresholds

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["of_sensor", "of_thermal_and_power", "read_sensors"]

_KINDS = {
    "temperature": "temperature",
    "rotational": "fan",
    "fan": "fan",
    "voltage": "voltage",
    "current": "current",
    "power": "power",
}
_KIND_OF_UNIT = {"Cel": "temperature", "RPM": "fan", "V": "voltage", "A": "current", "W": "power"}
_UNITS = {"cel": "Cel", "c": "Cel", "celsius": "Cel", "%": "%", "percent": "%", "rpm": "RPM", "{rev}/min": "RPM"}


async def read_sensors(connection: RedfishConnection, call: Call) -> Sensors:
    """Every sensor of every chassis, those of the host's own first. Raises OperationError UNSUPPORTED for none."""
    own = await connection.service.chassis(call)
    collection = link(await connection.root(call), "Chassis")
    found = dict(await read_members(connection, collection, call, patient=True))
    sensors: list[Sensor] = []
    offered = False
    for path in dict.fromkeys([*own, *found]):
        chassis = found[path] if path in found else await connection.find_patiently(path, call)
        if chassis is None:
            continue
        offered = offered or any(link(chassis, key) for key in ("Sensors", "Thermal", "Power", "ThermalSubsystem"))
        sensors += await _of_chassis(connection, chassis, call)
        call.progress(f"{len(sensors)} sensors read", None)
    if not sensors and not offered:
        raise OperationError(ErrorCode.UNSUPPORTED, "this BMC shows no sensors of its chassis")
    return Sensors(sensors=sensors)


async def _of_chassis(connection: RedfishConnection, chassis: Document, call: Call) -> list[Sensor]:
    found = [
        sensor
        for document in await read_collection(connection, link(chassis, "Sensors"), call)
        if (sensor := of_sensor(document)) is not None
    ]
    if any(sensor.unit is not None for sensor in found):
        return found
    # HPE iLO 6 has a Sensors collection that tells no units, beside Thermal and Power that do.
    older: list[Sensor] = []
    for key in ("Thermal", "Power"):
        older += of_thermal_and_power(await connection.find(link(chassis, key), call))
    if older or found:
        return older or found
    thermal = await connection.find(link(chassis, "ThermalSubsystem"), call)
    for fan in await read_collection(connection, link(thermal, "Fans"), call):
        sensor = _of_fan(fan)
        if sensor is not None:
            found.append(sensor)
    return found


def of_sensor(document: Document) -> Sensor | None:
    """One Sensor resource; None for a place that holds nothing."""
    if is_absent(document) or ("Reading" not in document and "ReadingType" not in document):
        return None
    unit = _unit(text(document, "ReadingUnits"))
    kind = text(document, "ReadingType")
    if kind is not None:
        kind = _KINDS.get(kind.lower(), kind)
    if text(document, "PhysicalContext") == "Fan" and kind in (None, "Percent"):
        kind = "fan"
    return Sensor(
        name=text(document, "Name") or text(document, "Id") or "sensor",
        kind=kind or _KIND_OF_UNIT.get(unit or "", "sensor"),
        reading=number(document, "Reading"),
        unit=unit,
        status=health_of(document),
        thresholds=_thresholds(
            number(document, "Thresholds", "LowerCritical", "Reading"),
            number(document, "Thresholds", "LowerCaution", "Reading"),
            number(document, "Thresholds", "UpperCaution", "Reading"),
            number(document, "Thresholds", "UpperCritical", "Reading"),
        ),
    )


def of_thermal_and_power(document: Document | None) -> list[Sensor]:
    """The sensors of a Thermal or a Power resource."""
    sensors = []
    for key, kind, reading, unit in (
        ("Temperatures", "temperature", "ReadingCelsius", "Cel"),
        ("Fans", "fan", "Reading", None),
        ("Voltages", "voltage", "ReadingVolts", "V"),
        ("PowerControl", "power", "PowerConsumedWatts", "W"),
        ("PowerSupplies", "power", "LastPowerOutputWatts", "W"),
    ):
        listed = dig(document, key)
        for item in listed if isinstance(listed, list) else []:
            if not isinstance(item, dict) or is_absent(item):
                continue
            value = number(item, reading)
            if value is None and kind == "fan":
                value = number(item, "ReadingRPM")
            sensors.append(
                Sensor(
                    name=text(item, "Name") or text(item, "FanName") or text(item, "MemberId") or key,
                    kind=kind,
                    reading=value,
                    unit=unit or _unit(text(item, "ReadingUnits") or "RPM"),
                    status=health_of(item),
                    thresholds=_thresholds(
                        number(item, "LowerThresholdCritical"),
                        number(item, "LowerThresholdNonCritical"),
                        number(item, "UpperThresholdNonCritical"),
                        number(item, "UpperThresholdCritical"),
                    ),
                )
            )
    return sensors


def _of_fan(document: Document) -> Sensor | None:
    if is_absent(document):
        return None
    rpm = number(document, "SpeedPercent", "SpeedRPM")
    return Sensor(
        name=text(document, "Name") or text(document, "Id") or "fan",
        kind="fan",
        reading=rpm if rpm is not None else number(document, "SpeedPercent", "Reading"),
        unit="RPM" if rpm is not None else "%",
        status=health_of(document),
    )


def _unit(word: str | None) -> str | None:
    return _UNITS.get(word.lower(), word) if word else None


def _thresholds(
    lower_critical: float | None, lower: float | None, upper: float | None, upper_critical: float | None
) -> Thresholds | None:
    if lower_critical is lower is upper is upper_critical is None:
        return None
    return Thresholds(
        lower_critical=lower_critical, lower_warning=lower, upper_warning=upper, upper_critical=upper_critical
    )
