"""What a driver is: a set of classes, one per concern, whose methods carry the operations' names.

A driver author writes

    class ExamplePower:
        def __init__(self, connection: ExampleConnection) -> None: ...
        async def get_power(self, arguments: Nothing, call: Call) -> PowerReading: ...

and lists the class in the driver's `concerns`. A method that is not there is an operation that the driver cannot do.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from drivers.breaker import Breaker
from drivers.target import Target
from protocol.errors import ErrorCode, OperationError
from protocol.operations import OPERATIONS, Concern, Operation

__all__ = [
    "Call",
    "Connection",
    "Driver",
    "Environment",
    "ProgressListener",
    "method_name",
    "no_listener",
    "operations_of",
]

ProgressListener = Callable[[str, float | None], None]


def no_listener(_message: str, _percent: float | None) -> None:
    """Progress that nobody listens to."""


@dataclass(frozen=True, slots=True)
class Call:
    """One operation under way: how long it may still take, and who hears of its progress.

    `deadline` is in the event loop's own time. `observed` collects facts that the caller keeps beside the result,
    such as `tlsFingerprint`.
    """

    operation: str
    deadline: float
    progress: ProgressListener = no_listener
    observed: dict[str, str] = field(default_factory=dict)

    @property
    def remaining(self) -> float:
        """Seconds left; never negative."""
        return max(0.0, self.deadline - asyncio.get_running_loop().time())

    def check(self, doing: str) -> None:
        """Raises OperationError TIMEOUT when no time is left to go on with `doing`."""
        if self.remaining <= 0:
            raise OperationError(ErrorCode.TIMEOUT, f"no time was left while {doing}")

    async def sleep(self, seconds: float, doing: str) -> None:
        """Waits, but never beyond the deadline; raises TIMEOUT when it is reached."""
        await asyncio.sleep(min(seconds, self.remaining))
        self.check(doing)


class Connection(Protocol):
    """One BMC as one credential sees it: the owner of its session. Made without I/O; connects when first used."""

    async def aclose(self) -> None:
        """Ends the session at the BMC. Never raises; safe to call twice."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What all connections of a process share."""

    breaker: Breaker
    pins: dict[str, str]
    """`host:port` → SHA-256 of the certificate that was taken on first use."""


class Driver(Protocol):
    """One way to reach machines."""

    @property
    def name(self) -> str: ...

    @property
    def concerns(self) -> Mapping[Concern, Callable[[Any], object]]:
        """The class per concern; each is made with the connection."""

    def connect(self, target: Target, environment: Environment) -> Connection:
        """A connection to the BMC; no I/O yet."""


def method_name(operation: Operation) -> str:
    """`getPower` is served by `get_power`."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", operation.name).lower()


def operations_of(driver: Driver) -> list[str]:
    """The operations that the driver has, in the table's order."""
    return [
        operation.id
        for operation in OPERATIONS.values()
        if hasattr(driver.concerns.get(operation.concern), method_name(operation))
    ]
