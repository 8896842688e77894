"""One operator at a machine's console: what is heard there, and typed.

Readers read from the console's ring, each at its own pace: one that is too slow finds a gap, and holds up nobody.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from control_plane.node_console import NodeConsole

__all__ = ["Ended", "Gap", "Heard", "Output", "Reader", "Ready", "WriterChanged"]

_READ_BYTES: Final = 32_768


@dataclass(frozen=True, slots=True)
class Output:
    """What the machine wrote."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Gap:
    """So many bytes are missing here: this reader, or the link, was too slow."""

    count: int


@dataclass(frozen=True, slots=True)
class WriterChanged:
    """Who types from now on; `holder` None: nobody."""

    mine: bool
    holder: str | None


@dataclass(frozen=True, slots=True)
class Ready:
    """The console is open: from now on keys are taken."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The console is over. `code`: the operation's error, where it failed."""

    reason: str
    message: str
    code: str | None = None


Heard = Output | Gap | WriterChanged | Ready | Ended


class Reader:
    """One operator at a console. `wishes_to_write` makes it the writer when nobody is."""

    def __init__(self, console: "NodeConsole", name: str, *, wishes_to_write: bool, place: int) -> None:
        self.name = name
        self.wishes_to_write = wishes_to_write
        self.news: deque[WriterChanged | Ready] = deque()
        self.changed = asyncio.Event()
        self._console = console
        self._place = place

    @property
    def is_writer(self) -> bool:
        return self._console.writer is self

    @property
    def is_ready(self) -> bool:
        """Whether the console is open, or was."""
        return self._console.is_ready

    @property
    def holder(self) -> str | None:
        """Who types."""
        return None if self._console.writer is None else self._console.writer.name

    async def next(self) -> Heard:
        """What comes next; the last thing is an Ended."""
        while True:
            if self.news:
                return self.news.popleft()
            ring = self._console.ring
            piece = ring.read(self._place, _READ_BYTES)
            if piece.offset > self._place:
                count, self._place = piece.offset - self._place, piece.offset
                return Gap(count)
            if piece.data:
                self._place = piece.end
                return Output(piece.data)
            if self._console.ended is not None:
                return self._console.ended
            self.changed.clear()
            await self.changed.wait()

    async def type(self, data: bytes) -> None:
        """Types bytes; waits while the machine takes none. Ignored unless this is the writer."""
        while data and self.is_writer:
            data = data[await self._console.type(data) :]

    def send_break(self) -> None:
        if self.is_writer:
            self._console.send_break()

    def take_writer(self) -> None:
        """Becomes the writer; whoever was it is told."""
        self._console.make_writer(self)

    def leave(self) -> None:
        self._console.leave(self)
