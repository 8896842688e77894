"""One machine of the watch list: what its looks and its events have shown so far, and what follows from that for the
next look. It looks at nothing itself."""

import asyncio
from collections import deque
from collections.abc import Set
from typing import Protocol

from agent.config import WatchSection
from drivers import Target
from drivers.signals import EventKind
from protocol.frames import WatchedNode
from protocol.shapes.power import PowerState

__all__ = ["EVENT_SPACING", "Feed", "WatchedMachine"]

EVENT_SPACING = 2.0
"""Between a look and the one that an event leads to."""
_LONG_AGO = -300.0
_SETTLED = frozenset({PowerState.ON, PowerState.OFF})
_UNSETTLED = (2.0, 3.0, 5.0, 5.0, 10.0, 10.0, 15.0, 20.0)
"""Between the looks at a machine whose power is between two states."""
_WORK_SHARE = 10
"""A BMC is at work for us at most one part in so many of its time."""
_AFTER = {EventKind.POWER: (3.0, 10.0), EventKind.HEALTH: (5.0,)}
"""An event may come before the state that it tells of can be read: further looks, in seconds."""
_MOST_FOLLOW_UPS = 2
_ANNOUNCED = 20.0
"""How long after an event a change counts as told by it."""


class Feed(Protocol):
    """The events of one machine."""

    live: bool
    """Whether events would be heard now."""

    def stop(self) -> None:
        """Hears no more; what stands at the BMC is taken away in the background."""

    def doubt(self) -> None:
        """The BMC did not answer a look: a stream to it may be dead."""


class WatchedMachine:
    """Times are those of the event loop's clock, and seconds."""

    __slots__ = (
        "due_at", "event_at", "failures", "feed", "follow_up", "how", "looked_at", "looking", "node", "seconds",
        "target", "timer", "trusted", "unsettled", "waiting",
    )  # fmt: skip

    def __init__(self, node: WatchedNode) -> None:
        self.node = node
        self.target: Target | None = None
        self.feed: Feed | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.due_at = 0.0
        self.looked_at = _LONG_AGO
        self.event_at = _LONG_AGO
        self.seconds = 0.0
        """How long its looks take."""
        self.failures = 0
        self.unsettled = 0
        self.looking = False
        self.waiting = False
        self.trusted = True
        """Whether its events are a reason to look seldom."""
        self.how = "poll"
        self.follow_up: deque[float] = deque()

    @property
    def has_events(self) -> bool:
        return self.feed is not None and self.feed.live

    def interval(self, settings: WatchSection) -> float:
        """Between regular looks."""
        by_events = self.trusted and self.has_events
        seconds = settings.slow_interval_seconds if by_events else settings.interval_seconds
        return max(seconds, self.seconds * _WORK_SHARE)

    def announce(self, kinds: Set[EventKind], now: float) -> bool:
        """Takes an event's kinds; whether a look may show what it tells of."""
        if not kinds & _AFTER.keys():
            return False
        self.event_at = now
        self.follow_up = deque(_AFTER[EventKind.POWER if EventKind.POWER in kinds else EventKind.HEALTH])
        return True

    def look_once_more(self, delay: float) -> None:
        """While a look is under way: another one within `delay` of its end."""
        soon = max(delay, EVENT_SPACING)
        if len(self.follow_up) > _MOST_FOLLOW_UPS:
            # However many events come meanwhile, one look after this one is enough for all of them.
            self.follow_up[0] = min(self.follow_up[0], soon)
        else:
            self.follow_up.appendleft(soon)

    def follow(self, power: PowerState) -> float | None:
        """After a look that has shown this power: when the next one is due, where that is before its regular time."""
        if self.follow_up:
            return self.follow_up.popleft()
        self.how = "poll"
        if power in _SETTLED:
            self.unsettled = 0
        elif self.unsettled < len(_UNSETTLED):
            self.unsettled += 1
            return max(_UNSETTLED[self.unsettled - 1], self.seconds)
        return None

    def doubt_events(self, now: float) -> bool:
        """After a look that has shown a change: trusts events no more where they would have been heard and told
        nothing of it. Whether that is new."""
        if self.has_events and self.trusted and now - self.event_at > _ANNOUNCED:
            self.trusted = False
            return True
        return False
