"""From a URL to a store."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from control_plane.store.errors import StoreUrlInvalid
from control_plane.store.port import Store
from control_plane.store.sqlite import SqliteStore
from control_plane.store.sqlite_transaction import Clock, wall_clock

_SHAPES = "sqlite:///absolute/path.db, sqlite:relative/path.db or postgresql://user@host/database"


def open_store(url: str, *, clock: Clock | None = None, read_only: bool = False) -> Store:
    """Open the store that a URL names. The URL, which may hold a password, is in no message.

    `clock` (milliseconds since 1970) takes the place of the machine's clock on SQLite and of the server's on
    PostgreSQL. `read_only` opens a SQLite file beside the process that uses it. Raises `StoreUrlInvalid`,
    `StoreUnavailable`. PostgreSQL is not called before the first transaction.
    """
    scheme = url.partition(":")[0].lower()
    if scheme == "sqlite":
        return SqliteStore(sqlite_path(url), clock=clock or wall_clock, read_only=read_only)
    if scheme in ("postgresql", "postgres"):
        # psycopg costs 50 ms and 10 MB: only who uses PostgreSQL loads it.
        from control_plane.store.postgres import PostgresStore

        return PostgresStore(url, clock=clock, read_only=read_only)
    raise StoreUrlInvalid(f"no store has the scheme {scheme[:20]!r}; use {_SHAPES}")


def sqlite_path(url: str) -> Path:
    """The file that a `sqlite:` URL names. Raises `StoreUrlInvalid`."""
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise StoreUrlInvalid(f"a SQLite URL has no options; use {_SHAPES}")
    if ":memory:" in url:
        raise StoreUrlInvalid("a database in memory would lose every result with the process; name a file")
    if parts.netloc:
        raise StoreUrlInvalid(f"a SQLite URL has no host: write three slashes before an absolute path ({_SHAPES})")
    path = unquote(parts.path)
    if not path.strip("/"):
        raise StoreUrlInvalid(f"the SQLite URL names no file; use {_SHAPES}")
    return Path("/" + path.lstrip("/")) if path.startswith("/") else Path(path)
