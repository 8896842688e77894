"""The agents' door: websockets over mutual TLS on a port of its own.

An agent connects to `/agent` with its certificate, says hello, and is told what it is owed. `/join` takes a join
token instead of a certificate; `/ca.pem` and `/healthz` are plain GETs. Nothing here is needed for a command to
survive: the tables are the truth, and a connection only makes them move (see `commands`).
"""

import asyncio
import functools
import http
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from control_plane.admission import admit, peer_agent
from control_plane.agent_link import AgentLink
from control_plane.authority import Authority
from control_plane.commands import COMMANDS_CHANNEL
from control_plane.consoles import Consoles
from control_plane.delivery import Delivery
from control_plane.joining import Joining
from control_plane.node_specs import DAEMON, SpecDelivery
from control_plane.observations import ObservationIntake
from control_plane.records import CommandRow, SessionRow
from control_plane.resume import Resume
from control_plane.sessions import (
    REVOKED_CHANNEL,
    SUPERSEDED_CHANNEL,
    close_session,
    close_worker_sessions,
    count_agents,
)
from control_plane.store import Store, StoreClosed, StoreError, StoreUnavailable
from control_plane.watch_lists import WatchDelivery
from protocol.frames import (
    JOIN_SUBPROTOCOL,
    MAX_FRAME_BYTES,
    PROTOCOL_MINOR,
    SUBPROTOCOL,
    Goodbye,
    Progress,
    Welcome,
)

__all__ = ["Gateway"]

_log = logging.getLogger("control_plane.gateway")
_websocket_log = logging.getLogger("control_plane.websocket")
# The library logs every frame at debug level, and a join request holds a secret.
_websocket_log.setLevel(logging.INFO)
_HANDSHAKE_TIMEOUT = 10.0
_STOP_SECONDS = 5.0
_CLOSE_RETRY_SECONDS = 5.0
_TROUBLE_SPACING = 60.0
_GIVEN_UP = "this connection is over: the machine has booted anew, or its worker was cut off from the database"
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
        agent_url: str = "",
    ) -> None:
        """`agent_url`: where machines are told to connect to; empty for the first name and the bound port."""
        self._store = store
        self._authority = authority
        self._worker = worker
        self._host = host
        self._requested_port = port
        self._names = names
        self._agent_url = agent_url
        self._links: dict[str, AgentLink] = {}
        self._server: Server | None = None
        self._context: ssl.SSLContext | None = None
        self._joining = Joining(store, authority)
        self._delivery = Delivery(store, worker, self._links, self._send_away)
        self._specs = SpecDelivery(store, worker, self._links)
        self._watch_lists = WatchDelivery(store, worker, self._links)
        self.observations = ObservationIntake(store)
        self.consoles = Consoles(store, self._links, worker=worker)
        self._stop_listening: list[Callable[[], None]] = []
        self._farewells: set[asyncio.Task[None]] = set()
        self._expected = 0
        self._turned_away = 0
        self._tell_again_at = 0.0
        self._stopping = False

    @property
    def port(self) -> int:
        """The bound port. Only while started."""
        if self._server is None:
            raise RuntimeError("the gateway is not started")
        return int(next(iter(self._server.sockets)).getsockname()[1])

    @property
    def agent_url(self) -> str:
        """Where an agent connects to. Only while started."""
        name = self._names[0]
        return self._agent_url or f"wss://{f'[{name}]' if ':' in name else name}:{self.port}"

    @property
    def connected(self) -> Mapping[str, AgentLink]:
        """The agents that are connected to this worker, by id."""
        return self._links

    async def start(self) -> None:
        await self._store.write(close_worker_sessions, self._worker)
        self._expected = await self._store.read(count_agents)
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
            open_timeout=_HANDSHAKE_TIMEOUT,
            ssl_handshake_timeout=_HANDSHAKE_TIMEOUT,
            server_header=None,
            logger=_websocket_log,
            backlog=1024,
        )
        self._stop_listening = [
            self._store.listen(COMMANDS_CHANNEL, self._delivery.wake),
            self._store.listen(REVOKED_CHANNEL, self._on_revoked),
            self._store.listen(SUPERSEDED_CHANNEL, self._on_superseded),
        ]
        self._delivery.start()
        self._specs.start()
        self._watch_lists.start()
        self.observations.start()

    async def stop(self, reason: str = "the control plane is stopping") -> None:
        """Closes the port, then says goodbye to every agent. Open commands stay open in the tables.

        Ends within some seconds, whatever the agents and the database do.
        """
        self._stopping = True
        for stop in self._stop_listening:
            stop()
        await self._delivery.stop()
        await self._specs.stop()
        await self._watch_lists.stop()
        await self.observations.stop()
        if self._server is None:
            return
        # First: who is sent away must not come back in by the same door.
        self._server.close(close_connections=False)
        farewell = Goodbye(reason=reason, retry_after_ms=1_000)
        await asyncio.gather(*(link.goodbye(farewell) for link in list(self._links.values())), *self._farewells)
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self._server.wait_closed()
        except TimeoutError:
            left = list(self._server.connections)
            _log.warning("%d connections did not end in time and are cut", len(left))
            for connection in left:
                connection.transport.abort()

    def renew_certificate(self) -> None:
        """To be called daily: new handshakes take a fresh server certificate when the old one nears its end.

        One that cannot be written (a full disk) is told in the log, and made the next day.
        """
        if self._context is not None:
            try:
                self._authority.renew_server(self._context, self._names)
            except OSError as error:
                _log.error("the server's certificate could not be renewed, and is tried again in a day: %s", error)

    def live_session(self, agent_id: str) -> SessionRow | None:
        """The agent's connection on this worker, to which a new command can be delivered at once."""
        link = self._links.get(agent_id)
        return link.session if link is not None and link.ready else None

    async def deliver(self, row: CommandRow, now: int | None = None) -> None:
        """Sends a command whose row says, durably, that it goes over the present connection.

        `now` by the store's clock; a command of this moment needs none. A lost connection is no failure: the next
        hello settles what became of it.
        """
        link = self._links.get(row.agent_id)
        if link is not None and link.session.id == row.sent_session:
            link.send_command(row, row.created_at if now is None else now)

    def progress_of(self, row: CommandRow) -> Progress | None:
        """The last news of a command under way, where its agent is connected here and told any."""
        link = self._links.get(row.agent_id)
        return link.progress.get(row.id) if link is not None else None

    def _on_revoked(self, agent_id: str) -> None:
        link = self._links.get(agent_id)
        if link is not None:
            self._send_away(link)
        elif not agent_id:
            # Hints may have been missed: the tables know.
            self._delivery.wake("")

    def _on_superseded(self, session_id: str) -> None:
        for link in self._links.values():
            if link.session.id == session_id:
                self._say_goodbye(link, Goodbye(reason=_GIVEN_UP))
                return

    def _send_away(self, link: AgentLink) -> None:
        self._say_goodbye(link, Goodbye(reason="this agent was revoked"))

    def _say_goodbye(self, link: AgentLink, farewell: Goodbye) -> None:
        """Beside everything else: a dead connection takes its time to be closed."""
        task = asyncio.get_running_loop().create_task(link.goodbye(farewell))
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)

    def _process_request(self, connection: ServerConnection, request: Request) -> Response | None:
        path = request.path.partition("?")[0]
        if self._stopping:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "the control plane is stopping\n")
        if path == "/agent":
            if peer_agent(connection) is None:
                return connection.respond(
                    http.HTTPStatus.UNAUTHORIZED,
                    "this path needs an agent's certificate: join with a join token first\n",
                )
            return None
        if path == "/join":
            return self._joining.admit(connection)
        if path == "/ca.pem":
            body = self._authority.pem.encode()
            headers = Headers({"Content-Type": "application/x-pem-file", "Content-Length": str(len(body))})
            return Response(200, "OK", headers, body)
        if path == "/healthz":
            return connection.respond(http.HTTPStatus.OK, "ok\n")
        return connection.respond(http.HTTPStatus.NOT_FOUND, "agents connect to /agent, or to /join with a token\n")

    async def _serve(self, connection: ServerConnection) -> None:
        try:
            path = connection.request.path.partition("?")[0] if connection.request is not None else ""
            if connection.subprotocol == JOIN_SUBPROTOCOL and path == "/join":
                await self._joining.serve(connection)
            elif connection.subprotocol == SUBPROTOCOL and path == "/agent":
                await self._agent(connection)
            else:
                await connection.close(
                    1002, f"speak {SUBPROTOCOL}: this agent and this control plane are too far apart"
                )
        except ConnectionClosed:
            pass
        except (StoreUnavailable, StoreClosed) as error:
            self._tell_trouble(error)
            await connection.close(1013, "the control plane's database is not available; try again")

    async def _agent(self, connection: ServerConnection) -> None:
        admitted = await admit(connection, self._store, self._worker)
        if admitted is None:
            return
        agent_id = admitted.agent.id
        link = AgentLink(connection, admitted.session, admitted.agent.tenant_id, self._store, self._authority)
        link.protocol, link.on_observation = admitted.hello.protocol, self.observations.take
        link.agent_url = self.agent_url
        link.on_bytes = functools.partial(self.consoles.receive, agent_id)
        # The welcome and what follows it are posted before anybody else can post.
        self._welcome(link, admitted.resume)
        reason = "superseded by a newer connection"
        try:
            if self._take_over(link):
                if link.session.role == DAEMON:
                    self._specs.wake()
                reason = await link.run()
            else:
                await link.goodbye(Goodbye(reason=reason, retry_after_ms=0))
        except ConnectionClosed as closed:
            reason = f"the connection was cut: {closed}"
        finally:
            if self._links.get(agent_id) is link:
                del self._links[agent_id]
            self.consoles.link_lost(link)
            await self._close_session(link.session.id, reason)

    def _take_over(self, link: AgentLink) -> bool:
        """Makes this the agent's connection; False where a newer one was opened and came to its turn first."""
        previous = self._links.get(link.session.agent_id)
        if previous is not None and previous.session.id > link.session.id:
            return False
        self._links[link.session.agent_id] = link
        if previous is not None:
            if previous.session.instance != link.session.instance:
                _log.warning(
                    "agent %s connected while another process of it was still connected: where it was not started "
                    "anew just now, two copies use one identity; revoke it and join each with a token of its own",
                    link.session.agent_id,
                )
            self._say_goodbye(previous, Goodbye(reason="superseded by a newer connection", retry_after_ms=0))
        return True

    def _welcome(self, link: AgentLink, resume: Resume) -> None:
        link.post(
            Welcome(
                session_id=link.session.id,
                protocol=PROTOCOL_MINOR,
                settled=resume.forget,
                reconnect_spread_ms=self._reconnect_spread_ms(),
            )
        )
        link.on_ready = lambda now: self._on_ready(link, resume, now)

    def _on_ready(self, link: AgentLink, resume: Resume, now: int) -> None:
        """The agent's journal goes with this session from now on: it is told what it is owed."""
        for row in resume.stop:
            link.cancel(row.id, row.cancel_reason or "")
        for row in resume.send:
            link.send_command(row, now)
        self._delivery.wake(link.session.agent_id)
        self._watch_lists.wake(link.session.agent_id)
        self.consoles.link_ready(link.session.agent_id)

    async def _close_session(self, session_id: str, reason: str) -> None:
        """Tried until it is stored: else the agent would be shown as connected, and be sent commands in vain."""
        told = False
        while True:
            try:
                await self._store.write(close_session, session_id, reason)
                return
            except StoreUnavailable as error:
                if not told:
                    self._tell_trouble(error)
                told = True
            except StoreError as error:
                _log.error("the end of session %s could not be stored: %s", session_id, error)
                return
            if self._stopping:
                # This worker's next start closes it.
                return
            await asyncio.sleep(_CLOSE_RETRY_SECONDS)

    def _reconnect_spread_ms(self) -> int:
        """As wide as for all agents that could be here, since those that come first after a start must spread too."""
        return max(1_000, max(self._expected, len(self._links)) * 1_000 // _RECONNECTS_PER_SECOND)

    def _tell_trouble(self, error: StoreError) -> None:
        """One line for a while, not one for each agent that knocks."""
        now = asyncio.get_running_loop().time()
        self._turned_away += 1
        if now >= self._tell_again_at:
            _log.error("agents are turned away (%d so far): %s", self._turned_away, error)
            self._tell_again_at = now + _TROUBLE_SPACING
