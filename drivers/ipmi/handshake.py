"""RMCP+ session set-up: Open Session and RAKP 1 to 4, cipher suites 17 and 3, and the keys. Pure.

Source: IPMI 2.0 revision 1.1, 13.17 to 13.24 (messages), 13.31 (key exchange), 13.32 (K1, K2),
table 13-15 (statuses).
"""

import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from drivers.ipmi.packets import PacketError, SessionKeys

__all__ = [
    "NAME_ONLY",
    "STATUS_TEXTS",
    "SUITE_3",
    "SUITE_17",
    "Login",
    "OpenSessionAnswer",
    "Privilege",
    "Rakp2",
    "Rakp4",
    "Status",
    "Suite",
    "open_session_request",
    "parse_open_session_answer",
    "parse_rakp2",
    "parse_rakp4",
    "suite_of",
]

NAME_ONLY: Final = 0x10
"""The role's bit that says: look the user up by name alone, not by name and privilege (13.20)."""


class Privilege(IntEnum):
    CALLBACK = 1
    USER = 2
    OPERATOR = 3
    ADMINISTRATOR = 4


class Status(IntEnum):
    """The RMCP+ and RAKP status codes that are told apart here (table 13-15)."""

    NO_ERRORS = 0x00
    INSUFFICIENT_RESOURCES = 0x01
    INVALID_SESSION_ID = 0x02
    INVALID_AUTHENTICATION_ALGORITHM = 0x04
    INVALID_INTEGRITY_ALGORITHM = 0x05
    NO_MATCHING_AUTHENTICATION_PAYLOAD = 0x06
    NO_MATCHING_INTEGRITY_PAYLOAD = 0x07
    INACTIVE_SESSION_ID = 0x08
    INVALID_ROLE = 0x09
    UNAUTHORIZED_ROLE = 0x0A
    INSUFFICIENT_RESOURCES_FOR_ROLE = 0x0B
    INVALID_NAME_LENGTH = 0x0C
    UNAUTHORIZED_NAME = 0x0D
    INVALID_INTEGRITY_CHECK = 0x0F
    INVALID_CONFIDENTIALITY_ALGORITHM = 0x10
    NO_CIPHER_SUITE_MATCH = 0x11
    ILLEGAL_PARAMETER = 0x12


STATUS_TEXTS: Final[dict[int, str]] = {
    0x00: "no errors",
    0x01: "insufficient resources to create a session",
    0x02: "invalid session id",
    0x03: "invalid payload type",
    0x04: "invalid authentication algorithm",
    0x05: "invalid integrity algorithm",
    0x06: "no matching authentication payload",
    0x07: "no matching integrity payload",
    0x08: "inactive session id",
    0x09: "invalid role",
    0x0A: "unauthorized role or privilege level requested",
    0x0B: "insufficient resources to create a session at the requested role",
    0x0C: "invalid name length",
    0x0D: "unauthorized name",
    0x0E: "unauthorized GUID",
    0x0F: "invalid integrity check value",
    0x10: "invalid confidentiality algorithm",
    0x11: "no cipher suite match with the proposed algorithms",
    0x12: "illegal or unrecognized parameter",
}


@dataclass(frozen=True, slots=True)
class Suite:
    """A cipher suite (table 22-20); every one used here encrypts with AES-CBC-128."""

    number: int
    digest: str
    authentication: int
    code_length: int
    integrity: int
    integrity_length: int
    confidentiality: int = 0x01

    def __str__(self) -> str:
        return f"cipher suite {self.number}"


SUITE_17 = Suite(17, "sha256", 0x03, 32, 0x04, 16)
SUITE_3 = Suite(3, "sha1", 0x01, 20, 0x01, 12)
_SUITES: Final = (SUITE_17, SUITE_3)
_CONSTANT_LENGTH: Final = 20
"""K1 and K2 are made of 20 bytes for SHA-256 too, as the clients and BMCs in the field do."""


@dataclass(frozen=True, slots=True)
class OpenSessionAnswer:
    """`status` alone where the BMC refused."""

    tag: int
    status: int
    console_session: int = 0
    bmc_session: int = 0
    algorithms: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Rakp2:
    tag: int
    status: int
    console_session: int
    bmc_random: bytes = b""
    guid: bytes = b""
    code: bytes = b""


@dataclass(frozen=True, slots=True)
class Rakp4:
    tag: int
    status: int
    console_session: int
    check: bytes = b""


def suite_of(algorithms: tuple[int, int, int]) -> Suite | None:
    """The suite of these authentication, integrity and confidentiality algorithms, where it is one of ours."""
    return next((s for s in _SUITES if (s.authentication, s.integrity, s.confidentiality) == algorithms), None)


def open_session_request(tag: int, suite: Suite, privilege: Privilege, console_session: int) -> bytes:
    """Proposes one suite. The privilege is that of RAKP 1: some BMCs hash with this one (see `quirks`)."""
    algorithms = (suite.authentication, suite.integrity, suite.confidentiality)
    records = b"".join(bytes((kind, 0, 0, 8, number, 0, 0, 0)) for kind, number in enumerate(algorithms))
    return struct.pack("<BBxxI", tag, privilege, console_session) + records


def parse_open_session_answer(payload: bytes) -> OpenSessionAnswer:
    """Raises PacketError when it is cut short; a refusal may be as short as its status."""
    if len(payload) < 2:
        raise PacketError("an Open Session answer that is cut short")
    tag, status = payload[:2]
    if status:
        return OpenSessionAnswer(tag, status)
    if len(payload) < 36:
        raise PacketError("an Open Session answer that is cut short")
    console, bmc = struct.unpack_from("<II", payload, 4)
    return OpenSessionAnswer(tag, status, console, bmc, (payload[16] & 0x3F, payload[24] & 0x3F, payload[32] & 0x3F))


def parse_rakp2(payload: bytes) -> Rakp2:
    """Raises PacketError when it is cut short; a refusal may be as short as its status."""
    if len(payload) < 2 or (not payload[1] and len(payload) < 40):
        raise PacketError("a RAKP 2 message that is cut short")
    tag, status, console = struct.unpack_from("<BBxxI", payload.ljust(8, b"\0"))
    if status:
        return Rakp2(tag, status, console)
    return Rakp2(tag, status, console, payload[8:24], payload[24:40], payload[40:])


def parse_rakp4(payload: bytes) -> Rakp4:
    """Raises PacketError when it is cut short; a refusal may be as short as its status."""
    if len(payload) < 2 or (not payload[1] and len(payload) < 8):
        raise PacketError("a RAKP 4 message that is cut short")
    tag, status, console = struct.unpack_from("<BBxxI", payload.ljust(8, b"\0"))
    return Rakp4(tag, status, console, payload[8:])


@dataclass(slots=True, repr=False)
class Login:
    """One key exchange: what both sides have said so far. Its repr shows nothing.

    `role` is RAKP 1's privilege byte, with its name-only bit. `hashed_role` and `key` are what the BMC is found to
    hash with: the same, save for the quirks that `accepts` recognises.
    """

    suite: Suite
    role: int
    username: bytes
    key: bytes
    console_session: int
    bmc_session: int
    console_random: bytes
    bmc_random: bytes = b""
    guid: bytes = b""
    hashed_role: int = -1

    def rakp1(self, tag: int) -> bytes:
        return (
            struct.pack("<BxxxI", tag, self.bmc_session)
            + self.console_random
            + struct.pack("<BxxB", self.role, len(self.username))
            + self.username
        )

    def hear(self, answer: Rakp2) -> None:
        """Takes over the BMC's random number and GUID."""
        self.bmc_random, self.guid = answer.bmc_random, answer.guid

    def rakp2_code(self, role: int, key: bytes) -> bytes:
        """What RAKP 2 must carry if the BMC knows the password and hashes this role byte (13.31)."""
        sessions = struct.pack("<II", self.console_session, self.bmc_session)
        return self._hmac(key, sessions + self.console_random + self.bmc_random + self.guid + self._who(role))

    def accepts(self, code: bytes, variants: "tuple[tuple[int, bytes], ...]") -> bool:
        """Whether the BMC has shown that it knows the password, under one of `variants` (role byte, key).

        It is settled here, with the one answer at hand: no second login is tried, so no lock-out counter moves.
        """
        for role, key in variants:
            if hmac.compare_digest(self.rakp2_code(role, key), code):
                self.hashed_role, self.key = role, key
                return True
        return False

    def rakp3(self, tag: int) -> bytes:
        """Shows the BMC that we know the password."""
        proof = self.bmc_random + struct.pack("<I", self.console_session) + self._who(self.hashed_role)
        return struct.pack("<BBxxI", tag, Status.NO_ERRORS, self.bmc_session) + self._hmac(self.key, proof)

    def abandoned(self, tag: int) -> bytes:
        """RAKP 3 that ends the set-up, so that the BMC frees its half-open session at once (13.22)."""
        return struct.pack("<BBxxI", tag, Status.INVALID_INTEGRITY_CHECK, self.bmc_session)

    def session_integrity_key(self) -> bytes:
        """SIK; the BMC key K_G is not set, so the user's key stands for it (13.31)."""
        return self._hmac(self.key, self.console_random + self.bmc_random + self._who(self.hashed_role))

    def rakp4_check(self) -> bytes:
        """What RAKP 4 must carry."""
        proof = self.console_random + struct.pack("<I", self.bmc_session) + self.guid
        return self._hmac(self.session_integrity_key(), proof)[: self.suite.integrity_length]

    def session_keys(self) -> SessionKeys:
        sik = self.session_integrity_key()
        first, second = (self._hmac(sik, bytes((n,)) * _CONSTANT_LENGTH) for n in (1, 2))
        return SessionKeys(self.suite.digest, self.suite.integrity_length, first, second[:16])

    def _who(self, role: int) -> bytes:
        return bytes((role, len(self.username))) + self.username

    def _hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self.suite.digest)
