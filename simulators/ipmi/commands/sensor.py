"""Sensor commands (IPMI 2.0, chapter 35)."""

import struct

from simulators.ipmi.commands.registry import Call, Command, CommandTable, Refused
from simulators.ipmi.constants import CompletionCode, NetFn, Privilege
from simulators.ipmi.sensors import AnalogSensor, Sensor, Threshold

_EVENTS_AND_SCANNING = 0xC0
_UNAVAILABLE = 0x20


def _sensor(call: Call) -> Sensor:
    sensor = call.bmc.sdr.sensors.get(call.data[0])
    if sensor is None:
        raise Refused(CompletionCode.NOT_PRESENT)
    return sensor


def _analog(call: Call) -> AnalogSensor:
    sensor = _sensor(call)
    if not isinstance(sensor, AnalogSensor):
        raise Refused(CompletionCode.ILLEGAL_FOR_SENSOR)
    return sensor


def _reading(call: Call) -> bytes:
    sensor = _sensor(call)
    if sensor.needs_power and not call.bmc.machine.is_on:
        return bytes((0, _EVENTS_AND_SCANNING | _UNAVAILABLE, 0xC0))
    if isinstance(sensor, AnalogSensor):
        return bytes((sensor.raw(sensor.value), _EVENTS_AND_SCANNING, 0xC0 | sensor.crossed()))
    return struct.pack("<BBH", 0, _EVENTS_AND_SCANNING, 0x8000 | sensor.states)


def _thresholds(call: Call) -> bytes:
    sensor = _analog(call)
    return bytes((sensor.mask(),)) + sensor.raw_thresholds()


def _set_thresholds(call: Call) -> bytes:
    sensor = _analog(call)
    mask = call.data[1] & 0x3F
    if mask & ~sensor.mask():
        raise Refused(CompletionCode.INVALID_DATA_FIELD)
    for place, threshold in enumerate(Threshold):
        if mask & threshold:
            sensor.thresholds[threshold] = call.data[2 + place] * sensor.multiplier * 10.0**sensor.exponent
    return b""


def _hysteresis(call: Call) -> bytes:
    sensor = _analog(call)
    return bytes((sensor.hysteresis, sensor.hysteresis))


def _event_enable(call: Call) -> bytes:
    _sensor(call)
    return bytes((_EVENTS_AND_SCANNING, 0, 0, 0, 0))


def _type(call: Call) -> bytes:
    sensor = _sensor(call)
    return bytes((sensor.type, 0x01 if isinstance(sensor, AnalogSensor) else 0x6F))


COMMANDS: CommandTable = {
    (NetFn.SENSOR_EVENT, 0x25): Command(_hysteresis, Privilege.USER, 2),
    (NetFn.SENSOR_EVENT, 0x26): Command(_set_thresholds, Privilege.OPERATOR, 8),
    (NetFn.SENSOR_EVENT, 0x27): Command(_thresholds, Privilege.USER, 1),
    (NetFn.SENSOR_EVENT, 0x29): Command(_event_enable, Privilege.USER, 1),
    (NetFn.SENSOR_EVENT, 0x2B): Command(_event_enable, Privilege.USER, 1),
    (NetFn.SENSOR_EVENT, 0x2D): Command(_reading, Privilege.USER, 1),
    (NetFn.SENSOR_EVENT, 0x2F): Command(_type, Privilege.USER, 1),
}
