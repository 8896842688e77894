"""The agents' door: websockets over mutual TLS on a port of its own.

An agent connects to `/agent` with its certificate, says hello, and is told what it is owed. `/join` takes a join
token instead of a certificate; `/ca.pem` and `/healthz` are plain GETs. Nothing here is needed for a command to
survive: the tables are the truth, and a connection only makes them move (see `commands`).
"""

import asyncio
import contextlib
import http
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from control_plane.agent_link import AgentLink
from control_plane.authority import Authority, agent_of
from control_plane.commands import COMMANDS_CHANNEL, Resume, cancels_owed, mark_sent, owed_to_worker
from control_plane.records import AgentRow, CommandRow, SessionRow
from control_plane.sessions import (
    REVOKED_CHANNEL,
    AgentRevoked,
    close_session,
    close_worker_sessions,
    open_session,
    record_certificate,
    redeem_join_token,
)
from control_plane.store import Store, StoreError, StoreUnavailable, Transaction
from protocol.errors import ProtocolError, RequestError
from protocol.frames import (
    JOIN_SUBPROTOCOL,
    MAX_FRAME_BYTES,
    SUBPROTOCOL,
    ErrorFrame,
    Goodbye,
    Hello,
    Joined,
    JoinRefused,
    JoinRequest,
    Progress,
    Welcome,
    decode_agent_frame,
    encode,
)
from protocol.secret import Secret

__all__ = ["Gateway"]

_log = logging.getLogger("control_plane.gateway")
_websocket_log = logging.getLogger("control_plane.websocket")
# The library logs every frame at debug level, and a join request holds a secret.
_websocket_log.setLevel(logging.INFO)
_HELLO_TIMEOUT = 10.0
_SWEEP_SECONDS = 2.0
_OWED_BATCH = 500
_JOIN_TRIES_PER_MINUTE = 120
_RECONNECTS_PER_SECOND = 200
"""What one worker takes of a storm (a mutual TLS handshake costs about 2.5 ms); the spread told to agents follows."""


class Gateway:
    """Serves the agents of one worker."""

    def __init__(
        self,
        store: Store,
        authority: Authority,
        *,
        worker: str,
        host: str = "127.0.0.1",
        port: int = 0,
        names: Sequence[str] = ("localhost", "127.0.0.1"),
    ) -> None:
        self._store = store
        self._authority = authority
        self._worker = worker
        self._host = host
        self._requested_port = port
        self._names = names
        self._links: dict[str, AgentLink] = {}
        self._server: Server | None = None
        self._context: ssl.SSLContext | None = None
        self._poller: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._woken: set[str] = set()
        self._stop_listening: list[Callable[[], None]] = []
        self._join_budget = _JOIN_TRIES_PER_MINUTE
        self._stopping = False

    @property
    def port(self) -> int:
        """The bound port. Only while started."""
        if self._server is None:
            raise RuntimeError("the gateway is not started")
        return int(next(iter(self._server.sockets)).getsockname()[1])

    @property
    def connected(self) -> Mapping[str, AgentLink]:
        """The agents that are connected to this worker, by id."""
        return self._links

    async def start(self) -> None:
        await self._store.write(close_worker_sessions, self._worker)
        self._context = self._authority.server_context(self._names)
        self._server = await serve(
            self._serve,
            self._host,
            self._requested_port,
            ssl=self._context,
            process_request=self._process_request,
            subprotocols=[Subprotocol(SUBPROTOCOL), Subprotocol(JOIN_SUBPROTOCOL)],
            compression=None,
            max_size=MAX_FRAME_BYTES,
            max_queue=16,
            ping_interval=20,
            ping_timeout=20,
            server_header=None,
            logger=_websocket_log,
            backlog=1024,
        )
        self._stop_listening = [
            self._store.listen(COMMANDS_CHANNEL, self._on_owed),
            self._store.listen(REVOKED_CHANNEL, self._on_revoked),
        ]
        self._poller = asyncio.create_task(self._deliver_owed(), name="gateway deliver")

    async def stop(self, reason: str = "the control plane is stopping") -> None:
        """Says goodbye to every agent and closes the port. Open commands stay open in the tables."""
        self._stopping = True
        for stop in self._stop_listening:
            stop()
        if self._poller is not None:
            self._poller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._poller
        farewell = Goodbye(reason=reason, retry_after_ms=1_000)
        await asyncio.gather(*(link.goodbye(farewell) for link in list(self._links.values())))
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def renew_certificate(self) -> None:
        """To be called daily: new handshakes take a fresh server certificate when the old one nears its end."""
        if self._context is not None:
            self._authority.renew_server(self._context, self._names)

    def live_session(self, agent_id: str) -> SessionRow | None:
        """The agent's connection on this worker, to which a new command can be delivered at once."""
        link = self._links.get(agent_id)
        return link.session if link is not None else None

    async def deliver(self, row: CommandRow, now: int | None = None) -> None:
        """Sends a command whose row says, durably, that it goes over the present connection.

        `now` by the store's clock; a command of this moment needs none. A lost connection is no failure: the next
        hello settles what became of it.
        """
        link = self._links.get(row.agent_id)
        if link is not None and link.session.id == row.sent_session:
            await link.send_command(row, row.created_at if now is None else now)

    def progress_of(self, row: CommandRow) -> Progress | None:
        """The last news of a command under way, where its agent is connected here and told any."""
        link = self._links.get(row.agent_id)
        return link.progress.get(row.id) if link is not None else None

    def _on_revoked(self, agent_id: str) -> None:
        link = self._links.get(agent_id)
        if link is not None:
            asyncio.get_running_loop().create_task(link.goodbye(Goodbye(reason="this agent was revoked")))

    def _process_request(self, connection: ServerConnection, request: Request) -> Response | None:
        path = request.path.partition("?")[0]
        if path == "/agent":
            if _peer_agent(connection) is None:
                return connection.respond(
                    http.HTTPStatus.UNAUTHORIZED,
                    "this path needs an agent's certificate: join with a join token first\n",
                )
            return None
        if path == "/join":
            return None
        if path == "/ca.pem":
            body = self._authority.pem.encode()
            headers = Headers({"Content-Type": "application/x-pem-file", "Content-Length": str(len(body))})
            return Response(200, "OK", headers, body)
        if path == "/healthz":
            return connection.respond(http.HTTPStatus.OK, "ok\n")
        return connection.respond(http.HTTPStatus.NOT_FOUND, "agents connect to /agent, or to /join with a token\n")

    async def _serve(self, connection: ServerConnection) -> None:
        try:
            if connection.subprotocol == JOIN_SUBPROTOCOL:
                await self._join(connection)
            elif connection.subprotocol == SUBPROTOCOL:
                await self._agent(connection)
            else:
                await connection.close(
                    1002, f"speak {SUBPROTOCOL}: this agent and this control plane are too far apart"
                )
        except ConnectionClosed:
            pass
        except StoreUnavailable as error:
            _log.warning("an agent's connection was closed: %s", error)
            await connection.close(1013, "the control plane's database is not available; try again")

    async def _join(self, connection: ServerConnection) -> None:
        async with asyncio.timeout(_HELLO_TIMEOUT):
            data = await connection.recv()
        answer = await self._joined(data)
        await connection.send(encode(answer), text=True)
        await connection.close()

    async def _joined(self, data: bytes | str) -> Joined | JoinRefused:
        if self._join_budget <= 0:
            return JoinRefused(message="too many join attempts: wait a minute and try again")
        self._join_budget -= 1
        asyncio.get_running_loop().call_later(60, self._give_back_join)
        try:
            request = msgspec.json.decode(data, type=JoinRequest)
        except msgspec.DecodeError as error:
            return JoinRefused(message=f"the join request cannot be read: {error}")
        try:
            return await self._store.write(_join_in, self._authority, request, Secret(request.secret))
        except RequestError as error:
            _log.warning(
                "a join was refused: token %s from %s: %s", request.token_id, request.host_name, error.message
            )
            return JoinRefused(message=error.message)

    def _give_back_join(self) -> None:
        self._join_budget += 1

    async def _agent(self, connection: ServerConnection) -> None:
        agent_id = _peer_agent(connection)
        hello = await _hello(connection)
        if hello is None or agent_id is None:
            return
        if hello.agent_id != agent_id:
            await connection.close(1008, "the hello names another agent than the certificate")
            return
        try:
            opened = await self._store.write(_open, hello, self._worker)
        except AgentRevoked as revoked:
            _log.warning("agent %s was turned away: %s", agent_id, revoked)
            await connection.send(encode(Goodbye(reason=f"this agent was revoked: {revoked}")), text=True)
            await connection.close(1008, "revoked")
            return
        link = AgentLink(connection, opened.session, opened.agent.tenant_id, self._store, self._authority)
        previous, self._links[agent_id] = self._links.get(agent_id), link
        reason = "the connection was cut"
        try:
            if previous is not None:
                await previous.goodbye(Goodbye(reason="superseded by a newer connection", retry_after_ms=0))
            await self._welcome(link, opened)
            reason = await link.run()
        except ConnectionClosed as closed:
            reason = f"the connection was cut: {closed}"
        finally:
            if self._links.get(agent_id) is link:
                del self._links[agent_id]
            await self._close_session(link.session.id, reason)

    async def _welcome(self, link: AgentLink, opened: "_Opened") -> None:
        resume = opened.resume
        await link.send(
            Welcome(
                session_id=link.session.id, settled=resume.forget, reconnect_spread_ms=self._reconnect_spread_ms()
            )
        )
        for row in resume.stop:
            await link.cancel(row.id, row.cancel_reason or "")
        for row in resume.send:
            await link.send_command(row, opened.now)

    async def _close_session(self, session_id: str, reason: str) -> None:
        try:
            await self._store.write(close_session, session_id, reason)
        except StoreError as error:
            # The next hello, or this worker's next start, closes it all the same.
            _log.warning("the end of session %s could not be stored: %s", session_id, error)

    def _reconnect_spread_ms(self) -> int:
        return max(1_000, len(self._links) * 1_000 // _RECONNECTS_PER_SECOND)

    async def _deliver_owed(self) -> None:
        """Sends what this worker's agents are owed. The wake-up only makes it faster; the sweep is what counts."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SWEEP_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            agents, self._woken = self._woken, set()
            try:
                await self._deliver(agents)
            except StoreError as error:
                _log.warning("owed commands could not be read: %s", error)
                await asyncio.sleep(_SWEEP_SECONDS)

    async def _deliver(self, woken: set[str]) -> None:
        """What the woken agents are owed; every agent of this worker when nobody was woken."""
        connected = list(woken & self._links.keys()) if woken else []
        if (woken and not connected) or not self._links:
            return
        owed = await self._store.write(_owed, self._worker, connected)
        for row in owed.send:
            await self.deliver(row, owed.now)
        for row in owed.stop:
            link = self._links.get(row.agent_id)
            if link is not None:
                await link.cancel(row.id, row.cancel_reason or "")

    def _on_owed(self, agent_id: str) -> None:
        if agent_id:
            self._woken.add(agent_id)
        self._wake.set()


class _Opened(NamedTuple):
    session: SessionRow
    agent: AgentRow
    resume: Resume
    now: int


class _Owed(NamedTuple):
    send: list[CommandRow]
    stop: list[CommandRow]
    now: int


def _open(tx: Transaction, hello: Hello, worker: str) -> _Opened:
    session, agent, resume = open_session(tx, hello, worker)
    return _Opened(session, agent, resume._replace(send=mark_sent(tx, resume.send, session)), tx.now())


def _owed(tx: Transaction, worker: str, agents: list[str]) -> _Owed:
    by_session: dict[str, tuple[SessionRow, list[CommandRow]]] = {}
    for row, session in owed_to_worker(tx, worker, agents, _OWED_BATCH):
        by_session.setdefault(session.id, (session, []))[1].append(row)
    send = [sent for session, rows in by_session.values() for sent in mark_sent(tx, rows, session)]
    return _Owed(send, cancels_owed(tx, worker, agents, _OWED_BATCH), tx.now())


def _peer_agent(connection: ServerConnection) -> str | None:
    tls = connection.transport.get_extra_info("ssl_object")
    return agent_of(tls.getpeercert()) if tls is not None else None


async def _hello(connection: ServerConnection) -> Hello | None:
    """The first frame; None when the connection was closed because it was no hello."""
    try:
        async with asyncio.timeout(_HELLO_TIMEOUT):
            frame = decode_agent_frame(await connection.recv())
    except TimeoutError:
        await connection.close(1002, "no hello came within 10 s")
        return None
    except ProtocolError as error:
        await connection.send(encode(ErrorFrame(message=error.message, about="hello")), text=True)
        await connection.close(1002, "the first frame must be a hello")
        return None
    if isinstance(frame, Hello):
        return frame
    await connection.close(1002, "the first frame must be a hello")
    return None


def _join_in(tx: Transaction, authority: Authority, request: JoinRequest, secret: Secret) -> Joined:
    agent = redeem_join_token(tx, request.token_id, secret.reveal(), request.host_name, request.version)
    issued = authority.issue_agent(request.csr, agent.id)
    record_certificate(tx, agent.id, issued.serial, issued.not_after_ms)
    return Joined(
        agent_id=agent.id, role=agent.role, site=agent.site_id or "", certificate=issued.pem, ca=authority.pem
    )
