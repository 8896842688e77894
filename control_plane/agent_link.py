"""One connected agent: takes its frames to the ledger, and the ledger's answers back.

Each frame's transaction runs beside the next ones. That is safe: a command's state only ever moves forward, and an
ending is stored once. When the store fails, the connection is closed: the agent keeps what was not settled and says
it again after its next hello.
"""

import asyncio
import logging
from collections.abc import Coroutine

import msgspec
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from control_plane.authority import Authority
from control_plane.commands import Settlement, advance, settle
from control_plane.events import publish
from control_plane.records import CommandRow, SessionRow
from control_plane.sessions import record_certificate
from control_plane.store import Store, StoreError, Transaction
from protocol.commands import CommandState
from protocol.errors import ProtocolError, RequestError
from protocol.frames import (
    Accepted,
    AgentFrame,
    Cancel,
    CertificateIssued,
    CertificateRequest,
    Command,
    ErrorFrame,
    Finished,
    Goodbye,
    Hello,
    Progress,
    Settled,
    Started,
    decode_agent_frame,
    encode,
)

__all__ = ["AgentLink"]

_log = logging.getLogger("control_plane.agent_link")
_FRAMES_AT_ONCE = 256
"""Frames whose transactions are under way; beyond that the agent's next frame is not read (back-pressure)."""


class AgentLink:
    """An open connection and its session. Many are idle at once, so it holds little."""

    __slots__ = (
        "_authority",
        "_cancelled",
        "_connection",
        "_failure",
        "_flushing",
        "_settled",
        "_store",
        "_tasks",
        "progress",
        "session",
        "tenant_id",
    )

    def __init__(
        self, connection: ServerConnection, session: SessionRow, tenant_id: str, store: Store, authority: Authority
    ) -> None:
        self.session = session
        self.tenant_id = tenant_id
        self.progress: dict[str, Progress] = {}
        """The last news of commands under way; lost with the connection, never needed."""
        self._connection = connection
        self._store = store
        self._authority = authority
        self._tasks: set[asyncio.Task[None]] = set()
        self._settled: list[str] = []
        self._flushing = False
        self._cancelled: set[str] = set()
        self._failure: StoreError | None = None

    async def run(self) -> str:
        """Takes frames until the connection ends; says why it ended. Raises StoreError when the store failed."""
        try:
            async for data in self._connection:
                await self._take(data)
            return "the agent closed the connection"
        except ConnectionClosed as closed:
            return f"the connection was cut: {closed}"
        finally:
            if self._tasks:
                await asyncio.wait(self._tasks)
            if self._failure is not None:
                raise self._failure

    async def send(self, frame: msgspec.Struct) -> None:
        """Raises ConnectionClosed."""
        await self._connection.send(encode(frame), text=True)

    async def send_command(self, row: CommandRow, now: int) -> None:
        """Sends a command that is marked as sent over this session; `now` by the store's clock.

        A cut connection is no failure: the next hello settles what became of it.
        """
        remaining = max(0, row.not_after - now)
        await self._send_quietly(Command(id=row.id, kind=row.kind, payload=row.payload, remaining_ms=remaining))

    async def cancel(self, command_id: str, reason: str) -> None:
        """Asks the agent to stop a command; once per connection."""
        if command_id not in self._cancelled:
            self._cancelled.add(command_id)
            await self._send_quietly(Cancel(id=command_id, reason=reason))

    async def goodbye(self, frame: Goodbye) -> None:
        """Says why, and closes."""
        await self._send_quietly(frame)
        await self._connection.close(1001, frame.reason[:120])

    async def _take(self, data: str | bytes) -> None:
        if isinstance(data, bytes):
            await self._send_quietly(ErrorFrame(message="no console stream is open on this connection"))
            return
        try:
            frame = decode_agent_frame(data)
        except ProtocolError as error:
            await self._send_quietly(ErrorFrame(message=error.message, about=error.about))
            return
        work = self._work(frame)
        if work is None:
            return
        task = asyncio.get_running_loop().create_task(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if len(self._tasks) >= _FRAMES_AT_ONCE:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def _work(self, frame: AgentFrame) -> Coroutine[object, object, None] | None:
        match frame:
            case Finished():
                return self._finished(frame)
            case Accepted():
                return self._advance(frame.id, CommandState.DELIVERED)
            case Started():
                return self._advance(frame.id, CommandState.RUNNING)
            case Progress():
                self.progress[frame.id] = frame
            case CertificateRequest():
                return self._renew(frame)
            case Hello():
                return self._send_quietly(
                    ErrorFrame(message="hello was said already on this connection", about="hello")
                )
            case ErrorFrame():
                _log.warning(
                    "agent %s could not take a frame (%s): %s", self.session.agent_id, frame.about, frame.message
                )
        return None

    async def _guard(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except ConnectionClosed:
            pass
        except StoreError as error:
            self._failure = error
            await self._connection.close(1013, "the control plane's database is not available; try again")

    async def _advance(self, command_id: str, state: CommandState) -> None:
        await self._store.write(advance, self.session.agent_id, command_id, state)

    async def _finished(self, frame: Finished) -> None:
        settlement, row = await self._store.write(settle, self.session.agent_id, frame.id, frame.ending)
        if settlement is Settlement.UNKNOWN:
            _log.warning("agent %s reported on %s, which is not in the ledger", self.session.agent_id, frame.id)
        elif settlement is Settlement.LATE and row is not None:
            _log.warning("the ending of %s came after it was given up: %s", row.id, frame.ending.outcome)
        self.progress.pop(frame.id, None)
        self._cancelled.discard(frame.id)
        self._settled.append(frame.id)
        if not self._flushing:
            await self._flush_settled()

    async def _flush_settled(self) -> None:
        """One frame for all endings that became durable together."""
        self._flushing = True
        try:
            await asyncio.sleep(0)
            while self._settled:
                ids, self._settled = self._settled, []
                await self.send(Settled(ids=ids))
        finally:
            self._flushing = False

    async def _renew(self, frame: CertificateRequest) -> None:
        try:
            issued = self._authority.issue_agent(frame.csr, self.session.agent_id)
        except RequestError as error:
            await self.send(ErrorFrame(message=error.message, about="certificateRequest"))
            return
        await self._store.write(
            _record_renewal, self.tenant_id, self.session.agent_id, issued.serial, issued.not_after_ms
        )
        await self.send(CertificateIssued(certificate=issued.pem, ca=self._authority.pem))

    async def _send_quietly(self, frame: msgspec.Struct) -> None:
        try:
            await self.send(frame)
        except ConnectionClosed:
            _log.debug("a %s frame met a closed connection", type(frame).__name__)


def _record_renewal(tx: Transaction, tenant_id: str, agent_id: str, serial: str, not_after: int) -> None:
    record_certificate(tx, agent_id, serial, not_after)
    publish(tx, tenant_id, f"agent/{agent_id}", "agent.renewed", {"notAfter": not_after})
