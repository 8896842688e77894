"""Where transitions that are asked for at the same time meet, so that they share a transaction.

Each workflow is driven by a task of its own, and each asks for one transition at a time. What is asked for while
others are under way is made together next: one lock, one read and one write for all of them, and one commit.
"""

import asyncio
from collections import deque

from control_plane.engine.timing import Timing
from control_plane.engine.transitions import Look, Next, Settle, transit
from control_plane.store import Store, StoreUnavailable

__all__ = ["Desk"]

_MOST_TOGETHER = 256
"""Transitions in one transaction: an operator's verb waits for no more than these."""
_UNDER_WAY = 2
"""Transactions at a time: one is in the database while the steps of another are executed."""


class _Asked:
    __slots__ = ("future", "what")

    def __init__(self, what: Look | Settle, future: asyncio.Future[Next]) -> None:
        self.what = what
        self.future = future


class Desk:
    """Makes transitions for the tasks that drive workflows."""

    def __init__(self, store: Store, timing: Timing) -> None:
        self._store = store
        self._timing = timing
        self._waiting: deque[_Asked] = deque()
        self._busy: set[str] = set()
        """Workflows in a transaction under way: no second look at one may be in another beside it."""
        self._running: set[asyncio.Task[None]] = set()
        self._woken = False

    async def ask(self, what: Look | Settle) -> Next:
        """The answer, once the transition is durable. Raises what the store or the transition raised; a transition
        that fails does not disturb the others. When this call is cancelled it may be stored or not."""
        loop = asyncio.get_running_loop()
        asked = _Asked(what, loop.create_future())
        self._waiting.append(asked)
        if not self._woken:
            # Those that are about to ask in this turn of the loop come along.
            self._woken = True
            loop.call_soon(self._begin)
        return await asked.future

    def _begin(self) -> None:
        self._woken = False
        while self._waiting and len(self._running) < _UNDER_WAY:
            batch = self._gather()
            if not batch:
                return
            task = asyncio.get_running_loop().create_task(self._make(batch))
            self._running.add(task)
            task.add_done_callback(self._made)

    def _gather(self) -> list[_Asked]:
        batch: list[_Asked] = []
        later: list[_Asked] = []
        while self._waiting and len(batch) < _MOST_TOGETHER:
            asked = self._waiting.popleft()
            if asked.future.cancelled():
                continue
            if asked.what.workflow_id in self._busy:
                later.append(asked)
            else:
                self._busy.add(asked.what.workflow_id)
                batch.append(asked)
        self._waiting.extendleft(reversed(later))
        return batch

    async def _make(self, batch: list[_Asked]) -> None:
        try:
            answers = await self._store.write(transit, self._timing, [asked.what for asked in batch])
        except (StoreUnavailable, asyncio.CancelledError) as error:
            # Of no one of them: asking for each alone would only ask a dead database many times.
            _fail(batch, error)
            if isinstance(error, asyncio.CancelledError):
                raise
        except Exception as error:
            if len(batch) == 1:
                _fail(batch, error)
            else:
                for asked in batch:
                    await self._make([asked])
        else:
            for asked, answer in zip(batch, answers, strict=True):
                if not asked.future.done():
                    asked.future.set_result(answer)
        finally:
            self._busy.difference_update(asked.what.workflow_id for asked in batch)

    def _made(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if self._waiting and not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._begin)


def _fail(batch: list[_Asked], error: BaseException) -> None:
    for asked in batch:
        if asked.future.done():
            continue
        if isinstance(error, asyncio.CancelledError):
            asked.future.cancel()
        else:
            asked.future.set_exception(error)
