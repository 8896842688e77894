"""Take-over after a worker's death: three worker processes on PostgreSQL, and one of them is killed again and again.

Each worker is the engine alone: store, shards and reconciler, with the product's own lease. Workflows are under way
in every shard, a step of a quarter of a second after another. A worker is killed with SIGKILL at a random moment; for
each workflow of its shards the time is taken from the kill until its next step has ended, in a commit of another
worker, by PostgreSQL's clock. Then it is started again, and the shards are shared out again.
"""

import asyncio
import math
import random
import statistics
from collections.abc import Iterator

from benchmarks import Figure, engine_worker
from benchmarks.children import Child
from benchmarks.engine_worker import insert
from control_plane.engine.shards import LEASE_MS
from control_plane.engine.timing import SHARDS
from control_plane.store import Store, Transaction, migrate, open_store
from tests.postgres import NoPostgres, private_server

WORKERS = ("w1", "w2", "w3")
KILLS = 10
WORKFLOWS = 96
NAP_SECONDS = 0.25
STEPS = 180
"""Enough for the time that a kill takes at the most, with all that comes before and after it."""
_PATIENCE = LEASE_MS / 1000 + 30
_LOOK_SECONDS = 0.2
_CALM_SECONDS = (2.0, 7.0)
"""How long the workers go on in peace before one is killed: another part of the lease each time."""


def run() -> Iterator[Figure]:
    try:
        with private_server(durable=True) as server:
            times = asyncio.run(_measure(server.create("engine")))
    except NoPostgres as reason:
        raise RuntimeError(f"engine.takeover_s: {reason}") from None
    lease = LEASE_MS / 1000
    worst = _percentile(times, 0.99)
    note = (
        f"99th percentile of {len(times)} workflows over {KILLS} kills; median {statistics.median(times):.1f} s; "
        f"limit the lease and 2 s, {(lease + 2) / lease:.3f}"
    )
    yield Figure("engine.takeover_s", worst, "s", "the lease time", lease, worst / lease, note)


def _percentile(times: list[float], share: float) -> float:
    return sorted(times)[math.ceil(len(times) * share) - 1]


async def _measure(url: str) -> list[float]:
    """Seconds of each workflow whose worker was killed."""
    store = open_store(url)
    luck = random.Random(1)
    times: list[float] = []
    workers: dict[str, Child] = {}
    try:
        await migrate(store)
        for name in WORKERS:
            workers[name] = Child(engine_worker.serve, (url, name))
        for kill in range(KILLS):
            await _until_shared_out(store)
            await store.write(_replace_workflows)
            await asyncio.sleep(luck.uniform(*_CALM_SECONDS))
            victim = WORKERS[kill % len(WORKERS)]
            times += await _kill(store, workers[victim], victim)
            workers[victim].stop()
            workers[victim] = Child(engine_worker.serve, (url, victim))
    finally:
        for worker in workers.values():
            worker.stop()
        await store.close()
    return times


async def _until_shared_out(store: Store) -> None:
    """Each worker holds its part."""
    async with asyncio.timeout(_PATIENCE):
        while (held := await store.read(_held)) and (len(held) < len(WORKERS) or min(held) < SHARDS // len(WORKERS)):
            await asyncio.sleep(_LOOK_SECONDS)


async def _kill(store: Store, worker: Child, name: str) -> list[float]:
    """Kills it; for each workflow of its shards, seconds until it has moved on."""
    orphans = await store.read(_workflows_of, name)
    if not orphans:
        raise RuntimeError(f"the worker {name} had nothing to do when it was killed")
    killed_at = await store.read(_now)
    worker.process.kill()
    async with asyncio.timeout(_PATIENCE):
        while len(moved := await store.read(_first_ends, orphans, killed_at)) < len(orphans):
            await asyncio.sleep(_LOOK_SECONDS)
    return [(at - killed_at) / 1000 for at in moved]


def _now(tx: Transaction) -> int:
    return tx.now()


def _held(tx: Transaction) -> list[int]:
    """How many shards each worker holds that holds any."""
    rows = tx.all("SELECT COUNT(*) FROM shards WHERE expires_at > :now GROUP BY worker", {"now": tx.now()})
    return [int(row[0]) for row in rows] or [0]


def _replace_workflows(tx: Transaction) -> None:
    """Fresh ones in place of those that the last kill was about."""
    for table in ("step_plans", "workflow_steps", "workflow_documents", "workflows"):
        tx.run(f"DELETE FROM {table}")
    insert(tx, WORKFLOWS, "bench.nap", [{"seconds": NAP_SECONDS}] * STEPS)


def _workflows_of(tx: Transaction, worker: str) -> list[str]:
    rows = tx.all(
        "SELECT id FROM workflows JOIN shards ON shards.shard = workflows.shard "
        "WHERE shards.worker = :worker AND shards.expires_at > :now AND workflows.state = 'running'",
        {"worker": worker, "now": tx.now()},
    )
    return [str(row[0]) for row in rows]


def _first_ends(tx: Transaction, workflows: list[str], after: int) -> list[int]:
    """When the first step after that moment ended, of each workflow that has such a step.

    What the dead worker had in flight was begun before it was killed, and has an earlier time.
    """
    rows = tx.all(
        "SELECT MIN(finished_at) FROM workflow_steps WHERE workflow_id IN EACH(:ids) AND finished_at > :after "
        "GROUP BY workflow_id",
        {"ids": workflows, "after": after},
    )
    return [int(row[0]) for row in rows]
