"""A backup is one moment of the store, whole and checked, or no file at all."""

import asyncio
import stat
from itertools import count
from pathlib import Path

import pytest

from control_plane.store import BackupFailed, Store, Transaction, backup, migrate, open_store, verify


def make_table(tx: Transaction) -> None:
    tx.run("CREATE TABLE notes (id BIGINT PRIMARY KEY, twin BIGINT NOT NULL)")


def note(tx: Transaction, number: int) -> None:
    tx.run("INSERT INTO notes (id, twin) VALUES (:n, :n)", {"n": 2 * number})
    tx.run("INSERT INTO notes (id, twin) VALUES (:m, :n)", {"m": 2 * number + 1, "n": 2 * number})


async def keep_writing(store: Store, until: asyncio.Event) -> int:
    for number in count():
        if until.is_set():
            return number
        await store.write(note, number)
    raise AssertionError


async def test_a_backup_of_a_store_in_use_is_whole_and_opens_as_a_store(tmp_path: Path) -> None:
    url, copy = f"sqlite://{tmp_path}/control.db", tmp_path / "copy.db"
    store = open_store(url)
    await migrate(store)
    await store.write(make_table)
    await store.write(note, -1)
    done = asyncio.Event()
    writing = asyncio.ensure_future(keep_writing(store, done))
    await asyncio.to_thread(backup, url, copy)
    done.set()
    assert await writing > 0
    await store.close()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert not list(tmp_path.glob("*.partial"))
    restored = open_store(f"sqlite://{copy}")
    await verify(restored)
    rows, pairs = await restored.read(
        lambda tx: tx.one("SELECT count(*), count(DISTINCT twin) FROM notes") or pytest.fail("no row")
    )
    await restored.close()
    assert rows == 2 * pairs >= 2


async def test_a_backup_never_overwrites(tmp_path: Path) -> None:
    await open_store(f"sqlite://{tmp_path}/control.db").close()
    (tmp_path / "copy.db").write_text("the only other copy")
    with pytest.raises(BackupFailed, match="exists already"):
        backup(f"sqlite://{tmp_path}/control.db", tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_text() == "the only other copy"


async def test_a_backup_that_fails_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "control.db"
    store = open_store(f"sqlite://{path}")
    await store.write(make_table)
    await store.write(lambda tx: tx.run_many("INSERT INTO notes VALUES (:n, :n)", [{"n": n} for n in range(5000)]))
    await store.close()
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * 8192)
    for source in (f"sqlite://{path}", f"sqlite://{tmp_path}/nowhere.db"):
        with pytest.raises(BackupFailed):
            backup(source, tmp_path / "copy.db")
    assert not list(tmp_path.glob("copy*"))


def test_postgresql_is_left_to_its_own_tools(tmp_path: Path) -> None:
    with pytest.raises(BackupFailed, match="pg_dump") as caught:
        backup("postgresql://me:hunter2@host/db", tmp_path / "copy")
    assert "hunter2" not in str(caught.value)
