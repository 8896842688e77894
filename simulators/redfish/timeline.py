"""What a simulated machine will do later, by a monotonic clock that tests may replace."""

import heapq
import time
from collections.abc import Callable
from itertools import count

Clock = Callable[[], float]


class Scheduled:
    """One thing to come; `cancel` makes it not happen."""

    __slots__ = ("cancelled", "due", "happen")

    def __init__(self, due: float, happen: Callable[[], None]) -> None:
        self.due = due
        self.happen = happen
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Timeline:
    """Things to come, in order of time. Nothing runs by itself: `advance` does all that is due.

    The service advances before each request, so a reader never sees a state whose time has passed;
    `on_schedule` lets a server arm a timer too, so that events leave when they happen.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self.on_schedule: Callable[[float], None] | None = None
        self._queue: list[tuple[float, int, Scheduled]] = []
        self._order = count()

    def after(self, seconds: float, happen: Callable[[], None]) -> Scheduled:
        """Does `happen` once `seconds` have passed; at once where `seconds` is zero or less."""
        entry = Scheduled(self.clock() + seconds, happen)
        if seconds <= 0:
            happen()
            return entry
        heapq.heappush(self._queue, (entry.due, next(self._order), entry))
        if self.on_schedule is not None:
            self.on_schedule(entry.due)
        return entry

    def advance(self) -> None:
        """Does everything that is due by now, oldest first."""
        if not self._queue:
            return
        now = self.clock()
        while self._queue and self._queue[0][0] <= now:
            entry = heapq.heappop(self._queue)[2]
            if not entry.cancelled:
                entry.happen()

    @property
    def next_due(self) -> float | None:
        """When the next thing happens, by the timeline's clock; None where nothing is to come."""
        while self._queue and self._queue[0][2].cancelled:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else None
