"""A database that is away while a worker works: SQLite that another program has locked, PostgreSQL that is stopped.

Real time and real databases (case B58): a worker renews its leases in time, or its work is fenced. It is never its
own successor while it still works.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from control_plane.engine.context import StepContext
from control_plane.store import Transaction, migrate, open_store, sqlite_file
from tests.control_plane.engine.rig import Rig, make_rig, work
from tests.control_plane.engine.test_handover import is_succeeded, until
from tests.control_plane.ledger import Clock

Away = Callable[[], AbstractAsyncContextManager[None]]
pytestmark = pytest.mark.case("B58")


@pytest.fixture(params=["sqlite is locked", "postgresql is stopped"])
async def outage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Rig, Away]]:
    """An engine, and a block within which its database takes nothing."""
    if request.param == "sqlite is locked":
        # As long as a lock is waited for, in short.
        monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_MS", 50)
        path = tmp_path / "control.db"
        store = open_store(f"sqlite://{path}")

        @asynccontextmanager
        async def away() -> AsyncIterator[None]:
            with closing(sqlite3.connect(path, isolation_level=None)) as tool:
                tool.execute("BEGIN IMMEDIATE")
                yield
                tool.execute("ROLLBACK")

    else:
        server = request.getfixturevalue("durable_postgres_server")
        store = open_store(server.create(f"outage_{request.node.name.partition('[')[0][-40:]}"))

        @asynccontextmanager
        async def away() -> AsyncIterator[None]:
            await asyncio.to_thread(server.stop, "fast")
            try:
                yield
            finally:
                await asyncio.to_thread(server.start)

    await migrate(store)
    yield await make_rig(store, Clock()), away
    await store.close()


@dataclass
class FirstTimeEndless:
    """Code that runs until it is ended, or told to go on; when it is begun again it is done at once."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    at_once: int = 0
    most_at_once: int = 0

    async def __call__(self, context: StepContext) -> None:
        first = not self.begun.is_set()
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        self.begun.set()
        try:
            if first:
                await self.go_on.wait()
        finally:
            self.at_once -= 1
            self.ended.set()


def fence(tx: Transaction, shard: int) -> int:
    row = tx.one("SELECT fence FROM shards WHERE shard = :shard", {"shard": shard})
    return -1 if row is None else int(row[0])


async def test_b58_a_database_that_is_back_before_the_lease_is_over_has_nothing_done_twice(
    outage: tuple[Rig, Away], caplog: pytest.LogCaptureFixture
) -> None:
    rig, away = outage
    code = rig.code["work"] = FirstTimeEndless()
    workflow_id = await rig.start(work(timeout="1d"), work("next"))
    async with rig.reconciler(lease_ms=60_000) as reconciler, asyncio.timeout(50):
        await code.begun.wait()
        shard = (await rig.look(workflow_id)).workflow.shard
        before = reconciler.shards.grip(shard)
        async with away():
            code.go_on.set()
            while "waits for the database" not in caplog.text:
                await asyncio.sleep(0.01)
        await until(rig, workflow_id, is_succeeded)
        assert reconciler.shards.grip(shard) == before
    assert rig.runs == {"work": 1, "next": 1}


async def test_b58_a_worker_that_cannot_renew_its_lease_ends_its_work_and_then_begins_it_anew_under_a_new_fence(
    outage: tuple[Rig, Away],
) -> None:
    rig, away = outage
    code = rig.code["work"] = FirstTimeEndless()
    workflow_id = await rig.start(work(timeout="1d"), work("next"))
    async with rig.reconciler(lease_ms=2_000) as reconciler, asyncio.timeout(50):
        await code.begun.wait()
        shard = (await rig.look(workflow_id)).workflow.shard
        before = await rig.store.read(fence, shard)
        async with away():
            await code.ended.wait()
            assert reconciler.shards.grip(shard) is None
        await until(rig, workflow_id, is_succeeded)
    assert rig.runs == {"work": 2, "next": 1}
    assert code.most_at_once == 1
    assert await rig.store.read(fence, shard) > before
    names = await rig.event_names(workflow_id)
    assert len(names) == len(set(names))
