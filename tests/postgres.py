"""A private PostgreSQL server for tests and benchmarks: its own folder, its own socket, gone afterwards."""

import contextlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import quote

import psutil
import psycopg

__all__ = ["NoPostgres", "PostgresPeer", "private_server"]

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
            with contextlib.suppress(psutil.NoSuchProcess):
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


class NoPostgres(Exception):
    """There is no server to start here; the text says what to do."""


@contextlib.contextmanager
def private_server(*, durable: bool) -> Iterator[PostgresPeer]:
    """A running server. Raises NoPostgres."""
    if not _BINARIES:
        raise NoPostgres("no PostgreSQL server here: install the package postgresql")
    user = None
    if os.getuid() == 0:
        names = {entry.pw_name for entry in pwd.getpwall()}
        user = next((name for name in ("postgres", "nobody") if name in names), None)
        if user is None:
            raise NoPostgres("PostgreSQL does not run as root, and there is no user postgres or nobody to run it")
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
