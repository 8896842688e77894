"""What goes wrong with a server: a connection that breaks, a server that is away, a lock that is held."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import psycopg
import pytest

from control_plane.store import (
    CommitUnknown,
    Store,
    StoreBusy,
    StoreUnavailable,
    StoreUrlInvalid,
    Transaction,
    open_store,
)
from tests.postgres import PostgresPeer


def make_table(tx: Transaction) -> None:
    tx.run("CREATE TABLE notes (id TEXT PRIMARY KEY)")


def note(tx: Transaction, note_id: str) -> None:
    tx.run("INSERT INTO notes (id) VALUES (:id)", {"id": note_id})


def ids(tx: Transaction) -> list[str]:
    return [row[0] for row in tx.all("SELECT id FROM notes ORDER BY id")]


class CuttingProxy:
    """Stands between a store and its server, and cuts the connection at a chosen word of the client."""

    def __init__(self, server: PostgresPeer, folder: Path) -> None:
        self._server = server.folder / ".s.PGSQL.5432"
        self._folder = folder
        self._cut: tuple[bytes, bool] | None = None
        self.cuts = 0
        self.conversations: list[asyncio.Task[None]] = []

    def url(self, url: str) -> str:
        return url.partition("?")[0] + f"?host={quote(str(self._folder), safe='')}"

    def cut(self, word: bytes, *, forward: bool) -> None:
        """At the next message that holds `word`: with `forward` the server gets it, only its answer is lost."""
        self._cut = (word, forward)

    async def start(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._serve, self._folder / ".s.PGSQL.5432")

    async def _serve(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.conversations.append(task)
        server_reader, server = await asyncio.open_unix_connection(self._server)
        answers = asyncio.ensure_future(self._copy(server_reader, client))
        try:
            while data := await client_reader.read(65536):
                if self._cut is not None and self._cut[0] in data:
                    forward, self._cut, self.cuts = self._cut[1], None, self.cuts + 1
                    await _cancelled(answers)
                    if forward:
                        server.write(data)
                        await server_reader.read(1)
                    return
                server.write(data)
        finally:
            await _cancelled(answers)
            server.close()
            client.close()
            with suppress(OSError):
                await server.wait_closed()
                await client.wait_closed()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()


async def _cancelled(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


@pytest.fixture
async def proxy(postgres_server: PostgresPeer) -> AsyncIterator[CuttingProxy]:
    with TemporaryDirectory() as folder:
        between = CuttingProxy(postgres_server, Path(folder))
        server = await between.start()
        yield between
        server.close()
        if between.conversations:
            await asyncio.wait(between.conversations)


@pytest.fixture
async def notes(proxy: CuttingProxy, postgres_url: str) -> AsyncIterator[Store]:
    store = open_store(proxy.url(postgres_url))
    await store.write(make_table)
    yield store
    await store.close()


class TestBrokenConnections:
    @pytest.mark.parametrize("stored", [True, False])
    async def test_a_commit_whose_answer_is_lost_is_unknown_and_is_not_repeated(
        self, notes: Store, proxy: CuttingProxy, stored: bool
    ) -> None:
        proxy.cut(b"COMMIT", forward=stored)
        with pytest.raises(CommitUnknown, match="unknown"):
            await notes.write(note, "n1")
        assert await notes.read(ids) == (["n1"] if stored else [])

    async def test_every_transaction_of_a_batch_is_told_that_its_commit_is_unknown(
        self, notes: Store, proxy: CuttingProxy
    ) -> None:
        proxy.cut(b"COMMIT", forward=True)
        results = await asyncio.gather(
            *(notes.write(note, f"n{number:02}") for number in range(40)), return_exceptions=True
        )
        kinds = {type(result) for result in results}
        assert kinds <= {type(None), CommitUnknown}
        assert CommitUnknown in kinds
        assert len(await notes.read(ids)) == 40

    @pytest.mark.parametrize("word", [b"BEGIN", b"INSERT", b"SAVEPOINT"])
    async def test_a_connection_that_breaks_before_the_commit_costs_nothing(
        self, notes: Store, proxy: CuttingProxy, word: bytes
    ) -> None:
        proxy.cut(word, forward=True)
        await asyncio.gather(*(notes.write(note, f"n{number:02}") for number in range(80)))
        assert proxy.cuts == 1
        assert len(await notes.read(ids)) == 80

    async def test_a_read_whose_connection_breaks_is_repeated(self, notes: Store, proxy: CuttingProxy) -> None:
        await notes.write(note, "n1")
        await notes.read(ids)
        proxy.cut(b"SELECT", forward=True)
        assert await asyncio.gather(*(notes.read(ids) for _ in range(4))) == [["n1"]] * 4
        assert proxy.cuts == 1

    async def test_listeners_are_told_to_look_again_after_their_connection_broke(
        self, notes: Store, postgres_url: str
    ) -> None:
        heard: asyncio.Queue[str] = asyncio.Queue()
        notes.listen("wake", heard.put_nowait)
        assert await heard.get() == ""
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as other:
            await other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE query LIKE 'LISTEN%' AND datname = current_database()"
            )
        assert await heard.get() == ""
        await notes.notify("wake", "x")
        assert await heard.get() == "x"


class TestServers:
    @pytest.mark.case("B58")
    async def test_a_server_that_is_away_is_an_error_and_is_used_again_once_it_is_back(
        self, durable_postgres_server: PostgresPeer
    ) -> None:
        store = open_store(durable_postgres_server.create("away"))
        await store.write(make_table)
        durable_postgres_server.stop("fast")
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match=r"cannot be reached.*nothing was stored") as caught:
                await store.write(note, "lost")
            assert not isinstance(caught.value, CommitUnknown)
        durable_postgres_server.start()
        while True:
            try:
                await store.write(note, "n1")
                break
            except StoreUnavailable:
                await asyncio.sleep(0.05)
        assert await store.read(ids) == ["n1"]
        await store.close()

    async def test_a_held_lock_is_waited_for(self, notes: Store, postgres_url: str) -> None:
        await notes.write(note, "n1")

        def change(tx: Transaction) -> int:
            return tx.run("UPDATE notes SET id = id || '!' WHERE id = 'n1'")

        async with await psycopg.AsyncConnection.connect(postgres_url) as other:
            await other.execute("SELECT id FROM notes FOR UPDATE")
            writing = asyncio.ensure_future(notes.write(change))
            await blocked_by(postgres_url)
            await notes.write(note, "n2")
            await other.commit()
        assert await writing == 1
        assert await notes.read(ids) == ["n1!", "n2"]

    async def test_a_lock_that_is_never_given_back_is_an_error(
        self, notes: Store, postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("control_plane.store.postgres_writer.MOST_RUNS", 2)
        async with await psycopg.AsyncConnection.connect(postgres_url) as other:
            await other.execute("LOCK TABLE notes")
            with pytest.raises(StoreBusy, match="nothing was stored"):
                await notes.write(note, "n1")
        await notes.write(note, "n1")

    async def test_acknowledged_commits_are_durable_even_where_the_server_is_told_otherwise(
        self, postgres_url: str
    ) -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as other:
            row = await (await other.execute("SELECT current_database()")).fetchone()
            assert row is not None
            await other.execute(f'ALTER DATABASE "{row[0]}" SET synchronous_commit = off'.encode())
        store = open_store(postgres_url)
        assert await store.write(lambda tx: tx.one("SHOW synchronous_commit")) == ("on",)
        await store.close()


async def blocked_by(url: str) -> None:
    """Wait until a connection of the store is waiting for a lock."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
        while True:
            found = await other.execute("SELECT 1 FROM pg_locks WHERE NOT granted")
            if await found.fetchone():
                return


class TestSecrets:
    async def test_a_password_is_in_no_error_no_log_and_no_repr(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        store = open_store(f"postgresql://me:hunter2@/db?host={quote(str(tmp_path), safe='')}&connect_timeout=2")
        with pytest.raises(StoreUnavailable) as caught:
            await store.write(make_table)
        await store.close()
        assert "db at " in str(caught.value)
        assert "hunter2" not in f"{caught.value!r} {caught.value} {store!r} {vars(store)!r} {caplog.text}"

    @pytest.mark.parametrize(
        "url",
        ["postgresql://me:hunter2@host:port/db", "postgresql://me:hunter2@h/db?x=y", "postgresql://a:%zzhunter2@h/d"],
    )
    def test_a_url_that_cannot_be_read_is_not_repeated(self, url: str) -> None:
        with pytest.raises(StoreUrlInvalid) as caught:
            open_store(url)
        assert "hunter2" not in repr(caught.value)
        assert caught.value.__cause__ is None
