"""What a long history costs: the same work in a store with 1,000,000 ended workflows and in an empty one.

Two worker processes, one on each store, work in turns, so that both meet the same machine. The work is that of
`engine.steps`: 1,000 workflows of ten no-op steps. A page of `workflows.list` is fifty workflows of one machine with
their steps, through the API's code without HTTP; in the empty store nothing but that page is there.
"""

import asyncio
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg

from benchmarks import Figure, engine_worker, history_rows
from benchmarks.children import Child, child
from control_plane.store import migrate, open_store
from tests.postgres import NoPostgres, PostgresPeer, private_server

HISTORY = 1_000_000
NODES = 1_000
WORKFLOWS = 1_000
RUNS = 5
WARM_UP = 3
"""First rounds, which do not count: a database that has been busy for long has in memory what it needs."""
PAGES = 100
PEER = "the same on an empty store"


def run() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        full, empty = f"sqlite://{folder}/full.db", f"sqlite://{folder}/empty.db"
        asyncio.run(_fill(full, empty))
        size = (folder / "full.db").stat().st_size
        yield from _figures("sqlite", full, empty, size)
    try:
        with private_server(durable=True) as server:
            full, empty = server.create("full"), server.create("empty")
            asyncio.run(_fill(full, empty))
            yield from _figures("postgres", full, empty, _tidy(server, full, empty))
    except NoPostgres as reason:
        raise RuntimeError(f"engine.history.postgres: {reason}") from None


async def _fill(full: str, empty: str) -> None:
    for url, workflows, nodes in ((full, HISTORY, NODES), (empty, engine_worker.PAGE, 1)):
        store = open_store(url)
        await migrate(store)
        await history_rows.fill(store, workflows, nodes)
        await store.close()


def _tidy(server: PostgresPeer, *urls: str) -> int:
    """What its own autovacuum would have done long ago; bytes of the full database."""
    for url in urls:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")
    with psycopg.connect(server.url("full")) as connection:
        row = connection.execute("SELECT pg_database_size('full')").fetchone()
    return int(row[0]) if row else 0


def _figures(database: str, full: str, empty: str, size: int) -> Iterator[Figure]:
    note = f"{HISTORY} ended workflows, {size / 1e9:.1f} GB; limit 0.9"
    with child(engine_worker.serve, full) as old, child(engine_worker.serve, empty) as new:
        old.receive()
        new.receive()
        with_history, without = _in_turns(old, new, _steps_per_second)
        name = f"engine.history.{database}"
        yield Figure(name, with_history, "steps/s", PEER, without, with_history / without, note)
        with_history, without = _in_turns(old, new, _page_ms)
        yield Figure(f"{name}.list_ms", with_history, "ms", PEER, without, with_history / without, "limit 2")
        for worker in (old, new):
            worker.pipe.send("stop")
            worker.receive()


def _in_turns(old: Child, new: Child, measure: Callable[[Child], float]) -> tuple[float, float]:
    """Medians of both."""
    found = [(measure(old), measure(new)) for _ in range(WARM_UP + RUNS)][WARM_UP:]
    return statistics.median(pair[0] for pair in found), statistics.median(pair[1] for pair in found)


def _steps_per_second(worker: Child) -> float:
    worker.pipe.send(("drive", WORKFLOWS))
    wall: float = worker.receive(600)[0]
    return WORKFLOWS * engine_worker.STEPS / wall


def _page_ms(worker: Child) -> float:
    """Of the machine with number 0, which has workflows in both."""
    worker.pipe.send(("list", history_rows.TENANT, history_rows.node_of(0), PAGES))
    walls: list[float] = worker.receive()
    return statistics.median(walls) * 1000
