"""All agents of a simulated fleet in one process: a site agent, and one on each machine once it has booted.

They speak the real protocol over connections of their own, with certificates of their own: hello, ready, accepted,
started, finished; and they break off where a machine goes down. They have no journal on a disk and no drivers: a
command takes the time that `fleet_path` says, and succeeds.
"""

import asyncio
import ssl
from pathlib import Path
from typing import NamedTuple

import uvloop
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from benchmarks.children import Pipe, more_files
from benchmarks.enrolment import agent_context, dial
from benchmarks.fleet_path import BOOTS, durations
from protocol.commands import Ending, Outcome
from protocol.frames import Accepted, Command, Finished, Hello, Started, decode_control_frame, encode
from protocol.ids import new_id

__all__ = ["Fleet", "serve"]

_RESULT: dict[str, object] = {"system": {}}
"""The least that an inventory can be; of the other operations nobody reads a result."""


class Fleet(NamedTuple):
    """Which agents there are. Machine number n has the node nodes[n] and the agent agents[n]."""

    folder: str
    port: int
    site_agent: str
    agents: list[str]
    nodes: list[str]


def serve(pipe: Pipe, fleet: Fleet) -> None:
    """Sends "ready" once the site's agent is connected, and goes on until it is ended."""
    more_files()
    uvloop.run(_serve(pipe, fleet))


async def _serve(pipe: Pipe, fleet: Fleet) -> None:
    folder = Path(fleet.folder)
    machines = {
        node: _Machine(number, fleet.port, agent, agent_context(folder, agent))
        for number, (node, agent) in enumerate(zip(fleet.nodes, fleet.agents, strict=True))
    }
    site = _Agent(fleet.port, fleet.site_agent, "site", agent_context(folder, fleet.site_agent))
    await site.connect()
    pipe.send("ready")
    async with asyncio.TaskGroup() as tasks:
        async for command in site.commands():
            machine = machines[str(command.payload["targetNodeId"])]
            tasks.create_task(_at_site(tasks, site, machine, command))


async def _at_site(tasks: asyncio.TaskGroup, site: "_Agent", machine: "_Machine", command: Command) -> None:
    """A step by the machine's BMC; after it was switched on its own agent comes to life."""
    part = _part(command)
    await site.do(command, machine.seconds[part])
    if part in BOOTS:
        tasks.create_task(machine.live(BOOTS[part]))


class _Agent:
    """One agent's connection."""

    def __init__(self, port: int, agent_id: str, role: str, context: ssl.SSLContext) -> None:
        self._port = port
        self._id = agent_id
        self._role = role
        self._context = context
        self._journal = new_id("jrn")
        self._session = ""
        self._connection: ClientConnection | None = None

    async def connect(self) -> None:
        hello = Hello(
            agent_id=self._id,
            role=self._role,
            boot_id=new_id("boot"),
            journal_id=self._journal,
            last_session=self._session,
            version="0",
        )
        self._connection, welcome = await dial(self._port, self._context, hello)
        self._session = welcome.session_id

    def commands(self) -> "_Commands":
        assert self._connection is not None
        return _Commands(self._connection)

    async def do(self, command: Command, seconds: float) -> None:
        """Takes the command, lets its time go by, and says that it succeeded."""
        await self.begin(command)
        await asyncio.sleep(seconds)
        await self._send(Finished(id=command.id, ending=Ending(Outcome.SUCCEEDED, result=_RESULT)))

    async def begin(self, command: Command) -> None:
        await self._send(Accepted(id=command.id))
        await self._send(Started(id=command.id))

    async def _send(self, frame: Accepted | Started | Finished) -> None:
        assert self._connection is not None
        await self._connection.send(encode(frame), text=True)

    def cut(self) -> None:
        """The machine goes down: no goodbye."""
        if self._connection is not None:
            self._connection.transport.abort()


class _Commands:
    """The commands that come over a connection, until it ends."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def __aiter__(self) -> "_Commands":
        return self

    async def __anext__(self) -> Command:
        try:
            while not isinstance(frame := decode_control_frame(await self._connection.recv()), Command):
                pass
        except ConnectionClosed:
            raise StopAsyncIteration from None
        return frame


class _Machine(_Agent):
    """A machine: dead until it is switched on, then its agent."""

    def __init__(self, number: int, port: int, agent_id: str, context: ssl.SSLContext) -> None:
        super().__init__(port, agent_id, "ramdisk", context)
        self.seconds = durations(number)

    async def live(self, boot: str) -> None:
        """Boots, and does what it is told to; a kexec ends this life, and begins the next."""
        while boot:
            await asyncio.sleep(self.seconds[boot])
            await self.connect()
            boot = await self._until_it_goes_down()

    async def _until_it_goes_down(self) -> str:
        """What it boots next; nothing once its connection has ended."""
        async for command in self.commands():
            part = _part(command)
            if part not in BOOTS:
                await self.do(command, self.seconds[part])
                continue
            await self.begin(command)
            await asyncio.sleep(self.seconds[part])
            self.cut()
            return BOOTS[part]
        return ""


def _part(command: Command) -> str:
    """The command's name in `fleet_path`: its operation, the action of a power command, or its own kind."""
    operation = command.payload.get("operation")
    if operation is None:
        return command.kind
    arguments = command.payload["args"]
    assert isinstance(arguments, dict)
    return str(arguments["action"] if operation == "setPower" else operation)
