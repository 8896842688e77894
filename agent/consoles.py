"""The consoles that this agent has open: one per machine and driver, whoever asked for it.

`console.openConsole` gives the stream that is open already, or opens one; it is closed by `console.closeConsole`,
when nobody has read it for a while, and when the agent stops. Bytes go as binary frames over the agent's one link
(`protocol.console_frames`), when the link has room for them.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from agent.config import ConsolesSection
from agent.console import Console
from agent.console_log import ConsoleLogs
from agent.handlers import Answer
from drivers import Drivers, Target
from drivers.console import ConsoleStream
from protocol.commands import DriverInvoke
from protocol.console_frames import ConsoleEnded, ConsoleFrame, EndReason, FrameKind, decode_console_frame
from protocol.errors import ErrorCode, OperationError

__all__ = ["CLOSE", "OPEN", "Consoles"]

_log = structlog.get_logger("agent.consoles")
OPEN: Final = "console.openConsole"
CLOSE: Final = "console.closeConsole"
_CLOSE_SECONDS: Final = 10.0
_MOST_ANSWERS: Final = 1_000

Place = tuple[str, str]
"""The machine, and the driver that opened its console."""


@dataclass
class _Opener:
    """Opens a machine's console again as it was opened first, by the credential that the vault has then."""

    drivers: Drivers
    target: Callable[[], Target]
    arguments: Mapping[str, object]

    async def open(self, *, take_over: bool) -> ConsoleStream:
        arguments = {**self.arguments, "takeOver": take_over}
        result = await self.drivers.invoke(self.target(), OPEN, arguments)
        stream = self.drivers.environment.consoles.get(str(result["stream"]))
        if stream is None:
            raise OperationError(ErrorCode.UNSUPPORTED, "this driver opens consoles without bytes")
        return stream

    async def close(self, stream: ConsoleStream) -> None:
        """By the driver's own operation, so that the machine is told; and in any case here."""
        consoles = self.drivers.environment.consoles
        identifier = consoles.id_of(stream)
        if identifier is None:
            return
        with contextlib.suppress(OperationError):
            await self.drivers.invoke(self.target(), CLOSE, {"stream": identifier}, timeout=_CLOSE_SECONDS)
        await consoles.close(identifier)


class Consoles:
    """`wake` is called when `take` has something. Nothing that is called here waits for a machine, save `open` and
    `close`."""

    def __init__(self, drivers: Drivers, settings: ConsolesSection, logs: ConsoleLogs) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._drivers = drivers
        self._settings = settings
        self._logs = logs
        self._open: dict[str, Console] = {}
        self._places: dict[Place, str] = {}
        self._opening: dict[Place, asyncio.Lock] = {}
        self._answers: list[bytes] = []

    async def open(
        self,
        invoke: DriverInvoke,
        target: Callable[[], Target],
        run: Callable[[], Awaitable[Answer]],
    ) -> Answer:
        """The answer of `console.openConsole`: the machine's stream, opened by `run` where it has none.

        Raises OperationError: BUSY when too many are open, else what `run` raises.
        """
        place = (invoke.target_node_id or target().endpoint, invoke.driver)
        lock = self._opening.setdefault(place, asyncio.Lock())
        try:
            async with lock:
                console = self._open.get(self._places.get(place, ""))
                if console is not None and console.ended is None:
                    return Answer({"stream": console.id})
                if len(self._open) >= self._settings.most:
                    raise OperationError(
                        ErrorCode.BUSY, f"this agent has {len(self._open)} consoles open, its limit: close one first"
                    )
                answer = await run()
                self._adopt(place, str(answer.result["stream"]), _Opener(self._drivers, target, invoke.args))
                return answer
        finally:
            if not lock.locked():
                self._opening.pop(place, None)

    async def close(self, stream_id: str) -> bool:
        """Ends a console that this agent has open; False where it has none of this id."""
        console = self._open.get(stream_id)
        if console is None:
            return False
        await console.aclose("it was closed by console.closeConsole")
        return True

    async def aclose(self) -> None:
        """Gives every console back at its BMC."""
        await asyncio.gather(*(console.aclose("the agent stops") for console in list(self._open.values())))
        await self._logs.aclose()

    def receive(self, message: bytes) -> None:
        """A binary message of the control plane. Raises ProtocolError for one that cannot be taken."""
        frame = decode_console_frame(message)
        console = self._open.get(frame.stream)
        if console is not None and not (frame.kind is FrameKind.ATTACH and console.is_closed):
            console.receive(frame)
        elif frame.kind is FrameKind.ATTACH and len(self._answers) < _MOST_ANSWERS:
            ended = ConsoleEnded(EndReason.UNKNOWN, "this agent has no such console open: it was started anew")
            self._answers.append(ConsoleFrame.ending(frame.stream, frame.offset, ended).encode())
            self.wake()

    def take(self) -> bytes | None:
        """The next binary message for the control plane: each console in its turn, so that none holds up another."""
        if self._answers:
            return self._answers.pop(0)
        for stream_id, console in list(self._open.items()):
            message = console.take()
            if message is not None:
                if stream_id in self._open:
                    self._open[stream_id] = self._open.pop(stream_id)
                return message
        return None

    def detach(self) -> None:
        """The link is gone: nobody reads until the control plane attaches anew."""
        self._answers.clear()
        for console in list(self._open.values()):
            console.detach()

    def _has_something(self) -> None:
        self.wake()

    def _adopt(self, place: Place, stream_id: str, opener: _Opener) -> None:
        stream = self._drivers.environment.consoles.get(stream_id)
        if stream is None:
            return

        def over() -> None:
            self._open.pop(stream_id, None)
            if self._places.get(place) == stream_id:
                del self._places[place]

        node_id = place[0]
        self._places[place] = stream_id
        self._open[stream_id] = Console(
            stream_id,
            stream,
            opener,
            backlog=self._settings.backlog_bytes,
            linger=self._settings.linger_seconds,
            log=lambda data: self._logs.write(node_id, data),
            wake=self._has_something,
            over=over,
        )
        _log.info("console_opened", node=node_id, stream=stream_id)
