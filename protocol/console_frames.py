"""Console bytes between an agent and the control plane: binary frames on the agent's one websocket.

A frame is a header of 35 bytes and its data. The header: the kind (one byte), the stream's id (26 characters after
`strm_`), and an offset (64 bits, big endian). Offsets count a stream's bytes from its beginning, in each direction.

    attach ─►    somebody reads: send from this offset on; the data is the window, how many bytes may be on their way
    ◄─ data      what the machine wrote; the offset is that of the first byte
    ◄─ gap       what follows the offset was lost, as many bytes as the data tells: the reader was too slow
    window ─►    output may go on to this offset
    ◄─ window    input may go on to this offset
    input ─►     what somebody typed; the offset counts from the last attach
    break ─►     a serial break, at this place of the input
    detach ─►    nobody reads any more
    ◄─ ended     the stream is over; the data says why

Neither side ever waits for the other: what goes beyond a window stays where it is, and the oldest of it is dropped
with a gap in its place. An agent that does not know the stream of an attach answers `ended` with the reason unknown.
"""

import struct
from enum import IntEnum, StrEnum
from typing import Final

import msgspec

from protocol.errors import ProtocolError
from protocol.ids import is_id

__all__ = [
    "CONSOLE_HEADER_BYTES",
    "INPUT_WINDOW",
    "MAX_CONSOLE_BYTES",
    "OUTPUT_WINDOW",
    "ConsoleEnded",
    "ConsoleFrame",
    "EndReason",
    "FrameKind",
    "decode_console_frame",
]

MAX_CONSOLE_BYTES: Final = 16_384
"""Of data in one frame, so that a command's frame never waits long behind a console's."""
OUTPUT_WINDOW: Final = 65_536
"""What the control plane lets be on its way to it, per stream."""
INPUT_WINDOW: Final = 4_096
"""What an agent takes of typed bytes before the machine has taken them: some seconds of a serial line."""
_HEADER: Final = struct.Struct(">B26sQ")
CONSOLE_HEADER_BYTES: Final = _HEADER.size
_COUNT: Final = struct.Struct(">Q")
_LARGEST: Final = (1 << 64) - 1


class FrameKind(IntEnum):
    DATA = 1
    GAP = 2
    ENDED = 3
    WINDOW = 4
    INPUT = 5
    BREAK = 6
    ATTACH = 7
    DETACH = 8


class EndReason(StrEnum):
    """Why a stream is over."""

    CLOSED = "closed"
    """Somebody on this side closed it, or nobody has read it for a while."""
    ENDED = "ended"
    """The BMC ended it in good order: somebody else took it over, or it was switched off there."""
    LOST = "lost"
    """The BMC does not answer any more."""
    UNKNOWN = "unknown"
    """The agent has no such stream: it was started anew."""


class ConsoleEnded(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The data of an `ended` frame. `code`: the operation's error, where it could not be opened again."""

    reason: EndReason
    message: str
    code: str | None = None


class ConsoleFrame(msgspec.Struct, frozen=True):
    """One frame. `stream` is the whole id, with its prefix."""

    kind: FrameKind
    stream: str
    offset: int = 0
    data: bytes = b""

    @classmethod
    def counting(cls, kind: FrameKind, stream: str, offset: int, count: int) -> "ConsoleFrame":
        """A gap of `count` bytes, or an attach with a window of so many."""
        return cls(kind, stream, offset, _COUNT.pack(min(count, _LARGEST)))

    @classmethod
    def ending(cls, stream: str, offset: int, ended: ConsoleEnded) -> "ConsoleFrame":
        return cls(FrameKind.ENDED, stream, offset, msgspec.json.encode(ended))

    @property
    def count(self) -> int:
        """The number in a gap's or an attach's data. Raises ProtocolError."""
        if len(self.data) != _COUNT.size:
            raise ProtocolError(
                f"a console frame of kind {self.kind.name} carries a number of 8 bytes", about="binary"
            )
        return int(_COUNT.unpack(self.data)[0])

    @property
    def ended(self) -> ConsoleEnded:
        """Raises ProtocolError."""
        try:
            return msgspec.json.decode(self.data, type=ConsoleEnded)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"the end of a console cannot be read: {error}", about=self.stream) from error

    def encode(self) -> bytes:
        """The bytes of a binary websocket message."""
        return _HEADER.pack(self.kind, self.stream.removeprefix("strm_").encode(), self.offset) + self.data


def decode_console_frame(message: bytes) -> ConsoleFrame:
    """Raises ProtocolError for what is cut short, too long, of an unknown kind, or names no stream."""
    if not CONSOLE_HEADER_BYTES <= len(message) <= CONSOLE_HEADER_BYTES + MAX_CONSOLE_BYTES:
        raise ProtocolError(f"{len(message)} bytes are no console frame", about="binary")
    number, body, offset = _HEADER.unpack_from(message)
    try:
        kind = FrameKind(number)
    except ValueError:
        raise ProtocolError(f"this version knows no console frame of kind {number}", about="binary") from None
    stream = f"strm_{body.decode('latin-1')}"
    if not is_id(stream, "strm"):
        raise ProtocolError("a console frame names no stream", about="binary")
    return ConsoleFrame(kind, stream, offset, message[CONSOLE_HEADER_BYTES:])
