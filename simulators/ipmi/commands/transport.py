"""LAN and SOL configuration commands (IPMI 2.0, 23.1, 23.2, 26.2, 26.3)."""

from simulators.ipmi.commands.registry import Call, Command, CommandTable, Refused
from simulators.ipmi.constants import CompletionCode, NetFn, Privilege
from simulators.ipmi.lan import ParameterBusy, ParameterMissing, ParameterReadOnly, Parameters

_REVISION = 0x11
_REVISION_ONLY = 0x80


def _read(call: Call, parameters: Parameters) -> bytes:
    call.channel(call.data[0])
    if call.data[0] & _REVISION_ONLY:
        return bytes((_REVISION,))
    try:
        return bytes((_REVISION,)) + parameters.read(call.data[1])
    except ParameterMissing as error:
        raise Refused(0x80) from error


def _write(call: Call, parameters: Parameters) -> bytes:
    call.channel(call.data[0])
    try:
        parameters.write(call.data[1], call.data[2:])
    except ParameterMissing as error:
        raise Refused(0x80) from error
    except ParameterBusy as error:
        raise Refused(0x81) from error
    except ParameterReadOnly as error:
        raise Refused(0x82) from error
    except ValueError as error:
        raise Refused(CompletionCode.DATA_LENGTH_INVALID) from error
    return b""


def _get_lan(call: Call) -> bytes:
    return _read(call, call.bmc.lan)


def _set_lan(call: Call) -> bytes:
    return _write(call, call.bmc.lan)


def _get_sol(call: Call) -> bytes:
    return _read(call, call.bmc.sol_settings)


def _set_sol(call: Call) -> bytes:
    return _write(call, call.bmc.sol_settings)


COMMANDS: CommandTable = {
    (NetFn.TRANSPORT, 0x01): Command(_set_lan, Privilege.ADMINISTRATOR, 3, 32),
    (NetFn.TRANSPORT, 0x02): Command(_get_lan, Privilege.OPERATOR, 4),
    (NetFn.TRANSPORT, 0x21): Command(_set_sol, Privilege.ADMINISTRATOR, 3, 32),
    (NetFn.TRANSPORT, 0x22): Command(_get_sol, Privilege.USER, 4),
}
