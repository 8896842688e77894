"""How far the events can be read: the number up to which everything is there that ever will be.

An event gets its number `seq` when it is written and is seen when its transaction commits, and on PostgreSQL those
are two orders. A reader that went to the newest number it sees would pass over a lower one that commits a moment
later. So nobody reads beyond the horizon, which follows from two facts:

- A transaction of the store has its id (xid) from its BEGIN, before any number it gives (`store/postgres.py`).
- A number S that a snapshot sees was given before that snapshot, and every lower number before S.

So an id X that is taken after the snapshot is higher than the id of every transaction that gave a number up to S, and
once all ids below X are over, nothing up to S can come any more: S is the new horizon. `pg_snapshot_xmin` tells how
far the ids are over; it counts whole transactions, so a savepoint's own id, which is higher than its transaction's,
changes nothing. The snapshot's `xmax` cannot stand for X: it is the id behind the last that has ended, and ids above
it may be in use already (PostgreSQL's manual, "Transaction ID and Snapshot Information Functions").

On SQLite writers follow one another: numbers are seen in their order, there is no horizon and nothing is asked.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from control_plane.store import Store, Transaction

__all__ = ["LONGEST_WAIT_SECONDS", "NO_HORIZON", "Horizon"]

LONGEST_WAIT_SECONDS: Final = 30.0
"""How long an open transaction is waited for. Ids are the whole server's, and a foreign one may be open for days.

The store's own are never that long between two statements: `store.postgres_server.IDLE_TIMEOUT_MS` ends them before.
"""
NO_HORIZON: Final = 1 << 62
_FIRST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.05
_PAUSE_GROWTH = 1.5
_log = logging.getLogger("control_plane.horizon")

# One statement has one snapshot, taken before the statement runs: the id comes after it. A look that sees nothing
# newer than `known` takes no id.
_LOOK = """
SELECT COALESCE(MAX(seq), 0),
       pg_snapshot_xmin(pg_current_snapshot()),
       CASE WHEN MAX(seq) > :known THEN pg_current_xact_id() END
FROM events
"""


class _Look(NamedTuple):
    seq: int
    """The newest event that is seen."""
    oldest: int
    """The lowest id that was still in use: all below are over."""
    xid: int | None
    """An id higher than that of every transaction that gave a number up to `seq`."""


@dataclass
class _Mark:
    """A number that becomes the horizon once the ids below `xid` are over."""

    seq: int
    xid: int
    since: float
    waiting: list[asyncio.Future[None]]


class Horizon:
    """One for each process; whoever reads events shares it. Used in one event loop.

    It works only when asked, and one look at the database serves all who asked before it began. After a crash it
    begins anew: it keeps nothing that the database does not tell.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seq = NO_HORIZON if store.dialect == "sqlite" else 0
        """Whoever reads up to this number passes over nothing. It only grows."""
        self._store = store
        self._clock = clock
        self._asked: list[asyncio.Future[None]] = []
        self._marks: list[_Mark] = []
        self._task: asyncio.Task[None] | None = None
        self._overtook = False

    async def refresh(self, within: float) -> bool:
        """Moves `seq` to the newest event that can be seen now, or beyond it. Raises StoreError.

        False when that took longer than `within` seconds, because an older transaction is still open; `seq` may have
        moved all the same. No transaction is waited for longer than LONGEST_WAIT_SECONDS.
        """
        if self._store.dialect == "sqlite":
            return True
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve(), name="event horizon")
        try:
            async with asyncio.timeout(within):
                await asked
        except TimeoutError:
            return False
        return True

    async def _serve(self) -> None:
        """Until nobody asks and nothing is waited for; whatever goes wrong is told to all who wait."""
        try:
            await self._follow()
        except Exception as error:
            waiting = [*self._asked, *(asked for mark in self._marks for asked in mark.waiting)]
            self._asked, self._marks = [], []
            for asked in waiting:
                if not asked.done():
                    asked.set_exception(error)

    async def _follow(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while self._asked or self._marks:
            askers = len(self._asked)
            known = NO_HORIZON if not askers else self._marks[-1].seq if self._marks else self.seq
            look = await self._store.read(_look, known)
            # Whoever asked while the look was under way is served by the next one.
            asked, self._asked = self._asked[:askers], self._asked[askers:]
            now = self._clock()
            self._note(look, asked, now)
            if self._settle(look.oldest, now):
                pause = _FIRST_PAUSE_SECONDS
            if self._marks:
                await asyncio.sleep(pause)
                pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE_SECONDS)

    def _note(self, look: _Look, asked: list[asyncio.Future[None]], now: float) -> None:
        if look.xid is not None:
            self._marks.append(_Mark(look.seq, look.xid, now, asked))
        elif self._marks:
            # Nothing newer than the last mark: its id is high enough, and lower than a new one.
            self._marks[-1].waiting += asked
        else:
            _answer(asked)

    def _settle(self, oldest: int, now: float) -> bool:
        """Moves the horizon over the marks that are due. Whether there was one."""
        due = 0
        for mark in self._marks:
            over = oldest >= mark.xid
            if not over and now - mark.since < LONGEST_WAIT_SECONDS:
                break
            if not over and not self._overtook:
                _log.warning(
                    "a transaction on the database's server has been open for more than %g s: events are shown that "
                    "long after they happened, until it ends (pg_stat_activity shows it, with its backend_xid)",
                    LONGEST_WAIT_SECONDS,
                )
            self._overtook = not over
            self.seq = mark.seq
            _answer(mark.waiting)
            due += 1
        del self._marks[:due]
        return due > 0


def _look(tx: Transaction, known: int) -> _Look:
    row = tx.one(_LOOK, {"known": known})
    assert row is not None
    seq, oldest, xid = row
    return _Look(int(seq), int(oldest), None if xid is None else int(xid))


def _answer(waiting: list[asyncio.Future[None]]) -> None:
    for asked in waiting:
        if not asked.done():
            asked.set_result(None)
