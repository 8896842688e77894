"""A driver that counts what reaches its machines, and can be stopped in the middle of an act."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from drivers.driver import Call, Environment
from drivers.target import Target
from protocol.errors import ErrorCode, OperationError
from protocol.operations import Concern
from protocol.shapes import Nothing
from protocol.shapes.power import PowerReading, PowerState, SetPower, SetPowerResult
from tests.agent.points import Points


class Machines:
    """What the machines have seen; shared by all lives of an agent."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.acts: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        self.power: dict[str, PowerState] = {}
        self.points: Points | None = None
        self.gates: dict[str, asyncio.Event] = {}
        self.entered: dict[str, asyncio.Event] = {}
        self.fails: dict[str, OperationError] = {}
        self.targets: list[Target] = []
        self.logouts = 0

    async def pass_by(self, name: str) -> None:
        if self.points is not None:
            await self.points.at(name)

    async def gate(self, host: str) -> None:
        """Where a test holds an operation until it lets it go on."""
        if host in self.entered:
            self.entered[host].set()
        if host in self.gates:
            await self.gates[host].wait()


MACHINES = Machines()


class _Connection:
    def __init__(self, target: Target) -> None:
        self.target = target
        self.host = target.parsed.host

    async def aclose(self) -> None:
        MACHINES.logouts += 1


class _Power:
    def __init__(self, connection: _Connection) -> None:
        self._host = connection.host
        MACHINES.targets.append(connection.target)

    async def get_power(self, arguments: Nothing, call: Call) -> PowerReading:
        await MACHINES.gate(self._host)
        if self._host in MACHINES.fails:
            raise MACHINES.fails[self._host]
        MACHINES.reads[self._host] += 1
        return PowerReading(state=MACHINES.power.get(self._host, PowerState.ON), raw="On")

    async def set_power(self, arguments: SetPower, call: Call) -> SetPowerResult:
        await MACHINES.pass_by("before the act")
        MACHINES.acts[f"{self._host} {arguments.action}"] += 1
        if arguments.action in ("on", "off"):
            MACHINES.power[self._host] = PowerState(arguments.action.value)
        await MACHINES.pass_by("after the act")
        call.progress("waiting for the machine", 50.0)
        await MACHINES.gate(self._host)
        if self._host in MACHINES.fails:
            raise MACHINES.fails[self._host]
        return SetPowerResult(state=MACHINES.power.get(self._host, PowerState.ON), changed=True, verb_used="X")


class _Driver:
    name = "simulated"
    concerns: Mapping[Concern, Callable[[Any], object]] = {Concern.POWER: _Power}

    def connect(self, target: Target, environment: Environment) -> _Connection:
        return _Connection(target)


DRIVER = _Driver()


def refused(code: ErrorCode, text: str) -> OperationError:
    return OperationError(code, text)
