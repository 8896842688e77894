"""Physical floors: what the disk gives to anybody."""

import sqlite3
import time
from pathlib import Path

__all__ = ["group_commit_floor"]

_SECONDS = 2.0
_BODY = "x" * 400


def group_commit_floor(path: Path, together: int) -> float:
    """Inserts and updates, a pair counted once, per second with synchronous=FULL and `together` to a commit."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE commands (id INTEGER PRIMARY KEY, state TEXT, body TEXT)")
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < _SECONDS:
        database.execute("BEGIN IMMEDIATE")
        for _ in range(together):
            done += 1
            database.execute("INSERT INTO commands VALUES (?, 'queued', ?)", (done, _BODY))
        database.execute("COMMIT")
        database.execute("BEGIN IMMEDIATE")
        for number in range(done - together + 1, done + 1):
            database.execute("UPDATE commands SET state = 'succeeded' WHERE id = ? AND state = 'queued'", (number,))
        database.execute("COMMIT")
    database.close()
    return done / (time.perf_counter() - started)
