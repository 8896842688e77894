"""How the BMC holds its side of the conversation: each datagram understood, met by the fault rules, answered.

What does not parse, prove or belong to a session is dropped without an answer, as the specification wants.
A command sent again under a new session sequence number is carried out again: real BMCs do so, and a client
that repeats a power cycle after a lost answer shall be seen to do it twice.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulators.ipmi.ciphers import BadCiphertext
from simulators.ipmi.commands.registry import Call, Refused
from simulators.ipmi.console import SolPacket
from simulators.ipmi.constants import (
    BMC_ADDRESS,
    CompletionCode,
    NetFn,
    PayloadType,
    Privilege,
)
from simulators.ipmi.faults import FaultRule, Occasion, Phase
from simulators.ipmi.journal import JournalEntry, without_secrets
from simulators.ipmi.packets import (
    RMCP_CLASS_ASF,
    RMCP_CLASS_IPMI,
    Malformed,
    Request,
    build_answer,
    build_plus,
    build_presence_pong,
    build_sessionless,
    build_signed_part,
    is_rmcp_plus,
    parse_plus,
    parse_presence_ping,
    parse_request,
    parse_rmcp,
    parse_sessionless,
    peek_session_id,
    wrap_ipmi,
)
from simulators.ipmi.sessions import (
    Address,
    Session,
    SessionState,
    parse_open_request,
    parse_rakp1,
    parse_rakp3,
    refuse_open,
    refuse_rakp,
)

if TYPE_CHECKING:
    from simulators.ipmi.bmc import IpmiBmc

log = logging.getLogger(__name__)

_GET_AUTHENTICATION_CAPABILITIES = (NetFn.APP, 0x38)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A datagram to send to `peer`, `after` seconds from now."""

    packet: bytes
    peer: Address
    after: float = 0.0


# Makes the answer datagram; the rule may ask for a wrong sequence number in it.
Encoder = Callable[[FaultRule | None], bytes]


class Conversation:
    """Datagrams in, datagrams out, on behalf of one BMC."""

    def __init__(self, bmc: "IpmiBmc") -> None:
        self._bmc = bmc

    def receive(self, datagram: bytes, peer: Address) -> list[Outgoing]:
        """Take one datagram. What does not parse, prove or belong to a session is dropped without an answer."""
        try:
            packet = parse_rmcp(datagram)
            if packet.kind == RMCP_CLASS_ASF:
                return self._receive_ping(packet.body, peer)
            if packet.kind != RMCP_CLASS_IPMI:
                return []
            if is_rmcp_plus(packet.body):
                return self._receive_plus(packet.body, peer)
            request = parse_request(parse_sessionless(packet.body))
            return self._command(request, None, peer, build_sessionless)
        except (Malformed, BadCiphertext) as error:
            log.debug("a datagram from %s:%d was dropped: %s", peer[0], peer[1], error)
            return []

    def _receive_ping(self, body: bytes, peer: Address) -> list[Outgoing]:
        tag = parse_presence_ping(body)
        rule = self._pick(Occasion(Phase.PING))
        self._note(Phase.PING, peer, rule, executed=not (rule and rule.drop))
        return self._answer(rule, peer, lambda: lambda _: build_presence_pong(tag))

    def _receive_plus(self, body: bytes, peer: Address) -> list[Outgoing]:
        session_id = peek_session_id(body)
        if session_id:
            return self._receive_protected(body, session_id, peer)
        packet = parse_plus(body, 0)
        match packet.payload_type:
            case PayloadType.OPEN_SESSION_REQUEST:
                return self._receive_open(packet.payload, peer)
            case PayloadType.RAKP_1:
                return self._receive_rakp1(packet.payload, peer)
            case PayloadType.RAKP_3:
                return self._receive_rakp3(packet.payload, peer)
            case PayloadType.IPMI:
                request = parse_request(packet.payload)
                return self._command(request, None, peer, lambda message: build_plus(PayloadType.IPMI, message))
        return []

    def _receive_open(self, payload: bytes, peer: Address) -> list[Outgoing]:
        request = parse_open_request(payload, self._bmc.sessions.suites)
        suite = request.suite.number if request.suite else None
        rule = self._pick(Occasion(Phase.OPEN_SESSION, suite=suite, privilege=request.privilege))

        def execute() -> Encoder:
            if rule is not None and rule.status is not None:
                status, answer = rule.status, refuse_open(request, rule.status)
            else:
                status, answer = self._bmc.sessions.open(request, peer)
            self._note(Phase.OPEN_SESSION, peer, rule, outcome=status, executed=not _refuses(rule))
            return lambda _: build_plus(PayloadType.OPEN_SESSION_RESPONSE, answer)

        if rule is not None and rule.drop:
            self._note(Phase.OPEN_SESSION, peer, rule)
        return self._answer(rule, peer, execute)

    def _receive_rakp1(self, payload: bytes, peer: Address) -> list[Outgoing]:
        message = parse_rakp1(payload)
        session = self._bmc.sessions.find(message.session_id)
        user = message.name.decode("utf-8", "replace")
        suite = session.suite.number if session else None
        rule = self._pick(Occasion(Phase.RAKP_1, suite=suite, privilege=message.role & 0xF, user=user))

        def execute() -> Encoder:
            if rule is not None and rule.status is not None:
                remote_id = session.remote_id if session else 0
                status, answer = rule.status, refuse_rakp(message.tag, rule.status, remote_id)
                if session is not None:
                    self._bmc.sessions.close(session)
            else:
                status, answer = self._bmc.sessions.challenge(message)
            self._note(Phase.RAKP_1, peer, rule, session, user=user, outcome=status, executed=not _refuses(rule))
            return lambda _: build_plus(PayloadType.RAKP_2, answer)

        if rule is not None and rule.drop:
            self._note(Phase.RAKP_1, peer, rule, session, user=user)
        return self._answer(rule, peer, execute)

    def _receive_rakp3(self, payload: bytes, peer: Address) -> list[Outgoing]:
        message = parse_rakp3(payload)
        session = self._bmc.sessions.find(message.session_id)
        rule = self._pick(self._occasion(Phase.RAKP_3, session))

        def execute() -> Encoder | None:
            answer: bytes | None
            if rule is not None and rule.status is not None:
                remote_id = session.remote_id if session else 0
                status, answer = rule.status, refuse_rakp(message.tag, rule.status, remote_id)
                if session is not None:
                    self._bmc.sessions.close(session)
            else:
                status, answer = self._bmc.sessions.welcome(message)
            self._note(Phase.RAKP_3, peer, rule, session, outcome=status, executed=not _refuses(rule))
            return None if answer is None else lambda _: build_plus(PayloadType.RAKP_4, answer)

        if rule is not None and rule.drop:
            self._note(Phase.RAKP_3, peer, rule, session)
        return self._answer(rule, peer, execute)

    def _receive_protected(self, body: bytes, session_id: int, peer: Address) -> list[Outgoing]:
        session = self._bmc.sessions.find(session_id)
        if session is None or session.state is not SessionState.ACTIVE or session.keys is None:
            raise Malformed(f"session {session_id:#010x} does not exist")
        packet = parse_plus(body, session.suite.integrity_length)
        if not packet.authenticated or not packet.encrypted:
            raise Malformed("a packet of a protected session is not protected")
        if not session.keys.verify(packet.signed, packet.auth_code):
            raise Malformed("the integrity code is wrong")
        if not session.window.accept(packet.sequence):
            raise Malformed(f"session sequence number {packet.sequence} is a repetition or outside the window")
        payload = session.keys.decrypt(packet.payload)
        session.last_seen = self._bmc.clock()
        session.peer = peer
        if packet.payload_type == PayloadType.IPMI:
            return self._session_command(session, parse_request(payload), peer)
        if packet.payload_type == PayloadType.SOL:
            return self._receive_sol(session, payload)
        return []

    def protect(self, session: Session, payload_type: PayloadType, payload: bytes, *, replay: bool = False) -> bytes:
        """A datagram of an active session: encrypted, numbered, signed. `replay` repeats the last number."""
        if session.keys is None:
            raise RuntimeError("a session without keys cannot protect a packet")
        number = session.outbound if replay else session.next_outbound()
        signed = build_signed_part(payload_type, session.keys.encrypt(payload), session.remote_id, number)
        return wrap_ipmi(signed + session.keys.sign(signed))

    def _receive_sol(self, session: Session, payload: bytes) -> list[Outgoing]:
        packet = SolPacket.parse(payload)
        link = self._bmc.sol
        if link is None or link.session_id != session.id:
            raise Malformed("a SOL packet of a session that has no console")
        rule = self._pick(self._occasion(Phase.SOL, session, data=packet.data))
        self._note(Phase.SOL, session.peer, rule, session, data=packet.data, executed=not (rule and rule.drop))
        if rule is not None and rule.drop:
            return []
        payloads = link.receive(packet, refuse=rule is not None and rule.nack)
        if rule is not None and rule.drop_answer:
            return []
        wait = self._bmc.answer_delay + (rule.late + rule.delay if rule else 0.0)
        copies = 1 + (rule.duplicate if rule else 0)
        return [
            Outgoing(self.protect(session, PayloadType.SOL, part), session.peer, wait)
            for part in payloads
            for _ in range(copies)
        ]

    # Commands.

    def _session_command(self, session: Session, request: Request, peer: Address) -> list[Outgoing]:
        return self._command(request, session, peer, lambda message: self.protect(session, PayloadType.IPMI, message))

    def _command(
        self, request: Request, session: Session | None, peer: Address, wrap: Callable[[bytes], bytes]
    ) -> list[Outgoing]:
        if request.responder != BMC_ADDRESS or request.netfn & 1:
            raise Malformed("a message that is not for this BMC, or that is an answer")
        is_probe = (request.netfn, request.command) == _GET_AUTHENTICATION_CAPABILITIES
        phase = Phase.AUTH_CAP if is_probe else Phase.COMMAND
        rule = self._pick(self._occasion(phase, session, request)) if self._bmc.faults else None
        kept = without_secrets(request.netfn, request.command, request.data)

        def note(outcome: int | None, *, executed: bool) -> None:
            self._note(
                phase,
                peer,
                rule,
                session,
                netfn=request.netfn,
                cmd=request.command,
                data=kept,
                outcome=outcome,
                executed=executed,
            )

        def execute() -> Encoder:
            if rule is not None and rule.completion_code is not None:
                code, data = rule.completion_code, b""
                note(code, executed=False)
            else:
                code, data = self._run(request, session, rule)
                note(code, executed=code == CompletionCode.OK)

            def encode(meddling: FaultRule | None) -> bytes:
                shift = 1 if meddling is not None and meddling.wrong_sequence else 0
                message = build_answer(request, code, data, sequence_shift=shift)
                if meddling is not None and meddling.replay_sequence and session is not None:
                    return self.protect(session, PayloadType.IPMI, message, replay=True)
                return wrap(message)

            return encode

        if rule is not None and rule.drop:
            note(None, executed=False)
        return self._answer(rule, peer, execute)

    def _run(self, request: Request, session: Session | None, rule: FaultRule | None) -> tuple[int, bytes]:
        command = self._bmc.commands.get((request.netfn, request.command))
        if command is None:
            return (CompletionCode.INVALID_COMMAND if session else CompletionCode.INSUFFICIENT_PRIVILEGE), b""
        if request.responder_lun:
            return CompletionCode.INVALID_FOR_LUN, b""
        if command.privilege > (session.privilege if session else Privilege.NONE):
            return CompletionCode.INSUFFICIENT_PRIVILEGE, b""
        if not command.fits(request.data):
            return CompletionCode.DATA_LENGTH_INVALID, b""
        try:
            return CompletionCode.OK, command.run(Call(self._bmc, session, request.data, rule))
        except Refused as refusal:
            return refusal.code, b""

    # Faults and the journal.

    def _pick(self, occasion: Occasion) -> FaultRule | None:
        return self._bmc.faults.pick(occasion) if self._bmc.faults else None

    def _occasion(
        self, phase: Phase, session: Session | None, request: Request | None = None, data: bytes = b""
    ) -> Occasion:
        return Occasion(
            phase,
            netfn=request.netfn if request else None,
            cmd=request.command if request else None,
            data=request.data if request else data,
            suite=session.suite.number if session else None,
            privilege=session.privilege if session else None,
            user=session.user_name if session else None,
        )

    def _answer(self, rule: FaultRule | None, peer: Address, execute: Callable[[], Encoder | None]) -> list[Outgoing]:
        if rule is None:
            return self._execute_and_send(None, peer, execute)
        if rule.drop:
            return []
        if rule.delay:
            self._bmc.later(rule.delay, lambda: self._execute_and_send(rule, peer, execute))
            return []
        return self._execute_and_send(rule, peer, execute)

    def _execute_and_send(
        self, rule: FaultRule | None, peer: Address, execute: Callable[[], Encoder | None]
    ) -> list[Outgoing]:
        encode = execute()
        packet = encode(rule) if encode is not None else None
        self._bmc.do_after_answer()
        if packet is None:
            return []
        if rule is None:
            return [Outgoing(packet, peer, self._bmc.answer_delay)]
        if rule.drop_answer:
            return []
        if rule.garbage is not None:
            packet = bytes.fromhex(rule.garbage)
        if rule.truncate is not None:
            packet = packet[: rule.truncate]
        return [Outgoing(packet, peer, self._bmc.answer_delay + rule.late)] * (1 + rule.duplicate)

    def _note(
        self,
        phase: Phase,
        peer: Address,
        rule: FaultRule | None,
        session: Session | None = None,
        *,
        user: str = "",
        netfn: int | None = None,
        cmd: int | None = None,
        data: bytes = b"",
        outcome: int | None = None,
        executed: bool = False,
    ) -> None:
        self._bmc.journal.write(
            JournalEntry(
                at=self._bmc.clock(),
                phase=phase,
                peer=peer,
                session_id=session.id if session else 0,
                user=user or (session.user_name if session else ""),
                netfn=netfn,
                cmd=cmd,
                data=data,
                outcome=int(outcome) if outcome is not None else None,
                executed=executed,
                fault=rule.title if rule else "",
            )
        )


def _refuses(rule: FaultRule | None) -> bool:
    return rule is not None and rule.status is not None
