"""Keeping an eye on a machine: a look at its power and health for the least that it costs, and what its BMC tells.

A driver offers this with a class `watch`, made with the connection. One that has none is watched by `power.getPower`.
What a BMC tells is never taken for the state itself: events are late, lost and made by many hands. They say that a
look is worth its while now.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any, Protocol, cast

from drivers.concealment import conceal
from drivers.driver import Call, Driver
from drivers.invoke import Drivers
from drivers.signals import EventOffer, Glance, Listener, Signal
from drivers.target import Target
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.power import PowerState

__all__ = ["EventSource", "MachineWatch", "Watch"]

_LOOK = "power.getPower"


class MachineWatch(Protocol):
    """What a driver's `watch` offers at least."""

    async def look(self, call: Call) -> Glance:
        """One reading, for the least that it costs, without patience: a busy BMC is a BUSY with `retryAfter`."""


class EventSource(MachineWatch, Protocol):
    """The `watch` of a driver whose BMCs tell of themselves."""

    async def event_offer(self, call: Call) -> EventOffer:
        """What this BMC has; empty where its event service is off or absent."""

    def listen(self, path: str, last_id: str | None, call: Call) -> AsyncGenerator[Signal, None]:
        """The stream, until the BMC ends it. The call's deadline is for its opening alone."""

    async def subscribe(self, listener: Listener, call: Call) -> str:
        """Sees to it that the BMC tells the listener; the path of the subscription. Raises with the BMC's words."""

    async def is_subscribed(self, path: str, listener: Listener, call: Call) -> bool:
        """Whether the subscription is there still."""

    async def unsubscribe(self, path: str, call: Call) -> None:
        """Takes it away; one that is gone is as good."""


_MakeWatch = Callable[[Any], MachineWatch]
_MakeSource = Callable[[Any], EventSource]


class Watch:
    """One machine for whoever keeps its state. Every method raises OperationError only."""

    def __init__(self, drivers: Drivers, target: Target) -> None:
        self._drivers = drivers
        self._target = target

    @property
    def is_changing(self) -> bool:
        """Whether a change of the machine is under way: then nobody should disturb it."""
        return self._drivers.is_changing(self._target)

    async def look(self, timeout: float) -> Glance:
        """The machine as it is now; takes one of its lane's reads."""
        async with self._drivers.turn(self._target, _LOOK, {}, wait=timeout) as turn:
            driver = await self._driver(timeout)
            made: _MakeWatch | None = getattr(driver, "watch", None)
            if made is None:
                reply = await turn.run({}, timeout=timeout)
                raw = reply.result.get("raw")
                return Glance(PowerState(str(reply.result["state"])), raw=raw if isinstance(raw, str) else None)
            async with self._connection(driver, "a look at the power", timeout) as connection:
                return await made(connection).look(self._call(timeout))

    async def event_offer(self, timeout: float) -> EventOffer:
        """How its BMC can be heard; an empty offer where its driver knows no events."""
        driver = await self._driver(timeout)
        if not hasattr(getattr(driver, "watch", None), "event_offer"):
            return EventOffer()
        async with self._source("asking how it tells of events", timeout) as (source, call):
            return await source.event_offer(call)

    async def listen(self, path: str, last_id: str | None, timeout: float) -> AsyncGenerator[Signal, None]:
        """Opens the stream within `timeout` seconds, and then gives what comes until the BMC ends it.

        The first signal is empty: it says that the stream is open. To be closed by `aclosing`.
        """
        driver = await self._driver(timeout)
        with self._typed("its event stream"), self._drivers.connections.use(driver, self._target) as connection:
            async with contextlib.aclosing(
                _source_of(driver)(connection).listen(path, last_id, self._call(timeout))
            ) as (signals):
                async for signal in signals:
                    yield signal

    async def subscribe(self, listener: Listener, timeout: float) -> str:
        """Sees to it that the BMC tells the listener; returns the path of the subscription."""
        async with self._source("subscribing to its events", timeout) as (source, call):
            return await source.subscribe(listener, call)

    async def is_subscribed(self, path: str, listener: Listener, timeout: float) -> bool:
        """Whether the subscription is there still."""
        async with self._source("reading its subscription", timeout) as (source, call):
            return await source.is_subscribed(path, listener, call)

    async def unsubscribe(self, path: str, timeout: float) -> None:
        """Takes the subscription away."""
        async with self._source("ending its subscription", timeout) as (source, call):
            await source.unsubscribe(path, call)

    async def _driver(self, timeout: float) -> Driver:
        with self._typed("finding its protocol"):
            async with asyncio.timeout(timeout):
                return await self._drivers.driver_for(self._target)

    @contextlib.asynccontextmanager
    async def _source(self, doing: str, timeout: float) -> AsyncIterator[tuple[EventSource, Call]]:
        driver = await self._driver(timeout)
        async with self._connection(driver, doing, timeout) as connection:
            yield _source_of(driver)(connection), self._call(timeout)

    @contextlib.asynccontextmanager
    async def _connection(self, driver: Driver, doing: str, timeout: float) -> AsyncIterator[object]:
        with self._typed(doing), self._drivers.connections.use(driver, self._target) as connection:
            async with asyncio.timeout(timeout):
                yield connection

    def _call(self, timeout: float) -> Call:
        return Call(_LOOK, asyncio.get_running_loop().time() + timeout)

    @contextlib.contextmanager
    def _typed(self, doing: str) -> Iterator[None]:
        """Every failure as an OperationError that holds no secret."""
        secret = self._target.secret.reveal()
        try:
            yield
        except OperationError as error:
            conceal(error, secret)
            raise
        except TimeoutError:
            raise OperationError(ErrorCode.TIMEOUT, f"{self._target.address}: {doing} took too long") from None
        except Exception as error:
            failure = OperationError(
                ErrorCode.BMC_ERROR,
                f"{self._target.address}: {doing} failed in the driver: {type(error).__name__}: {error}",
            )
            failure.__cause__ = error
            conceal(failure, secret)
            raise failure from failure.__cause__


def _source_of(driver: Driver) -> _MakeSource:
    """Raises OperationError UNSUPPORTED where the driver's BMCs tell nothing unasked."""
    made = getattr(driver, "watch", None)
    if not hasattr(made, "event_offer"):
        raise OperationError(ErrorCode.UNSUPPORTED, f"the {driver.name} driver hears no events")
    return cast(_MakeSource, made)
