"""`rackwright ramdisk run`: the network, the join, and then an agent like every other, of the role ramdisk.

Its state lies in memory: a process that is started again finds it and repeats nothing, and a new boot knows nothing
of the one before. Nothing here listens.
"""

import asyncio
import ctypes
import resource
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from agent import logs, status
from agent.clock import KernelClock
from agent.config import Config, Log
from agent.errors import AgentError
from agent.files import make_private_folder
from agent.handlers import Handler
from agent.identity import IdentityStore
from agent.machine_identity import machine_facts
from agent.own_machine import OwnMachine
from agent.service import Service
from drivers.linux import DRIVER
from drivers.linux.host import Host
from protocol import VERSION
from protocol.boot_ticket import to_json
from protocol.commands import CommandKind
from ramdisk.consoles import Announcer
from ramdisk.join import Joining
from ramdisk.kexec import Kexec
from ramdisk.network import Network
from ramdisk.ticket import Carriers

__all__ = ["DEFAULT_STATE", "TICKET_FILE", "harden", "run"]

_log = structlog.get_logger("ramdisk.service")
DEFAULT_STATE = Path("/run/rackwright")
TICKET_FILE = "rackwright.json"
"""The ticket of the installed system's agent, on the configuration drive."""
_SET_DUMPABLE = 4
_TICKET_PATIENCE = 60.0


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
    with status.only_one(folder), asyncio.Runner(loop_factory=_loop_factory()) as runner:
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
        serving = asyncio.create_task(self._join_and_serve(network))
        keeping = asyncio.create_task(network.run())
        try:
            done, _ = await asyncio.wait((serving, keeping), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task.exception() is not None:
                    raise AgentError(f"a part of the agent failed: {task.exception()}") from task.exception()
        finally:
            for task in (serving, keeping):
                task.cancel()
            await asyncio.gather(serving, keeping, return_exceptions=True)

    async def _join_and_serve(self, network: Network) -> None:
        joining = Joining(
            IdentityStore(self._config.state / "identity"),
            Carriers(self._host, self._root),
            network,
            self._announcer,
            lambda: machine_facts(self._host),
        )
        identity = await joining.identity()
        service = Service(self._config, self._scrubber, self._lines, handlers=_handlers)

        async def daemon_files() -> Mapping[str, bytes]:
            ticket = await service.tickets.request(identity.facts.node, "daemon", patience=_TICKET_PATIENCE)
            self._scrubber.learn(ticket.token)
            return {TICKET_FILE: to_json(ticket)}

        DRIVER.config_drive_files = daemon_files
        self._announcer.say(f"waiting for orders from {identity.facts.control_plane}")
        await service.run()


def _handlers(machine: OwnMachine) -> Mapping[CommandKind, Handler]:
    return {CommandKind.BOOT_KEXEC: Kexec(machine)}


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is there: the image leaves it out where every megabyte counts."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
