"""The SQLite file: opened with the right settings, held by one process, and its errors in the store's words."""

import fcntl
import os
import sqlite3
from pathlib import Path

from control_plane.store.errors import (
    CommitUnknown,
    Constraint,
    ConstraintViolated,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreMisuse,
    StoreReadOnly,
    StoreUnavailable,
)

BUSY_TIMEOUT_MS = 5000
STATEMENTS_REMEMBERED = 512
_JOURNAL_KEPT = 64 * 1024 * 1024
_CACHE_KIB = 32 * 1024
"""The writer's page cache. A batch that does not fit (SQLite's own default is 2 MiB) is written to the log in
pieces, and its pages are read back: a third of the engine's speed."""
_CHECKPOINT_PAGES = 4_000
"""Pages of the log (16 MiB) after which they are copied into the database: one that changes often is copied once."""
_PRIMARY = 0xFF


class FileLock:
    """This process's hold on a database file: `<file>.lock`, by flock, let go by the kernel when the process dies."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".lock")
        self._descriptor = -1

    def take(self) -> None:
        """Take hold. Raises `StoreBusy` naming the process that holds it."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise file_error(error, self._path) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise StoreBusy(
                f"the database {self._path.with_suffix('')} is in use by another process"
                + (f" (pid {holder})" if holder else ""),
                advice="Stop that process first; several workers need PostgreSQL",
            ) from error
        self._descriptor = descriptor
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            # The number only makes another process's error message better; a full disk must not stop the start.
            pass

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def create(path: Path) -> None:
    """Make the file, for the owner alone, and make its name durable. Does nothing where it exists."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        sync_folder(path.parent)
    except FileExistsError:
        return
    except OSError as error:
        raise file_error(error, path) from error


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def connect(path: Path, *, writable: bool) -> sqlite3.Connection:
    """A connection in WAL mode; a writable one makes every commit durable against a power cut.

    Only one writable connection may exist: nothing else writes or checkpoints. One thread at a time uses it.
    """
    uri = f"{path.absolute().as_uri()}?mode={'rw' if writable else 'ro'}"
    try:
        connection = sqlite3.connect(
            uri,
            uri=True,
            timeout=BUSY_TIMEOUT_MS / 1000,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=STATEMENTS_REMEMBERED,
        )
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    try:
        if writable:
            _make_durable(connection, path)
        else:
            connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        connection.close()
        raise store_error(error, path) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _make_durable(connection: sqlite3.Connection, path: Path) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreUnavailable(
            f"the database {path} cannot use a write-ahead log (journal mode {mode})",
            advice="Put it on a local file system",
        )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL_KEPT}")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")


def file_error(error: OSError, path: Path) -> StoreUnavailable:
    """What the operating system said about the file, with what to do."""
    what, cause = f"the database file {path} cannot be opened", error.strerror or str(error)
    if isinstance(error, FileNotFoundError):
        return StoreUnavailable(what, cause=cause, advice=f"Create the folder {path.parent}")
    if isinstance(error, PermissionError):
        return StoreReadOnly(what, cause=cause, advice="Give this user the right to write the file and its folder")
    if error.errno == 28:
        return StoreFull(what, cause=cause, advice="Free some space on that disk")
    if error.errno == 30:
        return StoreReadOnly(what, cause=cause, advice="Mount the file system writable")
    return StoreUnavailable(what, cause=cause)


def store_error(error: sqlite3.Error, path: Path, sql: str = "") -> StoreError:
    """An error of SQLite as the store's: what happened, SQLite's own words, and what to do next."""
    code = getattr(error, "sqlite_errorcode", None)
    cause = str(error)
    if code is None:
        return StoreMisuse(f"{cause}, in: {sql}" if sql else cause)
    primary = code & _PRIMARY
    if primary == sqlite3.SQLITE_CONSTRAINT:
        return _constraint_violated(code, cause)
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreBusy(
            f"the database {path} is locked by another process",
            cause=cause,
            advice="Close the tool that has it open for writing",
        )
    if primary == sqlite3.SQLITE_FULL:
        return StoreFull(f"no room for the database {path}", cause=cause, advice="Free some space on that disk")
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return StoreReadOnly(
            f"the database {path} cannot be written",
            cause=cause,
            advice="Make the file, its folder and its file system writable for this user",
        )
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreCorrupt(
            f"the database {path} is damaged or is no database",
            cause=cause,
            advice="Stop the service and put back the last backup",
        )
    if primary in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL):
        name = getattr(error, "sqlite_errorname", "")
        return StoreUnavailable(
            f"the database {path} cannot be used",
            cause=f"{cause} ({name})",
            advice="Look at the kernel's log for the disk",
        )
    return StoreMisuse(f"{cause}, in: {sql}" if sql else cause)


def commit_error(error: sqlite3.Error, path: Path) -> StoreError:
    """Why a COMMIT failed.

    A log that could not be forced to the disk may still be whole there when the power comes back, so whether that
    transaction is stored is unknown. A log that could not be written has no commit mark: nothing is stored.
    """
    code = getattr(error, "sqlite_errorcode", 0)
    if code & _PRIMARY == sqlite3.SQLITE_IOERR and code != sqlite3.SQLITE_IOERR_WRITE:
        return CommitUnknown(
            f"the database {path} could not be forced to the disk: whether it was stored is unknown",
            cause=f"{error} ({error.sqlite_errorname})",
            advice="Look at the kernel's log for the disk",
        )
    return store_error(error, path)


_KINDS = {
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: Constraint.UNIQUE,
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: Constraint.UNIQUE,
    sqlite3.SQLITE_CONSTRAINT_ROWID: Constraint.UNIQUE,
    sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY: Constraint.FOREIGN_KEY,
    sqlite3.SQLITE_CONSTRAINT_NOTNULL: Constraint.NOT_NULL,
    sqlite3.SQLITE_CONSTRAINT_CHECK: Constraint.CHECK,
}


def _constraint_violated(code: int, message: str) -> ConstraintViolated:
    _, separator, name = message.partition(": ")
    return ConstraintViolated(_KINDS.get(code, Constraint.OTHER), name if separator else "", message)
