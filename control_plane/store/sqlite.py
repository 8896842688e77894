"""The store on SQLite: one process, one writer thread, many transactions to a commit.

A commit waits for the disk, so the transactions that are waiting share one: `BEGIN IMMEDIATE`, a savepoint for
each, `COMMIT`, and only then the answers. A lone transaction on an idle store is committed at once. After a crash or
a power cut the file holds every transaction whose answer was given, whole, and perhaps some whose answer was not.

Only the writer's connection ever writes or checkpoints. Readers have connections and threads of their own; they see
the last commit and wait for nobody.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from control_plane.store.errors import NOTHING_STORED, StoreError, StoreReadOnly, StoreUnavailable
from control_plane.store.jobs import Job, JobQueue, closed, deliver, refuse_waiting
from control_plane.store.listeners import Listeners, check_hint
from control_plane.store.port import ArgsT, Dialect, ResultT, Transaction
from control_plane.store.sqlite_file import FileLock, connect, create, file_error, store_error
from control_plane.store.sqlite_transaction import Clock, SqliteConnection, wall_clock
from control_plane.store.sqlite_writer import SqliteWriter

MOST_READS_IN_VIEW: Final = 16
READERS: Final = 2


class _Reader:
    """A thread that reads: what waits when it begins shares one view of the file."""

    def __init__(self, connection: SqliteConnection, queue: JobQueue) -> None:
        self._connection = connection
        self._queue = queue
        self._ending = False

    def work(self) -> None:
        """Until told to end: views."""
        while not self._ending:
            first = self._queue.get()
            if first is None:
                break
            self._view([first, *self._waiting()])
        self._connection.close()

    def _waiting(self) -> list[Job]:
        waiting: list[Job] = []
        try:
            while len(waiting) < MOST_READS_IN_VIEW:
                job = self._queue.get_nowait()
                if job is None:
                    self._ending = True
                    break
                waiting.append(job)
        except Empty:
            pass
        return waiting

    def _view(self, jobs: list[Job]) -> None:
        for job in jobs:
            if not job.future.cancelled():
                self._run(job)
        self._connection.roll_back()
        deliver(jobs)

    def _run(self, job: Job) -> None:
        connection = self._connection
        try:
            handle = connection.open()
            if not handle.in_transaction:
                connection.cursor.execute("BEGIN")
        except (sqlite3.Error, StoreError) as error:
            found = store_error(error, connection.path) if isinstance(error, sqlite3.Error) else error
            job.fail(found.again() if isinstance(found, StoreUnavailable) else found)
            connection.close()
            return
        if isinstance(connection.run(job).failure, StoreUnavailable):
            connection.close()


class SqliteStore:
    """The store on a SQLite file; see `port.Store`. Threads start at once; nothing is ever left half written."""

    dialect: Final[Dialect] = "sqlite"

    def __init__(self, path: Path, *, clock: Clock = wall_clock, read_only: bool = False) -> None:
        """Open, and create where it is absent, the database `path`.

        With `read_only` the file may be in use by another process, and `write` raises `StoreReadOnly`. Raises
        `StoreBusy` when another process has it, `StoreUnavailable` and its kinds when it cannot be used.
        """
        self.path = path
        self._read_only = read_only
        self._lock = FileLock(path)
        self._listeners = Listeners()
        self._closed = False
        self._writes: JobQueue = SimpleQueue()
        self._reads: JobQueue = SimpleQueue()
        self._threads: list[threading.Thread] = []
        writer = SqliteConnection(path, clock, writable=True)
        if not read_only:
            self._take(writer)
        elif not path.exists():
            raise file_error(FileNotFoundError(2, "No such file or directory"), path)
        else:
            connect(path, writable=False).close()
        if not read_only:
            self._start("store-writer", SqliteWriter(writer, self._writes, self._listeners.tell).work)
        for number in range(READERS):
            reader = SqliteConnection(path, clock, writable=False)
            self._start(f"store-reader-{number}", _Reader(reader, self._reads).work)

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r})"

    async def write(self, fn: Callable[[Transaction, *ArgsT], ResultT], *args: *ArgsT) -> ResultT:
        if self._read_only:
            raise StoreReadOnly(f"the database {self.path} was opened for reading only; {NOTHING_STORED}")
        result: ResultT = await self._ask(self._writes, fn, args)
        return result

    async def read(self, fn: Callable[[Transaction, *ArgsT], ResultT], *args: *ArgsT) -> ResultT:
        result: ResultT = await self._ask(self._reads, fn, args)
        return result

    async def notify(self, channel: str, payload: str = "") -> None:
        check_hint(channel, payload)
        self._listeners.tell(channel, payload)

    def listen(self, channel: str, callback: Callable[[str], object]) -> Callable[[], None]:
        listener = self._listeners.add(channel, callback)
        listener.tell("")
        return lambda: self._listeners.remove(listener)

    async def close(self) -> None:
        self._closed = True
        self._writes.put(None)
        for _ in range(READERS):
            self._reads.put(None)
        loop = asyncio.get_running_loop()
        for thread in self._threads:
            await loop.run_in_executor(None, thread.join)
        refuse_waiting(self._writes)
        refuse_waiting(self._reads)
        self._lock.release()

    async def _ask(self, queue: JobQueue, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if self._closed:
            raise closed()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        queue.put(Job(fn, args, future))
        return await future

    def _take(self, writer: SqliteConnection) -> None:
        self._lock.take()
        try:
            create(self.path)
            writer.open()
        except BaseException:
            self._lock.release()
            raise

    def _start(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)
