"""The crashing store meets every transaction boundary, each once, and shows what a dead process would have left."""

import asyncio

import pytest

from control_plane.store import Store, Transaction
from control_plane.store.crash import Crash, CrashingStore


def make_table(tx: Transaction) -> None:
    tx.run("CREATE TABLE steps (name TEXT PRIMARY KEY)")


def do(tx: Transaction, name: str) -> None:
    tx.run("INSERT INTO steps (name) VALUES (:name) ON CONFLICT DO NOTHING", {"name": name})


def done(tx: Transaction) -> list[str]:
    return [row[0] for row in tx.all("SELECT name FROM steps ORDER BY name")]


async def story(store: Store) -> list[str]:
    for name in ("a", "b", "c"):
        await store.write(do, name)
    return await store.read(done)


async def test_every_boundary_is_met_and_a_restart_finishes_the_story(store: Store) -> None:
    await store.write(make_table)
    counting = CrashingStore(store)
    assert await story(counting) == ["a", "b", "c"]
    assert counting.boundaries == 6
    left = []
    for boundary in range(counting.boundaries):
        await store.write(lambda tx: tx.run("DELETE FROM steps"))
        crashing = CrashingStore(store, at=boundary)
        with pytest.raises(Crash):
            await story(crashing)
        left.append("".join(await store.read(done)))
        assert await story(crashing.store) == ["a", "b", "c"]
    assert left == ["", "a", "a", "ab", "ab", "abc"]


async def test_a_dead_process_does_nothing_more(store: Store) -> None:
    await store.write(make_table)
    crashing = CrashingStore(store, at=0)
    results = await asyncio.gather(*(crashing.write(do, name) for name in "abc"), return_exceptions=True)
    assert [type(result) for result in results] == [Crash] * 3
    for dead in (crashing.write(do, "d"), crashing.read(done), crashing.notify("wake")):
        with pytest.raises(Crash):
            await dead
    assert await store.read(done) == []


async def test_hints_reach_nobody_in_a_dead_process(store: Store) -> None:
    await store.write(make_table)
    crashing = CrashingStore(store, at=1)
    heard: asyncio.Queue[str] = asyncio.Queue()
    alive: asyncio.Queue[str] = asyncio.Queue()
    crashing.listen("wake", heard.put_nowait)
    assert await heard.get() == ""
    store.listen("wake", alive.put_nowait)
    assert await alive.get() == ""
    with pytest.raises(Crash):
        await crashing.write(do, "a")
    await store.notify("wake", "x")
    assert await alive.get() == "x"
    assert heard.empty()
