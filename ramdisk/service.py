"""`rackwright ramdisk run`: the network, the join, and then an agent like every other, of the role ramdisk.

Its state lies in memory: a process that is started again finds it and repeats nothing, and a new boot knows nothing
of the one before. Nothing here listens.
"""

import asyncio
import ctypes
import resource
import signal
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from agent import logs
from agent.clock import KernelClock
from agent.config import Config, Log
from agent.errors import AgentError
from agent.files import make_private_folder
from agent.identity import Facts, IdentityStore
from agent.machine_identity import machine_facts
from agent.state_lock import only_one
from drivers.linux import DRIVER
from drivers.linux.host import Host
from protocol import VERSION
from protocol.boot_ticket import to_json
from protocol.commands import CommandKind
from protocol.secret import Secret
from ramdisk.consoles import Announcer
from ramdisk.join import Joining
from ramdisk.network import Network
from ramdisk.ticket import Carriers

if TYPE_CHECKING:
    from agent.handlers import Handler
    from agent.own_machine import OwnMachine
    from agent.tickets import Tickets

__all__ = ["DEFAULT_STATE", "TICKET_FILE", "daemon_files", "harden", "run"]

_log = structlog.get_logger("ramdisk.service")
DEFAULT_STATE = Path("/run/rackwright")
TICKET_FILE = "rackwright.json"
"""The ticket of the installed system's agent, on the configuration drive."""
_SET_DUMPABLE = 4
_TICKET_PATIENCE = 60.0
_NEEDED_LATER = ("agent.joining", "agent.service", "ramdisk.kexec")


def run(
    state: Path = DEFAULT_STATE, level: str = "info", *, host: Host | None = None, root: Path = Path("/")
) -> None:
    """Until SIGTERM or SIGINT. Raises AgentError when it cannot go on; whoever started it starts it again.

    `root`: of the initial ramdisk's own files.
    """
    harden()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    scrubber = logs.Scrubber()
    lines = logs.set_up(level, "json", scrubber)
    folder = state / "agent"
    make_private_folder(folder)
    config = Config(state_dir=str(folder), role="ramdisk", log=Log(level=level))  # type: ignore[arg-type]
    with only_one(folder), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_Ramdisk(config, state, scrubber, lines, host or Host(), root).run())


def harden() -> None:
    """What is in memory stays there: no core files, and nobody else reads it (prctl(2), PR_SET_DUMPABLE)."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


class _Ramdisk:
    def __init__(
        self, config: Config, state: Path, scrubber: logs.Scrubber, lines: logs.Lines, host: Host, root: Path
    ) -> None:
        self._config = config
        self._state = state
        self._scrubber = scrubber
        self._lines = lines
        self._host = host
        self._root = root
        self._announcer = Announcer(self._host)

    async def run(self) -> None:
        self._announcer.say(f"agent {VERSION}, boot {KernelClock().boot_id}")
        resolver = self._root / "etc" / "resolv.conf"
        network = Network(self._host, self._state / "network", self._announcer, resolver=resolver)
        loading = asyncio.create_task(_load_what_comes_later())
        serving = asyncio.create_task(self._join_and_serve(network, loading))
        keeping = asyncio.create_task(network.run())
        try:
            done, _ = await asyncio.wait((serving, keeping), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task.exception() is not None:
                    raise AgentError(f"a part of the agent failed: {task.exception()}") from task.exception()
        finally:
            for task in (loading, serving, keeping):
                task.cancel()
            await asyncio.gather(loading, serving, keeping, return_exceptions=True)

    async def _join_and_serve(self, network: Network, loading: asyncio.Task[None]) -> None:
        joining = Joining(
            IdentityStore(self._config.state / "identity"),
            Carriers(self._host, self._root),
            network,
            self._announcer,
            lambda: machine_facts(self._host),
        )
        identity = await joining.identity()
        await loading
        from agent.service import Service

        service = Service(self._config, self._scrubber, self._lines, handlers=_handlers)

        DRIVER.config_drive_files = partial(daemon_files, service.tickets, identity.facts, self._scrubber.learn)
        self._announcer.say(f"waiting for orders from {identity.facts.control_plane}")
        await service.run()


async def _load_what_comes_later() -> None:
    """In a thread, while the network comes up: most of an agent's start is the loading of modules."""
    for name in _NEEDED_LATER:
        await asyncio.to_thread(import_module, name)


async def daemon_files(tickets: "Tickets", own: Facts, learn: Callable[[Secret], None]) -> Mapping[str, bytes]:
    """What the configuration drive brings the installed system's agent: a ticket of its own, asked for now.

    Raises OperationError as `Tickets.request` does.
    """
    ticket = await tickets.request(own.node, "daemon", patience=_TICKET_PATIENCE)
    learn(ticket.token)
    # The site may have given this machine another way to the control plane than the one it says of itself.
    return {TICKET_FILE: to_json(replace(ticket, control_plane=own.control_plane))}


def _handlers(machine: "OwnMachine") -> Mapping[CommandKind, "Handler"]:
    from ramdisk.kexec import Kexec

    return {CommandKind.BOOT_KEXEC: Kexec(machine)}


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is there: the image leaves it out where every megabyte counts."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
