"""Drives the workflows of this worker's shards: one transition after another, and the steps' code in between.

What it keeps in memory is only which workflows it looks at now and whose code it executes. Everything else is in the
rows: hints (a command that ended, an agent that connected, an operator's verb) make it look sooner, and a sweep over
what is due by `wake_at` finds everything without them. A step whose code runs is not due before its deadline: such
steps of a shard that was just taken are looked for once, since nobody executes them any more.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable

from control_plane.commands import WORKFLOWS_CHANNEL
from control_plane.engine.code import CodeRunner
from control_plane.engine.desk import Desk
from control_plane.engine.registry import StepRegistry
from control_plane.engine.rows import Grip
from control_plane.engine.shards import ShardHolder
from control_plane.engine.timing import Timing
from control_plane.engine.transitions import Look, Next, Settle, Then
from control_plane.store import Store, StoreError, StoreUnavailable, Transaction

__all__ = ["Reconciler"]

_log = logging.getLogger("control_plane.engine.reconciler")
_SWEEP_SECONDS = 1.0
_SWEEP_LIMIT = 2_000
_STORE_AGAIN_SECONDS = 0.5
"""When an outcome is offered again to a database that could not take it."""
_TROUBLE_SECONDS = 10.0
"""When a workflow is looked at again whose transition has failed by a fault of its own."""


class _Driven:
    """A workflow that is looked at now."""

    __slots__ = ("again", "ended", "executing", "hinted", "task")

    def __init__(self) -> None:
        self.again = False
        """A hint came meanwhile."""
        self.hinted = False
        self.executing: tuple[int, int] | None = None
        self.task: asyncio.Task[None] | None = None
        """In which all of it is done."""
        self.ended = False
        """The code was told to end: its step is over already, or is another worker's."""

    def end_code(self) -> None:
        if self.executing is not None and self.task is not None and not self.ended:
            self.ended = True
            self.task.cancel()


class Reconciler:
    """One worker's part of the engine. `run` until cancelled."""

    def __init__(
        self,
        store: Store,
        registry: StepRegistry,
        *,
        worker: str,
        timing: Timing | None = None,
        lease_ms: int | None = None,
    ) -> None:
        self._store = store
        self._timing = timing or Timing()
        self.shards = ShardHolder(
            store, worker, self._gained, self._lost, **({} if lease_ms is None else {"lease_ms": lease_ms})
        )
        self._desk = Desk(store, self._timing)
        self._runner = CodeRunner(store, registry, self._timing)
        self._driven: dict[str, _Driven] = {}
        self._shard_of: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._interrupted: dict[str, int] = {}
        """Workflows, with their shards, that were left in the middle, as when the database was away: a step may be
        marked as running that nobody executes, and its row is not due for long."""
        self._taken: set[int] = set()
        """Shards that were taken since the last sweep."""
        self._troubled: dict[str, float] = {}
        """Workflows whose transition has failed, and when each is looked at again."""
        self._stopping = False
        self._due_now = asyncio.Event()
        self._more_due = False
        """The last sweep saw only a part of what is due."""

    async def run(self) -> None:
        """Leases, hints and the sweep, for ever. Cancelled, it stops where it is: the rows say where to go on."""
        stop_listening = self._store.listen(WORKFLOWS_CHANNEL, self.hint)
        leases = asyncio.create_task(self.shards.run(), name="shard leases")
        try:
            while True:
                await self._sweep()
                if leases.done():
                    leases.result()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_SWEEP_SECONDS):
                        await self._due_now.wait()
                self._due_now.clear()
        finally:
            stop_listening()
            self._stopping = True
            try:
                await _end(self._tasks)
            finally:
                # Only now: nobody is to begin what the code here has not ended.
                await _end([leases])

    def hint(self, workflow_id: str) -> None:
        """Something happened to this workflow; an empty id says that hints may have been missed."""
        driven = self._driven.get(workflow_id)
        if driven is not None:
            driven.again = driven.hinted = True
            if driven.executing is not None:
                self._spawn(self._look_beside(workflow_id, driven))
        elif workflow_id in self._shard_of:
            self._drive_soon(workflow_id, self._shard_of[workflow_id], hinted=True)
        else:
            self._due_now.set()

    def _gained(self, shard: int) -> None:
        self._taken.add(shard)
        self._due_now.set()

    def _lost(self, shard: int) -> None:
        """Others execute the steps of this shard from now on, or will soon: our own executions end."""
        for workflow_id, driven in self._driven.items():
            if self._shard_of.get(workflow_id) == shard:
                driven.end_code()

    async def _sweep(self) -> None:
        shards = self.shards.shards
        if not shards:
            return
        taken, self._taken = self._taken, set()
        try:
            due = await self._store.read(_due, shards, _SWEEP_LIMIT)
            running = await self._store.read(_running, sorted(taken)) if taken else []
        except StoreError as error:
            self._taken |= taken
            _log.warning("due workflows could not be read: %s", error)
            return
        left, self._interrupted = self._interrupted, {}
        for workflow_id, shard in [*left.items(), *running, *due]:
            driven = self._driven.get(workflow_id)
            if driven is None:
                if self.shards.grip(shard) is None:
                    continue
                if self._in_trouble(workflow_id):
                    self._interrupted[workflow_id] = shard
                else:
                    self._drive_soon(workflow_id, shard)
            elif driven.executing is not None:
                self._spawn(self._look_beside(workflow_id, driven))
        self._more_due = len(due) >= _SWEEP_LIMIT

    def _in_trouble(self, workflow_id: str) -> bool:
        until = self._troubled.get(workflow_id)
        return until is not None and asyncio.get_running_loop().time() < until

    def _drive_soon(self, workflow_id: str, shard: int, *, hinted: bool = False) -> None:
        if self._stopping:
            return
        driven = self._driven[workflow_id] = _Driven()
        driven.hinted = hinted
        self._shard_of[workflow_id] = shard
        driven.task = self._spawn(self._drive(workflow_id, shard, driven))

    async def _drive(self, workflow_id: str, shard: int, driven: _Driven) -> None:
        """Transitions until there is nothing more to do now."""
        finished = False
        try:
            while True:
                grip = self.shards.grip(shard)
                if grip is None:
                    # Interrupted: should the lease have lapsed only for a moment, the shard is not taken anew.
                    self._shard_of.pop(workflow_id, None)
                    return
                driven.again, hinted, driven.hinted = False, driven.hinted, False
                look = await self._desk.ask(Look(workflow_id, grip, hinted=hinted))
                self._troubled.pop(workflow_id, None)
                if look.then is Then.RUN and look.step is not None and look.workflow is not None:
                    await self._execute(look, grip, driven)
                elif look.then is Then.OVER:
                    if self.shards.grip(shard) != grip:
                        # Only that hold is over: the shard was lost, or taken anew, while this was asked.
                        continue
                    self._shard_of.pop(workflow_id, None)
                    break
                elif look.then is Then.WAIT and not driven.again:
                    self._wake_later(workflow_id, shard, look.wake_at, look.now)
                    break
            finished = True
        except StoreUnavailable as error:
            _log.warning("workflow %s waits for the database: %s", workflow_id, error)
        except Exception:
            _log.exception("workflow %s could not be driven; it is tried again", workflow_id)
            self._troubled[workflow_id] = asyncio.get_running_loop().time() + _TROUBLE_SECONDS
        finally:
            self._driven.pop(workflow_id, None)
            if not finished:
                self._interrupted[workflow_id] = shard
            if driven.again or (self._more_due and len(self._driven) < _SWEEP_LIMIT // 2):
                self._due_now.set()

    async def _execute(self, look: Next, grip: Grip, driven: _Driven) -> None:
        """Runs the step's code and settles it; the settlement counts only if the step still runs in this attempt."""
        step = look.step
        assert step is not None
        assert look.workflow is not None
        task = driven.task
        assert task is not None
        driven.executing, driven.ended = (step.seq, step.attempt), False
        try:
            settlement = await self._runner.run(look.workflow, step, grip)
        except asyncio.CancelledError:
            # Of two who cancelled it at the same time, one may want this task itself to end.
            if not driven.ended or task.uncancel() > 0:
                raise
            return
        finally:
            driven.executing = None
        if driven.ended:
            # The code has kept its end to itself.
            task.uncancel()
            return
        if (await self._store_outcome(look.workflow.shard, Settle(step, grip, settlement))).then is Then.OVER:
            _log.info("step %s of %s was over before its code came back", step.id, step.workflow_id)

    async def _store_outcome(self, shard: int, outcome: Settle) -> Next:
        """What came of a step's code is offered until the database takes it, or the shard may be another worker's:
        else the code would have to run once more. Where an answer was lost, the next one says OVER."""
        while True:
            try:
                return await self._desk.ask(outcome)
            except StoreUnavailable as error:
                if self.shards.grip(shard) != outcome.grip:
                    raise
                _log.warning("the outcome of a step of %s waits for the database: %s", outcome.workflow_id, error)
            await asyncio.sleep(_STORE_AGAIN_SECONDS)

    async def _look_beside(self, workflow_id: str, driven: _Driven) -> None:
        """While a step's code runs: an abort, or its deadline, ends the step and then the code."""
        executing, shard = driven.executing, self._shard_of.get(workflow_id)
        grip = None if shard is None else self.shards.grip(shard)
        if executing is None or grip is None:
            return
        try:
            look = await self._desk.ask(Look(workflow_id, grip, executing))
        except StoreError as error:
            _log.warning("workflow %s could not be looked at: %s", workflow_id, error)
            return
        runs_on = look.then is Then.WAIT and look.step is None
        if not runs_on and driven.executing == executing:
            driven.end_code()

    def _wake_later(self, workflow_id: str, shard: int, wake_at: int | None, now: int) -> None:
        """A look that is due before the sweep would come to it; the sweep is the truth all the same."""
        if wake_at is None:
            return
        seconds = (wake_at - now) / 1_000
        if seconds <= _SWEEP_SECONDS:
            asyncio.get_running_loop().call_later(max(0.0, seconds), self._wake, workflow_id, shard)

    def _wake(self, workflow_id: str, shard: int) -> None:
        if workflow_id not in self._driven:
            self._drive_soon(workflow_id, shard)

    def _spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a workflow could not be driven", exc_info=task.exception())


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


def _running(tx: Transaction, shards: list[int]) -> list[tuple[str, int]]:
    """The workflows of these shards with a step that is marked as being executed."""
    rows = tx.all(
        """
        SELECT id, shard FROM workflows WHERE shard IN EACH(:shards) AND wake_at IS NOT NULL AND EXISTS (
            SELECT 1 FROM workflow_steps WHERE workflow_steps.workflow_id = workflows.id
                AND workflow_steps.seq = workflows.step_seq AND workflow_steps.state = 'running'
        )
        """,
        {"shards": shards},
    )
    return [(row[0], row[1]) for row in rows]


def _due(tx: Transaction, shards: list[int], limit: int) -> list[tuple[str, int]]:
    rows = tx.all(
        "SELECT id, shard FROM workflows WHERE shard IN EACH(:shards) AND wake_at <= :now "
        "ORDER BY wake_at, id LIMIT :limit",
        {"shards": shards, "now": tx.now(), "limit": limit},
    )
    return [(row[0], row[1]) for row in rows]
