"""One open console of a machine: its bytes, whoever reads them, and its way back after the BMC has restarted.

The stream that the control plane knows outlives the BMC's sessions: when one ends, the console is opened again, and
the stream says so between the machine's own lines. It is taken over only from a session that fell silent, which is
this agent's own stale one; where somebody else has taken it, the stream ends.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from drivers.console import ConsoleEnding, ConsoleStream
from protocol.backlog import Backlog
from protocol.console_frames import (
    INPUT_WINDOW,
    MAX_CONSOLE_BYTES,
    ConsoleEnded,
    ConsoleFrame,
    EndReason,
    FrameKind,
)
from protocol.errors import ErrorCode, OperationError, ProtocolError

__all__ = ["Console", "Opener"]

_log = structlog.get_logger("agent.console")
_DELAYS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
_HEALTHY_SECONDS: Final = 30.0
"""A session that lasted so long was a good one: the next loss is met without a longer wait."""
_PASSING: Final = frozenset(
    {
        ErrorCode.UNREACHABLE,
        ErrorCode.TIMEOUT,
        ErrorCode.BUSY,
        ErrorCode.BMC_ERROR,
        ErrorCode.OUTCOME_UNKNOWN,
        ErrorCode.INTERRUPTED,
    }
)
"""What a BMC that is starting meets its clients with."""


class Opener(Protocol):
    """Opens and closes one machine's console at its BMC."""

    async def open(self, *, take_over: bool) -> ConsoleStream:
        """Raises OperationError."""

    async def close(self, stream: ConsoleStream) -> None:
        """Never raises."""


class _Reader:
    """The control plane, while somebody there reads: `sent` so far, `window` as far as may be."""

    __slots__ = ("granted", "sent", "typed", "window")

    def __init__(self, offset: int, window: int) -> None:
        self.sent = offset
        self.window = offset + window
        self.typed = 0
        self.granted = 0


class Console:
    """`wake` says that `take` has something; `over` is called once when it is over and nobody needs it any more."""

    def __init__(
        self,
        stream_id: str,
        stream: ConsoleStream,
        opener: Opener,
        *,
        backlog: int,
        linger: float,
        log: Callable[[bytes], None],
        wake: Callable[[], None],
        over: Callable[[], None],
    ) -> None:
        self.id = stream_id
        self.ended: ConsoleEnded | None = None
        self._stream: ConsoleStream | None = stream
        self._opener = opener
        self._backlog = Backlog(backlog)
        self._linger = linger
        self._write_log = log
        self._wake = wake
        self._over = over
        self._loop = asyncio.get_running_loop()
        self._reader: _Reader | None = None
        self._control: deque[ConsoleFrame] = deque()
        self._typed: deque[bytes | None] = deque()
        """What is still to be typed; None is a break."""
        self._typing = asyncio.Event()
        self._lingering: asyncio.TimerHandle | None = None
        self._tasks = [self._loop.create_task(self._run(stream)), self._loop.create_task(self._type())]
        self._wait_for_reader()

    @property
    def is_closed(self) -> bool:
        """This side has ended it: whoever comes now is to have it opened anew."""
        return self.ended is not None and self.ended.reason is EndReason.CLOSED

    # What the control plane sends

    def receive(self, frame: ConsoleFrame) -> None:
        """Raises ProtocolError for what the other side must not send."""
        match frame.kind:
            case FrameKind.ATTACH:
                self._attach(frame)
            case FrameKind.DETACH:
                self.detach()
            case FrameKind.WINDOW:
                if self._reader is not None:
                    self._reader.window = max(self._reader.window, frame.offset)
                    self._wake()
            case FrameKind.INPUT | FrameKind.BREAK:
                self._take_input(frame)
            case _:
                raise ProtocolError(f"an agent takes no {frame.kind.name} frames", about=self.id)

    def detach(self) -> None:
        """Nobody reads any more, or the link is gone."""
        self._reader = None
        self._control.clear()
        if self.ended is not None:
            self._over()
        else:
            self._wait_for_reader()

    def take(self) -> bytes | None:
        """The next frame for the control plane; None when there is none now."""
        if self._control:
            return self._control.popleft().encode()
        reader = self._reader
        if reader is None:
            return None
        room = max(0, min(reader.window - reader.sent, MAX_CONSOLE_BYTES))
        piece = self._backlog.read(reader.sent, room)
        if piece.offset > reader.sent:
            gap = ConsoleFrame.counting(FrameKind.GAP, self.id, reader.sent, piece.offset - reader.sent)
            reader.sent = piece.offset
            return gap.encode()
        if piece.data:
            reader.sent = piece.end
            return ConsoleFrame(FrameKind.DATA, self.id, piece.offset, piece.data).encode()
        if self.ended is not None and reader.sent >= self._backlog.end:
            ended = ConsoleFrame.ending(self.id, reader.sent, self.ended)
            self._reader = None
            self._over()
            return ended.encode()
        return None

    # What the agent does

    async def aclose(self, message: str) -> None:
        """Ends it on this side's wish, and gives it back at the BMC."""
        self._end(ConsoleEnded(EndReason.CLOSED, message))
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        await asyncio.gather(*(task for task in self._tasks if task is not current), return_exceptions=True)
        stream, self._stream = self._stream, None
        if stream is not None:
            await self._opener.close(stream)
        if self._reader is None:
            self._over()

    def _attach(self, frame: ConsoleFrame) -> None:
        window = frame.count
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        # One that reads from the beginning gets what is left of it, without being told of a gap.
        offset = min(frame.offset, self._backlog.end) or self._backlog.start
        self._reader = _Reader(offset, window)
        self._typed.clear()
        self._control.clear()
        self._grant()
        self._wake()

    def _take_input(self, frame: ConsoleFrame) -> None:
        reader = self._reader
        if reader is None:
            return
        if frame.kind is FrameKind.BREAK:
            if len(self._typed) < INPUT_WINDOW:
                self._typed.append(None)
        else:
            reader.typed += len(frame.data)
            if reader.typed > reader.granted:
                reader.typed -= len(frame.data)
                raise ProtocolError("more was typed than this console has room for", about=self.id)
            self._typed.append(frame.data)
        self._typing.set()

    def _grant(self) -> None:
        """Lets the control plane send as much as there is room for, once that is worth a frame."""
        reader = self._reader
        if reader is None:
            return
        waiting = sum(len(part) for part in self._typed if part is not None)
        limit = reader.typed - waiting + INPUT_WINDOW
        if limit - reader.granted >= INPUT_WINDOW // 2:
            reader.granted = limit
            self._control.append(ConsoleFrame(FrameKind.WINDOW, self.id, limit))
            self._wake()

    async def _type(self) -> None:
        while True:
            self._typing.clear()
            while self._typed:
                part, stream = self._typed.popleft(), self._stream
                if stream is not None:
                    # Keys that were pressed before a console was lost must not be obeyed after it came back.
                    with contextlib.suppress(OperationError):
                        await (stream.send_break() if part is None else stream.write(part))
                self._grant()
            await self._typing.wait()

    async def _run(self, stream: ConsoleStream) -> None:
        """Reads, and opens anew, until it is over."""
        losses = 0
        while True:
            opened_at = self._loop.time()
            while data := await stream.read():
                self._output(data)
            ending = stream.ending or ConsoleEnding(EndReason.LOST, "the console is over")
            self._stream = None
            self._typed.clear()
            await self._opener.close(stream)
            losses = 0 if self._loop.time() - opened_at > _HEALTHY_SECONDS else losses + 1
            _log.info("console_lost", stream=self.id, reason=ending.reason, message=ending.message)
            self._say(f"{ending.message}; trying to connect again, and what is typed meanwhile is not kept")
            try:
                stream = await self._reopen(ending, losses)
            except OperationError as error:
                self._say(f"the console could not be opened again: {error}")
                self._end(ConsoleEnded(ending.reason, str(error), error.code.value))
                return
            self._stream = stream
            self._say("connected again")

    async def _reopen(self, ending: ConsoleEnding, losses: int) -> ConsoleStream:
        """Raises OperationError when trying again cannot help."""
        tries = max(losses - 1, 0)
        while True:
            await asyncio.sleep(_DELAYS[min(tries, len(_DELAYS) - 1)])
            tries += 1
            try:
                return await self._opener.open(take_over=ending.reason is EndReason.LOST)
            except OperationError as error:
                if error.code not in _PASSING:
                    raise
                _log.debug("console_not_back", stream=self.id, reason=str(error))

    def _output(self, data: bytes) -> None:
        self._backlog.append(data)
        self._write_log(data)
        self._wake()

    def _say(self, text: str) -> None:
        """A line of ours between the machine's."""
        self._output(f"\r\n[rackwright: {text}]\r\n".encode())

    def _end(self, ended: ConsoleEnded) -> None:
        if self.ended is not None:
            return
        self.ended = ended
        if self._lingering is not None:
            self._lingering.cancel()
        if self._reader is None:
            self._over()
        self._wake()

    def _wait_for_reader(self) -> None:
        if self._lingering is None:
            self._lingering = self._loop.call_later(self._linger, self._give_up)

    def _give_up(self) -> None:
        closing = self._loop.create_task(self.aclose("nobody has read it for a while"))
        # Kept by the list, so that it is not collected while it runs.
        self._tasks.append(closing)
