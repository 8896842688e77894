"""The database's tables, made step by step by the numbered files in `migrations/`.

`NNNN_name.sql` is for both databases; where one text cannot be, `NNNN_name.sqlite.sql` and `NNNN_name.postgresql.sql`
stand in its place or beside it (the more special file wins). Each is applied once, in one transaction together with
its line in `schema_migrations`: after a crash it is there whole or not at all. A file is never edited after its
release; a change is a new file.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from control_plane.store.errors import MigrationEdited, SchemaAhead, SchemaBehind
from control_plane.store.port import Dialect, Store, Transaction
from control_plane.store.statements import split

FOLDER = Path(__file__).parent / "migrations"

_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)(?:\.(sqlite|postgresql))?\.sql")
_MIGRATING = 0x7261636B  # "rack": PostgreSQL's advisory lock for whoever migrates
_HAS_TABLE: dict[Dialect, str] = {
    "sqlite": "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema_migrations'",
    "postgresql": "SELECT 1 WHERE to_regclass('schema_migrations') IS NOT NULL",
}


class Migration(msgspec.Struct, frozen=True):
    """One numbered change of the tables, as read from its file."""

    version: int
    name: str
    sql: str
    sha256: str


class Applied(msgspec.Struct, frozen=True):
    """A line of `schema_migrations`. `applied_at` is in milliseconds since 1970."""

    version: int
    name: str
    sha256: str
    applied_at: int


def migrations(dialect: Dialect, folder: Path = FOLDER) -> list[Migration]:
    """The migrations for a database, in order. Raises `MigrationEdited` when the files are not 1, 2, 3, …"""
    chosen: dict[int, tuple[str, Path, bool]] = {}
    for path in sorted(folder.glob("*.sql")):
        parts = _NAME.fullmatch(path.name)
        if parts is None:
            raise MigrationEdited(f"{path.name} is no migration's name; use NNNN_small_letters.sql")
        version, name, only = int(parts[1]), parts[2], parts[3]
        if only is not None and only != dialect:
            continue
        other = chosen.get(version)
        if other is not None and (other[0] != name or other[2] == (only is not None)):
            raise MigrationEdited(f"two migrations have the number {version:04}: {other[1].name} and {path.name}")
        if other is None or only is not None:
            chosen[version] = (name, path, only is not None)
    if sorted(chosen) != list(range(1, len(chosen) + 1)):
        raise MigrationEdited(f"the migrations' numbers have a gap: {', '.join(f'{n:04}' for n in sorted(chosen))}")
    return [_read(version, name, path) for version, (name, path, _) in sorted(chosen.items())]


def _read(version: int, name: str, path: Path) -> Migration:
    sql = path.read_text()
    return Migration(version, name, sql, hashlib.sha256(sql.encode()).hexdigest())


def unapplied(known: Sequence[Migration], applied: Iterable[Applied]) -> list[Migration]:
    """What is still to be applied. Raises `SchemaAhead`, `MigrationEdited` when code and database do not agree."""
    by_version = {migration.version: migration for migration in known}
    done = set()
    for line in applied:
        migration = by_version.get(line.version)
        if migration is None:
            raise SchemaAhead(
                f"the database has migration {line.version:04} ({line.name}), which this program does not know: a "
                "newer version has used it. Install that version or a newer one, or put back a backup made before"
            )
        if migration.sha256 != line.sha256:
            raise MigrationEdited(
                f"migration {line.version:04} ({line.name}) has another text than the one that was applied: install "
                "the program again; a change of the tables is a new migration"
            )
        done.add(line.version)
    return [migration for migration in known if migration.version not in done]


def applied_migrations(tx: Transaction) -> list[Applied]:
    """What this database has had, in order."""
    if tx.one(_HAS_TABLE[tx.dialect]) is None:
        return []
    return tx.all("SELECT version, name, sha256, applied_at FROM schema_migrations ORDER BY version", into=Applied)


async def pending(store: Store, folder: Path = FOLDER) -> list[Migration]:
    """The migrations that this database still needs. Raises `SchemaAhead`, `MigrationEdited`."""
    return unapplied(migrations(store.dialect, folder), await store.read(applied_migrations))


async def migrate(store: Store, folder: Path = FOLDER) -> list[Migration]:
    """Apply what is pending, one transaction each; returns what this call applied.

    Several processes may call it at once: each migration is applied by one of them. Raises `SchemaAhead`,
    `MigrationEdited` before anything is changed.
    """
    needed = await pending(store, folder)
    done = [migration for migration in needed if await store.write(_apply, migration)]
    await verify(store, folder)
    return done


async def verify(store: Store, folder: Path = FOLDER) -> None:
    """Raise `SchemaBehind`, `SchemaAhead` or `MigrationEdited` unless the tables are this program's."""
    behind = await pending(store, folder)
    if behind:
        names = ", ".join(f"{migration.version:04}_{migration.name}" for migration in behind)
        raise SchemaBehind(f"the database lacks {len(behind)} migrations ({names}): migrate it before the start")


def _apply(tx: Transaction, migration: Migration) -> bool:
    if tx.dialect == "postgresql":
        # Another process may migrate for minutes, longer than any other lock is waited for.
        tx.run("SET LOCAL lock_timeout = 0")
        tx.one("SELECT pg_advisory_xact_lock(:key)", {"key": _MIGRATING})
    if any(line.version == migration.version for line in applied_migrations(tx)):
        return False
    for statement in split(migration.sql):
        tx.run(statement)
    tx.run(
        "INSERT INTO schema_migrations (version, name, sha256, applied_at) VALUES (:version, :name, :sha256, :at)",
        {"version": migration.version, "name": migration.name, "sha256": migration.sha256, "at": tx.now()},
    )
    return True
