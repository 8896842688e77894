"""A machine's serial console as a stream of bytes, whichever way it is reached, and the open ones of a process."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from protocol.console_frames import EndReason
from protocol.errors import ErrorCode, OperationError
from protocol.ids import new_id

__all__ = ["ConsoleEnding", "ConsoleStream", "OpenConsoles", "gone"]


@dataclass(frozen=True, slots=True)
class ConsoleEnding:
    """Why a stream is over, and in words for an operator."""

    reason: EndReason
    message: str


class ConsoleStream(Protocol):
    """An open console: it is open when it is made. One task reads; any task may write."""

    @property
    def ending(self) -> ConsoleEnding | None:
        """None while it goes on. Bytes that came before the end can still be read."""

    async def read(self) -> bytes:
        """The next bytes, as many as there are; empty once it is over and all was read. May be cancelled without
        loss."""

    async def write(self, data: bytes) -> None:
        """Types bytes; returns once the machine's side has room for more. Raises OperationError INTERRUPTED when the
        console is over."""

    async def send_break(self) -> None:
        """A serial break. Raises OperationError as `write` does, and UNSUPPORTED where none can be sent."""

    async def aclose(self) -> None:
        """Ends it at the BMC, so that it is free for the next one. Never raises; safe to call twice."""


def gone(ending: ConsoleEnding | None) -> OperationError:
    """What writing to a stream that is over raises."""
    why = "it was closed" if ending is None else ending.message
    return OperationError(ErrorCode.INTERRUPTED, f"the console is over: {why}")


class OpenConsoles:
    """The consoles that `console.openConsole` has opened in this process, by stream id.

    Whoever asked for one takes it up by its id, and is to close it; what is left is closed with the process'
    connections.
    """

    def __init__(self) -> None:
        self._streams: dict[str, ConsoleStream] = {}

    def add(self, stream: ConsoleStream, identifier: str | None = None) -> str:
        """Keeps it under a new id, or under the one that it was given."""
        identifier = identifier or new_id("strm")
        self._streams[identifier] = stream
        return identifier

    def get(self, identifier: str) -> ConsoleStream | None:
        return self._streams.get(identifier)

    def id_of(self, stream: ConsoleStream) -> str | None:
        """The id that the stream is kept under."""
        return next((identifier for identifier, kept in self._streams.items() if kept is stream), None)

    async def close(self, identifier: str) -> bool:
        """Ends a console; False where there is none of this id, so that closing twice is no fault."""
        stream = self._streams.pop(identifier, None)
        if stream is None:
            return False
        await stream.aclose()
        return True

    async def aclose(self) -> None:
        streams, self._streams = list(self._streams.values()), {}
        await asyncio.gather(*(stream.aclose() for stream in streams), return_exceptions=True)
