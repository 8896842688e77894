"""A thread that writes to PostgreSQL: many transactions to a commit, and what becomes of each when one fails."""

import random
import threading
import time
from collections.abc import Iterable
from queue import Empty
from typing import Final

import psycopg

from control_plane.store.errors import NOTHING_STORED, CommitUnknown, StoreBusy, StoreError, StoreUnavailable
from control_plane.store.jobs import Job, JobQueue, deliver
from control_plane.store.postgres_server import LOCK_TIMEOUT_MS
from control_plane.store.postgres_transaction import PostgresConnection

MOST_IN_BATCH: Final = 32
LONGEST_BATCH_S: Final = 0.01
"""A batch takes in what is waiting until it has so many transactions or is so old, whichever is first."""
MOST_RUNS: Final = 12
"""How often a function is run before its transaction is given up as `StoreBusy` or `StoreUnavailable`."""
LONGEST_LOCK_WAIT_MS: Final = 800


class _Batch:
    """Jobs that share one database transaction."""

    def __init__(self, link: PostgresConnection) -> None:
        self._link = link
        self._savepoint = False
        self.held: list[Job] = []
        """Ran well, and are in the open transaction."""
        self.answered: list[Job] = []
        """Will not be stored, and know why."""
        self.again: list[Job] = []
        """To be run again, alone."""

    def take(self, job: Job) -> bool:
        """Run a job. False when the batch is over: what is held should be committed now."""
        job.tries += 1
        try:
            self._begin(job.tries)
        except StoreUnavailable as error:
            job.fail(error.again(outcome=NOTHING_STORED))
            self.answered.append(job)
            return False
        except psycopg.Error as error:
            self._rerun([*self._dropped(), job], self._link.server.lost(error))
            return False
        failure = self._link.run(job)
        if self._link.lost:
            self._rerun([*self._dropped(), job], failure or self._link.server.lost())
            return False
        if job.error is None:
            self.held.append(job)
            return True
        self._undo()
        if isinstance(failure, StoreBusy):
            # The locks of those that are held may be what it waits for: they are committed first.
            self._rerun([job], failure)
            return False
        self.answered.append(job)
        return not self._link.lost

    def commit(self) -> None:
        """Make what is held durable."""
        held = self._dropped()
        if not held:
            return
        try:
            self._link.execute(_notifications(held) + b"COMMIT")
        except psycopg.Error as error:
            if self._link.lost:
                self._lose(held, error)
            else:
                self._refuse(held, self._link.error(error, ""))
        else:
            self.answered += held

    def _begin(self, tries: int) -> None:
        if not self.held:
            self._savepoint = False
            self._link.begin()
            if tries > 1:
                self._link.execute(b"SET LOCAL lock_timeout = %d" % _patience_ms(tries))
        elif self._savepoint:
            self._link.execute(b"RELEASE job; SAVEPOINT job")
        else:
            self._link.execute(b"SAVEPOINT job")
            self._savepoint = True

    def _undo(self) -> None:
        if not self.held:
            self._link.roll_back()
            return
        try:
            self._link.execute(b"ROLLBACK TO job")
        except psycopg.Error as error:
            self._link.close()
            self._rerun(self._dropped(), self._link.server.lost(error))

    def _dropped(self) -> list[Job]:
        held, self.held = self.held, []
        return held

    def _rerun(self, jobs: list[Job], error: StoreError) -> None:
        if self._link.lost:
            self._link.close()
        for job in jobs:
            if job.tries < MOST_RUNS:
                self.again.append(job)
            else:
                job.fail(error.again(outcome=NOTHING_STORED) if isinstance(error, StoreUnavailable) else error)
                self.answered.append(job)

    def _lose(self, held: list[Job], error: psycopg.Error) -> None:
        lost = self._link.server.lost(error)
        self._link.close()
        for job in held:
            job.fail(
                CommitUnknown(
                    f"{lost.what} during a COMMIT: whether it was stored is unknown",
                    cause=lost.cause,
                    advice="Read again to find out",
                )
            )
        self.answered += held

    def _refuse(self, held: list[Job], error: StoreError) -> None:
        """The server refused the COMMIT: with several it may be the fault of one."""
        self._link.roll_back()
        if len(held) > 1 or isinstance(error, StoreBusy):
            self._rerun(held, error)
            return
        held[0].fail(error.again(outcome=NOTHING_STORED) if isinstance(error, StoreUnavailable) else error)
        self.answered += held


def _patience_ms(tries: int) -> int:
    """How long the run of this number waits for a lock: twice as long each time, and never as long as its rival."""
    return int(min(LOCK_TIMEOUT_MS * 2 ** (tries - 1), LONGEST_LOCK_WAIT_MS) * random.uniform(0.5, 1.0))


def _notifications(jobs: Iterable[Job]) -> bytes:
    """The statements that send the jobs' hints with their commit, each hint once."""
    hints = dict.fromkeys(hint for job in jobs if job.hints is not None for hint in job.hints)
    return "".join(f"NOTIFY {channel}, {_quoted(payload)}; " for channel, payload in hints).encode()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"


class PostgresWriter:
    """A thread that writes: takes what waits, runs it in one transaction, commits, answers."""

    def __init__(self, link: PostgresConnection, queue: JobQueue, reruns: threading.Lock) -> None:
        self._link = link
        self._queue = queue
        self._reruns = reruns
        self._ending = False

    def work(self) -> None:
        """Until told to end: batches."""
        while not self._ending:
            first = self._queue.get()
            if first is None:
                break
            again = self._settle(first, time.monotonic() + LONGEST_BATCH_S)
            while again:
                again = [job for alone in again for job in self._rerun(alone)]
        self._link.close()

    def _rerun(self, job: Job) -> list[Job]:
        # The turn is not waited for longer than a lock would be: its holder may be waiting for another process.
        mine = self._reruns.acquire(timeout=LONGEST_LOCK_WAIT_MS / 1000)
        try:
            return self._settle(job, None)
        finally:
            if mine:
                self._reruns.release()

    def _settle(self, first: Job, oldest: float | None) -> list[Job]:
        """Run, commit and answer `first`, and with `oldest` what waits. Returns the jobs to run again, alone."""
        batch = _Batch(self._link)
        taken: list[Job] = []
        job: Job | None = first
        try:
            while job is not None:
                taken.append(job)
                if not job.future.cancelled() and not batch.take(job):
                    break
                job = None
                if oldest is not None and len(taken) < MOST_IN_BATCH and time.monotonic() < oldest:
                    job = self._next()
            batch.commit()
        except Exception as error:
            # A fault of ours. Nobody may wait for ever because of it, and the thread goes on.
            self._link.close()
            for left in taken:
                left.fail(error)
            deliver(taken)
            return []
        deliver(batch.answered)
        return batch.again

    def _next(self) -> Job | None:
        try:
            job = self._queue.get_nowait()
        except Empty:
            return None
        if job is None:
            self._ending = True
        return job
