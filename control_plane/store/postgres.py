"""The store on PostgreSQL: several processes, each with a few threads that own a connection each.

As on SQLite the transactions that are waiting share a commit: one database transaction, a savepoint for each but the
first. What a batch must not do is make others wait, so a lock is waited for only briefly at first; a transaction that
meets one is undone, the rest is committed, and it is run again alone, with more patience each time and, among the
reruns of this process, one after the other, so that they do not meet each other again.

Others write at the same time. A deadlock, a serialization failure, a lock that was not given in time and a
connection that broke before its COMMIT was sent are answered by running the function again, a bounded number of
times. A COMMIT whose answer was lost is never run again: `CommitUnknown`.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

from control_plane.store.errors import NOTHING_STORED, StoreReadOnly, StoreUnavailable
from control_plane.store.jobs import Job, JobQueue, closed, deliver, refuse_waiting
from control_plane.store.port import ArgsT, Dialect, ResultT, Transaction
from control_plane.store.postgres_listener import PostgresListener
from control_plane.store.postgres_server import PostgresServer
from control_plane.store.postgres_transaction import Clock, PostgresConnection
from control_plane.store.postgres_writer import PostgresWriter

WRITERS: Final = 4
READERS: Final = 2
# A transaction has its id before it does anything: what tells how far events can be read rests on it (`horizon.py`).
# A server that only follows another gives none; it is left to the first change to be refused in clear words.
_BEGIN_WRITE: Final = b"BEGIN; SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_xact_id() END"
_BEGIN_READ: Final = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
MOST_READS: Final = 3
"""How often a read whose connection breaks is run before it is given up."""


class _Reader:
    """A thread that reads: one view of the database for each job."""

    def __init__(self, link: PostgresConnection, queue: JobQueue) -> None:
        self._link = link
        self._queue = queue

    def work(self) -> None:
        """Until told to end: views."""
        while (job := self._queue.get()) is not None:
            if not job.future.cancelled():
                while not self._view(job):
                    pass
                deliver([job])
        self._link.close()

    def _view(self, job: Job) -> bool:
        """Run a job. False when its connection broke on the way and it should be run again."""
        job.tries += 1
        try:
            self._link.begin()
        except StoreUnavailable as error:
            job.fail(error.again())
            return True
        self._link.run(job)
        if self._link.lost:
            self._link.close()
            return job.error is None or job.tries >= MOST_READS
        self._link.roll_back()
        return True


class PostgresStore:
    """The store on a PostgreSQL database; see `port.Store`. Connections are made when they are first needed."""

    dialect: Final[Dialect] = "postgresql"

    def __init__(self, url: str, *, clock: Clock | None = None, read_only: bool = False) -> None:
        """Raises `StoreUrlInvalid`; a server that is away is found by the first transaction."""
        self._server = PostgresServer(url)
        self._read_only = read_only
        self._closed = False
        self._writes: JobQueue = SimpleQueue()
        self._reads: JobQueue = SimpleQueue()
        self._listener = PostgresListener(self._server)
        self._threads: list[threading.Thread] = []
        reruns = threading.Lock()
        for number in range(WRITERS):
            link = PostgresConnection(self._server, clock, _BEGIN_WRITE, writable=True)
            self._start(f"store-writer-{number}", PostgresWriter(link, self._writes, reruns).work)
        for number in range(READERS):
            link = PostgresConnection(self._server, clock, _BEGIN_READ, writable=False)
            self._start(f"store-reader-{number}", _Reader(link, self._reads).work)

    def __repr__(self) -> str:
        return f"PostgresStore({self._server.name!r})"

    async def write(self, fn: Callable[[Transaction, *ArgsT], ResultT], *args: *ArgsT) -> ResultT:
        if self._read_only:
            raise StoreReadOnly(f"the database {self._server.name} was opened for reading only; {NOTHING_STORED}")
        result: ResultT = await self._ask(self._writes, fn, args)
        return result

    async def read(self, fn: Callable[[Transaction, *ArgsT], ResultT], *args: *ArgsT) -> ResultT:
        result: ResultT = await self._ask(self._reads, fn, args)
        return result

    async def notify(self, channel: str, payload: str = "") -> None:
        await self.write(_notify, channel, payload)

    def listen(self, channel: str, callback: Callable[[str], object]) -> Callable[[], None]:
        return self._listener.listen(channel, callback)

    async def close(self) -> None:
        self._closed = True
        for _ in range(WRITERS):
            self._writes.put(None)
        for _ in range(READERS):
            self._reads.put(None)
        loop = asyncio.get_running_loop()
        for thread in self._threads:
            await loop.run_in_executor(None, thread.join)
        await loop.run_in_executor(None, self._listener.close)
        refuse_waiting(self._writes)
        refuse_waiting(self._reads)

    async def _ask(self, queue: JobQueue, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if self._closed:
            raise closed()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        queue.put(Job(fn, args, future))
        return await future

    def _start(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)


def _notify(tx: Transaction, channel: str, payload: str) -> None:
    tx.notify(channel, payload)
