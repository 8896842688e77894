"""The events of the watched machines: a stream to each BMC that has one, else a subscription that pushes to us.

A way that fails again and again is left for an hour, and the next one is tried; polling goes on beneath all of them.
"""

import asyncio
import contextlib
import random
from typing import Protocol

import structlog

from agent.backoff import Backoff
from agent.config import WatchSection
from drivers.signals import BmcEvent, Listener
from drivers.watch import Watch
from protocol.errors import ErrorCode, OperationError

__all__ = ["Ear", "EventFeed", "EventFeeds", "Listeners"]

_log = structlog.get_logger("agent.event_feeds")
_SECONDS = 30.0
_ANEW_SECONDS = 3600.0
"""Until a BMC without a way, or one whose ways failed, is asked again."""
_SOON_SECONDS = 60.0
"""Until one is asked again that did not answer."""
_GIVE_UP_AFTER = 5
_HEALTHY_SECONDS = 60.0
_CHANGING_SECONDS = 2.0
_FAREWELL_SECONDS = 5.0
_FAREWELLS_AT_ONCE = 32
_AWAY = frozenset({ErrorCode.UNREACHABLE, ErrorCode.TIMEOUT})
"""Failures that say nothing of the way itself."""
_FOR_NOW = _AWAY | {ErrorCode.BUSY}


class Ear(Protocol):
    """Who is told: the watcher."""

    def heard(self, node_id: str, events: tuple[BmcEvent, ...], how: str, *, gap: bool = False) -> None: ...
    def reopened(self, node_id: str) -> None: ...
    def lost(self, node_id: str) -> None: ...


class Listeners(Protocol):
    """Where BMCs push to: an address for each machine."""

    def place(self, node_id: str) -> Listener: ...
    def drop(self, node_id: str) -> None: ...


class EventFeeds:
    """Makes the feeds, and ends what they leave at the BMCs. `listeners`: None where nobody listens for pushes."""

    def __init__(
        self, ear: Ear, settings: WatchSection, listeners: Listeners | None, *, chance: random.Random | None = None
    ) -> None:
        self.ear = ear
        self.settings = settings
        self.listeners = listeners
        self.chance = chance or random.Random()
        self._farewells: set[asyncio.Task[None]] = set()
        self._gate = asyncio.Semaphore(_FAREWELLS_AT_ONCE)

    def feed(self, node_id: str, watch: Watch) -> "EventFeed | None":
        """A feed of this machine, begun at once; None where no events are wanted."""
        return EventFeed(self, node_id, watch) if self.settings.events else None

    def unsubscribe(self, watch: Watch, path: str) -> None:
        """Takes a subscription away in the background. One that is left behind is found by the next start."""
        self.leave(asyncio.get_running_loop().create_task(self._unsubscribe(watch, path)))

    def leave(self, task: asyncio.Task[None]) -> None:
        """To its own end, which `aclose` waits for."""
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)

    async def aclose(self) -> None:
        """Waits a few seconds for the streams to be closed and the subscriptions to be gone."""
        if self._farewells:
            _, late = await asyncio.wait(self._farewells, timeout=_FAREWELL_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _unsubscribe(self, watch: Watch, path: str) -> None:
        async with self._gate:
            try:
                await watch.unsubscribe(path, _FAREWELL_SECONDS)
            except OperationError as error:
                _log.warning("subscription_left_behind", path=path, reason=str(error))


class EventFeed:
    """The events of one machine."""

    def __init__(self, feeds: EventFeeds, node_id: str, watch: Watch) -> None:
        self.live = False
        self._feeds = feeds
        self._node_id = node_id
        self._watch = watch
        self._last_id: str | None = None
        self._retry = 0.0
        self._limit: asyncio.Timeout | None = None
        self._subscription: str | None = None
        self._told = ""
        self._backoff = Backoff()
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    def stop(self) -> None:
        self._task.cancel()
        self._feeds.leave(self._task)
        self.live = False
        path, self._subscription = self._subscription, None
        if path is not None:
            self._feeds.unsubscribe(self._watch, path)
        if self._feeds.listeners is not None:
            self._feeds.listeners.drop(self._node_id)

    def doubt(self) -> None:
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.live = False
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("feed_failed_unexpectedly", node=self._node_id, exc_info=error)

    async def _run(self) -> None:
        while True:
            pause = _ANEW_SECONDS
            try:
                await self._while_changing()
                offer = await self._watch.event_offer(_SECONDS)
                for way in self._feeds.settings.events:
                    if way == "stream" and offer.stream is not None:
                        await self._stream(offer.stream)
                    elif way == "push" and offer.subscriptions is not None and self._feeds.listeners is not None:
                        await self._push(self._feeds.listeners)
            except OperationError as error:
                self._tell("events_not_to_be_had", error)
                pause = _SOON_SECONDS if error.code in _FOR_NOW else _ANEW_SECONDS
            await asyncio.sleep(pause * self._feeds.chance.uniform(0.8, 1.2))

    async def _while_changing(self) -> None:
        while self._watch.is_changing:  # noqa: ASYNC110 - a lane tells nobody when it is free
            await asyncio.sleep(_CHANGING_SECONDS)

    # By a stream

    async def _stream(self, path: str) -> None:
        """Keeps a stream; returns where it is none, or is cut short again and again. A BMC that is away is waited
        for."""
        clock = asyncio.get_running_loop().time
        tries = cut_short = 0
        while cut_short < _GIVE_UP_AFTER:
            await self._while_changing()
            began, away = clock(), False
            try:
                await self._read(path)
            except TimeoutError:
                # Doubted: the BMC did not answer a look.
                away = True
            except OperationError as error:
                self._tell("stream_failed", error)
                if error.code not in _FOR_NOW:
                    return
                away = error.code in _AWAY
            finally:
                self._no_longer_live()
            healthy = clock() - began > _HEALTHY_SECONDS
            tries = 1 if healthy else tries + 1
            cut_short = 0 if healthy else cut_short + (not away)
            await asyncio.sleep(max(self._retry, self._backoff.delay(tries, self._feeds.chance)))

    async def _read(self, path: str) -> None:
        async with contextlib.aclosing(self._watch.listen(path, self._last_id, _SECONDS)) as signals:
            await anext(signals)
            self._now_live()
            async with asyncio.timeout(None) as self._limit:
                async for signal in signals:
                    self._last_id, self._retry = signal.last_id, signal.retry or 0.0
                    self._feeds.ear.heard(self._node_id, signal.events, "stream", gap=signal.gap)

    # By a push

    async def _push(self, listeners: Listeners) -> None:
        """Keeps a subscription; returns where the BMC refuses one."""
        listener = listeners.place(self._node_id)
        clock = asyncio.get_running_loop().time
        while True:
            await self._while_changing()
            try:
                if self._subscription is None or not await self._watch.is_subscribed(
                    self._subscription, listener, _SECONDS
                ):
                    self._subscription = await self._watch.subscribe(listener, _SECONDS)
                if not self.live:
                    self._now_live()
            except OperationError as error:
                self._no_longer_live()
                self._tell("subscription_failed", error)
                if error.code not in _FOR_NOW:
                    return
            until = clock() + self._feeds.settings.slow_interval_seconds * self._feeds.chance.uniform(0.9, 1.1)
            await asyncio.sleep(max(1.0, until - clock()))

    def _now_live(self) -> None:
        self.live, self._told = True, ""
        self._feeds.ear.reopened(self._node_id)

    def _no_longer_live(self) -> None:
        self._limit = None
        if self.live:
            self.live = False
            self._feeds.ear.lost(self._node_id)

    def _tell(self, what: str, error: OperationError) -> None:
        """Each reason once, until it goes well again: the BMC's own words are in it."""
        words = str(error)
        if words != self._told:
            self._told = words
            _log.warning(what, node=self._node_id, reason=words, hint="it is polled meanwhile")
