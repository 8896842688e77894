"""The journal's one writer: writes that are asked for while a commit is under way share the next one."""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from agent.errors import JournalError

__all__ = ["JournalWriter"]

_GROUP = 512
ResultT = TypeVar("ResultT")
_Job = Callable[[sqlite3.Connection], Any]


@dataclass(slots=True)
class _Request:
    job: _Job
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class JournalWriter:
    """A thread that alone writes to the `connection`, which stays its owner's to close; `path` is for the error."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self.commits = 0
        """How many groups were made durable."""
        self._thread = threading.Thread(target=self._write_groups, name="journal", daemon=True)
        self._thread.start()

    async def write(self, job: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        """What the job returns, once all that it wrote is durable. Raises JournalError when it could not be made.

        A caller that is cancelled while it waits does not take the write back.
        """
        if not self._thread.is_alive():
            raise JournalError("the journal is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ResultT] = loop.create_future()
        self._requests.put(_Request(job, future, loop))
        return await future

    def close(self) -> None:
        """Waits for the writes that were asked for; later ones are refused. Safe to call twice."""
        if self._thread.is_alive():
            self._requests.put(None)
            self._thread.join()

    def _write_groups(self) -> None:
        closing = False
        while not closing:
            first = self._requests.get()
            group = [] if first is None else [first]
            closing = first is None
            while len(group) < _GROUP and not closing and not self._requests.empty():
                following = self._requests.get()
                if following is None:
                    closing = True
                else:
                    group.append(following)
            if group:
                self._commit(group)

    def _commit(self, group: list[_Request]) -> None:
        try:
            results = self._transact([request.job for request in group])
        except Exception as error:
            if len(group) > 1:
                # One write that cannot be made must not take the others with it.
                for request in group:
                    self._commit([request])
                return
            failure = JournalError(
                f"the journal {self._path} cannot be written ({error}): free space on its disk, or mend it"
            )
            failure.__cause__ = error
            _answer(group, [failure])
            return
        self.commits += 1
        _answer(group, results)

    def _transact(self, jobs: list[_Job]) -> list[Any]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            results = [job(self._connection) for job in jobs]
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return results


def _answer(group: list[_Request], results: Sequence[Any]) -> None:
    """Hands every result to its waiting coroutine, with one wake-up per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for request, result in zip(group, results, strict=True):
        by_loop.setdefault(request.loop, []).append((request.future, result))
    for loop, pairs in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, pairs)


def _resolve(pairs: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, result in pairs:
        if future.done():
            continue
        if isinstance(result, JournalError):
            future.set_exception(result)
        else:
            future.set_result(result)
