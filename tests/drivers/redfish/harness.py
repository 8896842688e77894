"""A simulated BMC and the driver before it, on an event loop that skips waits instead of sitting them out."""

import asyncio
import contextlib
import functools
import selectors
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec

from drivers import Breaker, Drivers, Target
from drivers.driver import ProgressListener
from protocol.errors import OperationError
from simulators.redfish import FaultRule, RedfishServer, ServiceOptions, TlsMaterial
from simulators.redfish.tree import RecordedTree

P = ParamSpec("P")
PASSWORD = "Planted-Pa55word"
SYSTEM = "/redfish/v1/Systems/1"
RESET = "*/Actions/ComputerSystem.Reset"
SESSIONS = "/redfish/v1/SessionService/Sessions"


class _SkippingSelector(selectors.DefaultSelector):
    """Waits for sockets as usual, but for timers only a moment: then the loop's clock is moved to them."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0
        self.threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0 or self.threads:
            return super().select(timeout)
        ready = super().select(min(timeout, 0.003))
        if not ready:
            self.skipped += timeout
        return ready


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop on which an hour of waiting takes no time, as long as all that happens, happens on it."""

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return super().time() + self._skipping.skipped

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """What a thread does takes the time that it takes: no clock is moved meanwhile."""
        self._skipping.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(lambda _: setattr(self._skipping, "threads", self._skipping.threads - 1))
        return future


def without_waiting(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Runs an async test on a SkippingLoop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def body() -> None:
            await test(*args, **kwargs)

        with asyncio.Runner(loop_factory=SkippingLoop) as runner:
            runner.run(body())

    return run


@dataclass
class Bench:
    """One BMC, and `Drivers` that reach it."""

    bmc: RedfishServer
    drivers: Drivers
    target: Target

    async def __call__(
        self,
        operation: str,
        arguments: Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,
        progress: ProgressListener | None = None,
    ) -> dict[str, Any]:
        return await self.drivers.invoke(self.target, operation, arguments, timeout=timeout, progress=progress)

    async def fails(
        self, operation: str, arguments: Mapping[str, object] | None = None, *, timeout: float | None = None
    ) -> OperationError:
        """The error that the operation ends in; an AssertionError where it succeeds."""
        try:
            result = await self(operation, arguments, timeout=timeout)
        except OperationError as error:
            return error
        raise AssertionError(f"{operation} succeeded: {result}")

    def requests(self, method: str = "*", path: str = "*") -> list[str]:
        """The paths that were asked for, oldest first."""
        return [entry.path for entry in self.bmc.journal.entries(method, path)]


@contextlib.asynccontextmanager
async def bench(
    tree: Path | RecordedTree | None = None,
    *,
    faults: Iterable[FaultRule] = (),
    options: ServiceOptions | None = None,
    password: str = PASSWORD,
    breaker: Breaker | None = None,
    pins: dict[str, str] | None = None,
    tls: bool | TlsMaterial = False,
    verify: bool | str = True,
    behaviour: str | None = None,
    fetches_images: bool = False,
) -> AsyncIterator[Bench]:
    """A BMC of the tree (our own small one by default) that knows `admin` by PASSWORD, and the driver before it.

    `fetches_images`: it fetches what an update names by an address; else a test may name what is nowhere.
    """
    clock = asyncio.get_running_loop().time
    server = RedfishServer(
        tree,
        users={"admin": PASSWORD},
        faults=faults,
        options=options,
        tls=tls,
        clock=clock,
        behaviour=behaviour,
        fetches_images=fetches_images,
    )
    async with server as bmc, Drivers(breaker, pins) as drivers:
        yield Bench(bmc, drivers, Target(address=bmc.url, username="admin", password=password, verify=verify))
