"""Logs in to one BMC: walks the ladder, one Open Session and RAKP exchange per rung, over a datagram socket."""

import hmac
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from drivers.driver import Call
from drivers.ipmi import commands, quirks
from drivers.ipmi.handshake import (
    NAME_ONLY,
    SUITE_3,
    SUITE_17,
    Login,
    OpenSessionAnswer,
    Privilege,
    Rakp2,
    Rakp4,
    Status,
    open_session_request,
    parse_open_session_answer,
    parse_rakp2,
    parse_rakp4,
    suite_of,
)
from drivers.ipmi.ladder import Attempt, Ladder, LoginRefused, Phase, Silence
from drivers.ipmi.packets import (
    Message,
    Packet,
    PacketError,
    PayloadType,
    message_request,
    parse_message,
    parse_packet,
    plain_packet,
    sessionless_packet,
)
from drivers.ipmi.session import Session
from drivers.ipmi.transport import Datagrams, within
from protocol.errors import ErrorCode, OperationError

__all__ = ["TRIES", "Capabilities", "Credentials", "LoggedIn", "WrongPassword", "ask_capabilities", "log_in"]

T = TypeVar("T")
S = TypeVar("S", OpenSessionAnswer, Rakp2, Rakp4)

TRIES: Final = (1.0, 2.0, 3.0)
"""Seconds that each sending of a step waits: three sendings, six seconds until a silent BMC is called unreachable."""
_SUITE_17_TRIES: Final = (1.0, 1.5)
"""Shorter where suite 3 is still to be tried: some BMCs drop what they do not know (ipmitool#199, MAAS LP1889788)."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a BMC says of itself before a login."""

    ipmi_20: bool
    bmc_key: bool
    """A key K_G is set at the BMC, which every login would have to know."""


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """User and password as RAKP takes them: at most 16 and 20 bytes."""

    username: bytes
    password: bytes

    @classmethod
    def of(cls, username: str | None, password: str) -> "Credentials":
        """Raises OperationError INVALID_ARGUMENT for what IPMI cannot carry. Digits and nothing at all are sound."""
        name, word = (username or "").encode(), password.encode()
        for what, value, longest in (("user name", name, 16), ("password", word, 20)):
            if len(value) > longest:
                raise OperationError(
                    ErrorCode.INVALID_ARGUMENT,
                    f"the {what} has {len(value)} bytes; IPMI 2.0 carries at most {longest}: give the BMC's user a "
                    f"shorter {what}",
                )
            if b"\0" in value:
                raise OperationError(ErrorCode.INVALID_ARGUMENT, f"the {what} holds a NUL character")
        return cls(name, word)


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """A session, not yet raised above USER, and the rung that led to it."""

    session: Session
    attempt: Attempt


class WrongPassword(Exception):
    """The BMC has shown that it knows another password for this user."""


async def ask_capabilities(datagrams: Datagrams, seconds: Sequence[float] = TRIES) -> Capabilities | None:
    """Asks without credentials. None where the BMC refuses the question; raises Silence where it does not answer."""
    command = commands.GET_CHANNEL_AUTHENTICATION_CAPABILITIES
    request = sessionless_packet(message_request(command.netfn, 0, 0, command.number, command.data))

    def answer(packet: Packet) -> Message | None:
        if packet.payload_type != PayloadType.IPMI or packet.session_id:
            return None
        message = parse_message(packet.payload)
        return message if (message.netfn, message.command) == (command.netfn | 1, command.number) else None

    said = await _step(datagrams, Phase.CAPABILITIES, request, answer, seconds)
    if said.completion_code or len(said.data) < 4:
        return None
    return Capabilities(bool(said.data[1] & 0x80 and said.data[3] & 0x02), bool(said.data[2] & 0x20))


async def log_in(
    datagrams: Datagrams, endpoint: str, credentials: Credentials, call: Call, start: Attempt | None
) -> LoggedIn:
    """A new session by the first rung that the BMC takes; `start` is the rung that led to an earlier one.

    Raises WrongPassword, OSError where the host refuses the port, or OperationError: UNREACHABLE, AUTH_FAILED, BUSY,
    UNSUPPORTED or BMC_ERROR, each with the step, its status and what it means. Nothing was changed at the machine.
    """
    ladder = Ladder(endpoint, start)
    capabilities = None
    try:
        capabilities = await ask_capabilities(datagrams, within(TRIES, call.remaining))
    except Silence as silence:
        ladder.silent(silence)
    while True:
        if ladder.pause:
            await call.sleep(ladder.pause, f"waiting for a free session at {endpoint}")
        call.check(f"logging in to {endpoint}")
        attempt = ladder.present
        tries = TRIES if start is not None or attempt.suite is SUITE_3 else _SUITE_17_TRIES
        try:
            return await _set_up(datagrams, attempt, credentials, within(tries, call.remaining), capabilities)
        except LoginRefused as refusal:
            ladder.refused(refusal)
        except Silence as silence:
            ladder.silent(silence)
        except _SpeaksSuite3:
            ladder.present = Attempt(SUITE_3, attempt.privilege)


class _SpeaksSuite3(Exception):
    """The BMC said yes to suite 17 and then hashed with SHA-1 (VirtualBMC 3.3, pyghmi's fake BMC)."""


async def _set_up(
    datagrams: Datagrams,
    attempt: Attempt,
    credentials: Credentials,
    tries: Sequence[float],
    capabilities: Capabilities | None,
) -> LoggedIn:
    console_session = secrets.randbelow(0xFFFF_FFFE) + 1
    tag = secrets.randbelow(256)

    request = open_session_request(tag, attempt.suite, attempt.privilege, console_session)
    opened = await _rakp(
        datagrams, Phase.OPEN_SESSION, PayloadType.OPEN_SESSION_REQUEST, request, parse_open_session_answer, tries
    )
    suite = suite_of(opened.algorithms)
    if suite is None or opened.console_session != console_session or not opened.bmc_session:
        raise LoginRefused(Phase.OPEN_SESSION, Status.NO_CIPHER_SUITE_MATCH)

    login = Login(
        suite=suite,
        role=attempt.privilege | NAME_ONLY,
        username=credentials.username,
        key=credentials.password,
        console_session=console_session,
        bmc_session=opened.bmc_session,
        console_random=secrets.token_bytes(16),
    )
    second = await _rakp(datagrams, Phase.RAKP_1, PayloadType.RAKP_1, login.rakp1(tag), parse_rakp2, tries)
    login.hear(second)
    if not login.accepts(second.code, quirks.rakp_variants(attempt.privilege, credentials.password)):
        datagrams.send(plain_packet(PayloadType.RAKP_3, login.abandoned(tag)))
        if suite is SUITE_17 and len(second.code) == SUITE_3.code_length:
            raise _SpeaksSuite3
        if len(second.code) not in (SUITE_17.code_length, SUITE_3.code_length):
            # No proof at all says nothing of the password, which must not be blocked for it.
            raise OperationError(
                ErrorCode.BMC_ERROR,
                f"the BMC's RAKP 2 carries {len(second.code)} bytes of proof and not {suite.code_length}: nothing "
                "tells whether the password is right",
                details={"phase": Phase.RAKP_1.value},
            )
        raise WrongPassword("the BMC's RAKP 2 shows that its password for this user is another one")

    fourth = await _rakp(datagrams, Phase.RAKP_3, PayloadType.RAKP_3, login.rakp3(tag), parse_rakp4, tries)
    if not hmac.compare_digest(login.rakp4_check(), fourth.check):
        reason = "the BMC's RAKP 4 does not fit the session key"
        if capabilities is not None and capabilities.bmc_key:
            reason += "; a BMC key (K_G) is set there, which this client does not use: clear it in the BMC's settings"
        raise WrongPassword(reason)
    session = Session(login.session_keys(), console_session, opened.bmc_session, Privilege.USER)
    return LoggedIn(session, Attempt(suite, attempt.privilege))


async def _rakp(
    datagrams: Datagrams,
    phase: Phase,
    payload_type: PayloadType,
    payload: bytes,
    parse: Callable[[bytes], S],
    seconds: Sequence[float],
) -> S:
    """One set-up message and its answer, which has the next payload type and the same tag. Raises LoginRefused."""

    def answer(packet: Packet) -> S | None:
        if packet.payload_type != payload_type + 1:
            return None
        said = parse(packet.payload)
        return said if said.tag == payload[0] else None

    said = await _step(datagrams, phase, plain_packet(payload_type, payload), answer, seconds)
    if said.status:
        raise LoginRefused(phase, said.status)
    return said


async def _step(
    datagrams: Datagrams,
    phase: Phase,
    datagram: bytes,
    answer: Callable[[Packet], T | None],
    seconds: Sequence[float],
) -> T:
    """The first datagram that `answer` takes; garbage and late answers to earlier steps are passed over."""

    def match(received: bytes) -> T | None:
        try:
            return answer(parse_packet(received))
        except PacketError:
            return None

    try:
        return await datagrams.exchange(lambda: datagram, match, seconds)
    except TimeoutError:
        raise Silence(phase, sum(seconds)) from None
