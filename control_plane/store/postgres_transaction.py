"""A transaction on PostgreSQL, and the connection that it runs on."""

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import psycopg

from control_plane.store.caches import StatementCache, list_params
from control_plane.store.errors import StoreError, StoreMisuse, StoreUnavailable
from control_plane.store.jobs import Job
from control_plane.store.listeners import check_hint
from control_plane.store.port import NO_PARAMS, Dialect, Params
from control_plane.store.postgres_server import BackOff, Connection, PostgresServer, execute, is_lost

Clock = Callable[[], int]

_NOW = b"SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"


class PostgresTransaction:
    """A transaction on PostgreSQL; see `port.Transaction`."""

    __slots__ = ("_cursor", "_job", "_link", "_now", "failure")

    dialect: Final[Dialect] = "postgresql"

    def __init__(self, link: "PostgresConnection", job: Job) -> None:
        self._link = link
        self._cursor: psycopg.Cursor[tuple[Any, ...]] | None = link.cursor
        self._job = job
        self._now: int | None = None
        self.failure: StoreError | None = None

    def one(self, sql: str, params: Params = NO_PARAMS, *, into: Any = None) -> Any:
        cursor = self._execute(sql, params)
        if cursor.rowcount > 1 and cursor.description is not None:
            raise self._fail(StoreMisuse(f"more than one row answers: {sql}"))
        row = cursor.fetchone() if cursor.description is not None else None
        if row is None or into is None:
            return row
        return self._link.caches.decoder(sql, into, cursor.description)(row)

    def all(self, sql: str, params: Params = NO_PARAMS, *, into: Any = None) -> Any:
        cursor = self._execute(sql, params)
        if cursor.description is None:
            return []
        rows = cursor.fetchall()
        if into is None or not rows:
            return rows
        decode = self._link.caches.decoder(sql, into, cursor.description)
        return [decode(row) for row in rows]

    def run(self, sql: str, params: Params = NO_PARAMS) -> int:
        return max(self._execute(sql, params).rowcount, 0)

    def run_many(self, sql: str, rows: Iterable[Params]) -> int:
        statement = self._link.caches.statement(sql)
        if statement.lists:
            return sum(self.run(sql, row) for row in rows)
        cursor = self._usable()
        try:
            cursor.executemany(statement.text, rows)
        except psycopg.Error as error:
            raise self._fail(self._link.error(error, sql)) from None
        return max(cursor.rowcount, 0)

    def now(self) -> int:
        if self._now is None:
            self._now = self._link.now()
        return self._now

    def notify(self, channel: str, payload: str = "") -> None:
        check_hint(channel, payload)
        if "\0" in payload:
            raise StoreMisuse("a hint cannot hold the character NUL")
        if self._job.hints is None:
            self._job.hints = []
        self._job.hints.append((channel, payload))

    def after_commit(self, call: Callable[[], object]) -> None:
        if self._job.calls is None:
            self._job.calls = []
        self._job.calls.append(call)

    def end(self) -> None:
        """Make the transaction useless for whoever kept it."""
        self._cursor = None

    def _execute(self, sql: str, params: Params) -> psycopg.Cursor[tuple[Any, ...]]:
        cursor = self._usable()
        try:
            statement = self._link.caches.statement(sql)
            if statement.lists or statement.tables:
                params = list_params(params, statement, list)
            return cursor.execute(statement.text, params)
        except psycopg.Error as error:
            # From None: the driver's own error carries the DETAIL line, which quotes the row's values.
            raise self._fail(self._link.error(error, sql)) from None
        except StoreMisuse as error:
            raise self._fail(error)  # noqa: B904 - it is the same error

    def _usable(self) -> psycopg.Cursor[tuple[Any, ...]]:
        if self._cursor is None:
            raise StoreMisuse("the transaction is over: use it inside its function only")
        if self.failure is not None:
            raise StoreMisuse("a statement of this transaction has failed: the function must let that error through")
        return self._cursor

    def _fail(self, error: StoreError) -> StoreError:
        if self.failure is None:
            self.failure = error
        return error


class PostgresConnection:
    """A connection and what its thread keeps beside it. Opened when first needed, and again after it broke."""

    def __init__(self, server: PostgresServer, clock: Clock | None, begin: bytes, *, writable: bool) -> None:
        self.server = server
        self.clock = clock
        self.writable = writable
        self.caches = StatementCache("postgresql")
        self.connection: Connection | None = None
        self.cursor: psycopg.Cursor[tuple[Any, ...]]
        self._begin = begin if clock is not None else begin + b"; " + _NOW
        self._began_at = 0
        self._began = 0.0
        self._back_off = BackOff()
        self._unreachable: StoreUnavailable | None = None

    def begin(self) -> None:
        """Open a transaction, and the connection first where there is none. Raises `StoreUnavailable`.

        A connection that broke while nobody used it is noticed here and made again at once.
        """
        kept = self.connection is not None
        try:
            self._begin_on(self.open())
        except psycopg.Error as error:
            broken = self.connection is not None and is_lost(self.connection)
            self.close()
            if not (kept and broken):
                raise self._not_begun(error) from None
            try:
                self._begin_on(self.open())
            except psycopg.Error as again:
                self.close()
                raise self._not_begun(again) from None

    def _begin_on(self, connection: Connection) -> None:
        result = execute(connection, self._begin)
        if self.clock is None:
            self._began = time.monotonic()
            self._began_at = int(result.get_value(0, 0) or b"0")

    def _not_begun(self, error: psycopg.Error) -> StoreUnavailable:
        found = self.server.error(error)
        return found if isinstance(found, StoreUnavailable) else self.server.lost(error)

    def open(self) -> Connection:
        if self.connection is not None:
            return self.connection
        if self._back_off.waiting and self._unreachable is not None:
            raise self._unreachable.again()
        try:
            self.connection = self.server.connect(for_changes=self.writable)
        except StoreUnavailable as error:
            self._unreachable = error
            self._back_off.failed()
            raise error.again() from None
        self._back_off.succeeded()
        self.cursor = self.connection.cursor()
        return self.connection

    def execute(self, statements: bytes) -> None:
        assert self.connection is not None
        execute(self.connection, statements)

    def error(self, error: psycopg.Error, sql: str) -> StoreError:
        if self.lost:
            return self.server.lost(error)
        return self.server.error(error, sql, writable=self.writable)

    @property
    def lost(self) -> bool:
        return self.connection is None or is_lost(self.connection)

    def now(self) -> int:
        """The server's clock: asked with the BEGIN, and carried on by this machine's monotonic clock."""
        if self.clock is not None:
            return self.clock()
        return self._began_at + int((time.monotonic() - self._began) * 1000)

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def roll_back(self) -> None:
        """Undo what is open; where even that fails the connection is given up, and the server undoes it."""
        try:
            if self.connection is not None:
                execute(self.connection, b"ROLLBACK")
        except psycopg.Error:
            self.close()

    def run(self, job: Job) -> StoreError | None:
        """Run a job's function in what is open; what its statements met, if anything."""
        tx = PostgresTransaction(self, job)
        job.run(tx)
        tx.end()
        if tx.failure is not None and job.error is None:
            error = StoreMisuse("the function went on after a statement had failed")
            error.__cause__ = tx.failure
            job.fail(error)
        return tx.failure
