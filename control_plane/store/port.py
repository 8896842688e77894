"""The store port: what the control plane may ask of its database, whichever it is.

All work is plain synchronous functions over a transaction: no sockets, no sleeping, no clock of their own.

    def rename(tx: Transaction, node_id: str, name: str) -> Node | None:
        tx.run("UPDATE nodes SET name = :name WHERE id = :id", {"id": node_id, "name": name})
        return tx.one("SELECT id, name, state FROM nodes WHERE id = :id", {"id": node_id}, into=Node)

    node = await store.write(rename, "node_…", "rack-7-u12")

Rules for such a function, the same on both databases:

- It may be run more than once (deadlock, lost connection, a neighbour in the batch filled the disk). Only its last
  run counts. So it changes nothing but the transaction; everything else goes through `after_commit` or `notify`.
- A statement that fails ends the transaction. Catching the error and going on is refused.
- On PostgreSQL others write at the same time (READ COMMITTED): lock what you decide on with `FOR UPDATE`, or put the
  condition into the UPDATE's WHERE and look at the count. On SQLite writers follow one another.

The SQL is one text for both databases: see `statements.py` for what is translated.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Protocol, TypeVar, TypeVarTuple, overload

import msgspec

Dialect = Literal["sqlite", "postgresql"]
Row = tuple[Any, ...]
Params = Mapping[str, object]
NO_PARAMS: Params = {}

RecordT = TypeVar("RecordT", bound=msgspec.Struct)
ResultT = TypeVar("ResultT")
ArgsT = TypeVarTuple("ArgsT")


class Transaction(Protocol):
    """One transaction, given to a function by `Store.write` or `Store.read`; useless after that function ends."""

    @property
    def dialect(self) -> Dialect:
        """The database's name, for the few statements that cannot be one text."""
        ...

    @overload
    def one(self, sql: str, params: Params = ..., *, into: None = None) -> Row | None: ...
    @overload
    def one(self, sql: str, params: Params = ..., *, into: type[RecordT]) -> RecordT | None: ...
    def one(self, sql: str, params: Params = NO_PARAMS, *, into: Any = None) -> Any:
        """The only row of the answer, or None. A second row is a `StoreMisuse`.

        A row is a tuple, or with `into` a record whose fields are the answer's columns (see `rows.py`).
        """
        ...

    @overload
    def all(self, sql: str, params: Params = ..., *, into: None = None) -> list[Row]: ...
    @overload
    def all(self, sql: str, params: Params = ..., *, into: type[RecordT]) -> list[RecordT]: ...
    def all(self, sql: str, params: Params = NO_PARAMS, *, into: Any = None) -> Any:
        """Every row of the answer, as tuples or records."""
        ...

    def run(self, sql: str, params: Params = NO_PARAMS) -> int:
        """Run a change; the number of rows that it changed."""
        ...

    def run_many(self, sql: str, rows: Iterable[Params]) -> int:
        """Run one change for each of the parameter sets, in order; the number of rows changed in all."""
        ...

    def now(self) -> int:
        """Milliseconds since 1970 by the store's clock; the same all through one transaction.

        PostgreSQL's own clock, unless the store was opened with one: workers' clocks differ.
        """
        ...

    def notify(self, channel: str, payload: str = "") -> None:
        """Wake the listeners of a channel, in every process, once this transaction is durable. Only a hint."""
        ...

    def after_commit(self, call: Callable[[], object]) -> None:
        """Have `call` made in the caller's event loop once this transaction is durable, before its result is given.

        Lost with the process: nothing may depend on it. What it raises goes to the loop's exception handler.
        """
        ...


class Store(Protocol):
    """A database behind the port. Its methods are called in an event loop; functions run in the store's threads."""

    @property
    def dialect(self) -> Dialect:
        """`sqlite` or `postgresql`."""
        ...

    async def write(self, fn: Callable[[Transaction, *ArgsT], ResultT], *args: *ArgsT) -> ResultT:
        """Run `fn(tx, *args)` in a transaction; return its result once the transaction is durable.

        What `fn` raises undoes just this transaction and is raised here. When this call is cancelled the
        transaction may be stored or not. Raises `StoreUnavailable` (nothing stored), `CommitUnknown`,
        `ConstraintViolated`, `StoreMisuse`, `StoreClosed`.
        """
        ...

    async def read(self, fn: Callable[[Transaction, *ArgsT], ResultT], *args: *ArgsT) -> ResultT:
        """Run `fn(tx, *args)` on one unchanging view of the store, that holds every write acknowledged before.

        It never waits for a writer. A change inside it is refused as `StoreMisuse`.
        """
        ...

    async def notify(self, channel: str, payload: str = "") -> None:
        """Wake the listeners of a channel, in every process that uses this database. Only a hint: it may be lost."""
        ...

    def listen(self, channel: str, callback: Callable[[str], object]) -> Callable[[], None]:
        """Have `callback(payload)` called in this event loop for each hint; call what is returned to stop.

        It is called with an empty payload once listening is in place, and again after each time that the
        connection was lost: hints may have been missed then, so look at the tables.
        """
        ...

    async def close(self) -> None:
        """Finish what was asked, then let go of the database. Later calls raise `StoreClosed`."""
        ...
