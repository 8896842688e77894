"""Bytes on the wire: RMCP, ASF presence ping, IPMI 1.5 and RMCP+ session headers, IPMI messages.

Only layout lives here; keys, sessions and meaning live elsewhere. Every parser takes untrusted bytes
and raises `Malformed` for anything that does not fit; a BMC drops such packets without an answer.
"""

import struct
from dataclasses import dataclass
from typing import Final

from simulators.ipmi.constants import BMC_ADDRESS

RMCP_VERSION: Final = 0x06
RMCP_CLASS_ASF: Final = 0x06
RMCP_CLASS_IPMI: Final = 0x07
RMCP_HEADER: Final = struct.Struct("BBBB")
ASF_HEADER: Final = struct.Struct(">IBBBB")
ASF_IANA: Final = 4542
ASF_PING: Final = 0x80
ASF_PONG: Final = 0x40
AUTH_TYPE_NONE: Final = 0x00
AUTH_TYPE_RMCP_PLUS: Final = 0x06
_LAN_SESSION_HEADER: Final = struct.Struct("<BIIB")
_PLUS_HEADER: Final = struct.Struct("<BBIIH")
_ENCRYPTED: Final = 0x80
_AUTHENTICATED: Final = 0x40
_OEM_PAYLOAD: Final = 0x02
_NEXT_HEADER: Final = 0x07
_IPMI_RMCP: Final = RMCP_HEADER.pack(RMCP_VERSION, 0, 0xFF, RMCP_CLASS_IPMI)


class Malformed(ValueError):
    """The bytes are no packet of this kind."""


@dataclass(frozen=True, slots=True)
class RmcpPacket:
    """An RMCP datagram without its header."""

    kind: int
    sequence: int
    body: bytes


@dataclass(frozen=True, slots=True)
class PlusPacket:
    """An RMCP+ packet (IPMI 2.0, 13.6), its payload still encrypted where `encrypted` says so.

    `signed` is what the integrity code covers: from the authentication type to the next header byte.
    """

    payload_type: int
    session_id: int
    sequence: int
    payload: bytes
    encrypted: bool
    authenticated: bool
    signed: bytes
    auth_code: bytes


@dataclass(frozen=True, slots=True)
class Request:
    """An IPMI request message (IPMI 2.0, 13.8) with both checksums found right."""

    netfn: int
    command: int
    data: bytes
    responder: int = BMC_ADDRESS
    responder_lun: int = 0
    requester: int = 0x81
    requester_lun: int = 0
    sequence: int = 0


def parse_rmcp(datagram: bytes) -> RmcpPacket:
    """Split off the RMCP header (IPMI 2.0, 13.1.3)."""
    if len(datagram) < RMCP_HEADER.size:
        raise Malformed("shorter than an RMCP header")
    version, _, sequence, kind = RMCP_HEADER.unpack_from(datagram)
    if version != RMCP_VERSION:
        raise Malformed(f"RMCP version {version:#x}, expected {RMCP_VERSION:#x}")
    return RmcpPacket(kind, sequence, datagram[RMCP_HEADER.size :])


def parse_presence_ping(body: bytes) -> int:
    """The tag of an ASF presence ping (IPMI 2.0, 13.2.3)."""
    if len(body) < ASF_HEADER.size:
        raise Malformed("shorter than an ASF header")
    iana, kind, tag, _, _ = ASF_HEADER.unpack_from(body)
    if iana != ASF_IANA or kind != ASF_PING:
        raise Malformed("not an ASF presence ping")
    return int(tag)


def build_presence_pong(tag: int) -> bytes:
    """The answer to a presence ping: IPMI supported, ASF version 1.0 (IPMI 2.0, 13.2.4)."""
    body = struct.pack(">IIBB6x", ASF_IANA, 0, 0x81, 0x00)
    header = ASF_HEADER.pack(ASF_IANA, ASF_PONG, tag, 0, len(body))
    return RMCP_HEADER.pack(RMCP_VERSION, 0, 0xFF, RMCP_CLASS_ASF) + header + body


def is_rmcp_plus(body: bytes) -> bool:
    """Whether an IPMI-class body has the RMCP+ session header."""
    return bool(body) and body[0] == AUTH_TYPE_RMCP_PLUS


def parse_sessionless(body: bytes) -> bytes:
    """The IPMI message of an IPMI 1.5 packet outside any session: authentication type none, session 0."""
    if len(body) < _LAN_SESSION_HEADER.size:
        raise Malformed("shorter than an IPMI 1.5 session header")
    auth_type, _, session_id, length = _LAN_SESSION_HEADER.unpack_from(body)
    if auth_type != AUTH_TYPE_NONE or session_id:
        raise Malformed("an IPMI 1.5 session, which this BMC does not offer")
    message = body[_LAN_SESSION_HEADER.size :]
    if len(message) < length:
        raise Malformed("IPMI 1.5 message shorter than its length says")
    return message[:length]


def build_sessionless(message: bytes) -> bytes:
    """An IPMI 1.5 packet outside any session."""
    return _IPMI_RMCP + _LAN_SESSION_HEADER.pack(AUTH_TYPE_NONE, 0, 0, len(message)) + message


def parse_plus(body: bytes, auth_code_length: int) -> PlusPacket:
    """Take an RMCP+ packet apart.

    `auth_code_length` is that of the session's integrity algorithm; it is 0 where no session exists yet.
    """
    if len(body) < _PLUS_HEADER.size:
        raise Malformed("shorter than an RMCP+ header")
    _, flags, session_id, sequence, length = _PLUS_HEADER.unpack_from(body)
    payload_type = flags & 0x3F
    if payload_type == _OEM_PAYLOAD:
        raise Malformed("OEM payloads are not spoken here")
    end = _PLUS_HEADER.size + length
    if len(body) < end:
        raise Malformed("RMCP+ payload shorter than its length says")
    authenticated = bool(flags & _AUTHENTICATED)
    signed, auth_code = b"", b""
    if authenticated:
        if not auth_code_length or len(body) < end + 2 + auth_code_length:
            raise Malformed("no room for the session trailer")
        signed, auth_code = body[:-auth_code_length], body[-auth_code_length:]
    return PlusPacket(
        payload_type,
        session_id,
        sequence,
        body[_PLUS_HEADER.size : end],
        bool(flags & _ENCRYPTED),
        authenticated,
        signed,
        auth_code,
    )


def peek_session_id(body: bytes) -> int:
    """The session id of an RMCP+ packet, needed before its trailer can be measured."""
    if len(body) < _PLUS_HEADER.size:
        raise Malformed("shorter than an RMCP+ header")
    return int.from_bytes(body[2:6], "little")


def build_plus(payload_type: int, payload: bytes, session_id: int = 0, sequence: int = 0) -> bytes:
    """An RMCP+ packet with neither encryption nor integrity code: those of the session set-up."""
    header = _PLUS_HEADER.pack(AUTH_TYPE_RMCP_PLUS, payload_type, session_id, sequence, len(payload))
    return _IPMI_RMCP + header + payload


def build_signed_part(payload_type: int, encrypted_payload: bytes, session_id: int, sequence: int) -> bytes:
    """The part of a protected packet that the integrity code covers, padded to four bytes (13.6)."""
    flags = payload_type | _ENCRYPTED | _AUTHENTICATED
    header = _PLUS_HEADER.pack(AUTH_TYPE_RMCP_PLUS, flags, session_id, sequence, len(encrypted_payload))
    pad = -(len(header) + len(encrypted_payload) + 2) % 4
    return header + encrypted_payload + b"\xff" * pad + bytes((pad, _NEXT_HEADER))


def wrap_ipmi(body: bytes) -> bytes:
    """Put the RMCP header before an IPMI-class body."""
    return _IPMI_RMCP + body


def checksum(part: bytes) -> int:
    """The two's complement checksum of IPMI messages: part and checksum add up to zero."""
    return -sum(part) & 0xFF


def parse_request(message: bytes) -> Request:
    """Take an IPMI request message apart, both checksums proved."""
    if len(message) < 7:
        raise Malformed("shorter than an IPMI message")
    if sum(message[:3]) & 0xFF or sum(message[3:]) & 0xFF:
        raise Malformed("an IPMI message with a wrong checksum")
    responder, netfn_lun, _, requester, sequence_lun, command = message[:6]
    return Request(
        netfn=netfn_lun >> 2,
        command=command,
        data=message[6:-1],
        responder=responder,
        responder_lun=netfn_lun & 0x3,
        requester=requester,
        requester_lun=sequence_lun & 0x3,
        sequence=sequence_lun >> 2,
    )


def build_answer(request: Request, completion_code: int, data: bytes = b"", *, sequence_shift: int = 0) -> bytes:
    """The answer message to a request. `sequence_shift` makes the answer belong to another request."""
    head = bytes((request.requester, (request.netfn | 1) << 2 | request.requester_lun))
    sequence = (request.sequence + sequence_shift) & 0x3F
    tail = bytes((request.responder, sequence << 2 | request.responder_lun, request.command, completion_code)) + data
    return head + bytes((checksum(head),)) + tail + bytes((checksum(tail),))
