"""Chassis commands: power, boot options, identify (IPMI 2.0, chapter 28)."""

from simulators.ipmi.boot_options import PARAMETER_LENGTHS, SetInProgress, UnsupportedParameter
from simulators.ipmi.commands.registry import Call, Command, CommandTable, Refused
from simulators.ipmi.constants import ChassisControl, CompletionCode, NetFn, Privilege
from simulators.ipmi.machine import WrongState

_PARAMETER_NOT_SUPPORTED = 0x80
_SET_IN_PROGRESS = 0x81
_IDENTIFY_SUPPORTED = 0x40
_OPTIONS_VERSION = 0x01


def _capabilities(call: Call) -> bytes:
    return bytes((0x00, 0x20, 0x20, 0x20, 0x20))


def _status(call: Call) -> bytes:
    bmc = call.bmc
    power = bmc.machine.is_on | bmc.restore_policy << 5
    last_event = bmc.machine.turned_on_by_command << 4
    identify = bmc.identify_state() << 4
    return bytes((power, last_event, _IDENTIFY_SUPPORTED | identify, 0x00))


def _control(call: Call) -> bytes:
    number = call.data[0] & 0xF
    if number > ChassisControl.SOFT_SHUTDOWN:
        raise Refused(CompletionCode.INVALID_DATA_FIELD)
    try:
        call.bmc.machine.obey(ChassisControl(number))
    except WrongState as error:
        raise Refused(CompletionCode.NOT_IN_PRESENT_STATE) from error
    return b""


def _identify(call: Call) -> bytes:
    seconds = call.data[0] if call.data else 15
    call.bmc.identify(seconds, forced=bool(call.data[1:2]) and bool(call.data[1] & 1))
    return b""


def _set_restore_policy(call: Call) -> bytes:
    policy = call.data[0] & 0x7
    if policy < 3:
        call.bmc.restore_policy = policy
    elif policy > 3:
        raise Refused(CompletionCode.INVALID_DATA_FIELD)
    return b"\x07"


def _restart_cause(call: Call) -> bytes:
    call.bmc.machine.settle()
    return bytes((call.bmc.machine.restart_cause, 0x01))


def _set_boot_options(call: Call) -> bytes:
    call.bmc.machine.settle()
    options, now = call.bmc.machine.boot_options, call.bmc.clock()
    parameter, invalid = call.data[0] & 0x7F, bool(call.data[0] & 0x80)
    data = call.data[1:]
    try:
        options.mark(parameter, invalid=invalid)
        if data:
            options.write(parameter, data, now)
        elif not invalid:
            raise Refused(CompletionCode.DATA_LENGTH_INVALID)
    except UnsupportedParameter as error:
        raise Refused(_PARAMETER_NOT_SUPPORTED) from error
    except SetInProgress as error:
        raise Refused(_SET_IN_PROGRESS) from error
    except ValueError as error:
        raise Refused(CompletionCode.DATA_LENGTH_INVALID) from error
    return b""


def _get_boot_options(call: Call) -> bytes:
    call.bmc.machine.settle()
    try:
        present = call.bmc.machine.boot_options.read(call.data[0] & 0x7F, call.bmc.clock())
    except UnsupportedParameter as error:
        raise Refused(_PARAMETER_NOT_SUPPORTED) from error
    return bytes((_OPTIONS_VERSION,)) + present


def _power_on_hours(call: Call) -> bytes:
    return bytes((60,)) + call.bmc.power_on_hours.to_bytes(4, "little")


_LONGEST_OPTION = 1 + max(PARAMETER_LENGTHS.values())

COMMANDS: CommandTable = {
    (NetFn.CHASSIS, 0x00): Command(_capabilities),
    (NetFn.CHASSIS, 0x01): Command(_status),
    (NetFn.CHASSIS, 0x02): Command(_control, Privilege.OPERATOR, 1),
    (NetFn.CHASSIS, 0x04): Command(_identify, Privilege.OPERATOR, 0, 2),
    (NetFn.CHASSIS, 0x06): Command(_set_restore_policy, Privilege.OPERATOR, 1),
    (NetFn.CHASSIS, 0x07): Command(_restart_cause),
    (NetFn.CHASSIS, 0x08): Command(_set_boot_options, Privilege.OPERATOR, 1, _LONGEST_OPTION),
    (NetFn.CHASSIS, 0x09): Command(_get_boot_options, Privilege.OPERATOR, 3),
    (NetFn.CHASSIS, 0x0F): Command(_power_on_hours),
}
