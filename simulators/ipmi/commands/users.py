"""Channel and user commands (IPMI 2.0, 22.22 to 22.30)."""

import hmac

from simulators.ipmi.accounts import MAXIMUM_USERS, NAME_LENGTH, User
from simulators.ipmi.commands.registry import Call, Command, CommandTable, Refused
from simulators.ipmi.constants import CompletionCode, NetFn, Privilege

_ALWAYS_AVAILABLE = 0x02
_IPMB_1_0_PROTOCOL, _LAN_802_3, _MULTI_SESSION = 0x01, 0x04, 0x80
_DISABLE, _ENABLE, _SET, _TEST = range(4)
_USER_ENABLED, _USER_DISABLED = 0x40, 0x80
_PASSWORD_MISMATCH, _WRONG_PASSWORD_SIZE = 0x80, 0x81


def _channel_info(call: Call) -> bytes:
    number = call.channel(call.data[0])
    active = len(call.bmc.sessions.active())
    iana = bytes((0xF2, 0x1B, 0x00))
    return bytes((number, _LAN_802_3, _IPMB_1_0_PROTOCOL, _MULTI_SESSION | active & 0x3F)) + iana + bytes(2)


def _channel_access(call: Call) -> bytes:
    call.channel(call.data[0])
    if call.data[1] >> 6 not in (1, 2):
        raise Refused(CompletionCode.INVALID_DATA_FIELD)
    return bytes((_ALWAYS_AVAILABLE, call.bmc.sessions.channel_limit))


def _set_channel_access(call: Call) -> bytes:
    call.channel(call.data[0])
    if call.data[2] >> 6 in (1, 2):
        call.bmc.sessions.channel_limit = _privilege(call.data[2] & 0xF)
    return b""


def _privilege(number: int) -> Privilege:
    try:
        return Privilege(number)
    except ValueError as error:
        raise Refused(CompletionCode.INVALID_DATA_FIELD) from error


def user_slot(byte: int) -> int:
    """The slot that a request names; refuses numbers that the table does not have."""
    number = byte & 0x3F
    if not 1 <= number <= MAXIMUM_USERS:
        raise Refused(CompletionCode.PARAMETER_OUT_OF_RANGE)
    return number


def _user(call: Call, byte: int) -> User | None:
    return call.bmc.users.slot(user_slot(byte))


def _get_access(call: Call) -> bytes:
    call.channel(call.data[0])
    user = _user(call, call.data[1])
    enabled, access = _USER_DISABLED, int(Privilege.NO_ACCESS)
    if user is not None:
        enabled = _USER_ENABLED if user.enabled else _USER_DISABLED
        access = user.callback_only << 6 | user.link_authentication << 5 | user.ipmi_messaging << 4 | user.privilege
    with_fixed_names = 1
    return bytes((MAXIMUM_USERS, call.bmc.users.enabled_count() | enabled, with_fixed_names, access))


def _set_access(call: Call) -> bytes:
    call.channel(call.data[0])
    user = call.bmc.users.slot_or_new(user_slot(call.data[1]))
    user.privilege = _privilege(call.data[2] & 0xF)
    if call.data[0] & 0x80:
        user.callback_only = bool(call.data[0] & 0x40)
        user.link_authentication = bool(call.data[0] & 0x20)
        user.ipmi_messaging = bool(call.data[0] & 0x10)
    return b""


def _get_name(call: Call) -> bytes:
    user = _user(call, call.data[0])
    if user is None:
        raise Refused(CompletionCode.INVALID_DATA_FIELD)
    return user.name.encode().ljust(NAME_LENGTH, b"\0")


def _set_name(call: Call) -> bytes:
    number = user_slot(call.data[0])
    if number == 1:
        raise Refused(CompletionCode.INVALID_DATA_FIELD)
    call.bmc.users.slot_or_new(number).name = call.data[1:].rstrip(b"\0").decode("latin-1")
    return b""


def _password(call: Call) -> bytes:
    user = call.bmc.users.slot_or_new(user_slot(call.data[0]))
    operation, password = call.data[1] & 0x3, call.data[2:]
    if operation in (_DISABLE, _ENABLE):
        user.enabled = operation == _ENABLE
        return b""
    if len(password) != (20 if call.data[0] & 0x80 else 16):
        raise Refused(_WRONG_PASSWORD_SIZE if operation == _TEST else CompletionCode.DATA_LENGTH_INVALID)
    plain = password.rstrip(b"\0")
    if operation == _SET:
        user.password = plain
    elif not hmac.compare_digest(user.password, plain):
        raise Refused(_PASSWORD_MISMATCH)
    return b""


COMMANDS: CommandTable = {
    (NetFn.APP, 0x40): Command(_set_channel_access, Privilege.ADMINISTRATOR, 3),
    (NetFn.APP, 0x41): Command(_channel_access, Privilege.USER, 2),
    (NetFn.APP, 0x42): Command(_channel_info, Privilege.USER, 1),
    (NetFn.APP, 0x43): Command(_set_access, Privilege.ADMINISTRATOR, 3, 4),
    (NetFn.APP, 0x44): Command(_get_access, Privilege.OPERATOR, 2),
    (NetFn.APP, 0x45): Command(_set_name, Privilege.ADMINISTRATOR, 17),
    (NetFn.APP, 0x46): Command(_get_name, Privilege.OPERATOR, 1),
    (NetFn.APP, 0x47): Command(_password, Privilege.ADMINISTRATOR, 2, 22),
}
