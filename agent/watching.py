"""Keeps an eye on every machine of the watch list: its power and health, by looks that its BMC can bear.

A machine is looked at every `interval`, at moments of its own. Where its BMC tells of events, an event brings the
next look forward, and the regular ones become a slow check beneath them; a change that no event told of ends that
trust. A slow BMC is looked at less often, a busy one not before it wants to be, one that does not answer ever more
seldom. While a change of the machine is under way nobody looks; when it has ended, somebody does at once.

What it costs is one timer per machine, and one task per look.
"""

import asyncio
import random
from collections import deque
from typing import Protocol

import structlog

from agent.config import WatchSection
from agent.observations import Observations, Seen, Trouble
from agent.watch_list import Parts, difference
from agent.watched_machine import EVENT_SPACING, Feed, WatchedMachine
from drivers import Drivers, Target
from drivers.signals import BmcEvent, EventKind
from drivers.watch import Watch
from protocol.errors import ErrorCode, OperationError
from protocol.frames import WatchedNode, WatchList

__all__ = ["Feeds", "Machines", "Watcher"]

_log = structlog.get_logger("agent.watching")
_LOOK_SECONDS = 30.0
_FIRST_SPACING = 0.02
"""Between the first looks of a list: a new list of a thousand machines is no herd."""
_WHILE_CHANGING = (1.0, 2.0)
"""Seconds until a machine that is being changed is thought of again."""
_AGAIN = 5.0
"""Until a BMC that did not answer is asked once more, before it is called unreachable."""
_SELDOM = 300.0
_AT_ONCE = frozenset(
    {
        ErrorCode.AUTH_FAILED,
        ErrorCode.AUTH_BLOCKED,
        ErrorCode.TLS_UNTRUSTED,
        ErrorCode.INVALID_ARGUMENT,
        ErrorCode.LICENSE_REQUIRED,
        ErrorCode.UNSUPPORTED,
    }
)
"""What asking again does not change: told at the first time. Anything else is told at the second in a row."""


class Machines(Protocol):
    """The BMCs, as far as this needs to know them."""

    drivers: Drivers

    def watched(self, node: WatchedNode, before: Target | None) -> Target:
        """The machine's BMC; `before` itself where nothing has changed. Raises OperationError."""

    async def saved(self) -> None:
        """Returns when what was learnt of the BMCs is on the disk."""


class Feeds(Protocol):
    """Makes feeds. `heard` of the watcher is told of each event."""

    def feed(self, node_id: str, watch: Watch) -> Feed | None:
        """None where configuration wants no events."""

    async def aclose(self) -> None:
        """Ends what is left, in some seconds at the most."""


class Watcher:
    """Watches what `take` is given. `observations` hears of each look."""

    def __init__(
        self,
        machines: Machines,
        observations: Observations,
        settings: WatchSection,
        *,
        chance: random.Random | None = None,
    ) -> None:
        self._machines = machines
        self._observations = observations
        self._settings = settings
        self._chance = chance or random.Random()
        self._parts = Parts()
        self._nodes: dict[str, WatchedNode] = {}
        self._watched: dict[str, WatchedMachine] = {}
        self._looks: set[asyncio.Task[None]] = set()
        self._waiting: deque[WatchedMachine] = deque()
        self._feeds: Feeds | None = None
        self._closed = False
        self._clock = asyncio.get_running_loop().time

    def hear_by(self, feeds: Feeds) -> None:
        """Where events come from; none without this."""
        self._feeds = feeds

    def take(self, frame: WatchList) -> None:
        """A part of a watch list: once it is whole it holds in place of the one before."""
        if self._closed or not self._settings.enabled:
            return
        nodes = self._parts.take(frame)
        if nodes is None:
            return
        changed = difference(self._nodes, nodes)
        self._nodes = nodes
        for node_id in changed.gone:
            self._end(self._watched.pop(node_id))
            self._observations.forget(node_id)
        self._observations.keep(nodes)
        spread = min(self._settings.interval_seconds, len(changed.come) * _FIRST_SPACING)
        for node in changed.come:
            watched = self._watched[node.node_id] = WatchedMachine(node)
            self._schedule(watched, self._chance.uniform(0, spread))
        if changed.come or changed.gone:
            _log.info("watch_list", nodes=len(nodes), come=len(changed.come), gone=len(changed.gone))

    def changed(self, node_id: str) -> None:
        """A change of this machine has ended: it is looked at soon."""
        watched = self._watched.get(node_id)
        if watched is not None:
            self._bring_forward(watched, 0.2, "poll")

    def heard(self, node_id: str, events: tuple[BmcEvent, ...], how: str, *, gap: bool = False) -> None:
        """Its BMC has told something. `gap`: and something else before it, which was not heard."""
        watched = self._watched.get(node_id)
        if watched is None:
            return
        kinds = {event.kind for event in events}
        now = self._clock()
        if watched.announce(kinds, now):
            self._bring_forward(watched, max(0.1, watched.looked_at + EVENT_SPACING - now), how)
        elif gap or EventKind.LOG in kinds:
            # Some BMCs log each login and each read: such an event must not lead to the next one.
            self._bring_forward(watched, max(0.1, watched.looked_at + self._settings.interval_seconds - now), how)

    def reopened(self, node_id: str) -> None:
        """Its events are heard from now on: what happened before that is looked for."""
        watched = self._watched.get(node_id)
        if watched is not None:
            watched.trusted = True
            self._bring_forward(watched, 0.1 if watched.failures else self._chance.uniform(0.1, 1.0), "poll")

    def lost(self, node_id: str) -> None:
        """Its events are not heard any more: it is looked at as often as if it had none."""
        watched = self._watched.get(node_id)
        if watched is not None:
            self._bring_forward(watched, self._chance.uniform(0, self._settings.interval_seconds), "poll")

    def counts(self) -> dict[str, int]:
        """How many machines are watched, how many tell of events, and how many cannot be asked."""
        live = sum(1 for watched in self._watched.values() if watched.has_events)
        troubled = sum(
            1
            for node_id in self._watched
            if (seen := self._observations.last(node_id)) is not None and seen.trouble is not None
        )
        return {"nodes": len(self._watched), "withEvents": live, "troubled": troubled}

    async def aclose(self) -> None:
        """Looks at nothing more; returns when every look has ended."""
        self._closed = True
        for watched in self._watched.values():
            self._end(watched)
        self._watched.clear()
        for task in self._looks:
            task.cancel()
        await asyncio.gather(*self._looks, return_exceptions=True)
        if self._feeds is not None:
            await self._feeds.aclose()

    # When

    def _schedule(self, watched: WatchedMachine, delay: float) -> None:
        if watched.timer is not None:
            watched.timer.cancel()
        loop = asyncio.get_running_loop()
        watched.due_at = loop.time() + delay
        watched.timer = loop.call_at(watched.due_at, self._due, watched)

    def _bring_forward(self, watched: WatchedMachine, delay: float, how: str) -> None:
        """A look within `delay` seconds; while one is under way, after it."""
        watched.how = how
        if watched.looking:
            watched.look_once_more(delay)
        elif not watched.waiting and watched.due_at > self._clock() + delay:
            self._schedule(watched, delay)

    def _pause(self, watched: WatchedMachine) -> float:
        """Seconds until the next regular look."""
        return watched.interval(self._settings) * self._chance.uniform(0.9, 1.1)

    def _due(self, watched: WatchedMachine) -> None:
        watched.timer = None
        if self._closed:
            return
        target = self._find_target(watched)
        if target is None:
            return
        if self._machines.drivers.is_changing(target):
            self._schedule(watched, self._chance.uniform(*_WHILE_CHANGING))
        elif len(self._looks) >= self._settings.at_once:
            watched.waiting = True
            self._waiting.append(watched)
        else:
            self._begin(watched, target)

    def _find_target(self, watched: WatchedMachine) -> Target | None:
        """None where there is no way to the machine, which is noted and looked into again."""
        try:
            target = self._machines.watched(watched.node, watched.target)
        except OperationError as error:
            if error.code is ErrorCode.BUSY:
                # Its password is being changed.
                self._schedule(watched, self._chance.uniform(*_WHILE_CHANGING))
                return None
            watched.failures += 1
            self._end_feed(watched)
            watched.target = None
            self._note_trouble(watched, error)
            self._schedule(watched, self._pause(watched))
            return None
        except Exception:
            # A fault of ours with one machine: it must not end the watch over it.
            _log.exception("way_to_machine_failed", node=watched.node.node_id)
            self._schedule(watched, self._pause(watched))
            return None
        if target is not watched.target:
            # Another password: what was begun with the old one ends.
            self._end_feed(watched)
            watched.target = target
        return target

    # Looks

    def _begin(self, watched: WatchedMachine, target: Target) -> None:
        watched.looking, watched.waiting = True, False
        task = asyncio.get_running_loop().create_task(self._look(watched, target))
        self._looks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._looks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("look_failed_unexpectedly", exc_info=error)
        while self._waiting and len(self._looks) < self._settings.at_once and not self._closed:
            watched = self._waiting.popleft()
            if self._watched.get(watched.node.node_id) is watched:
                watched.waiting = False
                self._due(watched)

    async def _look(self, watched: WatchedMachine, target: Target) -> None:
        watch = Watch(self._machines.drivers, target)
        began = self._clock()
        delay = self._settings.interval_seconds
        try:
            glance = await watch.look(_LOOK_SECONDS)
            now = watched.looked_at = self._clock()
            watched.seconds = max(now - began, watched.seconds * 0.7)
            delay = self._saw(watched, Seen.of(glance, watched.how, now), watch)
        except OperationError as error:
            watched.looked_at = self._clock()
            delay = await self._failed(watched, error)
        finally:
            watched.looking = False
            if not self._closed and self._watched.get(watched.node.node_id) is watched:
                self._schedule(watched, delay)

    def _saw(self, watched: WatchedMachine, seen: Seen, watch: Watch) -> float:
        """Takes what was seen; seconds until the next look."""
        node_id = watched.node.node_id
        if self._watched.get(node_id) is not watched:
            return 0.0
        watched.failures = 0
        before = self._observations.last(node_id)
        changed = self._observations.note(node_id, seen) and before is not None and before.trouble is None
        if changed and watched.doubt_events(seen.at):
            _log.info("events_not_trusted", node=node_id, hint="a change came without one")
        if watched.feed is None and self._feeds is not None:
            watched.feed = self._feeds.feed(node_id, watch)
        soon = watched.follow(seen.power)
        return self._pause(watched) if soon is None else soon

    async def _failed(self, watched: WatchedMachine, error: OperationError) -> float:
        """Takes a look that failed; seconds until the next one."""
        watched.failures += 1
        if error.code is ErrorCode.AUTH_FAILED:
            # Durable before anybody hears of it: a restart must not lead to one more login.
            await self._machines.saved()
        if watched.feed is not None and error.code in (ErrorCode.UNREACHABLE, ErrorCode.TIMEOUT):
            watched.feed.doubt()
        if self._watched.get(watched.node.node_id) is not watched:
            return 0.0
        watched.follow_up.clear()
        watched.how = "poll"
        pause = self._pause(watched)
        wanted = error.details.get("retryAfter")
        if error.code is ErrorCode.BUSY:
            # It answers, if only that it has no time: three times in a row before that counts as trouble.
            if watched.failures > 2:
                self._note_trouble(watched, error)
            return max(pause, float(wanted)) if isinstance(wanted, int | float) else pause
        if error.code in _AT_ONCE:
            self._note_trouble(watched, error)
            return pause
        if watched.failures == 1:
            return min(pause, _AGAIN) * self._chance.uniform(0.9, 1.1)
        self._note_trouble(watched, error)
        return min(pause * float(2 ** min(watched.failures - 2, 10)), max(_SELDOM, pause))

    def _note_trouble(self, watched: WatchedMachine, error: OperationError) -> None:
        trouble = Trouble(error.code, str(error).partition(": ")[2])
        seen = Seen.nothing(trouble, watched.how, self._clock())
        if self._observations.note(watched.node.node_id, seen):
            _log.warning("machine_not_seen", node=watched.node.node_id, code=error.code.value, reason=trouble.words)

    # Ends

    def _end(self, watched: WatchedMachine) -> None:
        if watched.timer is not None:
            watched.timer.cancel()
            watched.timer = None
        self._end_feed(watched)

    def _end_feed(self, watched: WatchedMachine) -> None:
        feed, watched.feed = watched.feed, None
        if feed is not None:
            feed.stop()
