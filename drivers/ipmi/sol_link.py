"""An active SOL payload as a state machine: numbers, acknowledgements, repetition. Pure: time comes from outside.

Each side has at most one packet of characters under way, numbered 1 to 15; zero carries none. A packet that is not
acknowledged is sent again under its number, so that it is typed once. One that was acknowledged in part, or refused,
is sent again as a new packet with what is left (IPMI 2.0, 15.11): the BMC has had that number.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from drivers.ipmi.sol import SolFlag, SolPacket, SolStatus, sol_payload

__all__ = ["Heard", "SolLink"]

_LAST_NUMBER: Final = 15
_REPEAT_SECONDS: Final = (0.5, 1.0, 2.0)
"""Between the sendings of a packet, the last one for ever: many BMCs take half a second to type (ipmitool#87)."""
_REFUSED_SECONDS: Final = 0.5
"""Before characters are offered again that the BMC had no room for."""
_STALLED_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Heard:
    """What a packet of the BMC brought: characters to read, payloads to send, and whether it ends the console."""

    characters: bytes = b""
    answers: tuple[bytes, ...] = ()
    ended: bool = False
    lost: bool = False
    """The BMC could not take what the machine wrote as fast as it came."""


@dataclass(slots=True)
class _Sent:
    packet: SolPacket
    due: float
    times: int = 1
    refused: bool = False
    """It was not taken, or not all of it: what is left goes under another number."""
    answered: bool = False
    """Its number is of no use any more."""


class SolLink:
    """`room`: characters per packet to the BMC. Times are seconds of any monotonic clock."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._typed: deque[bytes | None] = deque()
        """Characters to be sent; None is a break at its place."""
        self._waiting: _Sent | None = None
        self._next = 1
        self._heard_at = 0.0
        self._last_heard = 0
        self._last_accepted = 0

    @property
    def pending(self) -> int:
        """Characters that the BMC has not taken yet; a break counts as one."""
        waiting = len(self._waiting.packet.characters) if self._waiting is not None else 0
        return waiting + sum(1 if part is None else len(part) for part in self._typed)

    def type(self, characters: bytes, now: float) -> list[bytes]:
        """Puts characters behind those that wait; the payloads to send now."""
        if characters:
            self._typed.append(characters)
        return self.pump(now)

    def send_break(self, now: float) -> list[bytes]:
        """A break behind the characters that wait; the payloads to send now."""
        self._typed.append(None)
        return self.pump(now)

    def receive(self, packet: SolPacket, room: int, now: float) -> Heard:
        """Takes a packet of the BMC, of whose characters `room` can be kept; the BMC sends the others again."""
        if packet.acknowledged:
            self._acknowledged(packet, now)
        characters, answers = self._take(packet, room)
        return Heard(
            characters,
            (*answers, *self.pump(now)),
            ended=bool(packet.flags & SolStatus.DEACTIVATING),
            lost=bool(packet.flags & SolStatus.TRANSMIT_OVERRUN),
        )

    def pump(self, now: float) -> list[bytes]:
        """The next packet, or the one under way again when its time has come."""
        waiting = self._waiting
        if waiting is None:
            return self._begin(now)
        if now < waiting.due:
            return []
        if waiting.refused:
            # The BMC knows this number: what it refused goes under a new one.
            waiting.packet = self._numbered(waiting.packet.flags, waiting.packet.characters)
            waiting.refused, waiting.answered, waiting.times = False, False, 0
        waiting.due = now + _REPEAT_SECONDS[min(waiting.times, len(_REPEAT_SECONDS) - 1)]
        waiting.times += 1
        return [sol_payload(waiting.packet)]

    def next_due(self) -> float | None:
        """When `pump` has something to send; None while it waits for nobody."""
        return None if self._waiting is None else self._waiting.due

    def is_stalled(self, now: float) -> bool:
        """Whether the BMC has said nothing of the characters under way for so long that it never will."""
        return self._waiting is not None and now - self._heard_at > _STALLED_SECONDS

    def _take(self, packet: SolPacket, room: int) -> tuple[bytes, tuple[bytes, ...]]:
        if not packet.sequence:
            return b"", ()
        if packet.sequence == self._last_heard:
            return b"", (self._acknowledgement(packet.sequence, self._last_accepted),)
        taken = packet.characters[:room]
        if packet.characters and not taken:
            # Unanswered, it comes again when there may be room; an answer that takes nothing could end that.
            return b"", ()
        self._last_heard, self._last_accepted = packet.sequence, len(taken)
        return taken, (self._acknowledgement(packet.sequence, len(taken)),)

    def _acknowledgement(self, sequence: int, accepted: int) -> bytes:
        return sol_payload(SolPacket(0, sequence, accepted, 0))

    def _acknowledged(self, packet: SolPacket, now: float) -> None:
        waiting = self._waiting
        if waiting is None or packet.acknowledged != waiting.packet.sequence or waiting.answered:
            return
        self._heard_at = now
        rest = waiting.packet.characters[packet.accepted :]
        refused = bool(packet.flags & SolStatus.NACK)
        # A repetition that crossed the refusal of the first sending may still be taken.
        waiting.answered = bool(packet.accepted)
        if not rest and (packet.accepted or not refused):
            self._waiting = None
            return
        flags = waiting.packet.flags if refused and not packet.accepted else 0
        waiting.packet = SolPacket(waiting.packet.sequence, 0, 0, flags, rest)
        waiting.refused = True
        progressed = bool(packet.accepted) and not refused
        waiting.due = now if progressed else now + _REFUSED_SECONDS

    def _begin(self, now: float) -> list[bytes]:
        if not self._typed:
            return []
        flags, characters = 0, b""
        if self._typed[0] is None:
            self._typed.popleft()
            flags = SolFlag.BREAK
        else:
            characters = self._gather()
        self._heard_at = now
        self._waiting = _Sent(self._numbered(flags, characters), now + _REPEAT_SECONDS[0])
        return [sol_payload(self._waiting.packet)]

    def _gather(self) -> bytes:
        """As many characters as a packet takes, of what was typed before the next break."""
        gathered = bytearray()
        while self._typed and (part := self._typed[0]) is not None and len(gathered) < self.room:
            room = self.room - len(gathered)
            gathered += part[:room]
            if len(part) > room:
                self._typed[0] = part[room:]
            else:
                self._typed.popleft()
        return bytes(gathered)

    def _numbered(self, flags: int, characters: bytes) -> SolPacket:
        packet = SolPacket(self._next, 0, 0, flags, characters)
        self._next = self._next % _LAST_NUMBER + 1
        return packet
