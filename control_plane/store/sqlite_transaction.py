"""A transaction on SQLite, and the connection that it runs on."""

import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from control_plane.store.caches import StatementCache, in_chunks, list_params
from control_plane.store.errors import StoreError, StoreMisuse, StoreReadOnly
from control_plane.store.jobs import Job
from control_plane.store.listeners import check_hint
from control_plane.store.port import NO_PARAMS, Dialect, Params
from control_plane.store.rows import json_text
from control_plane.store.sqlite_file import connect, store_error

Clock = Callable[[], int]


def wall_clock() -> int:
    """Milliseconds since 1970 by this machine's clock."""
    return time.time_ns() // 1_000_000


class _Ended:
    """Stands in for the cursor of a transaction that is over or has failed."""

    def __init__(self, why: str) -> None:
        self._why = why

    def execute(self, *_: object) -> Any:
        raise StoreMisuse(self._why)

    executemany = execute


_OVER = _Ended("the transaction is over: use it inside its function only")
_FAILED = _Ended("a statement of this transaction has failed: the function must let that error through")


class SqliteTransaction:
    """A transaction on SQLite; see `port.Transaction`."""

    __slots__ = ("_caches", "_clock", "_cursor", "_job", "_now", "_path", "_writable", "failure")

    dialect: Final[Dialect] = "sqlite"

    def __init__(self, connection: "SqliteConnection", job: Job) -> None:
        self._caches = connection.caches
        self._cursor: Any = connection.cursor
        self._clock = connection.clock
        self._path = connection.path
        self._writable = connection.writable
        self._job = job
        self._now: int | None = None
        self.failure: StoreError | None = None

    def one(self, sql: str, params: Params = NO_PARAMS, *, into: Any = None) -> Any:
        cursor = self._execute(sql, params)
        row = cursor.fetchone()
        if row is None:
            return None
        if cursor.fetchone() is not None:
            raise self._fail(StoreMisuse(f"more than one row answers: {sql}"))
        return row if into is None else self._caches.decoder(sql, into, cursor.description)(row)

    def all(self, sql: str, params: Params = NO_PARAMS, *, into: Any = None) -> Any:
        cursor = self._execute(sql, params)
        rows = cursor.fetchall()
        if into is None or not rows:
            return rows
        decode = self._caches.decoder(sql, into, cursor.description)
        return [decode(row) for row in rows]

    def run(self, sql: str, params: Params = NO_PARAMS) -> int:
        try:
            texts = self._caches.chunk_texts(sql)
            if texts is not None:
                chunks = list(in_chunks(texts, params, self._caches.statement(sql).tables[0]))
                return sum(self._run_text(text, values, sql).rowcount for text, values in chunks)
        except StoreMisuse as error:
            raise self._fail(error)  # noqa: B904 - it is the same error
        changed: int = self._execute(sql, params).rowcount
        return max(changed, 0)

    def run_many(self, sql: str, rows: Iterable[Params]) -> int:
        return sum(self.run(sql, row) for row in rows)

    def now(self) -> int:
        if self._now is None:
            self._now = self._clock()
        return self._now

    def notify(self, channel: str, payload: str = "") -> None:
        check_hint(channel, payload)
        if self._job.hints is None:
            self._job.hints = []
        self._job.hints.append((channel, payload))

    def after_commit(self, call: Callable[[], object]) -> None:
        if self._job.calls is None:
            self._job.calls = []
        self._job.calls.append(call)

    def end(self) -> None:
        """Make the transaction useless for whoever kept it."""
        self._cursor = _OVER

    def _execute(self, sql: str, params: Params) -> Any:
        try:
            statement = self._caches.statement(sql)
            if statement.lists or statement.tables:
                params = list_params(params, statement, json_text)
        except StoreMisuse as error:
            raise self._fail(error)  # noqa: B904 - it is the same error
        return self._run_text(statement.text, params, sql)

    def _run_text(self, text: str, params: Params | list[Any], sql: str) -> Any:
        try:
            return self._cursor.execute(text, params)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise self._fail(self._store_error(error, sql)) from error
        except (OverflowError, UnicodeEncodeError) as error:
            raise self._fail(StoreMisuse(f"a parameter cannot be stored ({error}), in: {sql}")) from error
        except StoreMisuse as error:
            raise self._fail(error)  # noqa: B904 - it is the same error

    def _store_error(self, error: sqlite3.Error | sqlite3.Warning, sql: str) -> StoreError:
        if isinstance(error, sqlite3.Warning):
            return StoreMisuse(f"{error}, in: {sql}")
        found = store_error(error, self._path, sql)
        if isinstance(found, StoreReadOnly) and not self._writable:
            return StoreMisuse(f"a change inside a read, in: {sql}")
        return found

    def _fail(self, error: StoreError) -> StoreError:
        if self._cursor is not _OVER:
            self._cursor = _FAILED
            if self.failure is None:
                self.failure = error
        return error


class SqliteConnection:
    """A connection and what its thread keeps beside it. Opened when first needed, and again after it broke."""

    def __init__(self, path: Path, clock: Clock, *, writable: bool) -> None:
        self.path = path
        self.clock = clock
        self.writable = writable
        self.caches = StatementCache("sqlite")
        self.handle: sqlite3.Connection | None = None
        self.cursor: sqlite3.Cursor

    def open(self) -> sqlite3.Connection:
        if self.handle is None:
            self.handle = connect(self.path, writable=self.writable)
            self.cursor = self.handle.cursor()
        return self.handle

    def roll_back(self) -> None:
        """Undo what is open; where even that fails the connection is given up."""
        try:
            if self.handle is not None and self.handle.in_transaction:
                self.cursor.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()

    def close(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None:
            # Its statements would keep the file open, for as long as the traceback of an error leads here.
            del self.cursor
            handle.close()

    def run(self, job: Job) -> SqliteTransaction:
        """Run a job's function in what is open; `failure` of the transaction tells what its statements met."""
        tx = SqliteTransaction(self, job)
        job.run(tx)
        tx.end()
        if tx.failure is not None and job.error is None:
            error = StoreMisuse("the function went on after a statement had failed")
            error.__cause__ = tx.failure
            job.fail(error)
        return tx
