"""The link to the control plane: dials out, over mutual TLS, for ever; what it met is told in `status`.

Everything transient (a control plane that is down, restarts or is being replaced, so also 401, 403, 404, 429 and 5xx)
is met with jittered back-off. What only a person can mend (a certificate that does not hold, a revoked agent) is told
loudly and tried again seldom: the agent stays up, since its machines' lanes and sessions are worth keeping.
"""

import asyncio
import functools
import random
import ssl
import time
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus
from websockets.typing import Subprotocol

from agent.backoff import Backoff
from agent.consoles import Consoles
from agent.endpoint import Endpoint
from agent.errors import IdentityError
from agent.executor import Executor
from agent.identity import Identity, IdentityStore
from agent.renewal import Renewal
from agent.session import Closed, Session, SessionEnd
from protocol.frames import MAX_FRAME_BYTES, SUBPROTOCOL, Hello, NodeSpec, Ticket, WatchList, Welcome

__all__ = ["Link", "LinkStatus"]

_log = structlog.get_logger("agent.link")
_OPEN_TIMEOUT = 20.0


class LinkStatus(msgspec.Struct, rename="camel"):
    """What `rackwright agent status` shows of the link. Times are seconds since 1970."""

    connected: bool = False
    since: float | None = None
    session_id: str | None = None
    last_error: str | None = None
    last_error_at: float | None = None
    revoked: bool = False
    attempts: int = 0

    @property
    def words(self) -> str:
        """In one line, for whoever looks at the process."""
        return "connected" if self.connected else f"not connected: {self.last_error or 'connecting'}"


class _NoSession(Exception):
    """An attempt to connect failed. `slow`: only a person can mend it. `after`: seconds the server asked for."""

    def __init__(self, reason: str, *, slow: bool = False, after: float | None = None) -> None:
        super().__init__(reason)
        self.slow = slow
        self.after = after


class _Watched(ClientConnection):
    """Keeps what the transport died of: in TLS 1.3 a refused client certificate is told only after the handshake
    (RFC 8446, 4.4.2.4), as an alert that comes up here and in no exception of websockets."""

    def __init__(self, *arguments: Any, lost: list[BaseException], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lost = lost

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._lost.append(exc)
        super().connection_lost(exc)


class _Connect(connect):
    """Without redirects: an agent speaks to the control plane that it joined."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class _Websocket:
    """websockets' connection as a session sees one."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def send(self, data: bytes) -> None:
        try:
            await self._connection.send(data, text=True)
        except (ConnectionClosed, OSError) as error:
            raise Closed(_said(error)) from error

    async def send_bytes(self, data: bytes) -> None:
        try:
            await self._connection.send(data)
        except (ConnectionClosed, OSError) as error:
            raise Closed(_said(error)) from error

    async def receive(self) -> str | bytes:
        try:
            return await self._connection.recv()
        except (ConnectionClosed, OSError) as error:
            raise Closed(_said(error)) from error

    async def close(self) -> None:
        await self._connection.close()


class Link:
    """Keeps one session at a time. `changed` is called whenever `status` has."""

    def __init__(
        self,
        endpoint: Endpoint,
        store: IdentityStore,
        executor: Executor,
        hello: Callable[[Identity], Hello],
        *,
        backoff: Backoff | None = None,
        changed: Callable[[], None] = lambda: None,
        node_spec: Callable[[NodeSpec], None] = lambda _spec: None,
        watch_list: Callable[[WatchList], None] = lambda _list: None,
        ticket: Callable[[Ticket], None] = lambda _ticket: None,
        consoles: Consoles | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._store = store
        self._executor = executor
        self._hello = hello
        self._backoff = backoff or Backoff()
        self._changed = changed
        self._node_spec = node_spec
        self._watch_list = watch_list
        self._ticket = ticket
        self._consoles = consoles
        self._chance = chance or random.Random()
        self._failures = 0
        self._renewal = Renewal(store, executor.reports.say, self._chance)
        self._session: Session | None = None
        self._try_now = asyncio.Event()
        self.status = LinkStatus()

    async def run(self) -> None:
        """Connects, speaks, and connects again, until cancelled."""
        while True:
            delay = await self._one_round()
            self._changed()
            self._try_now.clear()
            try:
                async with asyncio.timeout(delay):
                    await self._try_now.wait()
            except TimeoutError:
                pass

    def hurry(self) -> None:
        """Tries at once instead of waiting out the delay (an operator asked by SIGHUP)."""
        self._try_now.set()

    async def close(self, reason: str) -> None:
        """Ends the session under way, if there is one."""
        if self._session is not None:
            await self._session.end(reason)

    async def _one_round(self) -> float:
        """One attempt with all that comes of it; returns the seconds until the next."""
        identity: Identity | None = None
        try:
            identity = self._identity()
            end = await self._speak(identity)
        except (_NoSession, IdentityError) as failure:
            slow = failure.slow if isinstance(failure, _NoSession) else True
            after = failure.after if isinstance(failure, _NoSession) else None
            self._failures += 1
            self._failed(str(failure))
            waiting = self._store.waiting()
            if slow and waiting is not None and identity is not None and waiting.folder == identity.folder:
                self._give_up(waiting)
                return self._backoff.delay(1, self._chance)
            log = _log.error if slow else _log.warning
            log("connection_failed", control_plane=str(self._endpoint), reason=str(failure), attempt=self._failures)
            if slow:
                return self._backoff.slow(self._chance)
            # All who were told the same time are not to come at the same time.
            return (after or 0.0) + self._backoff.delay(self._failures, self._chance)
        except Exception as error:
            # The link is the agent's only way to be heard: a fault in it is told and tried again, never fatal.
            _log.exception("link_failed_unexpectedly")
            self._failures += 1
            self._failed(f"{type(error).__name__}: {error}")
            return self._backoff.delay(self._failures, self._chance)
        return self._after(end)

    def _identity(self) -> Identity:
        waiting, current = self._store.waiting(), self._store.current()
        # A renewed pair goes first; while it fails, each second attempt is made with the one before it.
        identity = current if waiting is None or (self._failures % 2 and current is not None) else waiting
        if identity is None:
            raise IdentityError("this agent has not joined: run `rackwright agent join URL TOKEN`")
        trouble = identity.validity.trouble(time.time())
        if trouble is not None:
            raise IdentityError(trouble)
        return identity

    async def _speak(self, identity: Identity) -> SessionEnd:
        self.status.attempts += 1
        connection = await self._dial(identity)

        def welcomed(welcome: Welcome) -> None:
            self.status.connected, self.status.since = True, time.time()
            self.status.session_id, self.status.revoked = welcome.session_id, False
            waiting = self._store.waiting()
            if waiting is not None and waiting.folder == identity.folder:
                self._adopt(identity)
            elif waiting is not None:
                self._give_up(waiting)
            _log.info("connected", control_plane=str(self._endpoint), session=welcome.session_id)
            self._changed()

        session = self._session = Session(
            _Websocket(connection),
            lambda: self._hello(identity),
            self._executor,
            welcomed=welcomed,
            issued=self._renewal.issued,
            node_spec=self._node_spec,
            watch_list=self._watch_list,
            ticket=self._ticket,
            note=self._executor.note_session,
            consoles=self._consoles,
        )
        renewing = asyncio.create_task(self._renewal.watch(identity, session))
        try:
            return await session.run()
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            self._session = None
            self.status.connected, self.status.since, self.status.session_id = False, None, None

    async def _dial(self, identity: Identity) -> ClientConnection:
        lost: list[BaseException] = []
        options: dict[str, Any] = {
            "create_connection": functools.partial(_Watched, lost=lost),
            "ssl": identity.context(),
            "subprotocols": [Subprotocol(SUBPROTOCOL)],
            "proxy": None,
            "compression": None,
            "max_size": MAX_FRAME_BYTES,
            "ping_interval": 20,
            "ping_timeout": 20,
            "open_timeout": _OPEN_TIMEOUT,
            "close_timeout": 5,
        }
        try:
            connection = await _Connect(self._endpoint.websocket("/agent"), **options)
        except (OSError, InvalidHandshake, TimeoutError, EOFError) as error:
            raise _explained(error, self._endpoint, lost) from error
        if connection.subprotocol != SUBPROTOCOL:
            await connection.close()
            raise _NoSession(
                f"{self._endpoint} does not speak {SUBPROTOCOL}: upgrade the control plane or this agent, "
                "so that both have a version in common",
                slow=True,
            )
        return connection

    def _after(self, end: SessionEnd) -> float:
        """The delay after a session that was begun."""
        healthy = end.welcome is not None and end.lasted >= self._backoff.healthy_after
        self._failures = 0 if healthy else self._failures + 1
        if end.reason == Renewal.RECONNECT:
            self._failures = 0
            return 0.0
        self._failed(end.reason)
        if end.revoked:
            self.status.revoked = True
            _log.error(
                "revoked",
                reason=end.reason,
                hint="the control plane wants an operator to act: allow this agent again, or join with a new token",
            )
            return self._backoff.slow(self._chance)
        _log.warning("disconnected", reason=end.reason, lasted=round(end.lasted, 1))
        spread = end.welcome.reconnect_spread_ms if end.welcome is not None else 0
        delay = self._backoff.after_session(spread, self._chance)
        if not healthy and self._failures > 1:
            delay = max(delay, self._backoff.delay(self._failures, self._chance))
        if end.goodbye is not None and end.goodbye.retry_after_ms is not None:
            delay = end.goodbye.retry_after_ms / 1000 + delay
        return delay

    def _give_up(self, waiting: Identity) -> None:
        _log.error("renewed_certificate_refused", serial=waiting.serial, hint="the one before it is used again")
        self._store.give_up_waiting()

    def _adopt(self, identity: Identity) -> None:
        try:
            self._store.adopt(identity)
        except OSError as error:
            _log.error("renewed_certificate_not_adopted", reason=str(error), hint="free space on the disk")
        else:
            _log.info("certificate_renewed", ends=identity.validity.ends)

    def _failed(self, reason: str) -> None:
        self.status.last_error, self.status.last_error_at = reason, time.time()


def _explained(error: BaseException, endpoint: Endpoint, lost: list[BaseException]) -> _NoSession:
    """What the failure means and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _NoSession(
            f"the certificate of {endpoint} does not hold ({error.verify_message}). Is the clock of this host right? "
            "Is this the control plane that it joined? If its CA was replaced, join again with a new token",
            slow=True,
        )
    for refusal in (error, *lost):
        if isinstance(refusal, ssl.SSLError) and "alert" in str(refusal).lower():
            return _NoSession(
                f"{endpoint} refuses this agent's certificate ({refusal.reason or refusal}): if it stays so, "
                "join again with a new token",
                slow=True,
            )
    if isinstance(error, InvalidStatus):
        response = error.response
        text = (response.body or b"")[:200].decode(errors="replace").strip()
        return _NoSession(
            f"{endpoint} answered {response.status_code}" + (f": {text}" if text else ""),
            after=_retry_after(response.headers.get("Retry-After")),
        )
    if isinstance(error, InvalidMessage):
        return _NoSession(
            f"{endpoint} closed the connection without an answer: it is starting or stopping, or it refuses this "
            "agent's certificate; if it stays so, join again with a new token"
        )
    return _NoSession(f"{endpoint} cannot be reached ({_said(error)})")


def _retry_after(value: str | None) -> float | None:
    """Seconds, at most five minutes; the form with a date is left aside, since clocks lie."""
    return min(float(value), 300.0) if value is not None and value.isdecimal() else None


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
