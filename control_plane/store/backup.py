"""A copy of the store while it is in use."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from control_plane.store.errors import BackupFailed, StoreUnavailable
from control_plane.store.location import sqlite_path
from control_plane.store.sqlite_file import connect, sync_folder


def backup(url: str, target: Path) -> None:
    """Copy the SQLite store at `url` to the new file `target`: one moment of it, checked and on the disk.

    Any process may call it, also beside the running service, whose writes go on. The file appears whole or not at
    all, readable by its owner only. Raises `BackupFailed`, also for PostgreSQL, which has its own tools.
    """
    if url.lower().startswith(("postgresql:", "postgres:")):
        raise BackupFailed(
            "a PostgreSQL database is backed up by its own tools: pg_dump --format=custom --file=FILE DATABASE, or "
            "pg_basebackup for the whole server"
        )
    source = sqlite_path(url)
    if target.exists():
        raise BackupFailed(f"{target} exists already: give a new name, backups are never overwritten")
    partial = target.with_name(target.name + ".partial")
    try:
        partial.unlink(missing_ok=True)
        _copy(source, partial)
        _check(partial)
        _sync(partial)
        partial.rename(target)
        sync_folder(target.parent)
    except (OSError, sqlite3.Error, StoreUnavailable) as error:
        partial.unlink(missing_ok=True)
        raise BackupFailed(f"{source} could not be copied to {target}: {error}") from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _copy(source: Path, partial: Path) -> None:
    # An empty file of our own making, so that the copy is never readable by others.
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(connect(source, writable=False)) as connection:
        connection.execute("PRAGMA query_only = OFF")
        connection.execute("VACUUM INTO ?", (str(partial),))


def _check(partial: Path) -> None:
    with closing(sqlite3.connect(f"{partial.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        faults = [str(line) for (line,) in connection.execute("PRAGMA integrity_check(5)") if line != "ok"]
        faults += [
            f"{row[0]} has a row whose {row[2]} is gone" for row in connection.execute("PRAGMA foreign_key_check")
        ]
    if faults:
        raise BackupFailed(f"the copy is damaged, so the database probably is too: {'; '.join(faults[:5])}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
