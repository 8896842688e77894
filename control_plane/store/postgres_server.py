"""The PostgreSQL server: where it is, how it is called, and its errors in the store's words."""

import random
import time
from typing import Any

import psycopg
from psycopg import pq
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import TextLoader

from control_plane.store.errors import (
    Constraint,
    ConstraintViolated,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreMisuse,
    StoreReadOnly,
    StoreUnavailable,
    StoreUrlInvalid,
)

LOCK_TIMEOUT_MS = 50
"""How long a lock is waited for at first, before the next try. The server finds a deadlock after a second only."""
IDLE_TIMEOUT_MS = 20_000
"""How long a change may be open without a statement before the server undoes it; it is then run again.

A process that was stopped for longer (a paused virtual machine) must not come back and commit what all others take
for dead: `horizon.py` waits for an open transaction a little longer than this.
"""
_STATEMENTS_PREPARED = 500
_FIRST_BACK_OFF_S = 0.1
_LONGEST_BACK_OFF_S = 5.0
_DEFAULTS: dict[str, str] = {
    "application_name": "rackwright",
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
# A server that was told to forget acknowledged commits is told otherwise for our own.
_SETTINGS = (
    b"SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'; "
    b"SET lock_timeout = %d; SET client_encoding = 'UTF8'" % LOCK_TIMEOUT_MS
)
# A change finds its rows by their keys. The server may think otherwise from statistics that are missing (a new table)
# or old (a plan that was kept while the table grew), and then reads the whole table, with all that is dead in it.
_BY_KEY = b"; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"
_FOR_CHANGES = _SETTINGS + _BY_KEY + b"; SET idle_in_transaction_session_timeout = %d" % IDLE_TIMEOUT_MS

Connection = psycopg.Connection[tuple[Any, ...]]


class _NumberLoader(Loader):
    """A sum of BIGINTs is a NUMERIC on PostgreSQL: given as the int or float that SQLite gives."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data)
        return int(text) if text.lstrip(b"-").isdigit() else float(text)


class PostgresServer:
    """A server and database to connect to. Its password is in no message and no repr."""

    def __init__(self, url: str) -> None:
        """Raises `StoreUrlInvalid`; calls nobody."""
        try:
            parts = conninfo_to_dict(url)
            for port in str(parts.get("port") or "").split(","):
                int(port or 0)
        except (psycopg.Error, ValueError):
            # The driver's message repeats the URL with its password.
            raise StoreUrlInvalid(
                "the PostgreSQL URL cannot be read; use postgresql://user@host:5432/database and percent-encode "
                "special characters of the password"
            ) from None
        password = parts.get("password")
        self._password = str(password) if password else None
        self._conninfo = make_conninfo("", **{**_DEFAULTS, **parts})
        place = parts.get("host") or parts.get("hostaddr") or "its default socket"
        port = f":{parts['port']}" if parts.get("port") else ""
        self.name = f"{parts.get('dbname') or parts.get('user') or 'the default database'} at {place}{port}"

    def __repr__(self) -> str:
        return f"PostgresServer({self.name!r})"

    def connect(self, *, for_changes: bool = False) -> Connection:
        """A new connection, outside of any transaction. Raises `StoreUnavailable`.

        `for_changes`: they find their rows by index, and do not stay open idle.
        """
        try:
            connection = psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=1)
        except (psycopg.Error, OSError) as error:
            raise self._unreachable(error) from None
        connection.prepared_max = _STATEMENTS_PREPARED
        adapters = connection.adapters
        # One type for every int, else each width of a number would be a prepared statement of its own.
        adapters.register_dumper(int, Int8Dumper)
        adapters.register_loader("numeric", _NumberLoader)
        adapters.register_loader("json", TextLoader)
        adapters.register_loader("jsonb", TextLoader)
        try:
            execute(connection, _FOR_CHANGES if for_changes else _SETTINGS)
        except psycopg.Error as error:
            connection.close()
            raise self.error(error) from None
        return connection

    def _unreachable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(
            f"the PostgreSQL database {self.name} cannot be reached",
            cause=self._clean(str(error)),
            advice="Check that the server runs and that the URL, user and password are right",
        )

    def lost(self, error: Exception | None = None) -> StoreUnavailable:
        """The connection broke before a COMMIT was sent."""
        return StoreUnavailable(
            f"the connection to the PostgreSQL database {self.name} was lost",
            cause=self._clean(str(error)) if error is not None else "",
            advice="It is tried again; check the server if this lasts",
        )

    def error(self, error: psycopg.Error, sql: str = "", *, writable: bool = True) -> StoreError:
        """An error of PostgreSQL as the store's. DETAIL lines, which quote values, are left out."""
        state = error.sqlstate or ""
        message = self._clean(error.diag.message_primary or str(error))
        if state.startswith("23"):
            kind = _KINDS.get(state, Constraint.OTHER)
            return ConstraintViolated(kind, error.diag.constraint_name or error.diag.column_name or "", message)
        if state in _RETRIED:
            return StoreBusy(
                f"another transaction on the database {self.name} was in the way", cause=message, advice="Try again"
            )
        if state == "25006":
            if not writable:
                return StoreMisuse(f"a change inside a read, in: {sql}")
            return StoreReadOnly(
                f"the database {self.name} takes no writes", cause=message, advice="Connect to the primary server"
            )
        if state == "53100":
            return StoreFull(
                f"no room for the database {self.name}", cause=message, advice="Free space on the server"
            )
        if state in ("XX001", "XX002"):
            return StoreCorrupt(
                f"the database {self.name} is damaged", cause=message, advice="Stop, and put back the last backup"
            )
        if state[:2] in _NOT_NOW or (not state and isinstance(error, psycopg.OperationalError)):
            return StoreUnavailable(
                f"the database {self.name} cannot be used", cause=message, advice="See the server's log"
            )
        return StoreMisuse(f"{message}, in: {sql}" if sql else message)

    def _clean(self, text: str) -> str:
        text = " ".join(text.split())
        return text.replace(self._password, "***") if self._password else text


_RETRIED = frozenset({"40001", "40P01", "55P03"})
_NOT_NOW = frozenset({"08", "53", "57", "58", "XX"})
_KINDS = {
    "23505": Constraint.UNIQUE,
    "23P01": Constraint.UNIQUE,
    "23503": Constraint.FOREIGN_KEY,
    "23502": Constraint.NOT_NULL,
    "23514": Constraint.CHECK,
}


def execute(connection: Connection, statements: bytes) -> pq.abc.PGresult:
    """Send plain statements without parameters in one round trip; the last one's result. Raises `psycopg.Error`."""
    result = connection.pgconn.exec_(statements)
    if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        return result
    raise psycopg.errors.error_from_result(result)


def is_lost(connection: Connection) -> bool:
    """Whether the connection is known to be broken."""
    return connection.closed or connection.pgconn.status != pq.ConnStatus.OK


class BackOff:
    """How long to leave a server alone that could not be reached: longer each time, with jitter, at most seconds."""

    def __init__(self) -> None:
        self._delay = 0.0
        self._until = 0.0

    def failed(self) -> float:
        """Count a failure; the seconds to wait."""
        self._delay = min(max(self._delay * 2, _FIRST_BACK_OFF_S), _LONGEST_BACK_OFF_S)
        wait = self._delay * random.uniform(0.5, 1.0)
        self._until = time.monotonic() + wait
        return wait

    def succeeded(self) -> None:
        self._delay = self._until = 0.0

    @property
    def waiting(self) -> bool:
        """Whether it is too early to try again."""
        return time.monotonic() < self._until
