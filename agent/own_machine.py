"""The machine that the agent itself runs on, as the handlers of its commands share it."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agent.departure import Departures
from agent.handlers import Handler
from drivers import Drivers, Target
from drivers.linux.host import Host
from protocol.commands import CommandKind

__all__ = ["HandlersOf", "OwnMachine"]


@dataclass(frozen=True)
class OwnMachine:
    """`state`: the agent's own folder."""

    drivers: Drivers
    departures: Departures
    state: Path
    host: Host = field(default_factory=Host)

    @asynccontextmanager
    async def lane(self, what_for: str) -> AsyncIterator[AsyncExitStack]:
        """Keeps every other change of the machine away; the stack can be taken over by what goes on afterwards."""
        async with AsyncExitStack() as stack:
            target = Target(address="localhost", driver="linux")
            await stack.enter_async_context(self.drivers.hold(target, what_for))
            yield stack


HandlersOf = Callable[[OwnMachine], Mapping[CommandKind, Handler]]
