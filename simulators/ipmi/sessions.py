"""RMCP+ sessions of one BMC: the four-step set-up, sequence windows, time-outs, the limit of their number.

Everything is a plain function of bytes and time. Sources: IPMI 2.0 rev. 1.1, 13.17 to 13.24 (set-up),
6.12.13 (sequence window), 6.12.15 (inactivity).
"""

import hmac
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from simulators.ipmi.accounts import NAME_LENGTH, User, UserTable
from simulators.ipmi.ciphers import SUITES, CipherSuite, SessionKeys, suite_of_algorithms
from simulators.ipmi.constants import Privilege, RmcpStatus
from simulators.ipmi.packets import Malformed

Address = tuple[str, int]
_NAME_ONLY_LOOKUP: Final = 0x10
_AHEAD, _BEHIND = 15, 16
_RANDOM_LENGTH: Final = 16


class SessionState(Enum):
    """How far a session has come: OPENED -> CHALLENGED (RAKP 2 sent) -> ACTIVE."""

    OPENED = auto()
    CHALLENGED = auto()
    ACTIVE = auto()


class SequenceWindow:
    """Which inbound session sequence numbers are still acceptable, each once."""

    __slots__ = ("_highest", "_seen")

    def __init__(self) -> None:
        self._highest = 0
        self._seen = 1

    def accept(self, number: int) -> bool:
        """Take a number, or say that it is a repetition or too far from the newest one."""
        if not number:
            return False
        ahead = (number - self._highest + 0x8000_0000) % 0x1_0000_0000 - 0x8000_0000
        if 0 < ahead <= _AHEAD:
            self._seen = (self._seen << ahead | 1) & 0x1_FFFF_FFFF
            self._highest = number
            return True
        if ahead > _AHEAD or ahead < -_BEHIND or self._seen >> -ahead & 1:
            return False
        self._seen |= 1 << -ahead
        return True


@dataclass(slots=True)
class Session:
    """One session, from Open Session on. Keys and random numbers stay out of its text form."""

    id: int
    remote_id: int
    handle: int
    suite: CipherSuite
    peer: Address
    requested: Privilege
    last_seen: float
    state: SessionState = SessionState.OPENED
    privilege: Privilege = Privilege.USER
    privilege_limit: Privilege = Privilege.USER
    user_slot: int = 0
    user: User | None = None
    window: SequenceWindow = field(default_factory=SequenceWindow, repr=False)
    keys: SessionKeys | None = field(default=None, repr=False)
    outbound: int = 0
    role: int = 0
    name: bytes = b""
    random: bytes = field(default=b"", repr=False)
    remote_random: bytes = field(default=b"", repr=False)
    challenge: tuple[bytes, bytes] | None = field(default=None, repr=False)
    welcome: tuple[bytes, bytes] | None = field(default=None, repr=False)

    @property
    def user_name(self) -> str:
        """The name that the session was opened with, or an empty text before RAKP 1."""
        return self.name.decode("utf-8", "replace")

    def next_outbound(self) -> int:
        """The next session sequence number of the BMC's own packets; never 0."""
        self.outbound = self.outbound % 0xFFFF_FFFF + 1
        return self.outbound


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """An RMCP+ Open Session request (13.17). `suite` is None where the algorithms form none that we know."""

    tag: int
    privilege: int
    remote_id: int
    suite: CipherSuite | None


@dataclass(frozen=True, slots=True)
class Rakp1:
    """RAKP message 1 (13.20)."""

    tag: int
    session_id: int
    remote_random: bytes
    role: int
    name_length: int
    name: bytes


@dataclass(frozen=True, slots=True)
class Rakp3:
    """RAKP message 3 (13.22)."""

    tag: int
    status: int
    session_id: int
    code: bytes


def parse_open_request(payload: bytes, offered: Collection[int]) -> OpenRequest:
    """Take an Open Session request apart. A null algorithm (length 0) leaves the choice to the BMC."""
    if len(payload) < 32:
        raise Malformed("an Open Session request shorter than 32 bytes")
    wanted: list[int | None] = []
    for kind in range(3):
        block = payload[8 + 8 * kind : 16 + 8 * kind]
        if block[0] != kind or block[3] not in (0, 8):
            raise Malformed(f"algorithm block {kind} of Open Session is not as specified")
        wanted.append(block[4] & 0x3F if block[3] else None)
    remote_id = int.from_bytes(payload[4:8], "little")
    return OpenRequest(payload[0], payload[1] & 0xF, remote_id, _choose_suite(wanted, offered))


def _choose_suite(wanted: list[int | None], offered: Collection[int]) -> CipherSuite | None:
    authentication, integrity, confidentiality = wanted
    if authentication is not None and integrity is not None and confidentiality is not None:
        return suite_of_algorithms(authentication, integrity, confidentiality)
    for number in sorted(offered, reverse=True):
        suite = SUITES[number]
        present = (suite.authentication, suite.integrity, suite.confidentiality)
        if all(want in (None, have) for want, have in zip(wanted, present, strict=True)):
            return suite
    return None


def parse_rakp1(payload: bytes) -> Rakp1:
    """Take RAKP message 1 apart."""
    if len(payload) < 28:
        raise Malformed("RAKP message 1 shorter than 28 bytes")
    session_id = int.from_bytes(payload[4:8], "little")
    length = payload[27]
    return Rakp1(payload[0], session_id, payload[8:24], payload[24], length, payload[28 : 28 + length])


def parse_rakp3(payload: bytes) -> Rakp3:
    """Take RAKP message 3 apart."""
    if len(payload) < 8:
        raise Malformed("RAKP message 3 shorter than 8 bytes")
    return Rakp3(payload[0], payload[1], int.from_bytes(payload[4:8], "little"), payload[8:])


def refuse_open(request: OpenRequest, status: int) -> bytes:
    """An Open Session response that says no."""
    return struct.pack("<BBBBI", request.tag, status, 0, 0, request.remote_id)


def refuse_rakp(tag: int, status: int, remote_id: int) -> bytes:
    """RAKP message 2 or 4 that says no."""
    return struct.pack("<BBHI", tag, status, 0, remote_id)


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """`maximum` sessions at once, half-open ones included; the times are seconds."""

    maximum: int = 8
    inactivity: float = 60.0
    half_open: float = 20.0


class SessionTable:
    """The sessions of one BMC. `random` gives bytes, `clock` monotonic seconds."""

    def __init__(
        self,
        users: UserTable,
        guid: bytes,
        *,
        clock: Callable[[], float],
        random: Callable[[int], bytes],
        limits: SessionLimits,
        suites: Collection[int],
        channel_limit: Privilege = Privilege.ADMINISTRATOR,
        k_g: bytes = b"",
    ) -> None:
        self.users = users
        self.limits = limits
        self.suites = tuple(suites)
        self.channel_limit = channel_limit
        self._guid = guid
        self._clock = clock
        self._random = random
        self._k_g = k_g
        self._sessions: dict[int, Session] = {}
        self.on_close: list[Callable[[Session], None]] = []

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._sessions.values()))

    @property
    def has_k_g(self) -> bool:
        """Whether a BMC key of its own takes part in the session keys."""
        return bool(self._k_g.rstrip(b"\0"))

    def active(self) -> list[Session]:
        """The sessions that are set up, oldest first."""
        self.expire()
        return [session for session in self._sessions.values() if session.state is SessionState.ACTIVE]

    def find(self, session_id: int) -> Session | None:
        """The session of this id, unless its time ran out."""
        session = self._sessions.get(session_id)
        if session is not None and self._is_stale(session):
            self.close(session)
            return None
        return session

    def close(self, session: Session) -> None:
        """Forget a session; whoever depends on it is told."""
        if self._sessions.pop(session.id, None) is not None:
            for listener in self.on_close:
                listener(session)

    def close_all(self) -> None:
        """Forget every session, as a BMC that restarts does."""
        for session in tuple(self._sessions.values()):
            self.close(session)

    def expire(self) -> None:
        """Close the sessions whose time ran out."""
        for session in tuple(self._sessions.values()):
            if self._is_stale(session):
                self.close(session)

    def _is_stale(self, session: Session) -> bool:
        active = session.state is SessionState.ACTIVE
        allowed = self.limits.inactivity if active else self.limits.half_open
        return self._clock() - session.last_seen >= allowed

    def open(self, request: OpenRequest, peer: Address) -> tuple[int, bytes]:
        """Answer Open Session: the status and the payload of the response."""
        if request.privilege > Privilege.OEM:
            return RmcpStatus.INVALID_ROLE, refuse_open(request, RmcpStatus.INVALID_ROLE)
        suite = request.suite
        if suite is None or suite.number not in self.suites:
            return RmcpStatus.NO_CIPHER_SUITE_MATCH, refuse_open(request, RmcpStatus.NO_CIPHER_SUITE_MATCH)
        self._make_room(request, peer)
        if len(self._sessions) >= self.limits.maximum:
            return RmcpStatus.INSUFFICIENT_RESOURCES, refuse_open(request, RmcpStatus.INSUFFICIENT_RESOURCES)
        requested = Privilege(request.privilege) or self.channel_limit
        session = Session(
            self._new_id(), request.remote_id, self._new_handle(), suite, peer, requested, self._clock()
        )
        self._sessions[session.id] = session
        algorithms = (suite.authentication, suite.integrity, suite.confidentiality)
        blocks = b"".join(bytes((kind, 0, 0, 8, number, 0, 0, 0)) for kind, number in enumerate(algorithms))
        head = struct.pack("<BBBBII", request.tag, RmcpStatus.OK, requested, 0, request.remote_id, session.id)
        return RmcpStatus.OK, head + blocks

    def _make_room(self, request: OpenRequest, peer: Address) -> None:
        """A request sent again replaces the half-open session of its first copy."""
        self.expire()
        for session in tuple(self._sessions.values()):
            half_open = session.state is not SessionState.ACTIVE
            if half_open and session.peer == peer and session.remote_id == request.remote_id:
                self.close(session)

    def _new_id(self) -> int:
        while True:
            number = int.from_bytes(self._random(4), "little")
            if number and number not in self._sessions:
                return number

    def _new_handle(self) -> int:
        taken = {session.handle for session in self._sessions.values()}
        return next(handle for handle in range(1, 256) if handle not in taken)

    def challenge(self, message: Rakp1) -> tuple[int, bytes]:
        """Answer RAKP 1 with RAKP 2: the status and the payload. The same message again gets the same answer."""
        session = self.find(message.session_id)
        if session is None or session.state is SessionState.ACTIVE:
            return RmcpStatus.INVALID_SESSION_ID, refuse_rakp(message.tag, RmcpStatus.INVALID_SESSION_ID, 0)
        asked = struct.pack("<16sBB", message.remote_random, message.role, message.name_length) + message.name
        if session.challenge is not None and session.challenge[0] == asked:
            return RmcpStatus.OK, bytes((message.tag,)) + session.challenge[1]
        status = self._admit(session, message)
        if status is not RmcpStatus.OK:
            self.close(session)
            return status, refuse_rakp(message.tag, status, session.remote_id)
        session.random = self._random(_RANDOM_LENGTH)
        session.remote_random = message.remote_random
        session.role, session.name = message.role, message.name
        session.state = SessionState.CHALLENGED
        session.last_seen = self._clock()
        code = session.suite.exchange_code(_password(session), self._challenge_text(session))
        head = struct.pack("<BHI", RmcpStatus.OK, 0, session.remote_id)
        answer = head + session.random + self._guid + code
        session.challenge = (asked, answer)
        return RmcpStatus.OK, bytes((message.tag,)) + answer

    def _admit(self, session: Session, message: Rakp1) -> RmcpStatus:
        role = message.role & 0xF
        if message.name_length > NAME_LENGTH or len(message.name) != message.name_length:
            return RmcpStatus.INVALID_NAME_LENGTH
        if role > Privilege.OEM or (role and role > session.requested):
            return RmcpStatus.INVALID_ROLE
        wanted = Privilege(role) or session.requested
        found = self.users.named(message.name)
        if not found:
            return RmcpStatus.UNAUTHORISED_NAME
        allowed = [(slot, user) for slot, user in found if _limit(user) >= wanted]
        if not allowed and not message.role & _NAME_ONLY_LOOKUP:
            return RmcpStatus.UNAUTHORISED_NAME
        if not allowed or wanted > self.channel_limit:
            return RmcpStatus.UNAUTHORISED_ROLE
        session.user_slot, session.user = allowed[0]
        session.privilege_limit = wanted
        session.privilege = min(wanted, Privilege.USER)
        return RmcpStatus.OK

    def _challenge_text(self, session: Session) -> bytes:
        ids = struct.pack("<II", session.remote_id, session.id)
        return ids + session.remote_random + session.random + self._guid + _role_and_name(session)

    def welcome(self, message: Rakp3) -> tuple[int, bytes | None]:
        """Answer RAKP 3 with RAKP 4: the status and the payload; None where the console itself gave up."""
        session = self.find(message.session_id)
        if session is None or session.state is SessionState.OPENED:
            return RmcpStatus.INVALID_SESSION_ID, refuse_rakp(message.tag, RmcpStatus.INVALID_SESSION_ID, 0)
        if session.state is SessionState.ACTIVE:
            if session.welcome is not None and hmac.compare_digest(session.welcome[0], message.code):
                return RmcpStatus.OK, bytes((message.tag,)) + session.welcome[1]
            return RmcpStatus.INVALID_SESSION_ID, refuse_rakp(message.tag, RmcpStatus.INVALID_SESSION_ID, 0)
        if message.status:
            self.close(session)
            return message.status, None
        suite = session.suite
        text = session.random + struct.pack("<I", session.remote_id) + _role_and_name(session)
        if not hmac.compare_digest(suite.exchange_code(_password(session), text), message.code):
            self.close(session)
            status = RmcpStatus.INVALID_INTEGRITY_CHECK
            return status, refuse_rakp(message.tag, status, session.remote_id)
        key_text = session.remote_random + session.random + _role_and_name(session)
        session_key = suite.exchange_code(self._k_g.rstrip(b"\0") or _password(session), key_text)
        session.keys = SessionKeys(suite, session_key, self._random)
        session.state = SessionState.ACTIVE
        session.last_seen = self._clock()
        proof = session.remote_random + struct.pack("<I", session.id) + self._guid
        answer = struct.pack("<BHI", RmcpStatus.OK, 0, session.remote_id)
        answer += suite.integrity_check(session_key, proof)
        session.welcome = (message.code, answer)
        return RmcpStatus.OK, bytes((message.tag,)) + answer


def _limit(user: User) -> int:
    return 0 if user.privilege is Privilege.NO_ACCESS else user.privilege


def _password(session: Session) -> bytes:
    if session.user is None:
        raise RuntimeError("a session without a user was challenged")
    return session.user.password


def _role_and_name(session: Session) -> bytes:
    return bytes((session.role, len(session.name))) + session.name
