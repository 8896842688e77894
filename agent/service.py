"""The daemon: puts the parts together, runs them, and stops them in an order that loses nothing."""

import asyncio
import functools
import logging
import os
import resource
import secrets
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent import config as configuration
from agent import logs, systemd
from agent.bmcs import IN_BAND_DRIVER, BmcMemory, Bmcs
from agent.clock import KernelClock
from agent.collecting import LogCollector
from agent.config import Config
from agent.console_log import ConsoleLogs
from agent.consoles import Consoles
from agent.departure import Departures, Means
from agent.endpoint import Endpoint
from agent.errors import AgentError, IdentityError
from agent.executor import Executor
from agent.files import make_private_folder
from agent.handlers import Handler
from agent.identity import Identity, IdentityStore
from agent.journal import Journal
from agent.link import Link
from agent.node_spec import Applies, SpecKeeper, store_only
from agent.observations import Observations
from agent.own_machine import HandlersOf, OwnMachine
from agent.reboot import Reboot, has_systemd, leave
from agent.state_lock import only_one
from agent.status import Snapshot, StatusKeeper
from agent.task_run import TaskRunner
from agent.tickets import Tickets
from agent.vault import Vault, VaultKey
from drivers import INSTALLED, load, operations_of
from drivers.image_access import ImageAccess
from drivers.linux.host import Host
from protocol import VERSION
from protocol.commands import CommandKind
from protocol.errors import OperationError
from protocol.frames import PROTOCOL_MINOR, AgentFrame, Hello, WatchList

if TYPE_CHECKING:
    from agent.boot_server import BootServer
    from agent.event_listener import EventListener
    from agent.file_offer import SiteFiles
    from agent.watching import Watcher

__all__ = ["Service", "run"]

_log = structlog.get_logger("agent.service")
_SITE, _DAEMON, _RAMDISK = "site", "daemon", "ramdisk"
_LAST_WORDS_SECONDS = 2.0


def run(config: Config, config_path: Path | None = None) -> None:
    """Runs until SIGTERM or SIGINT. Raises AgentError when it cannot start."""
    import uvloop

    # Asked to reload before there is anything to: its default would end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # A core file would hold every password that is in memory.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    scrubber = logs.Scrubber()
    lines = logs.set_up(config.log.level, config.log.format, scrubber)
    try:
        make_private_folder(config.state)
        with only_one(config.state), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_join_and_run(config, scrubber, lines, config_path))
    except OSError as error:
        raise AgentError(
            f"{error.filename or config.state} cannot be used ({error.strerror}): run the agent as its own user, "
            "with a state_dir that this user owns"
        ) from error


async def _join_and_run(config: Config, scrubber: logs.Scrubber, lines: logs.Lines, config_path: Path | None) -> None:
    """An agent on an installed system joins by itself at its first start, where its deployment left a ticket."""
    if config.role in (None, _DAEMON):
        store = IdentityStore(config.state / "identity")
        if store.current() is None:
            from agent.first_join import DriveTicket, FileTicket, FirstJoin

            await FirstJoin(store, [FileTicket(), DriveTicket(Host())]).run()
    await Service(config, scrubber, lines, config_path).run()


class Service:
    """One running agent."""

    def __init__(
        self,
        config: Config,
        scrubber: logs.Scrubber,
        lines: logs.Lines,
        config_path: Path | None = None,
        *,
        handlers: HandlersOf | None = None,
    ) -> None:
        """`handlers`: what this agent does to the machine that it runs on, beyond what every such agent does."""
        self._config = config
        self._config_path = config_path
        self._lines = lines
        self._started_at = time.time()
        self._instance = secrets.token_hex(8)
        self._clock = KernelClock()
        self._stopping = asyncio.Event()
        self._store = IdentityStore(config.state / "identity")
        identity = self._store.current()
        if identity is None:
            raise IdentityError(
                "this agent has not joined: run `rackwright agent join URL TOKEN` with a token made by "
                "`rackwright control-plane join-token create`"
            )
        self._store.tidy()
        self._role = config.role or identity.facts.role
        vault = Vault(
            config.state / "vault.json",
            lambda: VaultKey.load(config.vault_key_file),
            revealed=scrubber.learn,
        )
        try:
            memory = BmcMemory(config.state / "bmcs.json")
        except OperationError as error:
            raise AgentError(error.message) from error
        self.tickets = Tickets(self._say)
        """Boot tickets, over this agent's own link."""
        self._files = _site_files(config) if self._role == _SITE else None
        images = ImageAccess(config.images.allow)
        self._bmcs = Bmcs(vault, memory, self._files, in_band=self._role != _SITE, images=images)
        self._boot = self._boot_server() if self._role == _SITE else None
        if self._role == _RAMDISK:
            from agent.site_images import SiteImages

            self._bmcs.site_images = SiteImages(self.tickets, scrubber.learn)
        self._consoles = Consoles(
            self._bmcs.drivers,
            config.consoles,
            ConsoleLogs(config.state / "consoles", config.consoles.log_bytes, config.consoles.log_files),
        )
        self._bmcs.keep_consoles(self._consoles)
        self._journal = Journal.open(config.state / "journal.db", self._clock)
        self._departures = Departures(
            config.state / "departure.json", self._clock, told=self._told, stop=self._stopping.set
        )
        self._executor = Executor(
            self._journal,
            {
                CommandKind.DRIVER_INVOKE: self._bmcs,
                CommandKind.COLLECT_LOGS: LogCollector(lines.kept),
                **self._site_handlers(),
                **self._own_handlers(handlers),
            },
            self._clock,
            role=self._role,
            clean=scrubber.clean_ending,
            clean_text=scrubber.clean,
            limit=config.limits.held,
            running=config.limits.running,
        )
        self._observations = Observations(self._executor.reports.wake)
        self._executor.reports.take_from(self._observations)
        self._watcher: Watcher | None = None
        self._listener: EventListener | None = None
        self._consoles.wake = self._executor.reports.wake
        self._specs = SpecKeeper(config.state / "node-spec.json", self._executor.reports.say, self._applies())
        self._status = StatusKeeper(config.state, self._snapshot)
        self._link = Link(
            Endpoint.parse(config.control_plane.url or identity.facts.control_plane),
            self._store,
            self._executor,
            self.hello,
            changed=self._status.changed,
            node_spec=self._specs.take,
            watch_list=self._take_watch_list,
            ticket=self.tickets.take,
            consoles=self._consoles,
        )
        self._drivers = _driver_table(INSTALLED if self._role == _SITE else (IN_BAND_DRIVER,))
        self._fault: BaseException | None = None

    def hello(self, identity: Identity) -> Hello:
        return Hello(
            agent_id=identity.facts.agent_id,
            role=self._role,
            boot_id=self._clock.boot_id,
            journal_id=self._journal.id,
            instance=self._instance,
            last_session=self._journal.last_session,
            version=VERSION,
            protocol=PROTOCOL_MINOR,
            host_name=os.uname().nodename,
            drivers=self._drivers,
            held=self._executor.held(),
            node_spec=self._specs.generation,
        )

    async def run(self) -> None:
        """Recovers, connects, and serves until it is told to stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        held = self._journal.held()
        self._executor.recover(held)
        self._departures.resume()
        self._specs.resume()
        await self._watch()
        if self._boot is not None:
            await self._boot.start_for_machines()
        tasks = [
            asyncio.create_task(work)
            for work in (
                self._link.run(),
                self._status.keep(),
                systemd.watch(),
                systemd.keep_status(lambda: self._link.status.words),
            )
        ]
        for task in tasks:
            task.add_done_callback(self._part_ended)
        _log.info("started", version=VERSION, role=self._role, journal=self._journal.id, held=len(held))
        systemd.notify("READY=1", "STATUS=connecting")
        try:
            await self._stopping.wait()
            await self._stop()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._journal.close()
        self._status.write()
        if self._fault is not None:
            raise AgentError(f"a part of the agent failed: {self._fault}") from self._fault
        _log.info("stopped")
        await self._leave()

    async def _leave(self) -> None:
        """The machine goes, where a command said so. Raises AgentError when it does not."""
        for number in (signal.SIGTERM, signal.SIGINT):
            # Whoever stops the machine's programs in good order stops this one too.
            asyncio.get_running_loop().remove_signal_handler(number)
        watchdog = asyncio.create_task(systemd.watch())
        try:
            await self._departures.go()
        finally:
            watchdog.cancel()

    def _say(self, frame: AgentFrame) -> None:
        self._executor.reports.say(frame)

    async def _told(self, command_id: str, seconds: float) -> bool:
        return await self._executor.until_settled(command_id, seconds)

    def _boot_server(self) -> "BootServer":
        """What the site's machines start from, and how their BMCs are told."""
        from agent.boot_server import site_boot_server
        from agent.ramdisk_boot import RamdiskBoot

        server = site_boot_server(self._config, self._clock, self.tickets, self._bmcs.image_logins)
        self._bmcs.ramdisk_boot = RamdiskBoot(server, has_image=bool(self._config.boot.image))
        return server

    def _site_handlers(self) -> dict[str, Handler]:
        if self._boot is None:
            return {}
        from agent.image_offer import ImageOffer

        return {CommandKind.SITE_OFFER_IMAGE: ImageOffer(self._boot, self.tickets)}

    def _applies(self) -> Applies:
        """How a node spec is brought about: on an installed system alone."""
        if self._role != _DAEMON:
            return store_only
        from agent.host_config import HostConfigurator

        return HostConfigurator(Host()).apply

    def _own_handlers(self, more: HandlersOf | None) -> dict[str, Handler]:
        """What an agent does to the machine that it runs on. A site's agent does none of it: it would be done to the
        site's own host."""
        if self._role == _SITE:
            return {}
        machine = OwnMachine(self._bmcs.drivers, self._departures, self._config.state)
        for means in (Means.REBOOT, Means.POWER_OFF):
            self._departures.ways[means] = functools.partial(leave, host=machine.host, systemd=has_systemd())
        own: dict[str, Handler] = {
            CommandKind.NODE_REBOOT: Reboot(machine),
            CommandKind.TASK_RUN: TaskRunner(machine),
        }
        if self._role == _DAEMON:
            from agent.upgrade import Upgrade

            own[CommandKind.DAEMON_UPGRADE] = Upgrade(machine, self._stopping.set)
        return own | dict(more(machine) if more is not None else {})

    async def _watch(self) -> None:
        """Makes ready to watch machines, which a site's agent alone is asked to. Raises AgentError."""
        if self._role != _SITE or not self._config.watch.enabled:
            return
        from agent.event_feeds import EventFeeds
        from agent.event_listener import EventListener, listener_key
        from agent.watching import Watcher

        watcher = self._watcher = Watcher(self._bmcs, self._observations, self._config.watch)
        if self._config.events.listen:
            key = listener_key(self._config.state / "events.key")
            self._listener = EventListener(self._config.events, key, watcher.heard)
            await self._listener.start()
        watcher.hear_by(EventFeeds(watcher, self._config.watch, self._listener))
        self._bmcs.after_change = watcher.changed

    def _take_watch_list(self, frame: WatchList) -> None:
        if self._watcher is not None:
            self._watcher.take(frame)

    def _part_ended(self, task: asyncio.Task[None]) -> None:
        """A part that failed stops the agent in good order, so that systemd starts it whole again."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("part_failed", exc_info=error)
            self._fault = error
            self._stopping.set()

    async def _stop(self) -> None:
        systemd.notify("STOPPING=1", "STATUS=stopping: changes under way may end first")
        _log.info("stopping", held=self._executor.counts())
        await self._executor.stop(self._config.limits.stop_seconds)
        await self._consoles.aclose()
        await self._executor.reports.drain(_LAST_WORDS_SECONDS if self._link.status.connected else 0.0)
        await self._link.close("the agent stops")
        await self._specs.aclose()
        await self._departures.aclose()
        if self._watcher is not None:
            await self._watcher.aclose()
        if self._listener is not None:
            await self._listener.aclose()
        if self._boot is not None:
            await self._boot.aclose()
        await self._bmcs.aclose()
        if self._files is not None:
            await self._files.aclose()

    def _reload(self) -> None:
        """SIGHUP: the log level anew, and a connection attempt at once. Everything else needs a restart."""
        systemd.notify_reloading()
        try:
            fresh = configuration.load(self._config_path)
        except AgentError as error:
            _log.error("reload_refused", reason=str(error), hint="the old configuration stays")
        else:
            logging.getLogger().setLevel(fresh.log.level.upper())
            unchanged = fresh.log.level != self._config.log.level or fresh == self._config
            _log.info("reloaded", log_level=fresh.log.level, needs_restart=not unchanged)
        self._link.hurry()
        systemd.notify("READY=1")

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            pid=os.getpid(),
            boot_id=self._clock.boot_id,
            started_at=self._started_at,
            version=VERSION,
            journal_id=self._journal.id,
            link=self._link.status,
            held=self._executor.counts(),
            blocked=self._bmcs.blocked(),
            watched=self._watcher.counts() if self._watcher is not None else {},
        )


def _site_files(config: Config) -> "SiteFiles":
    from agent.file_offer import SiteFiles
    from agent.file_server import FileServer

    return SiteFiles(config.files_dir, FileServer(config.files.listen, config.files.url))


def _driver_table(names: Iterable[str]) -> dict[str, list[str]]:
    """Each driver that loads here, and what it can do; one that does not load is told of, and left out."""
    table: dict[str, list[str]] = {}
    for name in names:
        try:
            table[name] = operations_of(load(name))
        except (ImportError, AttributeError, OperationError) as error:
            _log.warning("driver_left_out", driver=name, reason=str(error))
    return table
