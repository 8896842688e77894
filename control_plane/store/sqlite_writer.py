"""The thread that writes to SQLite: many transactions to a commit, and what becomes of each when something fails."""

import sqlite3
import time
from collections.abc import Callable
from queue import Empty
from typing import Final

from control_plane.store.errors import (
    NOTHING_STORED,
    CommitUnknown,
    ConstraintViolated,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from control_plane.store.jobs import Job, JobQueue, deliver
from control_plane.store.sqlite_file import commit_error, store_error
from control_plane.store.sqlite_transaction import SqliteConnection

MOST_IN_BATCH: Final = 256
LONGEST_BATCH_S: Final = 0.02
"""A batch takes in what is waiting until it has so many transactions or is so old, whichever is first."""


class SqliteWriter:
    """The thread that writes: takes what waits, runs it in one transaction, commits, answers."""

    def __init__(self, connection: SqliteConnection, queue: JobQueue, tell: Callable[[str, str], None]) -> None:
        self._connection = connection
        self._queue = queue
        self._tell = tell
        self._ending = False

    def work(self) -> None:
        """Until told to end: batches."""
        while not self._ending:
            first = self._queue.get()
            if first is None:
                break
            self._settle(first)
        self._connection.close()

    def _settle(self, first: Job) -> None:
        """A batch that begins with `first`; then each that the batch could not settle, in a batch of its own."""
        for job in self._batch(first, shared=True):
            self._batch(job, shared=False)

    def _batch(self, first: Job, *, shared: bool) -> list[Job]:
        """Run, commit and answer. Returns the jobs to run again, alone."""
        taken: list[Job] = []
        again: list[Job] = []
        try:
            self._connection.open()
            self._connection.cursor.execute("BEGIN IMMEDIATE")
        except (sqlite3.Error, StoreError) as error:
            taken = [first, *(self._waiting() if shared else [])]
            self._refuse(taken, error)
        else:
            again = self._run_and_commit(taken, first, shared=shared)
        deliver([job for job in taken if job not in again], self._tell)
        return again

    def _run_and_commit(self, taken: list[Job], first: Job, *, shared: bool) -> list[Job]:
        try:
            culprit = self._run_all(taken, first, shared=shared)
            if culprit is None:
                return self._commit(taken)
        except Exception as error:
            # Not a function's statement but a savepoint of ours: the connection cannot be trusted. Whatever it was,
            # nobody may wait for ever because of it, and the thread goes on.
            self._refuse([job for job in taken if job.error is None], error)
            self._connection.close()
            return []
        # SQLite has undone everything, also the neighbours' work. They are run again without the culprit.
        self._connection.roll_back()
        return [job for job in taken if job.error is None]

    def _run_all(self, taken: list[Job], first: Job, *, shared: bool) -> Job | None:
        """Run `first` and, when the batch is shared, those that wait. Returns the job that lost the transaction."""
        oldest = time.monotonic() + LONGEST_BATCH_S
        job: Job | None = first
        while job is not None:
            taken.append(job)
            if not job.future.cancelled() and not self._run(job):
                return job
            job = None
            if shared and len(taken) < MOST_IN_BATCH and time.monotonic() < oldest:
                job = self._next()
        return None

    def _run(self, job: Job) -> bool:
        """Run one job inside a savepoint. False when the whole transaction is gone."""
        connection = self._connection
        connection.cursor.execute("SAVEPOINT job")
        connection.run(job)
        if job.error is not None:
            if connection.handle is None or not connection.handle.in_transaction:
                return False
            connection.cursor.execute("ROLLBACK TO job")
        connection.cursor.execute("RELEASE job")
        return True

    def _commit(self, jobs: list[Job]) -> list[Job]:
        """Make it durable. Returns the jobs to run again when it may be the fault of one that it is not."""
        try:
            self._connection.cursor.execute("COMMIT")
        except sqlite3.Error as error:
            cause = commit_error(error, self._connection.path)
            cause.__cause__ = error
        else:
            return []
        ran = [job for job in jobs if job.error is None]
        self._connection.roll_back()
        if isinstance(cause, StoreUnavailable):
            # What the connection holds in memory may no longer be what is on the disk.
            self._connection.close()
        if isinstance(cause, ConstraintViolated | StoreFull) and len(ran) > 1:
            # A rule is checked, or much is written, only at the end of a transaction: one may be the culprit.
            return ran
        self._refuse(ran, cause)
        return []

    def _refuse(self, jobs: list[Job], error: Exception) -> None:
        """Fail jobs that are not stored."""
        self._connection.roll_back()
        found = error
        if isinstance(error, sqlite3.Error):
            found = store_error(error, self._connection.path)
            found.__cause__ = error
        for job in jobs:
            if isinstance(found, CommitUnknown):
                job.fail(found.again())
            elif isinstance(found, StoreUnavailable):
                job.fail(found.again(outcome=NOTHING_STORED))
            else:
                job.fail(found)

    def _next(self) -> Job | None:
        try:
            job = self._queue.get_nowait()
        except Empty:
            return None
        if job is None:
            self._ending = True
        return job

    def _waiting(self) -> list[Job]:
        waiting: list[Job] = []
        while len(waiting) < MOST_IN_BATCH and (job := self._next()) is not None:
            waiting.append(job)
        return waiting
