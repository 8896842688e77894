"""The Redfish service on a socket: aiohttp's server, fault rules, latency and the journal around the service."""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote

import aiohttp
from aiohttp import web

from simulators.login import DEFAULT_PASSWORD, DEFAULT_USER
from simulators.redfish.accounts import ANONYMOUS, Principal
from simulators.redfish.admission import login_kind
from simulators.redfish.behaviour import Behaviour
from simulators.redfish.control import CONTROL_ROOT, control
from simulators.redfish.documents import Answer, JsonObject, Request, Upload, path_key
from simulators.redfish.errors import RedfishError
from simulators.redfish.faults import Drop, Effect, FaultBook, FaultRule
from simulators.redfish.journal import JournalEntry, RequestJournal
from simulators.redfish.options import Account, Outage, ServiceOptions
from simulators.redfish.service import RedfishService
from simulators.redfish.state import MachineState
from simulators.redfish.timeline import Clock
from simulators.redfish.tls import TlsMaterial
from simulators.redfish.tree import OWN_TREE, RecordedTree
from simulators.redfish.uploads import receive
from simulators.redfish.vendors import behaviour_named
from simulators.redfish.wire import NO_ACCESS_LOG, RedfishProtocol, cut, http_response, make_request, send_raw

log = logging.getLogger(__name__)

DEFAULT_USERS: Mapping[str, str | Account] = {DEFAULT_USER: DEFAULT_PASSWORD}
DELIVERY_TIMEOUT = aiohttp.ClientTimeout(total=10)
SHUTDOWN_SECONDS = 0.02  # for requests in flight; aiohttp takes 0 for "without end"


class RedfishServer:
    """One simulated BMC on one address. An async context manager: it serves inside, and is gone after.

    `tree` is a folder, a loaded tree, or None for the small 1U server of our own. `tls` is True for a
    self-signed certificate, or the material to use. `port` 0 takes a free one; see `url` and `port`.
    `latency` seconds pass before each answer. `control` enables `/_simulator`. `behaviour` overrides
    the vendor that the tree tells of, by object or name. `fetches_images`: SimpleUpdate fetches what it is
    given over http and https; else it takes it by its name alone. Raises TreeError for a folder that cannot
    be served, OSError where the address is taken.
    """

    def __init__(
        self,
        tree: Path | str | RecordedTree | None = None,
        *,
        users: Mapping[str, str | Account] = DEFAULT_USERS,
        tls: bool | TlsMaterial = False,
        host: str = "127.0.0.1",
        port: int = 0,
        faults: Iterable[FaultRule] = (),
        latency: float = 0.0,
        options: ServiceOptions | None = None,
        behaviour: Behaviour | str | None = None,
        control: bool = False,
        journal_size: int = 10_000,
        clock: Clock = time.monotonic,
        ssl_context: ssl.SSLContext | None = None,
        fetches_images: bool = True,
    ) -> None:
        self.tree = tree if isinstance(tree, RecordedTree) else RecordedTree.load(Path(tree or OWN_TREE))
        self.service = RedfishService(
            self.tree,
            users=users,
            options=options,
            behaviour=behaviour_named(behaviour) if isinstance(behaviour, str) else behaviour,
            clock=clock,
        )
        self.state = MachineState(self.service)
        self.tls = (TlsMaterial.self_signed((host, "localhost")) if tls is True else tls) or None
        if self.tls is not None:
            self.service.certificates.show_own(self.tls.certificate, self.tls.key)
            self.service.certificates.serve = self._serve_with
        self.journal = RequestJournal(journal_size)
        self.faults = FaultBook(faults)
        self.latency = latency
        self.host = host
        self.port = port
        self._ssl_context = ssl_context or (self.tls.server_context() if self.tls else None)
        self._control = control
        # Further control resources by their first word, for whoever puts more than a model behind this BMC.
        self.controls: dict[str, Callable[[Request], Answer]] = {}
        self._listener: asyncio.Server | None = None
        self._http: web.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._outage: asyncio.Task[None] | None = None
        self._client: aiohttp.ClientSession | None = None
        self.service.member = self._member
        self.service.events.deliver = self._deliver
        if fetches_images:
            self.service.update.in_background = self._in_background
        self.service.timeline.on_schedule = lambda _due: self._arm_timer()

    @property
    def url(self) -> str:
        """Where the service is, with no slash at its end: `https://127.0.0.1:40123`."""
        return f"{'https' if self._ssl_context else 'http'}://{self.host}:{self.port}"

    def _serve_with(self, certificate: bytes, key: bytes) -> None:
        """New connections see this certificate; those that are open keep the one that they have."""
        self.tls = TlsMaterial(certificate, key)
        if self._ssl_context is not None:
            self.tls.load_into(self._ssl_context)

    async def start(self) -> None:
        """Binds and serves. Idempotent."""
        if self._listener is not None:
            return
        self._http = web.Server(self._handle, request_factory=make_request)
        await self._listen(self._http)
        log.info("simulated BMC of tree %s serves at %s", self.tree.name, self.url)

    async def stop(self) -> None:
        """Stops listening, cuts what is still open, and waits until nothing runs any more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.service.events.streams.close_all()
        running = [task for task in (self._outage, *self._background) if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._outage = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._http is not None:
            await self._http.shutdown(timeout=SHUTDOWN_SECONDS)
            self._http = None
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _listen(self, http: web.Server) -> None:
        bound = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self.host, self.port))
            loop = asyncio.get_running_loop()
            self._listener = await loop.create_server(
                lambda: RedfishProtocol(http, loop=loop, access_log=NO_ACCESS_LOG),
                sock=bound,
                ssl=self._ssl_context,
                backlog=128,
            )
        except BaseException:
            bound.close()
            raise
        self.port = bound.getsockname()[1]

    async def _handle(self, incoming: web.BaseRequest) -> web.StreamResponse:
        """One request from the socket to the answer. Nothing between execution and journal can be lost."""
        path, _, query = incoming.raw_path.partition("?")
        path = unquote(path) if "%" in path else path
        uploads: tuple[Upload, ...] = ()
        if incoming.method == "POST" and path_key(path) in self.service.routes.pushes:
            body, uploads = await receive(incoming)
        else:
            body = await incoming.read() if incoming.body_exists else b""
        request = Request(
            incoming.method, path, query, incoming.headers, body, self._ssl_context is not None, uploads
        )
        if self._control and request.path.startswith(CONTROL_ROOT):
            return http_response(control(self, request))
        entry = self.journal.record(request)
        chosen = self.faults.take(request, login_kind(request)) if len(self.faults) else None
        effect = chosen[1] if chosen else None
        if entry is not None and chosen:
            entry.fault = chosen[0]
        delay = self.latency + (effect.latency if effect else 0.0)
        if delay > 0:
            await asyncio.sleep(delay)
        if effect is None and self.service.events.streams.is_stream(request):
            return await self._stream_events(incoming, request, entry)
        answer, principal = Answer(200), ANONYMOUS
        if effect is None or effect.executes:
            answer, principal = self._execute(request)
            if entry is not None:
                entry.executed = True
                note_principal(entry, principal, login_kind(request))
        if effect is None:
            if entry is not None:
                entry.status = answer.status
            return http_response(answer)
        return await self._spoil(incoming, effect, answer, entry)

    async def _stream_events(
        self, incoming: web.BaseRequest, request: Request, entry: JournalEntry | None
    ) -> web.StreamResponse:
        """Events as they happen, until the client leaves, the subscription is deleted, or the server stops."""
        refusal, principal = self.service.admit_listener(request)
        pending: asyncio.Queue[bytes | None] = asyncio.Queue()
        path = ""
        try:
            if refusal is None:
                path = self.service.events.streams.start(request, pending.put_nowait)
        except RedfishError as error:
            refusal = error.answer()
        if entry is not None:
            entry.executed, entry.status = refusal is None, refusal.status if refusal else 200
            note_principal(entry, principal, login_kind(request))
        if refusal is not None:
            return http_response(refusal)
        if isinstance(incoming.protocol, RedfishProtocol):
            incoming.protocol.on_lost = lambda: pending.put_nowait(None)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        response.force_close()
        try:
            await response.prepare(incoming)
            while (data := await pending.get()) is not None:
                await response.write(data)
        except ConnectionError:
            log.debug("a listener has left")
        finally:
            self.service.events.streams.ended(path)
        return response

    def _member(self, request: Request, path: str) -> JsonObject | None:
        """A resource in an expanded collection: as it would be read by itself, with what fault rules do to it."""
        document = self.service.store.document(path)
        if document is None or not len(self.faults):
            return document
        alone = Request("GET", path, "", request.headers, secure=request.secure)
        return self.faults.expanded(alone, login_kind(request), document)

    def _execute(self, request: Request) -> tuple[Answer, Principal]:
        was_down = bool(self.service.manager.down_for)
        answer, principal = self.service.answer(request)
        if self._note_outage(was_down):
            answer = answer.with_headers({"Connection": "close"})
            answer.closes_connection = True
        return answer, principal

    def _note_outage(self, was_down: bool) -> bool:
        """Whether the manager has just gone away in a way that cuts its connections."""
        seconds = self.service.manager.down_for
        if not seconds or was_down:
            return False
        self.service.events.streams.close_all()
        if self.service.options.manager_reset_outage is not Outage.REFUSED:
            return False
        self._outage = asyncio.get_running_loop().create_task(self._refuse_for(seconds))
        return True

    async def _spoil(
        self, incoming: web.BaseRequest, effect: Effect, answer: Answer, entry: JournalEntry | None
    ) -> web.StreamResponse:
        """The effect of a fault rule on an answer."""
        if effect.drop is not None:
            if effect.drop is Drop.AFTER and effect.answer_late:
                await asyncio.sleep(effect.answer_late)
            return cut(incoming)
        if effect.answer_late:
            await asyncio.sleep(effect.answer_late)
        spoiled = effect.alter(answer)
        if entry is not None:
            entry.status = spoiled.status
        if effect.raw is not None:
            return await send_raw(incoming, effect.raw, spoiled)
        return http_response(spoiled)

    async def _refuse_for(self, seconds: float) -> None:
        """Nobody listens for a while: new connections are refused, open ones are cut once their answer left."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await asyncio.sleep(min(0.05, seconds))
        for protocol in list(self._http.connections) if self._http else []:
            if protocol.transport is not None:
                protocol.transport.abort()
        await asyncio.sleep(max(0.0, self.service.manager.down_for))
        if self._http is not None:
            await self._listen(self._http)

    def _arm_timer(self) -> None:
        """Lets the timeline advance when its next thing is due, so that events leave without a request."""
        due = self.service.timeline.next_due
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is None or self._http is None:
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, due - self.service.timeline.clock()) + 0.001, self._timer_fires)

    def _timer_fires(self) -> None:
        self._timer = None
        was_down = bool(self.service.manager.down_for)
        self.service.timeline.advance()
        self._note_outage(was_down)
        self._arm_timer()

    def _deliver(self, destination: str, event: JsonObject, headers: Mapping[str, str]) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return  # changed from outside the loop: there is nobody to send it
        self._in_background(self._send_event(destination, event, headers))

    def _in_background(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Goes on until it is done, or until the server stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _send_event(self, destination: str, event: JsonObject, headers: Mapping[str, str]) -> None:
        if self._client is None:
            self._client = aiohttp.ClientSession(timeout=DELIVERY_TIMEOUT)
        try:
            async with self._client.post(destination, json=event, headers=dict(headers), ssl=False) as answer:
                log.debug("event to %s answered %s", destination, answer.status)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.warning("event to %s was not delivered: %s", destination, type(error).__name__)


def note_principal(entry: JournalEntry, principal: Principal, kind: str) -> None:
    entry.user, entry.session, entry.login = principal.user, principal.session, str(kind)
