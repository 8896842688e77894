"""The bytes of RMCP+ (IPMI 2.0): packets, sealed packets and LAN messages. Pure; nothing is sent here.

Layers, outermost first: RMCP header, session header (1.5 without authentication before a session, 2.0 else),
payload (encrypted when the session is active), integrity trailer. An IPMI command or its answer is a *message*.
Source: IPMI 2.0 revision 1.1, chapters 13.6 (formats), 13.28 (integrity), 13.29 (AES-CBC-128), 13.8 (messages).
"""

import hmac
import os
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC

__all__ = [
    "Message",
    "Packet",
    "PacketError",
    "PayloadType",
    "SessionKeys",
    "message_request",
    "parse_message",
    "parse_packet",
    "plain_packet",
    "sealed_packet",
    "sessionless_packet",
    "unsealed",
]

_RMCP_IPMI: Final = b"\x06\x00\xff\x07"
_RMCP_CLASS_MASK: Final = 0x9F
_RMCP_CLASS_IPMI: Final = 0x07
_AUTH_NONE: Final = 0x00
_AUTH_RMCP_PLUS: Final = 0x06
_ENCRYPTED: Final = 0x80
_AUTHENTICATED: Final = 0x40
_PAYLOAD_MASK: Final = 0x3F
_PAYLOAD_OEM_EXPLICIT: Final = 0x02
_NEXT_HEADER: Final = 0x07
_HEADER_15 = struct.Struct("<4xBII B")
_HEADER_20 = struct.Struct("<4xBBIIH")
_BMC_ADDRESS: Final = 0x20
_CONSOLE_ADDRESS: Final = 0x81
_BLOCK: Final = 16
_AES_PADS: Final = tuple(bytes(range(1, n + 1)) + bytes((n,)) for n in range(_BLOCK))


class PacketError(ValueError):
    """A datagram or payload that is not what the protocol allows: garbage, cut short, forged or for somebody else."""


class PayloadType(IntEnum):
    IPMI = 0x00
    SOL = 0x01
    OPEN_SESSION_REQUEST = 0x10
    OPEN_SESSION_RESPONSE = 0x11
    RAKP_1 = 0x12
    RAKP_2 = 0x13
    RAKP_3 = 0x14
    RAKP_4 = 0x15


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """What seals a session's packets: both algorithms are HMACs, cut to `integrity_length` bytes, and AES-CBC-128."""

    digest: str
    integrity_length: int
    integrity_key: bytes
    cipher_key: bytes

    def __repr__(self) -> str:
        return f"SessionKeys({self.digest})"


@dataclass(frozen=True, slots=True)
class Packet:
    """A datagram's session header, and its payload as it came (still sealed where the flags say so)."""

    payload_type: int
    authenticated: bool
    encrypted: bool
    session_id: int
    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Message:
    """An answer to an IPMI command. `netfn` is the answer's own, odd one."""

    netfn: int
    command: int
    rq_seq: int
    completion_code: int
    data: bytes


def sessionless_packet(message: bytes) -> bytes:
    """A message outside any session, in the 1.5 format that every BMC answers (13.6, authentication type none)."""
    return _RMCP_IPMI + struct.pack("<BIIB", _AUTH_NONE, 0, 0, len(message)) + message


def plain_packet(payload_type: PayloadType, payload: bytes) -> bytes:
    """A session set-up payload: RMCP+ format, not sealed, session id and sequence zero."""
    return _RMCP_IPMI + struct.pack("<BBIIH", _AUTH_RMCP_PLUS, payload_type, 0, 0, len(payload)) + payload


def sealed_packet(
    keys: SessionKeys,
    payload_type: PayloadType,
    session_id: int,
    sequence: int,
    payload: bytes,
    iv: bytes | None = None,
) -> bytes:
    """An encrypted and authenticated packet. `iv`: 16 random bytes, drawn here unless a test gives them."""
    iv = os.urandom(_BLOCK) if iv is None else iv
    encryptor = Cipher(AES(keys.cipher_key), CBC(iv)).encryptor()
    padded = payload + _AES_PADS[-(len(payload) + 1) % _BLOCK]
    body = iv + encryptor.update(padded) + encryptor.finalize()
    kind = payload_type | _ENCRYPTED | _AUTHENTICATED
    header = struct.pack("<BBIIH", _AUTH_RMCP_PLUS, kind, session_id, sequence, len(body))
    # Authentication type to next header must be a multiple of four bytes (13.28.4).
    pad = -(len(header) + len(body) + 2) % 4
    covered = header + body + b"\xff" * pad + bytes((pad, _NEXT_HEADER))
    return _RMCP_IPMI + covered + hmac.digest(keys.integrity_key, covered, keys.digest)[: keys.integrity_length]


def parse_packet(datagram: bytes) -> Packet:
    """The header and payload of any IPMI datagram. Raises PacketError."""
    if len(datagram) < 5 or datagram[0] != 0x06 or datagram[3] & _RMCP_CLASS_MASK != _RMCP_CLASS_IPMI:
        raise PacketError("not an RMCP datagram of class IPMI")
    if datagram[4] == _AUTH_RMCP_PLUS:
        if len(datagram) < _HEADER_20.size:
            raise PacketError("the RMCP+ session header is cut short")
        _, kind, session_id, sequence, length = _HEADER_20.unpack_from(datagram)
        start = _HEADER_20.size
        if kind & _PAYLOAD_MASK == _PAYLOAD_OEM_EXPLICIT:
            raise PacketError("an OEM payload, which nobody asked for")
    elif datagram[4] == _AUTH_NONE:
        if len(datagram) < _HEADER_15.size:
            raise PacketError("the IPMI 1.5 session header is cut short")
        _, sequence, session_id, length = _HEADER_15.unpack_from(datagram)
        start, kind = _HEADER_15.size, PayloadType.IPMI
    else:
        raise PacketError(f"authentication type {datagram[4]:#04x}, which nobody asked for")
    payload = datagram[start : start + length]
    if len(payload) < length:
        raise PacketError(f"the payload has {len(payload)} of the {length} bytes that the header tells")
    return Packet(
        kind & _PAYLOAD_MASK, bool(kind & _AUTHENTICATED), bool(kind & _ENCRYPTED), session_id, sequence, payload
    )


def unsealed(keys: SessionKeys, datagram: bytes, packet: Packet) -> bytes:
    """The payload in clear, its authenticity proven. Raises PacketError for anything not sealed with these keys."""
    if not packet.authenticated or not packet.encrypted:
        raise PacketError("a packet of the session that is not sealed")
    end = len(datagram) - keys.integrity_length
    if end < _HEADER_20.size + len(packet.payload) + 2:
        raise PacketError("the integrity trailer is cut short")
    expected = hmac.digest(keys.integrity_key, datagram[4:end], keys.digest)[: keys.integrity_length]
    if not hmac.compare_digest(expected, datagram[end:]):
        raise PacketError("the integrity check value is wrong")
    return _decrypted(keys, packet.payload)


def _decrypted(keys: SessionKeys, sealed: bytes) -> bytes:
    if len(sealed) < 2 * _BLOCK or len(sealed) % _BLOCK:
        raise PacketError(f"an encrypted payload of {len(sealed)} bytes is no whole number of blocks")
    decryptor = Cipher(AES(keys.cipher_key), CBC(sealed[:_BLOCK])).decryptor()
    padded = decryptor.update(sealed[_BLOCK:]) + decryptor.finalize()
    pad = padded[-1]
    if pad >= _BLOCK:
        raise PacketError(f"an encrypted payload whose padding has {pad} bytes")
    return padded[: len(padded) - 1 - pad]


def message_request(netfn: int, lun: int, rq_seq: int, command: int, data: bytes) -> bytes:
    """A command to the BMC as a LAN message (13.8); `rq_seq` is 0 to 63."""
    head = bytes((_BMC_ADDRESS, netfn << 2 | lun))
    body = bytes((_CONSOLE_ADDRESS, rq_seq << 2, command)) + data
    return head + bytes((_checksum(head),)) + body + bytes((_checksum(body),))


def parse_message(payload: bytes) -> Message:
    """An answer, its checksums proven. Raises PacketError."""
    if len(payload) < 8:
        raise PacketError(f"an IPMI answer of {len(payload)} bytes is cut short")
    if sum(payload[:3]) & 0xFF or sum(payload[3:]) & 0xFF:
        raise PacketError("a checksum of the IPMI answer is wrong")
    netfn = payload[1] >> 2
    if not netfn & 1:
        raise PacketError("a request came where an answer was expected")
    return Message(netfn, payload[5], payload[4] >> 2, payload[6], payload[7:-1])


def _checksum(data: bytes) -> int:
    return -sum(data) & 0xFF
