"""Databases for the control plane's tests: a SQLite file of the test's own, and a private PostgreSQL server."""

import os
import pwd
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import quote

import psutil
import psycopg
import pytest

from control_plane.store import Store, migrate, open_store
from tests.control_plane.api_harness import Api
from tests.control_plane.ledger import Clock, Ledger, make_ledger

_BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))


@dataclass(frozen=True)
class PostgresPeer:
    """A private server on a unix socket. `durable` servers write through to the disk, as a real one does."""

    binaries: Path
    folder: Path
    user: str | None
    durable: bool

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(self.folder), safe='')}"

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses='' -c max_connections=60 -c log_min_messages=fatal"
        if not self.durable:
            options += " -c fsync=off -c full_page_writes=off"
        self._run("pg_ctl", "-D", "data", "-l", "log", "-w", "-o", options, "start")

    def stop(self, how: str = "immediate") -> None:
        self._run("pg_ctl", "-D", "data", "-m", how, "-w", "stop")

    def initialise(self) -> None:
        self._run("initdb", "-D", "data", "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--no-locale")

    def create(self, database: str) -> str:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{database}"'.encode())
        return self.url(database)

    def kill_server(self) -> None:
        """Kill every process of the server, as a power cut would."""
        server = psutil.Process(int((self.folder / "data" / "postmaster.pid").read_text().split()[0]))
        processes = [server, *server.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=20)

    def _run(self, program: str, *arguments: str) -> None:
        # pg_ctl leaves the server running: a pipe of ours would stay open in it.
        log = self.folder / f"{program}.out"
        with log.open("ab") as output:
            done = subprocess.run(
                [self.binaries / program, *arguments],
                cwd=self.folder,
                user=self.user,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                check=False,
                timeout=50,
            )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {log.read_text()[-2000:]}")


def _peer(durable: bool) -> Iterator[PostgresPeer]:
    if not _BINARIES:
        pytest.skip("no PostgreSQL server here: install the package postgresql to run these tests")
    user = None
    if os.getuid() == 0:
        names = {entry.pw_name for entry in pwd.getpwall()}
        user = next((name for name in ("postgres", "nobody") if name in names), None)
        if user is None:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres or nobody to run it")
    # A socket's path has at most 107 characters, so the folder is not the test's own, long one.
    folder = Path(mkdtemp(prefix="pg-"))
    peer = PostgresPeer(_BINARIES[-1], folder, user, durable)
    try:
        if user is not None:
            shutil.chown(folder, user)
        peer.initialise()
        peer.start()
        yield peer
        peer.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
