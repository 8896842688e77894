"""How far the events can be read: exactly as far as nothing can come before any more."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import psycopg
import pytest

from control_plane.events import read_from
from control_plane.horizon import LONGEST_WAIT_SECONDS, Horizon
from control_plane.store import Store, StoreClosed, Transaction, migrate, open_store
from control_plane.store.postgres_server import IDLE_TIMEOUT_MS
from tests.control_plane.open_write import OpenWrite, publish_named
from tests.postgres import PostgresPeer

LONG_ENOUGH = 20.0


class Watch:
    """A monotonic clock that is moved by hand. The horizon reads it with each look at the database."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looks = 0
        self._looked = asyncio.Event()

    def __call__(self) -> float:
        self.looks += 1
        self._looked.set()
        return self.now

    async def looked_at(self) -> None:
        """Until a look has been made that began after this call: the next one may be under way."""
        async with asyncio.timeout(LONG_ENOUGH):
            for _ in range(2):
                self._looked.clear()
                await self._looked.wait()


@pytest.fixture
async def postgres(postgres_url: str) -> AsyncIterator[Store]:
    store = open_store(postgres_url)
    await migrate(store)
    yield store
    await store.close()


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def horizon(postgres: Store, watch: Watch) -> Horizon:
    return Horizon(postgres, clock=watch)


async def shown(store: Store, horizon: Horizon) -> list[str]:
    """The names of the events that can be read now."""
    rows = await store.read(read_from, "*", 0, 1_000, horizon.seq)
    return [row.subject.removeprefix("test/") for row in rows]


class TestOpenTransactions:
    async def test_an_event_is_shown_at_once_when_nothing_is_open(self, postgres: Store, horizon: Horizon) -> None:
        """The clock stands still, so it is not for the time that has passed."""
        await postgres.write(publish_named, "only")
        assert await horizon.refresh(LONG_ENOUGH)
        assert await shown(postgres, horizon) == ["only"]

    async def test_an_event_waits_for_an_older_transaction_that_is_open(
        self, postgres: Store, horizon: Horizon, watch: Watch
    ) -> None:
        async with OpenWrite(postgres, before="older") as older:
            await postgres.write(publish_named, "younger")
            refreshing = asyncio.create_task(horizon.refresh(LONG_ENOUGH))
            await watch.looked_at()
            assert not refreshing.done()
            assert await shown(postgres, horizon) == []
            await older.end()
            assert await refreshing
            assert await shown(postgres, horizon) == ["older", "younger"]

    async def test_an_event_does_not_wait_for_a_transaction_that_began_after_it_was_seen(
        self, postgres: Store, horizon: Horizon, watch: Watch
    ) -> None:
        async with OpenWrite(postgres, before="older") as older:
            await postgres.write(publish_named, "younger")
            refreshing = asyncio.create_task(horizon.refresh(LONG_ENOUGH))
            await watch.looked_at()
            async with OpenWrite(postgres, before="youngest") as youngest:
                await older.end()
                assert await refreshing
                assert await shown(postgres, horizon) == ["older", "younger"]
                await youngest.end()

    async def test_a_transaction_that_began_later_but_wrote_first_is_waited_for(
        self, postgres: Store, horizon: Horizon, watch: Watch
    ) -> None:
        async with (
            OpenWrite(postgres, after="written second") as early,
            OpenWrite(postgres, before="written first") as late,
        ):
            await early.end()
            refreshing = asyncio.create_task(horizon.refresh(LONG_ENOUGH))
            await watch.looked_at()
            assert not refreshing.done()
            assert await shown(postgres, horizon) == []
            await late.end()
            assert await refreshing
            assert await shown(postgres, horizon) == ["written first", "written second"]

    async def test_a_transaction_that_only_reads_is_not_waited_for(
        self, postgres: Store, postgres_url: str, horizon: Horizon
    ) -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url) as reader:
            await reader.execute("SELECT MAX(seq) FROM events")
            await postgres.write(publish_named, "only")
            assert await horizon.refresh(LONG_ENOUGH)
            assert await shown(postgres, horizon) == ["only"]

    async def test_what_is_seen_while_another_waits_is_shown_with_it(
        self, postgres: Store, horizon: Horizon, watch: Watch
    ) -> None:
        async with OpenWrite(postgres, before="a") as older:
            await postgres.write(publish_named, "b")
            first = asyncio.create_task(horizon.refresh(LONG_ENOUGH))
            await watch.looked_at()
            await postgres.write(publish_named, "c")
            second = asyncio.create_task(horizon.refresh(LONG_ENOUGH))
            await watch.looked_at()
            assert not first.done()
            assert not second.done()
            await older.end()
            assert all(await asyncio.gather(first, second))
            assert await shown(postgres, horizon) == ["a", "b", "c"]

    async def test_a_transaction_has_its_id_before_it_writes(self, postgres: Store) -> None:
        """It is given at BEGIN: else a transaction could give a number before it has an id that can be waited for."""
        row = await postgres.write(lambda tx: tx.one("SELECT pg_current_xact_id_if_assigned()"))
        assert row is not None
        assert row[0] is not None

    async def test_the_id_of_a_savepoint_does_not_count(self, postgres: Store, postgres_url: str) -> None:
        """Savepoints have higher ids, and `pg_snapshot_xmin` stays at the whole transaction's until that is over."""
        insert = (
            "INSERT INTO events (id, tenant_id, at, subject, type, data) "
            "VALUES (gen_random_uuid(), 't', 0, 's', 't', '{}') RETURNING xmin::text::bigint"
        )
        connect = psycopg.AsyncConnection.connect
        async with await connect(postgres_url) as writer, await connect(postgres_url, autocommit=True) as other:

            async def number(connection: psycopg.AsyncConnection, query: str) -> int:
                row = await (await connection.execute(query.encode())).fetchone()
                assert row is not None
                return int(row[0])

            async def oldest() -> int:
                return await number(other, "SELECT pg_snapshot_xmin(pg_current_snapshot())")

            whole = await number(writer, "SELECT pg_current_xact_id()")
            for ending in ("RELEASE a", "ROLLBACK TO a", "RELEASE a"):
                await writer.execute("SAVEPOINT a")
                assert await number(writer, insert) > whole
                # Others use ids up meanwhile: those are over, and this one is not.
                assert await number(other, "SELECT pg_current_xact_id()") > whole
                assert await oldest() <= whole
                await writer.execute(ending.encode())
                assert await oldest() <= whole
            await writer.commit()
            # The server's own upkeep may have an older transaction for a moment.
            while await oldest() <= whole:
                await asyncio.sleep(0.01)


class Undone(Exception):
    """A transaction of the storm that is not to be."""


def restless(tx: Transaction, pauses: Sequence[float], undone: bool) -> None:
    for pause in pauses:
        time.sleep(pause)
        publish_named(tx, "storm")
    time.sleep(pauses[0])
    if undone:
        raise Undone


class TestReaders:
    async def test_a_reader_passes_over_nothing_in_a_storm_of_writers(
        self, postgres: Store, horizon: Horizon
    ) -> None:
        chance = random.Random(4)

        async def write() -> None:
            for _ in range(25):
                pauses = [chance.uniform(0, 0.008) for _ in range(chance.randint(1, 4))]
                try:
                    await postgres.write(restless, pauses, chance.random() < 0.1)
                except Undone:
                    continue

        writing = asyncio.gather(*(write() for _ in range(8)))
        seen: list[int] = []
        while True:
            last_round = writing.done()
            assert await horizon.refresh(LONG_ENOUGH)
            rows = await postgres.read(read_from, "*", seen[-1] if seen else 0, 5, horizon.seq)
            seen += [row.seq for row in rows]
            if last_round and not rows:
                break
        await writing
        there = await postgres.read(lambda tx: tx.all("SELECT seq FROM events ORDER BY seq"))
        assert seen == [row[0] for row in there]
        assert len(seen) > 200

    async def test_one_look_serves_all_who_ask_at_the_same_time(
        self, postgres: Store, horizon: Horizon, watch: Watch
    ) -> None:
        await postgres.write(publish_named, "only")
        assert await horizon.refresh(LONG_ENOUGH)
        before = watch.looks
        assert all(await asyncio.gather(*(horizon.refresh(LONG_ENOUGH) for _ in range(50))))
        assert watch.looks == before + 1

    async def test_whoever_has_waited_long_enough_goes_and_the_others_stay(
        self, postgres: Store, horizon: Horizon
    ) -> None:
        async with OpenWrite(postgres) as older:
            await postgres.write(publish_named, "younger")
            patient = asyncio.create_task(horizon.refresh(LONG_ENOUGH))
            cancelled = asyncio.create_task(horizon.refresh(LONG_ENOUGH))
            assert not await horizon.refresh(0.01)
            cancelled.cancel()
            await older.end()
            assert await patient
            assert await shown(postgres, horizon) == ["younger"]

    async def test_a_store_that_fails_is_told_to_everybody_who_waits(self, postgres: Store, horizon: Horizon) -> None:
        async with OpenWrite(postgres) as older:
            await postgres.write(publish_named, "younger")
            early = [asyncio.create_task(horizon.refresh(LONG_ENOUGH)) for _ in range(3)]
            assert not await horizon.refresh(0.01)
            closing = asyncio.create_task(postgres.close())
            late = [asyncio.create_task(horizon.refresh(LONG_ENOUGH)) for _ in range(3)]
            answers = await asyncio.gather(*early, *late, return_exceptions=True)
            assert [type(answer) for answer in answers] == [StoreClosed] * 6
            await older.end()
            await closing

    async def test_on_sqlite_there_is_no_horizon_and_nothing_is_asked(
        self, sqlite_store: Store, watch: Watch
    ) -> None:
        horizon = Horizon(sqlite_store, clock=watch)
        await sqlite_store.write(publish_named, "only")
        assert await horizon.refresh(0)
        assert await shown(sqlite_store, horizon) == ["only"]
        assert watch.looks == 0


@pytest.fixture
async def sqlite_store(tmp_path: Path) -> AsyncIterator[Store]:
    store = open_store(f"sqlite://{tmp_path}/control.db")
    await migrate(store)
    yield store
    await store.close()


@pytest.fixture
async def foreign(postgres_server: PostgresPeer, postgres: Store) -> AsyncIterator[None]:
    """A transaction of somebody else, in another database of the same server, that does not end."""
    async with await psycopg.AsyncConnection.connect(postgres_server.url("postgres")) as other:
        await other.execute("SELECT pg_current_xact_id()")
        yield


@pytest.mark.usefixtures("foreign")
class TestTheBound:
    async def test_an_event_is_shown_after_half_a_minute_whatever_is_open(
        self, postgres: Store, horizon: Horizon, watch: Watch, caplog: pytest.LogCaptureFixture
    ) -> None:
        await postgres.write(publish_named, "only")
        refreshing = asyncio.create_task(horizon.refresh(LONG_ENOUGH))
        await watch.looked_at()
        watch.now = LONGEST_WAIT_SECONDS - 0.1
        await watch.looked_at()
        assert not refreshing.done()
        watch.now = LONGEST_WAIT_SECONDS
        with caplog.at_level(logging.WARNING):
            assert await refreshing
        assert await shown(postgres, horizon) == ["only"]
        assert "open for more than 30 s" in caplog.text

    async def test_each_event_waits_for_its_own_half_minute_and_the_log_tells_it_once(
        self, postgres: Store, horizon: Horizon, watch: Watch, caplog: pytest.LogCaptureFixture
    ) -> None:
        names = ["a", "b", "c"]
        refreshing = []
        for number, name in enumerate(names):
            watch.now = 10.0 * number
            await postgres.write(publish_named, name)
            refreshing.append(asyncio.create_task(horizon.refresh(LONG_ENOUGH)))
            await watch.looked_at()
        for number in range(3):
            watch.now = LONGEST_WAIT_SECONDS + 10.0 * number
            assert await refreshing[number]
            assert await shown(postgres, horizon) == names[: number + 1]
        assert caplog.text.count("open for more than") == 1

    async def test_the_server_undoes_an_idle_change_before_others_stop_waiting_for_it(self, postgres: Store) -> None:
        """So a worker that was stopped for minutes cannot commit an event behind everybody's cursor."""
        setting = "SELECT setting::bigint FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'"
        assert await postgres.write(lambda tx: tx.one(setting)) == (IDLE_TIMEOUT_MS,)
        assert IDLE_TIMEOUT_MS < LONGEST_WAIT_SECONDS * 1000
