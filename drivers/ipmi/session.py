"""An active RMCP+ session as a state machine without I/O: numbers, matching, sealing.

At most one command is outstanding (BMCs are small; IPMI 2.0, 6.12 lets them drop a second one). SOL packets pass
beside it and are handed out as they come.
"""

from dataclasses import dataclass
from typing import Final

from drivers.ipmi.handshake import Privilege
from drivers.ipmi.packets import (
    Message,
    PacketError,
    PayloadType,
    SessionKeys,
    message_request,
    parse_message,
    parse_packet,
    sealed_packet,
    unsealed,
)

__all__ = ["Session", "SolPayload"]

_WINDOW: Final = 32
"""How far behind the newest one a sequence number may arrive (6.12.13 asks for at least 16 of slack)."""
_NUMBERS: Final = 0x1_0000_0000


@dataclass(frozen=True, slots=True)
class SolPayload:
    """A Serial over LAN packet that came in this session."""

    data: bytes


class Session:
    """One session with one BMC. `console_id` is ours (packets to us carry it), `bmc_id` is the BMC's."""

    def __init__(self, keys: SessionKeys, console_id: int, bmc_id: int, privilege: Privilege) -> None:
        self.console_id = console_id
        self.bmc_id = bmc_id
        self.privilege = privilege
        self.ignored = 0
        """Packets that were dropped: late, repeated, forged or garbage."""
        self._keys = keys
        self._sequence = 0
        self._rq_seq = 0
        self._newest = 0
        self._newest_sol = 0
        self._seen = 0
        self._outstanding: tuple[int, int, int] | None = None

    def begin(self, netfn: int, command: int) -> int:
        """Makes a command the outstanding one, and gives its request number; an earlier one is given up."""
        self._rq_seq = (self._rq_seq + 1) % 64
        self._outstanding = (netfn | 1, command, self._rq_seq)
        return self._rq_seq

    def give_up(self) -> None:
        """Nothing is outstanding any more; an answer that still comes is ignored."""
        self._outstanding = None

    def request(self, netfn: int, lun: int, rq_seq: int, command: int, data: bytes) -> bytes:
        """The datagram of a command. Made anew for each sending: a new session sequence number, the same `rq_seq`."""
        return self._seal(PayloadType.IPMI, message_request(netfn, lun, rq_seq, command, data))

    def sol(self, payload: bytes) -> bytes:
        """The datagram of a SOL payload."""
        return self._seal(PayloadType.SOL, payload)

    def receive(self, datagram: bytes) -> Message | SolPayload | None:
        """The answer to the outstanding command, or a SOL payload; None for whatever must be ignored."""
        try:
            packet = parse_packet(datagram)
            if packet.session_id != self.console_id:
                raise PacketError("a packet for another session")
            payload = unsealed(self._keys, datagram, packet)
            if not self._fresh(packet.sequence):
                raise PacketError("a packet that came before")
            if packet.payload_type == PayloadType.SOL:
                if not self._overtakes(packet.sequence):
                    raise PacketError("a console packet that a later one has overtaken")
                return SolPayload(payload)
            if packet.payload_type != PayloadType.IPMI:
                raise PacketError(f"payload type {packet.payload_type:#04x} inside a session")
            message = parse_message(payload)
        except PacketError:
            self.ignored += 1
            return None
        if (message.netfn, message.command, message.rq_seq) != self._outstanding:
            self.ignored += 1
            return None
        self._outstanding = None
        return message

    def _seal(self, payload_type: PayloadType, payload: bytes) -> bytes:
        # Zero means "outside a session", so the number skips it when it wraps.
        self._sequence = (self._sequence + 1) % _NUMBERS or 1
        return sealed_packet(self._keys, payload_type, self.bmc_id, self._sequence, payload)

    def _overtakes(self, sequence: int) -> bool:
        """Whether a SOL packet is the newest one so far. SOL numbers run from 1 to 15 only, and its packets are
        repeated: an early sending that comes late would be taken for new characters. What was not acknowledged comes
        again."""
        if self._newest_sol and (sequence - self._newest_sol) % _NUMBERS >= _NUMBERS // 2:
            return False
        self._newest_sol = sequence
        return True

    def _fresh(self, sequence: int) -> bool:
        """Whether this number was not seen before and is not too old; remembers it."""
        ahead = (sequence - self._newest) % _NUMBERS
        if 0 < ahead < _NUMBERS // 2:
            self._seen = ((self._seen << ahead) | 1) & ((1 << _WINDOW) - 1) if ahead < _WINDOW else 1
            self._newest = sequence
            return True
        behind = -ahead % _NUMBERS
        if behind >= _WINDOW or self._seen >> behind & 1:
            return False
        self._seen |= 1 << behind
        return True
