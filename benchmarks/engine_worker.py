"""One worker process of the engine for benchmarks: the store and the reconciler, with steps that cost nothing.

Workflows are put in as rows, as `start` would put them in; what is measured is how fast they are driven.
"""

import asyncio
import resource
import time

import msgspec
import uvloop

from benchmarks.children import Pipe
from control_plane.engine.context import StepContext
from control_plane.engine.reconciler import Reconciler
from control_plane.engine.records import StepSpec
from control_plane.engine.registry import NoArguments, StepRegistry
from control_plane.engine.timing import shard_of
from control_plane.store import Transaction, json_text, migrate, open_store
from protocol.ids import new_id

STEPS = 10


class Nap(msgspec.Struct, frozen=True):
    seconds: float


def registry() -> StepRegistry:
    """`bench.noop` and `bench.nap` (a step that is not ready until its time is over)."""
    steps = StepRegistry()

    @steps.step("bench.noop")
    async def noop(_context: StepContext, _arguments: NoArguments) -> dict[str, object]:
        return {}

    @steps.step("bench.nap", with_=Nap)
    async def nap(_context: StepContext, arguments: Nap) -> dict[str, object]:
        await asyncio.sleep(arguments.seconds)
        return {}

    return steps


def serve(pipe: Pipe, url: str) -> None:
    """Answers `("drive", n)` with (wall seconds, processor seconds), until the pipe closes."""
    uvloop.run(_serve(pipe, url))


async def _serve(pipe: Pipe, url: str) -> None:
    store = open_store(url)
    await migrate(store)
    reconciler = Reconciler(store, registry(), worker="bench")
    running = asyncio.create_task(reconciler.run())
    while not reconciler.shards.shards:
        await asyncio.sleep(0.01)
    pipe.send("ready")
    while (task := await asyncio.to_thread(pipe.recv)) != "stop":
        _, count = task
        started, used = time.perf_counter(), _cpu()
        nothing: list[dict[str, object]] = [{}] * STEPS
        left = await store.write(insert, count, "bench.noop", nothing)
        while left:
            await asyncio.sleep(0.02)
            left = await store.read(_active)
        pipe.send((time.perf_counter() - started, _cpu() - used))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await store.close()
    pipe.send("stopped")


def insert(tx: Transaction, count: int, action: str, arguments: list[dict[str, object]]) -> int:
    """Workflows that are due at once, each with one step per entry of `arguments`."""
    now = tx.now()
    ids = [new_id("wf") for _ in range(count)]
    tx.run_many(
        "INSERT INTO workflows (id, tenant_id, profile_id, profile_version, document, shard, state, wake_at, "
        "created_at, updated_at) VALUES (:id, 'root', 'bench', 1, '{}', :shard, 'pending', :now, :now, :now)",
        ({"id": identifier, "shard": shard_of(identifier), "now": now} for identifier in ids),
    )
    specs = [json_text(StepSpec(kind="code", timeout_ms=600_000, with_=values)) for values in arguments]
    tx.run_many(
        "INSERT INTO workflow_steps "
        "(workflow_id, seq, id, phase, action, runs_on, spec, state, attempt, first_attempt) "
        "VALUES (:workflow, :seq, :id, 'main', :action, 'control-plane', :spec, 'pending', 1, 1)",
        (
            {"workflow": identifier, "seq": seq, "id": f"step-{seq}", "action": action, "spec": spec}
            for identifier in ids
            for seq, spec in enumerate(specs)
        ),
    )
    tx.notify("workflows", "")
    return count


def _active(tx: Transaction) -> int:
    row = tx.one("SELECT COUNT(*) FROM workflows WHERE state IN ('pending', 'running', 'paused')")
    return int(row[0]) if row else 0


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
