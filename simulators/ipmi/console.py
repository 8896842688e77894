"""The serial console behind SOL, and the SOL link that carries it (IPMI 2.0, chapter 15).

`Console` is the machine's serial port: what a script or a test types at the other end. `SolLink` is one
activation of the SOL payload: packet numbers, acknowledgements, repetition, sizes. Both are pure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from simulators.ipmi.packets import Malformed

_NACK: Final = 0x40
_BREAK: Final = 0x10
_UNAVAILABLE: Final = 0x20
_DEACTIVATING: Final = 0x10
_HEADER: Final = 4
_LAST_SEQUENCE: Final = 15
# What the port keeps while nobody looks; older output is lost, as on a real machine.
_BACKLOG: Final = 65_536


class Console:
    """The serial port of the machine. `script` answers input with output; the default echoes it."""

    def __init__(self, script: Callable[[bytes], bytes] | None = None) -> None:
        self.script: Callable[[bytes], bytes] = script or _echo
        self.received = bytearray()
        self.breaks = 0
        self.on_output: Callable[[], None] = lambda: None
        self._output = bytearray()

    def write(self, text: bytes) -> None:
        """Characters that the machine sends out of its serial port."""
        self._output += text
        del self._output[:-_BACKLOG]
        self.on_output()

    def type(self, text: bytes) -> None:
        """Characters that a remote console typed."""
        self.received += text
        answer = self.script(text)
        if answer:
            self.write(answer)

    def take(self, limit: int) -> bytes:
        """Up to `limit` characters of output, taken off the port."""
        part = bytes(self._output[:limit])
        del self._output[:limit]
        return part

    def give_back(self, text: bytes) -> None:
        """Put characters back in front that a console did not accept."""
        self._output[:0] = text

    def discard(self) -> None:
        """Forget output that nobody took."""
        self._output.clear()

    @property
    def has_output(self) -> bool:
        """Whether characters wait to be taken."""
        return bool(self._output)


def _echo(text: bytes) -> bytes:
    return text.replace(b"\r", b"\r\n")


@dataclass(frozen=True, slots=True)
class SolTiming:
    """How SOL packets are repeated: so many times, so many seconds apart."""

    retries: int = 7
    interval: float = 0.5


@dataclass(frozen=True, slots=True)
class SolPacket:
    """A SOL packet: its number (0 carries no data), the number acknowledged, and how many characters were taken."""

    sequence: int
    acknowledged: int
    accepted: int
    operation: int
    data: bytes

    @classmethod
    def parse(cls, payload: bytes) -> "SolPacket":
        """Take a SOL payload apart. Raises Malformed."""
        if len(payload) < _HEADER:
            raise Malformed("shorter than a SOL header")
        return cls(payload[0] & 0xF, payload[1] & 0xF, payload[2], payload[3], payload[_HEADER:])

    def encode(self) -> bytes:
        """The payload bytes."""
        return bytes((self.sequence, self.acknowledged, self.accepted, self.operation)) + self.data


class SolLink:
    """One active SOL payload. Sizes are those of the largest payloads to and from the BMC, headers included."""

    def __init__(
        self,
        console: Console,
        session_id: int,
        *,
        clock: Callable[[], float],
        timing: SolTiming,
        inbound_size: int,
        outbound_size: int,
    ) -> None:
        self.session_id = session_id
        self._console = console
        self._clock = clock
        self._timing = timing
        self._room = max(1, outbound_size - _HEADER)
        self._inbound_room = max(1, inbound_size - _HEADER)
        self._next = 1
        self._waiting: SolPacket | None = None
        self._sent_at = 0.0
        self._sent_times = 0
        self._last_inbound = 0
        self._last_answer: SolPacket | None = None
        self.lost_packets = 0

    def receive(self, packet: SolPacket, *, refuse: bool = False) -> list[bytes]:
        """Take a packet of the remote console; gives the payloads to send. `refuse` nacks its characters."""
        if packet.acknowledged:
            self._acknowledged(packet)
        if not packet.sequence:
            self._operate(packet)
            return self.pump()
        if packet.sequence == self._last_inbound and self._last_answer is not None:
            return [self._last_answer.encode()]
        if refuse:
            return [SolPacket(0, packet.sequence, 0, _NACK, b"").encode()]
        self._operate(packet)
        self._last_inbound = packet.sequence
        taken = packet.data[: self._inbound_room]
        self._last_answer = SolPacket(0, packet.sequence, len(taken), 0, b"")
        if taken:
            self._console.type(taken)
        return [self._last_answer.encode(), *self.pump()]

    def _operate(self, packet: SolPacket) -> None:
        if packet.operation & _BREAK:
            self._console.breaks += 1

    def _acknowledged(self, packet: SolPacket) -> None:
        waiting = self._waiting
        if waiting is None or packet.acknowledged != waiting.sequence:
            return
        self._waiting = None
        rest = waiting.data if packet.operation & _NACK else waiting.data[packet.accepted :]
        if rest:
            self._console.give_back(rest)

    def pump(self) -> list[bytes]:
        """The next packet of output, or the waiting one again where its time is up."""
        if self._waiting is not None:
            return self._repeat(self._waiting)
        text = self._console.take(self._room)
        if not text:
            return []
        self._waiting = SolPacket(self._next, 0, 0, 0, text)
        self._next = self._next % _LAST_SEQUENCE + 1
        self._sent_times = 1
        self._sent_at = self._clock()
        return [self._waiting.encode()]

    def _repeat(self, waiting: SolPacket) -> list[bytes]:
        if self._clock() < self._sent_at + self._timing.interval:
            return []
        if self._sent_times > self._timing.retries:
            self.lost_packets += 1
            self._waiting = None
            return self.pump()
        self._sent_times += 1
        self._sent_at = self._clock()
        return [waiting.encode()]

    def next_due(self) -> float | None:
        """When `pump` has something to send; None while it waits for nobody."""
        if self._waiting is not None:
            return self._sent_at + self._timing.interval
        return self._clock() if self._console.has_output else None

    def farewell(self) -> bytes:
        """The packet that tells the remote console that SOL ends here."""
        return SolPacket(0, 0, 0, _DEACTIVATING | _UNAVAILABLE, b"").encode()
