"""When nobody needs a BMC's session any more: it is ended then, since BMCs have few, and end some by themselves."""

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["Idleness"]

_SECONDS = 60.0
_SECONDS_CLOSED = 2.0
"""The same for a connection that was closed, and was used once more all the same."""


class Idleness:
    """Watches one connection. Calls `end` once it was not used for a while and no stream is open; never twice for one
    use. `end` looks with `is_over` whether it still holds once it has the connection to itself."""

    def __init__(self, end: Callable[[], Awaitable[None]]) -> None:
        self._end = end
        self._seconds = _SECONDS
        self._used = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Future[None] | None = None
        self.streams = 0
        """How many answers go on just now: the session lives as long as they do."""

    @property
    def is_over(self) -> bool:
        return not self.streams and asyncio.get_running_loop().time() - self._used >= self._seconds - 0.01

    @property
    def knows_timeout(self) -> bool:
        """Whether the time is another than the usual one already."""
        return self._seconds < _SECONDS

    def end_before(self, timeout: float) -> None:
        """The BMC ends a session by itself after `timeout` seconds: this end comes first."""
        self._seconds = min(_SECONDS, timeout * 0.8)

    def note_use(self, *, logged_in: bool) -> None:
        loop = asyncio.get_running_loop()
        self._used = loop.time()
        if self._timer is None and logged_in:
            self._timer = loop.call_later(self._seconds, self._look)

    def close(self) -> None:
        """The connection is closed: nothing is timed any more, and a later use is a short one."""
        self._seconds = _SECONDS_CLOSED
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        left = self._seconds if self.streams else self._used + self._seconds - loop.time()
        if left > 0.01:
            self._timer = loop.call_later(left, self._look)
        else:
            self._timer = None
            self._ending = asyncio.ensure_future(self._end())
