"""One connected agent: takes its frames to the ledger, and the ledger's answers back.

Each frame's transaction runs beside the next ones. That is safe: a command's state only ever moves forward, and an
ending is stored once. When the store fails, the connection is closed: the agent keeps what was not settled and says
it again after its next hello.

Frames to the agent are posted, in order, and sent by a task of their own that lives while there is something to send:
an agent that does not read holds up nobody but itself.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import NamedTuple

import msgspec
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from control_plane.authority import Authority
from control_plane.commands import Settlement, advance, settle
from control_plane.events import publish
from control_plane.node_specs import note_applied
from control_plane.records import CommandRow, SessionRow
from control_plane.sessions import make_ready, record_certificate, refuse_revoked
from control_plane.store import Store, StoreClosed, StoreError, StoreUnavailable, Transaction
from control_plane.tickets import Issuer, answer_request
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
    NodeSpecApplied,
    Observation,
    Progress,
    Ready,
    Settled,
    Started,
    TicketRequest,
    decode_agent_frame,
    encode,
)

__all__ = ["AgentLink"]

_log = logging.getLogger("control_plane.agent_link")
_FRAMES_AT_ONCE = 256
_BYTES_AT_ONCE = 8 << 20
"""Frames whose transactions are under way; beyond that the agent's next frame is not read (back-pressure)."""
_MOST_POSTED = 20_000
"""Frames that wait for an agent which does not read; beyond that its connection is given up."""
_FAREWELL_SECONDS = 2.0
_MOST_PROGRESS = 10_000
_LONGEST_PROGRESS = 1_000


class _Posted(NamedTuple):
    """A command's frame, and when it was posted: what it waits is taken off its remaining time."""

    command: Command
    at: float


class AgentLink:
    """An open connection and its session. Many are idle at once, so it holds little."""

    __slots__ = (
        "_authority",
        "_bytes",
        "_cancelled",
        "_connection",
        "_failure",
        "_posted",
        "_sender",
        "_settled",
        "_store",
        "_tasks",
        "agent_url",
        "on_bytes",
        "on_observation",
        "on_ready",
        "progress",
        "protocol",
        "ready",
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
        self.ready = False
        """The agent's journal has noted this session: commands may be sent."""
        self.on_ready: Callable[[int], None] | None = None
        """Called once with the store's time when it becomes ready."""
        self.on_observation: Callable[[SessionRow, Observation], None] | None = None
        """Called with what the agent has seen of its machines; it must not wait."""
        self.on_bytes: Callable[[bytes], None] | None = None
        """Called with each binary message: a console's; it must not wait. Raises ProtocolError."""
        self.protocol = 0
        """The minor version that the agent speaks."""
        self.agent_url = ""
        """What tickets say of where the control plane is."""
        self._connection = connection
        self._store = store
        self._authority = authority
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._settled: list[str] = []
        self._posted: deque[msgspec.Struct | _Posted | bytes] | None = None
        self._sender: asyncio.Task[None] | None = None
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

    def post(self, frame: msgspec.Struct | _Posted | bytes) -> None:
        """Sends it after what was posted before; bytes as a binary message.

        A cut connection is no failure: the next hello settles it.
        """
        if self._posted is None:
            self._posted = deque()
        self._posted.append(frame)
        if len(self._posted) > _MOST_POSTED:
            _log.warning(
                "agent %s takes no frames while %d wait: its connection is cut", self.session.agent_id, _MOST_POSTED
            )
            self._posted = None
            self._connection.transport.abort()
            return
        self._wake_sender()

    def send_command(self, row: CommandRow, now: int) -> None:
        """Posts a command that is marked as sent over this session; `now` by the store's clock."""
        # A clock that was set back does not give a command more time than it was asked for.
        remaining = max(0, min(row.not_after - now, row.not_after - row.created_at))
        command = Command(id=row.id, kind=row.kind, payload=row.payload, remaining_ms=remaining)
        self.post(_Posted(command, asyncio.get_running_loop().time()))

    def cancel(self, command_id: str, reason: str) -> None:
        """Asks the agent to stop a command; once per connection."""
        if command_id not in self._cancelled:
            self._cancelled.add(command_id)
            self.post(Cancel(id=command_id, reason=reason))

    async def goodbye(self, frame: Goodbye) -> None:
        """Says why, and closes; an agent that does not hear it in time is cut off."""
        self._posted = None
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await self._send_quietly(frame)
                await self._connection.close(1001, frame.reason[:120])
        except TimeoutError:
            self._connection.transport.abort()

    def _wake_sender(self) -> None:
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send_posted())

    async def _send_posted(self) -> None:
        try:
            while True:
                if self._posted:
                    await self._send_posted_one(self._posted.popleft())
                elif self._settled:
                    # One frame for all endings that become durable together.
                    await asyncio.sleep(0)
                    ids, self._settled = self._settled, []
                    await self._send(Settled(ids=ids))
                else:
                    return
        except ConnectionClosed:
            self._settled = []
        finally:
            self._posted = self._sender = None

    async def _send_posted_one(self, posted: msgspec.Struct | _Posted | bytes) -> None:
        if isinstance(posted, bytes):
            await self._connection.send(posted)
        else:
            await self._send(_of_this_moment(posted))

    async def _send(self, frame: msgspec.Struct) -> None:
        await self._connection.send(encode(frame), text=True)

    async def _send_quietly(self, frame: msgspec.Struct) -> None:
        try:
            await self._send(frame)
        except ConnectionClosed:
            _log.debug("a %s frame met a closed connection", type(frame).__name__)

    async def _take(self, data: str | bytes) -> None:
        if isinstance(data, bytes):
            await self._take_bytes(data)
            return
        try:
            frame = decode_agent_frame(data)
        except ProtocolError as error:
            await self._send_quietly(ErrorFrame(message=error.message, about=error.about))
            return
        work = self._work(frame)
        if work is None:
            return
        size = len(data)
        task = asyncio.get_running_loop().create_task(self._guard(work, frame))
        self._tasks.add(task)
        self._bytes += size
        task.add_done_callback(lambda done: self._done(done, size))
        while len(self._tasks) >= _FRAMES_AT_ONCE or self._bytes >= _BYTES_AT_ONCE:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _take_bytes(self, message: bytes) -> None:
        try:
            if self.on_bytes is None:
                raise ProtocolError("no console stream is open on this connection", about="binary")
            self.on_bytes(message)
        except ProtocolError as error:
            await self._send_quietly(ErrorFrame(message=error.message, about=error.about))

    def _done(self, task: asyncio.Task[None], size: int) -> None:
        self._tasks.discard(task)
        self._bytes -= size

    def _work(self, frame: AgentFrame) -> Coroutine[object, object, None] | None:
        match frame:
            case Finished():
                return self._finished(frame)
            case Ready():
                return self._make_ready(frame)
            case Accepted():
                return self._advance(frame.id, CommandState.DELIVERED)
            case Started():
                return self._advance(frame.id, CommandState.RUNNING)
            case Progress():
                self._keep_progress(frame)
            case Observation():
                if self.on_observation is not None:
                    self.on_observation(self.session, frame)
            case NodeSpecApplied():
                return self._store.write(note_applied, self.session, frame.generation)
            case TicketRequest():
                return self._give_ticket(frame)
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

    async def _guard(self, work: Coroutine[object, object, None], frame: AgentFrame) -> None:
        try:
            await work
        except ConnectionClosed:
            pass
        except (StoreUnavailable, StoreClosed) as error:
            self._failure = error
            await self._connection.close(1013, "the control plane's database is not available; try again")
        except Exception:
            # Closing would bring the same frame back with the next connection, for ever, and nothing else.
            about = getattr(frame, "id", "") or type(frame).__name__
            _log.exception("a frame of agent %s about %s could not be taken", self.session.agent_id, about)
            self.post(ErrorFrame(message="the control plane failed on this frame: see its log", about=about))

    def _keep_progress(self, frame: Progress) -> None:
        if frame.id in self.progress or len(self.progress) < _MOST_PROGRESS:
            self.progress[frame.id] = msgspec.structs.replace(frame, message=frame.message[:_LONGEST_PROGRESS])

    async def _make_ready(self, frame: Ready) -> None:
        if frame.session_id != self.session.id or self.ready:
            return
        now = await self._store.write(make_ready, self.session)
        if now is not None and not self.ready:
            self.ready = True
            if self.on_ready is not None:
                self.on_ready(now)

    async def _advance(self, command_id: str, state: CommandState) -> None:
        await self._store.write(advance, self.session.agent_id, command_id, state)

    async def _finished(self, frame: Finished) -> None:
        settlement, row = await self._store.write(
            settle, self.session.agent_id, frame.id, frame.ending, self.session.id
        )
        if settlement is Settlement.STALE:
            return
        if settlement is Settlement.UNKNOWN:
            _log.warning("agent %s reported on %s, which is not in the ledger", self.session.agent_id, frame.id)
        elif settlement is Settlement.LATE and row is not None:
            _log.warning("the ending of %s came after it was given up: %s", row.id, frame.ending.outcome)
        self.progress.pop(frame.id, None)
        self._cancelled.discard(frame.id)
        self._settled.append(frame.id)
        self._wake_sender()

    async def _give_ticket(self, frame: TicketRequest) -> None:
        issuer = Issuer(self._authority.sha256, self.agent_url)
        image_key = self._authority.image_key
        self.post(await self._store.write(answer_request, self.session, frame, issuer, image_key))

    async def _renew(self, frame: CertificateRequest) -> None:
        try:
            issued = self._authority.issue_agent(frame.csr, self.session.agent_id)
            await self._store.write(
                _record_renewal, self.tenant_id, self.session.agent_id, issued.serial, issued.not_after_ms
            )
        except RequestError as error:
            self.post(ErrorFrame(message=error.message, about="certificateRequest"))
            return
        self.post(CertificateIssued(certificate=issued.pem, ca=self._authority.pem))


def _of_this_moment(posted: msgspec.Struct | _Posted) -> msgspec.Struct:
    if not isinstance(posted, _Posted):
        return posted
    waited = int((asyncio.get_running_loop().time() - posted.at) * 1000)
    if not waited:
        return posted.command
    return msgspec.structs.replace(posted.command, remaining_ms=max(0, posted.command.remaining_ms - waited))


def _record_renewal(tx: Transaction, tenant_id: str, agent_id: str, serial: str, not_after: int) -> None:
    refuse_revoked(tx, agent_id)
    record_certificate(tx, agent_id, serial, not_after)
    publish(tx, tenant_id, f"agent/{agent_id}", "agent.renewed", {"notAfter": not_after})
