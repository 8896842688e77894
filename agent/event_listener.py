"""Where BMCs push their events to: one address for each machine, that nobody else can guess.

What arrives is only ever a reason to look, so a forged event changes nothing. It costs little too: an address that is
not known is answered before its body is read, bodies are bounded, and so is the number of connections.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
import secrets
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from agent.config import EventsSection
from agent.errors import AgentError
from agent.files import write_durably
from drivers.redfish.bmc_events import events_in
from drivers.signals import BmcEvent, Listener

__all__ = ["EventListener", "listener_key"]

_log = structlog.get_logger("agent.event_listener")
_quiet = logging.getLogger("agent.event_listener.http")
_quiet.setLevel(logging.CRITICAL)
_PREFIX = "/events/"
_KEY_BYTES = 32
_LARGEST_BODY = 256 * 1024
_BODY_SECONDS = 10.0
_SILENT_SECONDS = 15.0
"""How long a connection may be open without asking for anything."""
_MOST_CONNECTIONS = 2_000

Heard = Callable[[str, tuple[BmcEvent, ...], str], None]


def listener_key(path: Path) -> bytes:
    """What the addresses are made of, so that they are the same after a restart; made when it is not there."""
    with contextlib.suppress(FileNotFoundError):
        key = path.read_bytes()
        if len(key) == _KEY_BYTES:
            return key
    key = secrets.token_bytes(_KEY_BYTES)
    write_durably(path, key)
    return key


class EventListener:
    """The listener's HTTP server. `heard(node_id, events, "push")` is called for each push."""

    def __init__(self, settings: EventsSection, key: bytes, heard: Heard) -> None:
        self._settings = settings
        self._key = key
        self._heard = heard
        self._nodes: dict[str, str] = {}
        self._open: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._http: web.Server | None = None

    @property
    def url(self) -> str:
        """How BMCs reach it, without a slash at its end. Only while started."""
        if self._settings.url:
            return self._settings.url.rstrip("/")
        host = self._settings.listen.rpartition(":")[0]
        return f"{'https' if self._settings.tls_certificate else 'http'}://{host}:{self.port}"

    @property
    def port(self) -> int:
        if self._server is None:
            raise RuntimeError("the event listener is not started")
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Raises AgentError that names the setting."""
        host, _, port = self._settings.listen.rpartition(":")
        context = self._context()
        self._http = http = web.Server(self._handle)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _Connection(http, loop, self._open),
                host.strip("[]"),
                int(port),
                ssl=context,
                backlog=256,
                ssl_handshake_timeout=None if context is None else _SILENT_SECONDS,
            )
        except OSError as error:
            raise AgentError(f"events.listen = {self._settings.listen!r}: {error.strerror or error}") from error
        _log.info("listening_for_events", url=self.url)

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._http is not None:
            await self._http.shutdown(timeout=1.0)
            self._http = None

    def place(self, node_id: str) -> Listener:
        """The machine's own address, open from now on."""
        token = self._token(node_id)
        self._nodes[token] = node_id
        return Listener(f"{self.url}{_PREFIX}{token}", f"rackwright {node_id}")

    def drop(self, node_id: str) -> None:
        """The machine's address is unknown from now on."""
        self._nodes.pop(self._token(node_id), None)

    def _token(self, node_id: str) -> str:
        digest = hmac.new(self._key, node_id.encode(), hashlib.sha256).digest()
        return base64.b32encode(digest).decode().rstrip("=").lower()

    def _context(self) -> ssl.SSLContext | None:
        if not self._settings.tls_certificate:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self._settings.tls_certificate, self._settings.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise AgentError(
                f"events.tls_certificate and events.tls_key are no certificate and its key in PEM: {error}"
            ) from error
        return context

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if isinstance(request.protocol, _Connection):
            request.protocol.has_asked()
        path = request.path
        node_id = self._nodes.get(path.removeprefix(_PREFIX)) if path.startswith(_PREFIX) else None
        if node_id is None:
            return _final(404)
        if request.method != "POST":
            # Some BMCs knock before they send.
            return _final(200 if request.method in ("GET", "HEAD") else 405)
        if (request.content_length or 0) > _LARGEST_BODY:
            return _final(413)
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await _bounded(request)
        except TimeoutError:
            return _final(408)
        if body is None:
            return _final(413)
        events = events_in(body)
        if events:
            self._heard(node_id, events, "push")
        return web.Response(status=204)


class _Connection(web.RequestHandler):
    """One connection of a BMC. It is cut when it asks for nothing, and at once where there are too many."""

    def __init__(self, http: web.Server, loop: asyncio.AbstractEventLoop, among: "set[_Connection]") -> None:
        super().__init__(
            http,
            loop=loop,
            access_log=_quiet,
            keepalive_timeout=_SILENT_SECONDS,
            logger=_quiet,
            auto_decompress=False,
        )
        self._among = among
        self._silence: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._among.add(self)
        if len(self._among) > _MOST_CONNECTIONS:
            self._cut()
        else:
            self._silence = asyncio.get_running_loop().call_later(_SILENT_SECONDS, self._cut)

    def has_asked(self) -> None:
        """The head of a request is there: from here on other limits hold."""
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def connection_lost(self, exc: BaseException | None) -> None:
        self._among.discard(self)
        self.has_asked()
        super().connection_lost(exc)

    def _cut(self) -> None:
        transport: Any = self.transport
        if transport is not None:
            transport.abort()


async def _bounded(request: web.BaseRequest) -> bytes | None:
    """The body; None where it is larger than any event."""
    parts: list[bytes] = []
    size = 0
    async for part in request.content.iter_any():
        size += len(part)
        if size > _LARGEST_BODY:
            return None
        parts.append(part)
    return b"".join(parts)


def _final(status: int) -> web.Response:
    """An answer after which the connection is closed: a body that was not read is not waited for."""
    response = web.Response(status=status)
    response.force_close()
    return response
