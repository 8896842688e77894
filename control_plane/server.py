"""The control plane's process: store, CA, agents' door, operators' API and housekeeping, in one event loop."""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from control_plane import logs, systemd
from control_plane.api.app import build_app
from control_plane.api.call import Links, Services
from control_plane.api.dispatch import Dispatcher
from control_plane.api.inprocess import Compute
from control_plane.api.metrics import Metrics
from control_plane.api.stream import EventHub
from control_plane.authority import Authority
from control_plane.config import ApiConfig, Config, Listen, store_url
from control_plane.engine.gauges import EngineGauges
from control_plane.engine.reconciler import Reconciler
from control_plane.engine.registry import default_registry
from control_plane.engine.timing import Timing
from control_plane.gateway import Gateway
from control_plane.gateway_pulse import GatewayPulse
from control_plane.housekeeping import Housekeeping
from control_plane.metal.owner import MetalOwner
from control_plane.metal.remediation import Remediation
from control_plane.metal.verbs import Tools
from control_plane.store import SchemaBehind, Store, StoreError, Transaction, migrate, open_store, verify
from control_plane.store.migrate import applied_migrations
from control_plane.tokens import LOCAL_OPERATOR
from control_plane.waiters import Waiters
from protocol.errors import RackwrightError

__all__ = ["ControlPlane", "StartFailed", "prepare_store", "serve"]

_log = logging.getLogger("control_plane.server")
_STOP_SECONDS = 10
_LARGEST_MESSAGE = 65_536
"""What an operator's client may send to a console at once."""
_READY_SECONDS = 2.0
_DAY = 86_400.0


class StartFailed(RackwrightError):
    """The process cannot start; the message says what to do."""


class ControlPlane:
    """One worker. `async with` starts it and stops it gracefully; `stopping` is what ends `run`."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.stopping = asyncio.Event()
        self.store: Store
        self.gateway: Gateway
        self.services: Services
        self.compute: Compute
        """The API for Python code in this process."""
        self._registry = default_registry()
        self._stack = contextlib.AsyncExitStack()
        self._api_port = 0

    @property
    def api_port(self) -> int:
        return self._api_port

    @property
    def agents_port(self) -> int:
        return self.gateway.port

    async def __aenter__(self) -> "ControlPlane":
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """The reverse of the start: the waiting are answered, no new requests, goodbyes said, the store closed."""
        systemd.notify(stopping="1", status="stopping")
        await self._stack.aclose()

    async def _start(self) -> None:
        config, push = self.config, self._stack.push_async_callback
        make_state_folder(config.state)
        authority = open_authority(config.state / "ca")
        self.store = open_store(store_url(config))
        push(self.store.close)
        await prepare_store(self.store)
        self._keep_running(Housekeeping(self.store, config.retention.kept).run(), "housekeeping")
        listen = Listen.parse(config.agents.listen)
        self.gateway = Gateway(
            self.store,
            authority,
            worker=config.worker_name,
            host=listen.host,
            port=listen.port,
            names=config.public_names,
            agent_url=config.agent_url if listen.port else "",
        )
        self.gateway.consoles.ring_bytes = config.consoles.ring_bytes
        self.gateway.consoles.linger = config.consoles.linger_seconds
        try:
            await self.gateway.start()
        except OSError as error:
            raise _cannot_listen("agents.listen", config.agents.listen, error) from error
        push(self.gateway.stop)
        self._keep_running(GatewayPulse(self.store, config.worker_name).run(), "gateway pulse")
        self._keep_running(self._renew_certificate(), "server certificate")
        if config.engine.enabled:
            # Cancelled, it gives its shards back, so that other workers go on at once.
            engine = Reconciler(self.store, self._registry, worker=config.worker_name)
            self._keep_running(engine.run(), "workflow engine")
            tools = Tools(self._registry, Timing(), config.metal.bindings)
            self._keep_running(MetalOwner(self.store, tools).run(), "metal")
            self._keep_running(Remediation(self.store, tools).run(), "remediation")
        await self._start_api(authority)
        if (seconds := systemd.watchdog_seconds()) is not None:
            self._keep_running(_beat(seconds), "watchdog")

    async def _start_api(self, authority: Authority) -> None:
        config = self.config
        agent_url = config.agent_url if Listen.parse(config.agents.listen).port else _with_port(config, self.gateway)
        waiters = Waiters(self.store)
        links: Links = self.gateway
        self.services = Services(
            self.store,
            ca_sha256=authority.sha256,
            agent_url=agent_url,
            waiters=waiters,
            links=links,
            registry=self._registry,
            bindings=config.metal.bindings,
        )
        metrics = Metrics(lambda: len(self.gateway.connected))
        waiters.seen = metrics.command_seen
        gauges = EngineGauges(self.store)
        self._keep_running(gauges.run(), "engine gauges")
        metrics.watch_engine(lambda: gauges.last)
        metrics.watch_observations(lambda: self.gateway.observations.counts)
        dispatcher = Dispatcher(self.services, metrics)
        self.compute = Compute(dispatcher)
        hub = EventHub(self.store, self.services.horizon)
        waiters.start()
        hub.start()
        consoles = self.gateway.consoles
        local = build_app(dispatcher, hub, ready=self._why_not_ready, principal=LOCAL_OPERATOR, consoles=consoles)
        public = build_app(dispatcher, hub, ready=self._why_not_ready, consoles=consoles)
        admin = admin_socket(config.admin_socket)
        self._stack.callback(config.admin_socket.unlink, missing_ok=True)
        self._stack.callback(admin.close)
        api = api_socket(config)
        self._stack.callback(api.close)
        self._api_port = int(api.getsockname()[1])
        await self._serve(local, admin, config, tls=False)
        await self._serve(public, api, config, tls=True)
        # Entered last, so ended first: whoever waits is answered before the servers wait for their requests.
        self._stack.push_async_callback(waiters.stop)
        self._stack.callback(hub.stop)
        self._stack.callback(consoles.stop)

    async def _serve(self, app: ASGIApp, bound: socket.socket, config: Config, *, tls: bool) -> None:
        server = uvicorn.Server(_uvicorn_config(app, config, tls=tls))
        # Signals are this process's business: uvicorn would take SIGTERM for itself alone.
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        task = asyncio.create_task(server.serve(sockets=[bound]), name="api")
        while not server.started:
            if task.done():
                raise StartFailed("the API could not start") from task.exception()
            await asyncio.sleep(0.005)

        async def stop() -> None:
            server.should_exit = True
            await task

        self._stack.push_async_callback(stop)

    async def _why_not_ready(self) -> str | None:
        if self.stopping.is_set():
            return "the control plane is stopping"
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await self.store.read(_answers)
        except TimeoutError:
            return f"the database did not answer within {_READY_SECONDS:g} s"
        except StoreError as error:
            _log.warning("not ready: %s", error)
            return "the database does not answer: look into the control plane's log"
        return None

    async def _renew_certificate(self) -> None:
        while True:
            await asyncio.sleep(_DAY)
            self.gateway.renew_certificate()

    def _keep_running(self, work: object, name: str) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)  # type: ignore[arg-type]
        task.add_done_callback(self._ended)

        async def stop() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self._stack.push_async_callback(stop)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            _log.critical("the %s task died: the process ends to be started anew", task.get_name())
            self.failure = task.exception()
            self.stopping.set()

    failure: BaseException | None = None


async def serve(config: Config) -> None:
    """Runs until SIGTERM or SIGINT, then stops gracefully. Raises what kept it from starting, or from going on."""
    logs.configure(config.log.level, config.log.format)
    plane = ControlPlane(config)
    with _signals(plane.stopping):
        async with plane:
            _log.info(
                "the control plane serves: API on port %d, agents on port %d", plane.api_port, plane.agents_port
            )
            systemd.notify(ready="1", status=f"API on port {plane.api_port}, agents on port {plane.agents_port}")
            await plane.stopping.wait()
            _log.info("stopping")
    if plane.failure is not None:
        raise StartFailed("a part of the control plane died: look into the log") from plane.failure
    _log.info("stopped")


async def prepare_store(store: Store) -> None:
    """Checks the tables; makes them in an empty SQLite file. Raises StartFailed, SchemaError, StoreUnavailable."""
    if store.dialect == "sqlite" and not await store.read(applied_migrations):
        await migrate(store)
        return
    try:
        await verify(store)
    except SchemaBehind as error:
        raise StartFailed(
            f"{error}: make a backup, then run `rackwright control-plane migrate` with the same settings"
        ) from error


def make_state_folder(folder: Path) -> None:
    """The folder, for this user alone. Raises StartFailed."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "it is not writable for this user", str(folder))
    except OSError as error:
        raise StartFailed(
            f"the state folder {folder} cannot be used: {error.strerror}: make it for this user, "
            "or set state_dir in the file that --config names"
        ) from error


def open_authority(folder: Path) -> Authority:
    """The CA in the folder, made where there is none. Raises StartFailed, RequestError."""
    try:
        return Authority.open(folder)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "its files are damaged"
        raise StartFailed(f"the CA in {folder} cannot be used: {why}: put back its backup") from error


def admin_socket(path: Path) -> socket.socket:
    """The socket by which this host's administrator gives orders; nobody but its owner can open it."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path.unlink(missing_ok=True)
    mask = os.umask(0o177)
    try:
        bound.bind(str(path))
    except OSError as error:
        bound.close()
        raise StartFailed(f"the socket {path} cannot be made: {error}: set another state_dir") from error
    finally:
        os.umask(mask)
    bound.listen(16)
    return bound


def api_socket(config: Config) -> socket.socket:
    """The operators' socket. Raises StartFailed that names the setting."""
    listen = Listen.parse(config.api.listen)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with contextlib.ExitStack() as undo:
            bound = undo.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(2048)
            undo.pop_all()
    except OSError as error:
        raise _cannot_listen("api.listen", config.api.listen, error) from error
    return bound


def _cannot_listen(setting: str, place: str, error: OSError) -> StartFailed:
    # asyncio puts a sentence of its own where the system's word for the trouble belongs.
    why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    hint = ": stop what listens there, or set another port" if error.errno == errno.EADDRINUSE else ""
    return StartFailed(f"{setting} = {place!r}: {why}{hint}")


def _check_tls_files(api: ApiConfig) -> None:
    """Raises StartFailed that names the setting and the file."""
    for key, file in (("tls_certificate", api.tls_certificate), ("tls_key", api.tls_key)):
        if file is None:
            continue
        try:
            with Path(file).open("rb"):
                pass
        except OSError as error:
            raise StartFailed(f"api.{key}: {file} cannot be read: {error.strerror}") from error


def _uvicorn_config(app: ASGIApp, config: Config, *, tls: bool) -> uvicorn.Config:
    if tls:
        _check_tls_files(config.api)
    try:
        made = uvicorn.Config(
            app,
            http="httptools",
            loop="none",
            lifespan="off",
            ws="websockets-sansio",
            ws_max_size=_LARGEST_MESSAGE,
            ws_per_message_deflate=False,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_STOP_SECONDS,
            ssl_certfile=config.api.tls_certificate if tls else None,
            ssl_keyfile=config.api.tls_key if tls else None,
        )
        made.load()
    except OSError as error:
        raise StartFailed(
            f"api.tls_certificate and api.tls_key are no certificate and its key in PEM: {error}"
        ) from error
    return made


def _with_port(config: Config, gateway: Gateway) -> str:
    return f"{config.agent_url.rpartition(':')[0]}:{gateway.port}"


def _answers(tx: Transaction) -> None:
    tx.one("SELECT 1")


async def _beat(seconds: float) -> None:
    while True:
        systemd.notify(watchdog="1")
        await asyncio.sleep(seconds)


@contextlib.contextmanager
def _signals(stopping: asyncio.Event) -> Iterator[None]:
    """SIGTERM and SIGINT stop. SIGHUP, which a terminal sends when it is closed, is only logged: settings are read at
    the start alone."""
    loop = asyncio.get_running_loop()
    handlers = {signal.SIGTERM: stopping.set, signal.SIGINT: stopping.set, signal.SIGHUP: _hung_up}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


def _hung_up() -> None:
    _log.warning("SIGHUP changes nothing here: settings are read when the control plane starts")


@contextlib.asynccontextmanager
async def opened(config: Config) -> AsyncIterator[Services]:
    """The API's services in a process that serves nobody: for orders while the control plane does not run."""
    make_state_folder(config.state)
    authority = open_authority(config.state / "ca")
    store = open_store(store_url(config))
    try:
        await prepare_store(store)
        waiters = Waiters(store)
        yield Services(store, ca_sha256=authority.sha256, agent_url=config.agent_url, waiters=waiters)
    finally:
        await store.close()
