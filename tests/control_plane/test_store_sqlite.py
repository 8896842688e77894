"""What goes wrong with a file: a clear error, nothing half stored, and writing goes on once the cause is gone."""

import asyncio
import os
import resource
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from control_plane.store import (
    CommitUnknown,
    ConstraintViolated,
    Store,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreMisuse,
    StoreReadOnly,
    StoreUnavailable,
    Transaction,
    open_store,
    sqlite_file,
)


def make_table(tx: Transaction) -> None:
    tx.run("CREATE TABLE notes (id TEXT PRIMARY KEY, text TEXT NOT NULL)")


def note(tx: Transaction, note_id: str, length: int = 10) -> None:
    tx.run("INSERT INTO notes (id, text) VALUES (:id, :text)", {"id": note_id, "text": "x" * length})


def note_much(tx: Transaction, note_id: str, megabytes: int) -> None:
    for number in range(megabytes * 10):
        note(tx, f"{note_id}-{number}", 100_000)


def note_twice(tx: Transaction, note_id: str) -> None:
    note(tx, note_id)
    note(tx, note_id)


def ids(tx: Transaction) -> list[str]:
    return [row[0] for row in tx.all("SELECT id FROM notes ORDER BY id")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.db"


@pytest.fixture
async def notes(path: Path) -> AsyncIterator[Store]:
    store = open_store(f"sqlite://{path}")
    await store.write(make_table)
    yield store
    await store.close()


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 4 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    with TemporaryDirectory() as folder:
        mount = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=False, capture_output=True
        )
        if mount.returncode:
            pytest.skip("a small file system cannot be mounted here")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


class TestSettings:
    async def test_every_commit_is_forced_to_the_disk(self, notes: Store) -> None:
        def settings(tx: Transaction) -> list[object]:
            names = ("journal_mode", "synchronous", "foreign_keys")
            return [(tx.one(f"SELECT * FROM pragma_{name}") or (None,))[0] for name in names]

        assert await notes.write(settings) == ["wal", 2, 1]

    async def test_the_file_is_its_owners_alone(self, notes: Store, path: Path) -> None:
        await notes.write(note, "n1")
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name

    async def test_transactions_that_wait_together_share_a_commit(self, notes: Store, path: Path) -> None:
        """Each commit leaves a commit mark in the log: a frame whose second word, the database's size, is not 0."""
        await notes.write(note, "first")
        before = commits(path)
        await asyncio.gather(*(notes.write(note, f"n{number}") for number in range(200)))
        assert 1 <= commits(path) - before < 50
        assert len(await notes.read(ids)) == 201


def commits(path: Path) -> int:
    log = path.with_name(path.name + "-wal").read_bytes()
    page = int.from_bytes(log[8:12], "big")
    return sum(1 for at in range(32, len(log), page + 24) if int.from_bytes(log[at + 4 : at + 8], "big"))


class TestOneProcess:
    def test_a_second_process_is_refused_and_told_who_has_it(self, path: Path) -> None:
        program = (
            "import asyncio, sys\nfrom control_plane.store import open_store\n"
            "async def main():\n store = open_store(sys.argv[1])\n print('open', flush=True)\n sys.stdin.read()\n"
            "asyncio.run(main())"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program, f"sqlite://{path}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"open\n"
            with pytest.raises(StoreBusy, match=rf"in use by another process \(pid {other.pid}\).*PostgreSQL"):
                open_store(f"sqlite://{path}")
            other.kill()
        # The kernel lets go of a dead process's hold.
        asyncio.run(open_store(f"sqlite://{path}").close())

    async def test_a_tool_may_read_beside_the_service(self, notes: Store, path: Path) -> None:
        await notes.write(note, "n1")
        tool = open_store(f"sqlite://{path}", read_only=True)
        assert await tool.read(ids) == ["n1"]
        await notes.write(note, "n2")
        assert await tool.read(ids) == ["n1", "n2"]
        await tool.close()

    @pytest.mark.case("B58")
    async def test_a_file_locked_by_a_tool_is_waited_for_then_refused_then_written_again(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_MS", 50)
        store = open_store(f"sqlite://{path}")
        await store.write(make_table)
        with closing(sqlite3.connect(path, isolation_level=None)) as tool:
            tool.execute("BEGIN IMMEDIATE")
            results = await asyncio.gather(
                *(store.write(note, f"n{number}") for number in range(5)), return_exceptions=True
            )
            assert all(isinstance(result, StoreBusy) for result in results)
            assert "nothing was stored" in str(results[0])
            assert await store.read(ids) == []
            tool.execute("ROLLBACK")
        await store.write(note, "later")
        assert await store.read(ids) == ["later"]
        await store.close()


class TestDisk:
    async def test_a_full_disk_is_an_error_and_writing_goes_on_once_there_is_room(self, small_disk: Path) -> None:
        store = open_store(f"sqlite://{small_disk}/control.db")
        await store.write(make_table)
        await store.write(note, "before")
        filler = small_disk / "filler"
        with pytest.raises(OSError, match="No space"):
            filler.write_bytes(b"x" * 2**23)
        results = await asyncio.gather(
            *(store.write(note, f"full-{number}", 20_000) for number in range(8)), return_exceptions=True
        )
        assert all(isinstance(result, StoreFull) for result in results)
        assert "nothing was stored" in str(results[0])
        assert "Free some space" in str(results[0])
        assert await store.read(ids) == ["before"]
        filler.unlink()
        await store.write(note, "after")
        assert await store.read(ids) == ["after", "before"]
        await store.close()

    async def test_a_transaction_too_big_for_the_disk_takes_no_neighbour_with_it(self, small_disk: Path) -> None:
        store = open_store(f"sqlite://{small_disk}/control.db")
        await store.write(make_table)
        results = await asyncio.gather(
            store.write(note_twice, "twice"),
            *(store.write(note, f"a{number}") for number in range(3)),
            store.write(note_much, "big", 8),
            *(store.write(note, f"b{number}") for number in range(3)),
            return_exceptions=True,
        )
        assert isinstance(results[0], ConstraintViolated)
        assert isinstance(results[4], StoreFull)
        assert [result for number, result in enumerate(results) if number not in (0, 4)] == [None] * 6
        assert await store.read(ids) == ["a0", "a1", "a2", "b0", "b1", "b2"]
        await store.close()

    async def test_a_write_that_the_system_refuses_is_an_error_and_writing_goes_on_afterwards(
        self, notes: Store
    ) -> None:
        # Too little for the note in the log, enough for the log's index (32 KiB), which is made anew.
        with file_size_limit(40_000):
            with pytest.raises(StoreUnavailable, match="SQLITE_IOERR_WRITE") as caught:
                await notes.write(note, "refused", 50_000)
            assert not isinstance(caught.value, CommitUnknown)
            assert await notes.read(ids) == []
        await notes.write(note, "after", 50_000)
        assert await notes.read(ids) == ["after"]

    def test_a_log_that_cannot_be_forced_to_the_disk_leaves_the_outcome_unknown(self, path: Path) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
        assert isinstance(sqlite_file.commit_error(error, path), CommitUnknown)

    @pytest.mark.parametrize("writable_folder", [True, False])
    def test_a_file_that_may_not_be_written_is_an_error_at_the_start(self, writable_folder: bool) -> None:
        with (
            TemporaryDirectory() as folder,
            somebody_else(Path(folder), writable_folder),
            pytest.raises(StoreReadOnly, match=r"writ|right"),
        ):
            open_store(f"sqlite://{folder}/control.db")

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(StoreUnavailable, match=r"Create the folder .*/nowhere"):
            open_store(f"sqlite://{tmp_path}/nowhere/control.db")
        with pytest.raises(StoreUnavailable):
            open_store(f"sqlite://{tmp_path}/control.db", read_only=True)

    def test_a_file_that_is_no_database_is_left_as_it_is(self, path: Path) -> None:
        path.write_bytes(b"not a database, but somebody's letter" * 100)
        with pytest.raises(StoreCorrupt, match="put back the last backup"):
            open_store(f"sqlite://{path}")
        assert path.read_bytes().startswith(b"not a database")

    async def test_damage_found_while_running_is_told_to_whoever_meets_it(self, notes: Store, path: Path) -> None:
        await notes.write(note_much, "n", 1)
        await notes.close()
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (path.stat().st_size - 4096))
        damaged = open_store(f"sqlite://{path}")
        for _ in range(2):
            with pytest.raises(StoreCorrupt):
                await damaged.read(ids)
            with pytest.raises(StoreCorrupt):
                await damaged.write(note, "more")
        await damaged.close()

    async def test_a_deleted_transaction_text_is_misuse_not_damage(self, notes: Store) -> None:
        with pytest.raises(StoreMisuse, match="no such table: nobody, in: SELECT"):
            await notes.read(lambda tx: tx.one("SELECT 1 FROM nobody"))


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """The system refuses to let any file of this process grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def somebody_else(folder: Path, writable_folder: bool) -> Iterator[None]:
    """Be a user who may read a database in `folder` but not write it."""
    file = folder / "control.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE t (x)")
    file.chmod(0o444)
    folder.chmod(0o777 if writable_folder else 0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)
