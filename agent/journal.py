"""The agent's memory of what it was asked to do: durable before anything is answered or begun.

One SQLite file (WAL, synchronous=FULL) with one writer thread. Writes that are asked for while a commit is under way
share the next one, so the disk is waited for once per group and not once per command.

Rows go `accepted` → `started` → `finished`, and leave when the control plane has said `settled`. What has left is
remembered with its ending for 7 days of running time, at most 100,000 of them: a command that comes again after that
is answered with what came of it, and not executed. After a kernel boot the 7 days begin anew, since only
CLOCK_BOOTTIME is trusted.

No secret is in here: a payload holds a credential's reference only.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from agent.clock import Clock, Deadline
from agent.errors import JournalDamaged, JournalError
from agent.files import sync_folder
from agent.journal_writer import JournalWriter
from protocol.commands import Ending, JournalState
from protocol.frames import Command
from protocol.ids import new_id

__all__ = ["Entry", "Journal"]

_FORMAT = 1
_APPLICATION_ID = 0x52574A31
_KEPT_MS = 7 * 86_400_000
_KEPT_COUNT = 100_000
_KEPT_ENDING_BYTES = 4096
_PRUNE_EVERY = 1_000
_PRUNE = "DELETE FROM settled WHERE at_ms < ? OR sequence <= (SELECT max(sequence) FROM settled) - ?"
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE commands (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    payload BLOB NOT NULL,
    state TEXT NOT NULL,
    deadline_ms INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    ending BLOB
);
CREATE TABLE settled (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    ending BLOB,
    at_ms INTEGER NOT NULL,
    boot_id TEXT NOT NULL
);
"""
_encode = msgspec.json.encode
_decode_ending = msgspec.json.Decoder(Ending).decode
_decode_payload = msgspec.json.Decoder(dict[str, object]).decode


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One command as the journal holds it."""

    id: str
    kind: str
    payload: dict[str, object]
    state: JournalState
    deadline: Deadline
    ending: Ending | None = None


class Journal:
    """Every coroutine returns only when its write is durable, and raises JournalError when it could not be made.

    A caller that is cancelled while it waits does not take the write back.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, clock: Clock, journal_id: str) -> None:
        self.path = path
        noted = connection.execute("SELECT value FROM meta WHERE key = 'last_session'").fetchone()
        self._last_session = "" if noted is None else str(noted[0])
        self.id = journal_id
        self._clock = clock
        self._connection = connection
        self._writer = JournalWriter(path, connection)
        self._forgotten = 0

    @classmethod
    def open(cls, path: Path, clock: Clock) -> "Journal":
        """Opens the journal, or makes it where there is none. Raises JournalDamaged, and changes nothing then."""
        if not path.exists():
            _create(path)
        try:
            connection = _connect(path)
            journal_id = _checked_id(connection, path)
            connection.execute("PRAGMA journal_mode=WAL")
            _prune(connection, clock)
        except sqlite3.DatabaseError as error:
            raise _damaged(path, str(error)) from error
        return cls(path, connection, clock, journal_id)

    @property
    def commits(self) -> int:
        """How many groups of writes were made durable, for tests and benchmarks."""
        return self._writer.commits

    @property
    def last_session(self) -> str:
        """The session that was noted last; empty before the first."""
        return self._last_session

    async def note_session(self, session_id: str) -> None:
        """From now on this journal belongs to that session: what came over an older connection is known to be in it.

        The control plane sends no command before this is durable, and compares it at the next hello. A journal that
        was copied, or put back from a backup, is found out by it.
        """

        def job(db: sqlite3.Connection) -> None:
            db.execute("INSERT OR REPLACE INTO meta VALUES ('last_session', ?)", (session_id,))

        await self._writer.write(job)
        self._last_session = session_id

    async def accept(self, command: Command, deadline: Deadline) -> Entry | None:
        """Takes the command in. Where its id is known already nothing is written, and what is known is returned."""
        payload = _encode(command.payload)

        def job(db: sqlite3.Connection) -> Entry | None:
            known = _known(db, command.id)
            if known is None:
                db.execute(
                    "INSERT INTO commands (id, kind, payload, state, deadline_ms, boot_id) VALUES (?, ?, ?, ?, ?, ?)",
                    (command.id, command.kind, payload, "accepted", deadline.at_ms, deadline.boot_id),
                )
            return known

        return await self._writer.write(job)

    async def recall(self, command_id: str) -> Entry | None:
        """What is known of the id, held or settled."""
        return await self._writer.write(lambda db: _known(db, command_id))

    async def redate(self, command_id: str, deadline: Deadline) -> None:
        """A new deadline, for a command whose old one was lost with the kernel's boot."""
        values = (deadline.at_ms, deadline.boot_id, command_id)
        await self._writer.write(
            lambda db: db.execute("UPDATE commands SET deadline_ms = ?, boot_id = ? WHERE id = ?", values)
        )

    async def start(self, command_id: str) -> None:
        """Before the first act: from here on only the machine can tell what happened."""
        await self._writer.write(
            lambda db: db.execute(
                "UPDATE commands SET state = 'started' WHERE id = ? AND state = 'accepted'", (command_id,)
            )
        )

    async def finish(self, command_id: str, ending: Ending) -> None:
        """How it ended; the first ending stays."""
        data = _encode(ending)
        await self._writer.write(
            lambda db: db.execute(
                "UPDATE commands SET state = 'finished', ending = ? WHERE id = ? AND state <> 'finished'",
                (data, command_id),
            )
        )

    async def forget(self, endings: Sequence[tuple[str, Ending]]) -> None:
        """The control plane has these endings: the commands leave, their ids and endings are remembered."""
        now, boot_id = self._clock.boottime_ms(), self._clock.boot_id
        rows = [(identifier, _kept(ending), now, boot_id) for identifier, ending in endings]

        def job(db: sqlite3.Connection) -> None:
            db.executemany(
                "INSERT INTO settled (id, ending, at_ms, boot_id) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
                rows,
            )
            db.executemany("DELETE FROM commands WHERE id = ?", [row[:1] for row in rows])
            self._forgotten += len(rows)
            if self._forgotten >= _PRUNE_EVERY:
                self._forgotten = 0
                db.execute(_PRUNE, (now - _KEPT_MS, _KEPT_COUNT))

        await self._writer.write(job)

    def get(self, command_id: str) -> Entry | None:
        """A held command, read from the disk."""
        with _reading(self.path) as db:
            return _held_entry(db, command_id)

    def held(self) -> list[Entry]:
        """Every held command in the order of its acceptance, read from the disk."""
        with _reading(self.path) as db:
            return [_entry(row) for row in db.execute(f"{_SELECT} ORDER BY sequence")]

    def close(self) -> None:
        """Waits for the writes that were asked for, then closes the file. Safe to call twice."""
        self._writer.close()
        self._connection.close()


_SELECT = "SELECT id, kind, payload, state, deadline_ms, boot_id, ending FROM commands"


def _create(path: Path) -> None:
    """Makes the file beside and puts it in place whole, so that an empty file is always a damaged one."""
    beside = path.with_name(f".{path.name}.new")
    for left_over in (beside, beside.with_name(f"{beside.name}-journal")):
        left_over.unlink(missing_ok=True)
    try:
        connection = sqlite3.connect(beside, isolation_level=None)
        beside.chmod(0o600)
        connection.executescript(
            f"PRAGMA synchronous=FULL; PRAGMA application_id={_APPLICATION_ID}; PRAGMA user_version={_FORMAT};"
            f"BEGIN; {_SCHEMA} COMMIT;"
        )
        connection.execute("INSERT INTO meta VALUES ('journal_id', ?)", (new_id("jrn"),))
        connection.close()
    except sqlite3.Error as error:
        raise JournalError(f"the journal {path} cannot be made: {error}") from error
    beside.replace(path)
    sync_folder(path.parent)


def _connect(path: Path) -> sqlite3.Connection:
    if path.stat().st_size == 0:
        raise sqlite3.DatabaseError("the file is empty")
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA busy_timeout=5000")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def _checked_id(connection: sqlite3.Connection, path: Path) -> str:
    found = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
    if found != ["ok"]:
        raise sqlite3.DatabaseError("; ".join(found))
    if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
        raise sqlite3.DatabaseError("it is another program's database")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > _FORMAT:
        raise JournalDamaged(
            f"the journal {path} has format {version}, this agent knows {_FORMAT}: install the newer agent again"
        )
    row = connection.execute("SELECT value FROM meta WHERE key = 'journal_id'").fetchone()
    if row is None:
        raise sqlite3.DatabaseError("its id is missing")
    # Rows that no longer parse are damage too, and better found now than after a command was begun.
    for entry in connection.execute(_SELECT):
        try:
            _entry(entry)
        except (msgspec.MsgspecError, ValueError) as error:
            raise sqlite3.DatabaseError(f"the row of {entry[0]} cannot be read: {error}") from error
    return str(row[0])


def _prune(connection: sqlite3.Connection, clock: Clock) -> None:
    now, boot_id = clock.boottime_ms(), clock.boot_id
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE settled SET at_ms = ?, boot_id = ? WHERE boot_id <> ?", (now, boot_id, boot_id))
        connection.execute(_PRUNE, (now - _KEPT_MS, _KEPT_COUNT))
        connection.execute("COMMIT")
    except sqlite3.OperationalError:
        # A full disk is no damage: the agent starts, and refuses commands until there is room.
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _damaged(path: Path, reason: str) -> JournalDamaged:
    return JournalDamaged(
        f"the journal {path} is damaged ({reason}). The agent does not start, since it could not tell which "
        "commands were begun. Mend the disk and bring this very file back if you can; never an older copy of it, "
        "which does not know what was done since. Otherwise move it, with its -wal and -shm files, out of the way "
        "and start again: a new journal is made, and the outcome of every command that the old one held becomes "
        "unknown (OUTCOME_UNKNOWN in the control plane), so look at those machines"
    )


class _reading:
    """A read-only look at the file, beside the writer."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> sqlite3.Connection:
        self._db = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, isolation_level=None)
        return self._db

    def __exit__(self, *_: object) -> None:
        self._db.close()


def _held_entry(db: sqlite3.Connection, command_id: str) -> Entry | None:
    row = db.execute(f"{_SELECT} WHERE id = ?", (command_id,)).fetchone()
    return None if row is None else _entry(row)


def _known(db: sqlite3.Connection, command_id: str) -> Entry | None:
    held = _held_entry(db, command_id)
    if held is not None:
        return held
    row = db.execute("SELECT id, ending FROM settled WHERE id = ?", (command_id,)).fetchone()
    if row is None:
        return None
    return Entry(
        id=row[0],
        kind="",
        payload={},
        state=JournalState.FINISHED,
        deadline=Deadline(0, ""),
        ending=_decode_ending(row[1]),
    )


def _entry(row: Sequence[Any]) -> Entry:
    return Entry(
        id=row[0],
        kind=row[1],
        payload=_decode_payload(row[2]),
        state=JournalState(row[3]),
        deadline=Deadline(row[4], row[5]),
        ending=None if row[6] is None else _decode_ending(row[6]),
    )


def _kept(ending: Ending) -> bytes:
    """The ending as it is remembered after it was settled: whole when it is small, else without its result."""
    data = _encode(ending)
    if len(data) <= _KEPT_ENDING_BYTES:
        return data
    return _encode(Ending(ending.outcome, observed={"resultOmitted": f"{len(data)} bytes, settled before"}))
