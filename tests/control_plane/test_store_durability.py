"""Every acknowledged write is there after a kill, and no transaction is there by half."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from control_plane.store import Store, StoreUnavailable, Transaction, open_store
from tests.postgres import PostgresPeer

ROUNDS = 3
WRITERS = 40
ACKNOWLEDGED = 400
_STORM = Path(__file__).with_name("store_storm.py")
_ROOT = Path(__file__).resolve().parent.parent.parent


def make_tables(tx: Transaction) -> None:
    tx.run("CREATE TABLE first (number BIGINT PRIMARY KEY)")
    tx.run("CREATE TABLE second (number BIGINT PRIMARY KEY)")


def stored(tx: Transaction) -> tuple[set[int], set[int]]:
    first, second = (tx.all(f"SELECT number FROM {table}") for table in ("first", "second"))
    return {row[0] for row in first}, {row[0] for row in second}


@contextmanager
def storming(url: str, first: int) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """A process in the middle of a write storm."""
    process = subprocess.Popen(
        [sys.executable, _STORM, url, str(WRITERS), str(first)], stdout=subprocess.PIPE, cwd=_ROOT, env=_environment()
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": str(_ROOT), "PATH": "/usr/bin:/bin"}


def acknowledged(output: IO[bytes], number: int) -> set[int]:
    """The next so many whole lines."""
    return {int(output.readline()) for _ in range(number)}


def rest(output: IO[bytes]) -> set[int]:
    """What a process that has ended still said; a line that the kill has cut does not count."""
    return {int(line) for line in output.read().splitlines(keepends=True) if line.endswith(b"\n")}


async def test_a_killed_process_loses_no_acknowledged_write(store_url: str, tmp_path: Path) -> None:
    store = open_store(store_url)
    await store.write(make_tables)
    await store.close()
    told: set[int] = set()
    for number in range(ROUNDS):
        with storming(store_url, number * 1_000_000) as (process, output):
            told |= acknowledged(output, ACKNOWLEDGED)
            process.kill()
            process.wait()
            told |= rest(output)
    store = open_store(store_url)
    first, second = await store.read(stored)
    await store.close()
    assert len(told) >= ROUNDS * ACKNOWLEDGED
    assert told <= first
    assert first == second
    if store.dialect == "sqlite":
        with sqlite3.connect(tmp_path / "control.db") as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()


async def test_a_killed_database_server_loses_no_acknowledged_write_and_the_store_goes_on(
    durable_postgres_server: PostgresPeer,
) -> None:
    url = durable_postgres_server.create("storm")
    store = open_store(url)
    await store.write(make_tables)
    told: set[int] = set()
    with storming(url, 0) as (process, output):
        for _ in range(ROUNDS):
            told |= acknowledged(output, ACKNOWLEDGED)
            durable_postgres_server.kill_server()
            durable_postgres_server.start()
        told |= acknowledged(output, ACKNOWLEDGED)
        process.kill()
        process.wait()
        told |= rest(output)
    first, second = await patiently_stored(store)
    await store.close()
    assert told <= first
    assert first == second


async def patiently_stored(store: Store) -> tuple[set[int], set[int]]:
    for _ in range(100):
        try:
            return await store.read(stored)
        except StoreUnavailable:
            await asyncio.sleep(0.1)
    pytest.fail("the store did not come back")
