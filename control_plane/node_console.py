"""One machine's console, as many read it: one stream from the agent, a ring of its last bytes, and one writer.

What the agent sends is always taken into the ring, from which the readers read at their own pace
(`console_reader.py`), so nothing waits on the agent's link.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from control_plane.console_reader import Ended, Reader, Ready, WriterChanged
from control_plane.store import StoreUnavailable
from protocol.backlog import Backlog
from protocol.console_frames import (
    MAX_CONSOLE_BYTES,
    OUTPUT_WINDOW,
    ConsoleEnded,
    ConsoleFrame,
    EndReason,
    FrameKind,
)
from protocol.errors import ErrorCode, OperationError, ProtocolError, RackwrightError, RequestCode, RequestError

__all__ = ["NodeConsole", "Opened", "Wire"]

_log = logging.getLogger("control_plane.node_console")
_DELAYS: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_PASSING: Final = frozenset(
    {
        ErrorCode.UNREACHABLE,
        ErrorCode.TIMEOUT,
        ErrorCode.BUSY,
        ErrorCode.OUTCOME_UNKNOWN,
        ErrorCode.INTERRUPTED,
        ErrorCode.BMC_ERROR,
    }
)


class Wire(Protocol):
    """The link to an agent, as far as a console needs it."""

    def post(self, frame: bytes) -> None:
        """Sends a binary message, after what was posted before."""


class Opened(NamedTuple):
    """A stream, and the agent that has it."""

    stream: str
    agent_id: str


class NodeConsole:
    """Opens the stream at the first reader, follows it over lost links and restarted agents, and lets it go some time
    after the last reader has left.

    `open_stream` asks an agent for the stream, taking it over or not; `find` waits a while for the agent's link on
    this worker (None: not yet; Ended: it will not come here); `over` is called once at the end.
    """

    def __init__(
        self,
        *,
        ring_bytes: int,
        linger: float,
        open_stream: Callable[[bool], Awaitable[Opened]],
        find: Callable[[str], Awaitable[Wire | Ended | None]],
        take_over: bool,
        over: Callable[[], None],
    ) -> None:
        self.ring = Backlog(ring_bytes)
        self.writer: Reader | None = None
        self.ended: Ended | None = None
        self.readers: list[Reader] = []
        self.is_ready = False
        """It was open once."""
        self.stream: str | None = None
        self.agent_id: str | None = None
        self._linger = linger
        self._open_stream = open_stream
        self._find = find
        self._over = over
        self._loop = asyncio.get_running_loop()
        self._wire: Wire | None = None
        self._expected = 0
        """The offset of the next byte in the agent's stream."""
        self._window = 0
        self._typed = 0
        self._granted = 0
        self._room = asyncio.Event()
        self._interruption: asyncio.Future[ConsoleEnded | None] | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._task = self._loop.create_task(self._run(take_over))

    # Readers

    def join(self, name: str, *, wishes_to_write: bool, replay: int | None) -> Reader:
        """A new reader, behind the last `replay` bytes; all that are kept by default."""
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        place = self.ring.start if replay is None else max(self.ring.start, self.ring.end - replay)
        reader = Reader(self, name, wishes_to_write=wishes_to_write, place=place)
        self.readers.append(reader)
        if wishes_to_write and self.writer is None:
            self.writer = reader
        return reader

    def leave(self, reader: Reader) -> None:
        """The writer's role goes to whoever has waited for it longest."""
        if reader not in self.readers:
            return
        self.readers.remove(reader)
        if self.writer is reader:
            self.writer = None
            heir = next((other for other in self.readers if other.wishes_to_write), None)
            if heir is not None:
                self.make_writer(heir)
        self._room.set()
        if not self.readers and self.ended is None:
            self._lingering = self._loop.call_later(self._linger, self.close)
        elif not self.readers:
            self._over()

    def make_writer(self, reader: Reader) -> None:
        before, self.writer = self.writer, reader
        if before is reader:
            return
        reader.wishes_to_write = True
        reader.news.append(WriterChanged(mine=True, holder=reader.name))
        if before is not None:
            # It gave way: it does not get the role back by itself.
            before.wishes_to_write = False
            before.news.append(WriterChanged(mine=False, holder=reader.name))
        self._room.set()
        self._wake()

    async def type(self, data: bytes) -> int:
        """Sends as much as there is room for, and waits for room where there is none; how much was taken.

        While there is no way to the machine keys are dropped: they must not be obeyed when it is back. `Ready` tells
        when there is one at first.
        """
        if self.ended is not None or self._wire is None:
            return len(data)
        room = min(self._granted - self._typed, MAX_CONSOLE_BYTES)
        if room <= 0:
            self._room.clear()
            await self._room.wait()
            return 0
        part = data[:room]
        self._post(ConsoleFrame(FrameKind.INPUT, self.stream or "", self._typed, part))
        self._typed += len(part)
        return len(part)

    def send_break(self) -> None:
        if self.stream is not None:
            self._post(ConsoleFrame(FrameKind.BREAK, self.stream, self._typed))

    def close(self) -> None:
        """Nobody needs it any more, or the process stops."""
        if self.stream is not None:
            self._post(ConsoleFrame(FrameKind.DETACH, self.stream))
        self._task.cancel()
        self._wire = None
        self._over()

    def end(self, ended: Ended) -> None:
        """Every reader reads what is left, and then this."""
        if self.ended is None:
            self.ended = ended
            self._task.cancel()
            self._wire = None
            self._room.set()
            self._wake()
            self._over()

    # The agent's link

    def receive(self, frame: ConsoleFrame) -> None:
        """A frame of this stream. Raises ProtocolError."""
        match frame.kind:
            case FrameKind.DATA:
                self._take(frame)
            case FrameKind.GAP:
                self._skip_to(frame.offset + frame.count)
            case FrameKind.WINDOW:
                self._granted = max(self._granted, frame.offset)
                self._room.set()
            case FrameKind.ENDED:
                self._interrupt(frame.ended)
            case _:
                raise ProtocolError(f"a control plane takes no {frame.kind.name} frames", about=frame.stream)

    def link_lost(self, wire: Wire) -> None:
        if wire is self._wire:
            self._interrupt(None)

    def _take(self, frame: ConsoleFrame) -> None:
        data = frame.data
        if not self._expected and not self.ring.end:
            # The beginning of what the agent has kept: whatever was before it is nobody's loss.
            self._expected = frame.offset
        if frame.offset > self._expected:
            self._skip_to(frame.offset)
        data = data[self._expected - frame.offset :]
        self.ring.append(data)
        self._expected += len(data)
        self._grant()
        self._wake()

    def _skip_to(self, offset: int) -> None:
        if offset > self._expected:
            self.ring.skip_to(self.ring.end + offset - self._expected)
            self._expected = offset
            self._grant()
            self._wake()

    def _grant(self) -> None:
        if self.stream is not None and self._expected + OUTPUT_WINDOW - self._window >= OUTPUT_WINDOW // 2:
            self._window = self._expected + OUTPUT_WINDOW
            self._post(ConsoleFrame(FrameKind.WINDOW, self.stream, self._window))

    def _post(self, frame: ConsoleFrame) -> None:
        if self._wire is not None:
            self._wire.post(frame.encode())

    def _interrupt(self, ended: ConsoleEnded | None) -> None:
        if self._interruption is not None and not self._interruption.done():
            self._interruption.set_result(ended)

    # Its life

    async def _run(self, take_over: bool) -> None:
        try:
            await self._follow(take_over)
        except Exception:
            # Without this task nobody would hear anything any more, and not know why.
            _log.exception("a console could not be followed")
            self.end(Ended("failed", "the control plane failed on this console: see its log", "INTERNAL"))

    async def _follow(self, take_over: bool) -> None:
        began = away = anew = False
        tries = 0
        while True:
            try:
                if self.stream is None:
                    await self._open(take_over)
                wire = await self._await_link()
                if wire is None:
                    return
            except (RackwrightError, StoreUnavailable) as error:
                if not began or not _passes(error):
                    self.end(_failed(error))
                    return
                self._say(f"the console is not back yet: {error}")
                await asyncio.sleep(_DELAYS[min(tries, len(_DELAYS) - 1)])
                tries += 1
                continue
            if away or anew:
                self._say("the site's agent is back" if away else "the console was opened anew")
            began, away, anew, tries = True, False, False, 0
            ended = await self._attached(wire)
            self._wire = None
            if ended is None:
                away = True
                self._say("the site's agent is cut off; the console comes back with it")
            elif ended.reason is EndReason.UNKNOWN:
                # The agent died and left its session at the BMC behind: that one is ours to take over.
                self.stream, take_over, anew = None, True, True
            else:
                self.end(Ended(ended.reason.value, ended.message, ended.code))
                return

    async def _open(self, take_over: bool) -> None:
        opened = await self._open_stream(take_over)
        self.stream, self.agent_id = opened
        self._expected = 0

    async def _await_link(self) -> Wire | None:
        """The link to the agent that has the stream; None where it will not come, which ends the console."""
        while True:
            found = await self._find(self.agent_id or "")
            if isinstance(found, Ended):
                self.end(found)
                return None
            if found is not None:
                return found

    async def _attached(self, wire: Wire) -> ConsoleEnded | None:
        """Reads until the stream has ended, or the link is lost (None)."""
        assert self.stream is not None
        self._interruption = self._loop.create_future()
        self._wire = wire
        self._typed = self._granted = 0
        self._window = self._expected + OUTPUT_WINDOW
        self._post(ConsoleFrame.counting(FrameKind.ATTACH, self.stream, self._expected, OUTPUT_WINDOW))
        if not self.is_ready:
            self.is_ready = True
            for reader in self.readers:
                reader.news.append(Ready())
            self._wake()
        return await self._interruption

    def _say(self, text: str) -> None:
        """A line of ours between the machine's, for everybody who reads."""
        self.ring.append(f"\r\n[rackwright: {text}]\r\n".encode())
        self._wake()

    def _wake(self) -> None:
        for reader in self.readers:
            reader.changed.set()


def _passes(error: Exception) -> bool:
    """Whether the console may be opened again later."""
    return isinstance(error, StoreUnavailable) or (isinstance(error, OperationError) and error.code in _PASSING)


def _failed(error: Exception) -> Ended:
    if isinstance(error, OperationError):
        return Ended("failed", str(error).partition(": ")[2], error.code.value)
    if isinstance(error, RequestError):
        return Ended("failed", error.message, error.code.value)
    return Ended("failed", "the control plane's database cannot do it now", RequestCode.UNAVAILABLE.value)
