"""Payload commands: activating SOL and asking about it (IPMI 2.0, chapter 24)."""

import struct

from simulators.ipmi.commands.registry import Call, Command, CommandTable, Refused
from simulators.ipmi.commands.users import user_slot
from simulators.ipmi.constants import CompletionCode, NetFn, PayloadType, Privilege
from simulators.ipmi.lan import SOL_AUTHENTICATION, SOL_ENABLE

_ALREADY_ACTIVE, _DISABLED, _LIMIT_REACHED, _NO_ENCRYPTION = 0x80, 0x81, 0x82, 0x84
_ALREADY_INACTIVE = 0x80
_FORCE_ENCRYPTION = 0x80
_WITH_ENCRYPTION = 0x80
_SOL_BIT = 1 << PayloadType.SOL
_INSTANCES = 1


def _activate(call: Call) -> bytes:
    session, bmc = call.own_session, call.bmc
    kind, instance, auxiliary = call.data[0] & 0x3F, call.data[1] & 0xF, call.data[2]
    if kind != PayloadType.SOL:
        raise Refused(CompletionCode.INVALID_DATA_FIELD)
    settings = bmc.sol_settings.read(SOL_AUTHENTICATION)[0]
    if not bmc.sol_settings.read(SOL_ENABLE)[0] & 1 or session.user is None or not session.user.sol:
        raise Refused(_DISABLED)
    if session.privilege < settings & 0xF:
        raise Refused(CompletionCode.INSUFFICIENT_PRIVILEGE)
    if instance != _INSTANCES:
        raise Refused(_LIMIT_REACHED)
    if settings & _FORCE_ENCRYPTION and not auxiliary & _WITH_ENCRYPTION:
        raise Refused(_NO_ENCRYPTION)
    if bmc.sol is not None:
        raise Refused(_ALREADY_ACTIVE)
    bmc.activate_sol(session)
    odd = call.rule.odd_size if call.rule is not None else None
    inbound = bmc.sol_inbound_size if odd is None else odd
    return struct.pack("<IHHHH", 0, inbound & 0xFFFF, bmc.sol_outbound_size, bmc.port, 0xFFFF)


def _deactivate(call: Call) -> bytes:
    if call.data[0] & 0x3F != PayloadType.SOL:
        raise Refused(CompletionCode.INVALID_DATA_FIELD)
    if call.bmc.sol is None:
        raise Refused(_ALREADY_INACTIVE)
    call.bmc.deactivate_sol(told_by=call.own_session)
    return b""


def _activation_status(call: Call) -> bytes:
    if call.data[0] & 0x3F != PayloadType.SOL:
        raise Refused(CompletionCode.INVALID_DATA_FIELD)
    return bytes((_INSTANCES, call.bmc.sol is not None, 0))


def _instance_info(call: Call) -> bytes:
    link = call.bmc.sol
    if call.data[0] & 0x3F != PayloadType.SOL or call.data[1] != _INSTANCES:
        raise Refused(CompletionCode.INVALID_DATA_FIELD)
    return struct.pack("<I", link.session_id if link else 0) + bytes((1,)) + bytes(7)


def _set_access(call: Call) -> bytes:
    call.channel(call.data[0])
    user = call.bmc.users.slot_or_new(user_slot(call.data[1]))
    if call.data[2] & _SOL_BIT:
        user.sol = not call.data[1] & 0x40
    return b""


def _get_access(call: Call) -> bytes:
    call.channel(call.data[0])
    user = call.bmc.users.slot(user_slot(call.data[1]))
    return bytes((_SOL_BIT if user is not None and user.sol else 0, 0, 0, 0))


def _channel_support(call: Call) -> bytes:
    call.channel(call.data[0])
    set_up = 0x3F
    return bytes((1 << PayloadType.IPMI | _SOL_BIT, 0, set_up, 0, 0, 0, 0, 0))


def _channel_version(call: Call) -> bytes:
    call.channel(call.data[0])
    if call.data[1] not in (PayloadType.IPMI, PayloadType.SOL):
        raise Refused(0x80)
    return b"\x10"


COMMANDS: CommandTable = {
    (NetFn.APP, 0x48): Command(_activate, Privilege.USER, 6),
    (NetFn.APP, 0x49): Command(_deactivate, Privilege.USER, 6),
    (NetFn.APP, 0x4A): Command(_activation_status, Privilege.USER, 1),
    (NetFn.APP, 0x4B): Command(_instance_info, Privilege.USER, 2),
    (NetFn.APP, 0x4C): Command(_set_access, Privilege.ADMINISTRATOR, 6),
    (NetFn.APP, 0x4D): Command(_get_access, Privilege.OPERATOR, 2),
    (NetFn.APP, 0x4E): Command(_channel_support, Privilege.USER, 1),
    (NetFn.APP, 0x4F): Command(_channel_version, Privilege.USER, 2),
}
