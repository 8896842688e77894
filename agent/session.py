"""One connection's conversation, over anything that carries messages: hello, welcome, then frames both ways.

The reader never waits for anything but the next message, and the one writer takes what is due when the link has room.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
import structlog

from agent.consoles import Consoles
from agent.errors import JournalError
from agent.executor import Executor
from protocol.errors import ProtocolError
from protocol.frames import (
    Cancel,
    CertificateIssued,
    Command,
    ControlFrame,
    ErrorFrame,
    Goodbye,
    Hello,
    NodeSpec,
    Ready,
    Settled,
    Ticket,
    WatchList,
    Welcome,
    decode_control_frame,
    encode,
)

__all__ = ["Closed", "Connection", "Session", "SessionEnd"]

_log = structlog.get_logger("agent.session")
_WELCOME_TIMEOUT = 30.0


class Closed(Exception):
    """The connection is gone; the text says how."""


class Connection(Protocol):
    """Carries messages. Both directions raise Closed when it is gone."""

    async def send(self, data: bytes) -> None:
        """As a text message."""

    async def send_bytes(self, data: bytes) -> None:
        """As a binary message."""

    async def receive(self) -> str | bytes:
        """Text for a text message, bytes for a binary one."""

    async def close(self) -> None: ...


async def _noted_nowhere(_session_id: str) -> None:
    """A session without a journal, in tests."""


class SessionEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a connection ended."""

    reason: str
    welcome: Welcome | None = None
    lasted: float = 0.0
    """Seconds since the welcome."""
    goodbye: Goodbye | None = None

    @property
    def revoked(self) -> bool:
        """The control plane wants an operator to act before this agent comes back."""
        return self.goodbye is not None and self.goodbye.retry_after_ms is None


class Session:
    """One conversation.

    `welcomed`, `issued`, `node_spec`, `watch_list` and `ticket` are called from the reader, so they must not wait;
    `note` makes the session durable in the journal, and may.
    """

    def __init__(
        self,
        connection: Connection,
        hello: Callable[[], Hello],
        executor: Executor,
        *,
        welcomed: Callable[[Welcome], None] = lambda _welcome: None,
        issued: Callable[[CertificateIssued], None] = lambda _issued: None,
        node_spec: Callable[[NodeSpec], None] = lambda _spec: None,
        watch_list: Callable[[WatchList], None] = lambda _list: None,
        ticket: Callable[[Ticket], None] = lambda _ticket: None,
        note: Callable[[str], Awaitable[None]] = _noted_nowhere,
        consoles: Consoles | None = None,
    ) -> None:
        self._connection = connection
        self._hello = hello
        self._executor = executor
        self._welcomed = welcomed
        self._issued = issued
        self._node_spec = node_spec
        self._watch_list = watch_list
        self._ticket = ticket
        self._note = note
        self._consoles = consoles
        self._welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._welcome_at = 0.0
        self._goodbye: Goodbye | None = None
        self._asked_to_end: str | None = None

    async def run(self) -> SessionEnd:
        """Returns when the connection is gone, however it went."""
        self._executor.reports.clear()
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._write())
        try:
            done, _ = await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            reason = next(iter(done)).result()
        finally:
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)
            if self._consoles is not None:
                self._consoles.detach()
            with contextlib.suppress(Exception):
                await self._connection.close()
        welcome = self._welcome.result() if self._welcome.done() and not self._welcome.cancelled() else None
        lasted = asyncio.get_running_loop().time() - self._welcome_at if welcome else 0.0
        return SessionEnd(reason=self._asked_to_end or reason, welcome=welcome, lasted=lasted, goodbye=self._goodbye)

    async def end(self, reason: str) -> None:
        """Closes the connection on this side's wish."""
        self._asked_to_end = reason
        await self._connection.close()

    async def _write(self) -> str:
        try:
            await self._connection.send(encode(self._hello()))
            try:
                async with asyncio.timeout(_WELCOME_TIMEOUT):
                    await asyncio.shield(self._welcome)
            except TimeoutError:
                return f"the control plane did not answer the hello within {_WELCOME_TIMEOUT:g} s"
            await self._make_ready(self._welcome.result().session_id)
            self._executor.report_endings()
            while True:
                await self._executor.reports.wait()
                while await self._send_next():
                    continue
        except Closed as closed:
            return str(closed)

    async def _send_next(self) -> bool:
        """What is due of commands, and one frame of a console after each: neither waits long for the other."""
        frame = self._executor.reports.take()
        if frame is not None:
            await self._connection.send(encode(frame))
        message = self._consoles.take() if self._consoles is not None else None
        if message is not None:
            await self._connection.send_bytes(message)
        return frame is not None or message is not None

    async def _make_ready(self, session_id: str) -> None:
        """Notes the session in the journal, then asks for commands. While the disk is full none are sent."""
        try:
            await self._note(session_id)
        except JournalError as error:
            _log.error("session_not_noted", reason=str(error), hint="no commands come until the next connection")
            return
        await self._connection.send(encode(Ready(session_id=session_id)))

    async def _read(self) -> str:
        while True:
            try:
                message = await self._connection.receive()
            except Closed as closed:
                return str(closed)
            if isinstance(message, bytes):
                self._take_bytes(message)
                continue
            try:
                frame = decode_control_frame(message)
            except ProtocolError as error:
                self._complain(error)
                continue
            self._take(frame)
            if isinstance(frame, Goodbye):
                return frame.reason

    def _take_bytes(self, message: bytes) -> None:
        try:
            if self._consoles is None:
                raise ProtocolError("this agent keeps no consoles", about="binary")
            self._consoles.receive(message)
        except ProtocolError as error:
            self._complain(error)

    def _take(self, frame: ControlFrame) -> None:
        try:
            self._dispatch(frame)
        except Exception as error:
            # A fault of ours in one frame must not end the link, and must not pass unheard either.
            _log.exception("frame_failed", frame=type(frame).__name__)
            self._complain(
                ProtocolError(f"the agent failed on this frame: {type(error).__name__}", about=_subject(frame))
            )

    def _dispatch(self, frame: ControlFrame) -> None:
        match frame:
            case Command():
                self._executor.command(frame)
            case Settled():
                self._executor.settled(frame.ids)
            case Cancel():
                self._executor.cancel(frame.id, frame.reason)
            case Welcome():
                self._take_welcome(frame)
            case CertificateIssued():
                self._issued(frame)
            case NodeSpec():
                self._node_spec(frame)
            case WatchList():
                self._watch_list(frame)
            case Ticket():
                self._ticket(frame)
            case Goodbye():
                self._goodbye = frame
            case ErrorFrame():
                _log.warning("control_plane_complains", about=frame.about, reason=frame.message)

    def _take_welcome(self, welcome: Welcome) -> None:
        if self._welcome.done():
            return
        self._executor.settled(welcome.settled)
        self._welcome_at = asyncio.get_running_loop().time()
        self._welcome.set_result(welcome)
        self._welcomed(welcome)

    def _complain(self, error: ProtocolError) -> None:
        _log.warning("frame_not_taken", about=error.about, reason=error.message)
        self._executor.reports.say(ErrorFrame(message=error.message, about=error.about))


def _subject(frame: ControlFrame) -> str:
    """The command that a frame is about, else its type."""
    return frame.id if isinstance(frame, Command | Cancel) else type(frame).__name__
