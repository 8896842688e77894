"""Databases for the control plane's tests: a SQLite file of the test's own, and a private PostgreSQL server."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from control_plane.store import Store, migrate, open_store
from tests.control_plane.api_harness import Api
from tests.control_plane.ledger import Clock, Ledger, make_ledger
from tests.postgres import NoPostgres, PostgresPeer, private_server


def _peer(durable: bool) -> Iterator[PostgresPeer]:
    with contextlib.ExitStack() as stack:
        try:
            peer = stack.enter_context(private_server(durable=durable))
        except NoPostgres as reason:
            pytest.skip(str(reason))
        yield peer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresPeer]:
    """A server shared by all tests that do not hurt it. It does not wait for the disk."""
    yield from _peer(durable=False)


@pytest.fixture(scope="module")
def durable_postgres_server() -> Iterator[PostgresPeer]:
    """A server that a module's tests may kill; it waits for the disk."""
    yield from _peer(durable=True)


_numbers = count(1)


@pytest.fixture
def postgres_url(postgres_server: PostgresPeer) -> str:
    """An empty PostgreSQL database of the test's own."""
    return postgres_server.create(f"test_{os.getpid()}_{next(_numbers)}")


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of the test's own; each test runs on both kinds."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/control.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    """An open store on an empty database; each test runs on both kinds."""
    opened = open_store(store_url)
    yield opened
    await opened.close()


@pytest.fixture
async def api(store: Store) -> AsyncIterator[Api]:
    """The API over an empty database; each test runs on both kinds."""
    made = Api(store)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def sqlite_api(tmp_path: Path) -> AsyncIterator[Api]:
    """The API over SQLite alone, where the database makes no difference."""
    opened = open_store(f"sqlite://{tmp_path}/control.db")
    made = Api(opened)
    await made.start()
    yield made
    await made.stop()
    await opened.close()


@pytest.fixture
async def ledger(store_url: str) -> AsyncIterator[Ledger]:
    """An empty command ledger whose clock stands still; each test runs on both kinds."""
    clock = Clock()
    opened = open_store(store_url, clock=clock)
    await migrate(opened)
    yield await make_ledger(opened, clock)
    await opened.close()
