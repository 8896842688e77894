"""What a driver is: a set of classes, one per concern, whose methods carry the operations' names.

A driver author writes

    class ExamplePower:
        def __init__(self, connection: ExampleConnection) -> None: ...
        async def get_power(self, arguments: Nothing, call: Call) -> PowerReading: ...

and lists the class in the driver's `concerns`. A method that is not there is an operation that the driver cannot do;
an attribute `INSTEAD` may say by the operation's name what to do then.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from drivers.breaker import Breaker
from drivers.console import OpenConsoles
from drivers.image_access import ImageAccess
from drivers.rotation import Rotation
from drivers.target import Target
from protocol.errors import ErrorCode, OperationError
from protocol.operations import OPERATIONS, Concern, Operation

__all__ = [
    "Call",
    "Connection",
    "Driver",
    "Environment",
    "FileOffers",
    "ProgressListener",
    "method_name",
    "no_listener",
    "operations_of",
]

ProgressListener = Callable[[str, float | None], None]
_ORDINARY_BYTES = 256 * 1024
"""Of one answer; registries, and collections with their members in them, are larger, by a few MiB together."""
_MOST_LARGE_BYTES = 64 * 1024 * 1024
"""Of the larger answers of one operation together: they may all be held at once."""


def no_listener(_message: str, _percent: float | None) -> None:
    """Progress that nobody listens to."""


@dataclass(slots=True)
class Heard:
    """What a machine has said in one operation, so that none can fill the memory."""

    large_bytes: int = 0
    """Of the answers that are larger than any ordinary one."""

    def weigh(self, size: int, whence: str) -> None:
        """Counts an answer's bytes. Raises OperationError BMC_ERROR where one operation has been told more than any
        BMC has to tell. `whence`: the request and the BMC, for the error."""
        if size <= _ORDINARY_BYTES:
            return
        self.large_bytes += size
        if self.large_bytes > _MOST_LARGE_BYTES:
            raise OperationError(
                ErrorCode.BMC_ERROR,
                f"{whence} has sent more than {_MOST_LARGE_BYTES >> 20} MiB of large answers for one operation: "
                "is this address a BMC's?",
            )


@dataclass(frozen=True, slots=True)
class Call:
    """One operation under way: how long it may still take, and who hears of its progress.

    `deadline` is in the event loop's own time. `observed` collects facts that the caller keeps beside the result,
    such as `tlsFingerprint`. `rotation` holds the new password of `config.rotatePassword`: no argument may hold it.
    """

    operation: str
    deadline: float
    progress: ProgressListener = no_listener
    observed: dict[str, str] = field(default_factory=dict)
    rotation: Rotation | None = field(default=None, repr=False)
    heard: Heard = field(default_factory=Heard, repr=False)

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


class FileOffers(Protocol):
    """The files of the site host that operations may use, and a way to let a BMC fetch one. The agent has it."""

    def open(self, path: str) -> BinaryIO:
        """The file, open for reading. Raises OperationError INVALID_ARGUMENT for what may not be used, or is no
        file."""

    async def offer(self, path: str, name: str, lifetime: float, *, reached_by: str) -> str:
        """An address under which the BMC `reached_by` (its host) can fetch the file for `lifetime` seconds; its last
        part is `name`. Raises OperationError as `open` does, and where it cannot be served."""

    async def withdraw(self, url: str) -> None:
        """Ends an offer. Never raises; safe to call twice."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What all connections of a process share."""

    breaker: Breaker
    pins: dict[str, str]
    """`host:port` → SHA-256 of the certificate that was taken on first use."""
    consoles: OpenConsoles = field(default_factory=OpenConsoles)
    """The consoles that were opened, by stream id."""
    files: FileOffers | None = None
    """None outside an agent: then any file that the user can read may be used, and none can be offered to a BMC."""
    images: ImageAccess = field(default_factory=lambda: ImageAccess(everywhere=True))
    """From where this host fetches images by itself; outside an agent from wherever its user says."""


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
    """The operations that the driver has, in the table's order. One that tells them itself (`operations`) does not
    load its concerns for it."""
    told = getattr(driver, "operations", None)
    if told is not None:
        return [operation for operation in OPERATIONS if operation in told]
    concerns = driver.concerns
    return [
        operation.id
        for operation in OPERATIONS.values()
        if hasattr(concerns.get(operation.concern), method_name(operation))
    ]
