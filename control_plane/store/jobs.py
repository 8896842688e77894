"""A function on its way through a store's threads: asked for in an event loop, answered there."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from control_plane.store.errors import StoreClosed
from control_plane.store.port import Transaction

log = logging.getLogger(__name__)


class Job:
    """One call of `Store.write` or `Store.read`. `error` is None when `result` counts.

    `hints` and `calls` belong to the last run only; they are acted on once it is durable.
    """

    __slots__ = ("args", "calls", "error", "fn", "future", "hints", "result", "tries")

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], future: asyncio.Future[Any]) -> None:
        self.fn = fn
        self.args = args
        self.future = future
        self.result: Any = None
        self.error: BaseException | None = None
        self.hints: list[tuple[str, str]] | None = None
        self.calls: list[Callable[[], object]] | None = None
        self.tries = 0

    def run(self, tx: Transaction) -> None:
        """Run the function; what it raises is kept, also what only a dying process raises."""
        self.hints = self.calls = None
        self.error = None
        try:
            self.result = self.fn(tx, *self.args)
        except BaseException as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.result = None


JobQueue = SimpleQueue[Job | None]
"""Jobs on their way to a thread; None tells one thread to end."""


def deliver(jobs: Sequence[Job], hint: Callable[[str, str], None] | None = None) -> None:
    """Answer jobs in their event loops: one hop for all of a batch.

    `hint` is told the hints of those that succeeded.
    """
    if not jobs:
        return
    loop = jobs[0].future.get_loop()
    same = [job for job in jobs if job.future.get_loop() is loop]
    try:
        loop.call_soon_threadsafe(_answer, same, hint)
    except RuntimeError:
        # The loop is closed: nobody is left to be told. What was stored stays stored.
        log.warning("the event loop ended before %d answers of the store reached it", len(same))
    if len(same) < len(jobs):
        deliver([job for job in jobs if job.future.get_loop() is not loop], hint)


def _answer(jobs: Iterable[Job], hint: Callable[[str, str], None] | None) -> None:
    for job in jobs:
        if job.error is None:
            if job.calls is not None:
                for call in job.calls:
                    _call(job.future.get_loop(), call)
            if job.hints is not None and hint is not None:
                for channel, payload in job.hints:
                    hint(channel, payload)
        if not job.future.done():
            if job.error is None:
                job.future.set_result(job.result)
            else:
                job.future.set_exception(_settable(job.error))


def _settable(error: BaseException) -> BaseException:
    if isinstance(error, StopIteration):
        # A future refuses StopIteration, since it would end the awaiting coroutine quietly.
        wrapped = RuntimeError("the function raised StopIteration")
        wrapped.__cause__ = error
        return wrapped
    return error


def _call(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as error:
        loop.call_exception_handler({"message": "a call after the commit failed", "exception": error})


def refuse_waiting(queue: JobQueue) -> None:
    """Fail the jobs that came too late for a store that is being closed."""
    waiting: list[Job] = []
    try:
        while True:
            if (job := queue.get_nowait()) is not None:
                job.fail(closed())
                waiting.append(job)
    except Empty:
        deliver(waiting)


def closed() -> StoreClosed:
    return StoreClosed("the store is closed: nothing was stored")
