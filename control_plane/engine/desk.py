"""Where transitions that are asked for at the same time meet, so that they share a transaction.

Each workflow is driven by a task of its own, and each asks for one transition at a time. What is asked for while
others are under way is made together next: one lock, one read and one write for all of them, and one commit.

One workflow must not hold up the others. A row that somebody else has locked is not waited for in company, and a
transition that has failed is not tried in company again: these are made alone, one after another.
"""

import asyncio
from collections import deque

from control_plane.engine.timing import Timing
from control_plane.engine.transitions import Look, Next, Settle, Then, transit
from control_plane.store import Store, StoreBusy, StoreUnavailable

__all__ = ["Desk"]

_MOST_TOGETHER = 256
"""Transitions in one transaction: an operator's verb waits for no more than these."""
_UNDER_WAY = 2
"""Transactions at a time: one is in the database while the steps of another are executed."""


class _Asked:
    __slots__ = ("future", "what", "workflow_id")

    def __init__(self, what: Look | Settle, future: asyncio.Future[Next]) -> None:
        self.what = what
        self.workflow_id = what.workflow_id
        self.future = future


class Desk:
    """Makes transitions for the tasks that drive workflows."""

    def __init__(self, store: Store, timing: Timing) -> None:
        self._store = store
        self._timing = timing
        self._waiting: deque[_Asked] = deque()
        self._alone: deque[_Asked] = deque()
        """To be made by themselves, with patience."""
        self._busy: set[str] = set()
        """Workflows that were taken out of `_waiting`: no second look at one may be made beside it."""
        self._troubled: set[str] = set()
        """Workflows whose last transition has failed by itself."""
        self._running: set[asyncio.Task[None]] = set()
        self._loner: asyncio.Task[None] | None = None
        self._woken = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def ask(self, what: Look | Settle) -> Next:
        """The answer, once the transition is durable; it is never LATER. Raises what the store or the transition
        raised; a transition that fails does not disturb the others. When this call is cancelled it may be stored or
        not."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        asked = _Asked(what, self._loop.create_future())
        self._waiting.append(asked)
        self._wake()
        return await asked.future

    def _wake(self) -> None:
        if self._waiting and not self._woken:
            # Those that are about to ask in this turn of the loop come along.
            self._woken = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._woken = False
        while self._waiting and len(self._running) < _UNDER_WAY:
            batch = self._gather()
            if not batch:
                return
            task = asyncio.get_running_loop().create_task(self._make(batch))
            self._running.add(task)
            task.add_done_callback(self._made)

    def _made(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._wake()

    def _gather(self) -> list[_Asked]:
        """What can be made together now; what is troubled is put aside."""
        batch: list[_Asked] = []
        later: list[_Asked] = []
        while self._waiting and len(batch) < _MOST_TOGETHER:
            asked = self._waiting.popleft()
            if asked.future.cancelled():
                continue
            if asked.workflow_id in self._busy:
                later.append(asked)
                continue
            self._busy.add(asked.workflow_id)
            if asked.workflow_id in self._troubled:
                self._put_aside(asked)
            else:
                batch.append(asked)
        self._waiting.extendleft(reversed(later))
        return batch

    async def _make(self, batch: list[_Asked]) -> None:
        try:
            answers = await self._store.write(transit, self._timing, [asked.what for asked in batch], False)
        except (StoreUnavailable, asyncio.CancelledError) as error:
            if isinstance(error, StoreBusy) and len(batch) > 1:
                await self._make_singly(batch)
                return
            # Of no one of them: asking for each alone would only ask a dead database many times.
            for asked in batch:
                self._fail(asked, error)
            if isinstance(error, asyncio.CancelledError):
                raise
        except Exception as error:
            if len(batch) > 1:
                await self._make_singly(batch)
            else:
                self._fail(batch[0], error)
        else:
            for asked, answer in zip(batch, answers, strict=True):
                if answer.then is Then.LATER:
                    self._put_aside(asked)
                else:
                    self._answer(asked, answer)

    async def _make_singly(self, batch: list[_Asked]) -> None:
        """One of them is at fault: so it is found, and the others go on."""
        for asked in batch:
            await self._make([asked])

    def _put_aside(self, asked: _Asked) -> None:
        self._alone.append(asked)
        if self._loner is None:
            self._loner = asyncio.get_running_loop().create_task(self._make_each_alone())

    async def _make_each_alone(self) -> None:
        """One at a time, however many there are: each may wait for seconds, and holds a thread of the store."""
        try:
            while self._alone:
                asked = self._alone.popleft()
                if asked.future.cancelled():
                    self._busy.discard(asked.workflow_id)
                    continue
                try:
                    (answer,) = await self._store.write(transit, self._timing, [asked.what])
                except asyncio.CancelledError as error:
                    self._fail(asked, error)
                    raise
                except Exception as error:
                    self._fail(asked, error)
                else:
                    self._answer(asked, answer)
                self._wake()
        finally:
            self._loner = None

    def _answer(self, asked: _Asked, answer: Next) -> None:
        self._busy.discard(asked.workflow_id)
        self._troubled.discard(asked.workflow_id)
        if not asked.future.done():
            asked.future.set_result(answer)

    def _fail(self, asked: _Asked, error: BaseException) -> None:
        self._busy.discard(asked.workflow_id)
        if isinstance(error, StoreBusy) or not isinstance(error, StoreUnavailable | asyncio.CancelledError):
            self._troubled.add(asked.workflow_id)
        if asked.future.done():
            return
        if isinstance(error, asyncio.CancelledError):
            asked.future.cancel()
        else:
            asked.future.set_exception(error)
