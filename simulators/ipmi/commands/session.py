"""Commands about channels' authentication and about sessions (IPMI 2.0, chapter 22)."""

import ipaddress
import struct

from simulators.ipmi.ciphers import SUITES
from simulators.ipmi.commands.registry import Call, Command, CommandTable, Refused
from simulators.ipmi.constants import IPMI_OVER_LAN_CHANNEL, CompletionCode, NetFn, Privilege
from simulators.ipmi.sessions import Session

_RECORD_CHUNK = 16
_MAC_OF_PEERS = bytes(6)


def _authentication_capabilities(call: Call) -> bytes:
    channel = call.channel(call.data[0])
    extended = call.data[0] & 0x80
    users, table = call.bmc.users, call.bmc.sessions
    named, null = users.has_named_users(), users.has_null_user()
    status = table.has_k_g << 5 | named << 2 | null << 1
    # IPMI 2.0 only: no authentication type of 1.5 is offered, and the data says so.
    types, versions = (0x80, 0x02) if extended else (0x00, 0x00)
    return bytes((channel, types, status, versions, 0, 0, 0, 0))


def _cipher_suites(call: Call) -> bytes:
    channel = call.channel(call.data[0])
    by_suite, index = call.data[2] & 0x80, call.data[2] & 0x3F
    suites = [SUITES[number] for number in sorted(call.bmc.sessions.suites)]
    records = b"".join(suite.record() if by_suite else suite.algorithm_record() for suite in suites)
    start = index * _RECORD_CHUNK
    return bytes((channel,)) + records[start : start + _RECORD_CHUNK]


def _set_privilege(call: Call) -> bytes:
    session, number = call.own_session, call.data[0] & 0xF
    if number == Privilege.CALLBACK or number > Privilege.OEM:
        raise Refused(CompletionCode.INVALID_DATA_FIELD)
    if number:
        user = session.user
        if user is None or number > user.privilege:
            raise Refused(0x80)
        if number > session.privilege_limit or number > call.bmc.sessions.channel_limit:
            raise Refused(0x81)
        session.privilege = Privilege(number)
    return bytes((session.privilege,))


def _close(call: Call) -> bytes:
    session_id = int.from_bytes(call.data[:4], "little")
    sessions = call.bmc.sessions
    if session_id:
        found, code = sessions.find(session_id), 0x87
    elif len(call.data) == 5:
        found, code = _by_handle(call, call.data[4]), 0x88
    else:
        raise Refused(0x87)
    if found is None:
        raise Refused(code)
    if found is not call.session and call.own_session.privilege < Privilege.ADMINISTRATOR:
        raise Refused(CompletionCode.INSUFFICIENT_PRIVILEGE)
    call.bmc.close_after_answer(found)
    return b""


def _by_handle(call: Call, handle: int) -> Session | None:
    return next((session for session in call.bmc.sessions.active() if session.handle == handle), None)


def _info(call: Call) -> bytes:
    active = call.bmc.sessions.active()
    session = _session_asked_for(call, active)
    counts = bytes((call.bmc.sessions.limits.maximum, len(active)))
    if session is None:
        return b"\x00" + counts
    head = (
        bytes((session.handle,))
        + counts
        + bytes((session.user_slot, session.privilege, 0x10 | IPMI_OVER_LAN_CHANNEL))
    )
    address = ipaddress.ip_address(session.peer[0])
    packed = address.packed if address.version == 4 else bytes(4)
    return head + packed + _MAC_OF_PEERS + struct.pack("<H", session.peer[1])


def _session_asked_for(call: Call, active: list[Session]) -> Session | None:
    index, rest = call.data[0], call.data[1:]
    if index == 0x00:
        return call.own_session
    if index == 0xFE and len(rest) == 1:
        return _by_handle(call, rest[0])
    if index == 0xFF and len(rest) == 4:
        return call.bmc.sessions.find(int.from_bytes(rest, "little"))
    if index >= 0xFE:
        raise Refused(CompletionCode.DATA_LENGTH_INVALID)
    return active[index - 1] if index <= len(active) else None


COMMANDS: CommandTable = {
    (NetFn.APP, 0x38): Command(_authentication_capabilities, Privilege.NONE, 2),
    (NetFn.APP, 0x54): Command(_cipher_suites, Privilege.NONE, 3),
    (NetFn.APP, 0x3B): Command(_set_privilege, Privilege.CALLBACK, 1),
    (NetFn.APP, 0x3C): Command(_close, Privilege.CALLBACK, 4, 5),
    (NetFn.APP, 0x3D): Command(_info, Privilege.USER, 1, 5),
}
