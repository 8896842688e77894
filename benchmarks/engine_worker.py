"""One worker process of the engine for benchmarks: the store and the reconciler, with steps that cost nothing.

Workflows are put in as rows, as `start` would put them in; what is measured is how fast they are driven. Beside that
it can list workflows through the API's own code, without HTTP.
"""

import asyncio
import resource
import time

import msgspec
import uvloop

from benchmarks.children import Pipe
from control_plane.api.call import Services
from control_plane.api.dispatch import Dispatcher
from control_plane.api.inprocess import Compute
from control_plane.api.metrics import Metrics
from control_plane.engine.context import StepContext
from control_plane.engine.expansion import RowSeed
from control_plane.engine.reconciler import Reconciler
from control_plane.engine.records import StepSpec
from control_plane.engine.registry import NoArguments, StepRegistry
from control_plane.engine.start import insert_steps
from control_plane.engine.states import Phase, RunsOn
from control_plane.engine.timing import SHARDS, shard_of
from control_plane.store import Store, Transaction, json_text, migrate, open_store
from control_plane.tokens import LOCAL_OPERATOR
from control_plane.waiters import Waiters
from protocol.ids import new_id

STEPS = 10
PAGE = 50
"""Workflows of a page, each with its steps."""


class Nap(msgspec.Struct, frozen=True):
    seconds: float


def register(steps: StepRegistry) -> None:
    """`bench.noop`, and `bench.nap`, whose code takes its time."""

    @steps.step("bench.noop")
    async def noop(_context: StepContext, _arguments: NoArguments) -> dict[str, object]:
        return {}

    @steps.step("bench.nap", with_=Nap)
    async def nap(_context: StepContext, arguments: Nap) -> dict[str, object]:
        await asyncio.sleep(arguments.seconds)
        return {}


def registry() -> StepRegistry:
    """Nothing but the benchmarks' steps."""
    steps = StepRegistry()
    register(steps)
    return steps


def serve(pipe: Pipe, url: str, worker: str = "bench") -> None:
    """Says "ready" once it holds shards. Then answers each message, until "stop":

    `("drive", n)` with (wall seconds, processor seconds) of n workflows; `("list", tenant, node, n)` with the seconds
    of each of n pages.
    """
    uvloop.run(_serve(pipe, url, worker))


async def _serve(pipe: Pipe, url: str, worker: str) -> None:
    store = open_store(url)
    await migrate(store)
    reconciler = Reconciler(store, registry(), worker=worker)
    running = asyncio.create_task(reconciler.run())
    while not reconciler.shards.shards:
        await asyncio.sleep(0.01)
    pipe.send("ready")
    while (task := await asyncio.to_thread(pipe.recv)) != "stop":
        what, *words = task
        pipe.send(await (_drive(store, *words) if what == "drive" else _list(store, *words)))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await store.close()
    pipe.send("stopped")


async def _drive(store: Store, count: int) -> tuple[float, float]:
    started, used = time.perf_counter(), _cpu()
    nothing: list[dict[str, object]] = [{}] * STEPS
    ids = await store.write(insert, count, "bench.noop", nothing, json_text(document(STEPS)))
    while await store.read(_active):
        await asyncio.sleep(0.02)
    spent = time.perf_counter() - started, _cpu() - used
    if (succeeded := await store.read(_succeeded, ids)) != count:
        raise RuntimeError(f"of {count} workflows only {succeeded} succeeded")
    return spent


async def _list(store: Store, tenant: str, node: str, count: int) -> list[float]:
    services = Services(store, ca_sha256="", agent_url="", waiters=Waiters(store))
    compute = Compute(Dispatcher(services, Metrics(lambda: 0)))
    request = {"tenantId": tenant, "nodeId": node, "limit": PAGE}
    walls = []
    for _ in range(count):
        started = time.perf_counter()
        answer = await compute.api.workflows.list(LOCAL_OPERATOR, request)
        msgspec.json.encode(answer)
        walls.append(time.perf_counter() - started)
        if len(answer.items) != PAGE:
            raise RuntimeError(f"a page of {len(answer.items)} workflows, where {PAGE} are there")
    return walls


def document(steps: int) -> dict[str, object]:
    """A profile of that many no-op steps: what is kept with each workflow."""
    return {"profile": "bench", "steps": [{"id": f"step-{seq}", "use": "bench.noop"} for seq in range(steps)]}


def spec(arguments: dict[str, object]) -> StepSpec:
    """What is kept with each step."""
    return StepSpec(kind="code", timeout_ms=600_000, with_=arguments)


def insert(
    tx: Transaction, count: int, action: str, arguments: list[dict[str, object]], profile: str = "{}"
) -> list[str]:
    """Workflows that are due at once, each with one step per entry of `arguments`. Returns their ids."""
    now = tx.now()
    ids = [new_id("wf") for _ in range(count)]
    tx.run_many(
        "INSERT INTO workflows (id, tenant_id, profile_id, profile_version, shard, state, wake_at, "
        "created_at, updated_at) VALUES (:id, 'root', 'bench', 1, :shard, 'pending', :now, :now, :now)",
        ({"id": identifier, "shard": shard_of(identifier), "now": now} for identifier in ids),
    )
    tx.run_many(
        "INSERT INTO workflow_documents (workflow_id, document) VALUES (:id, :profile)",
        ({"id": identifier, "profile": profile} for identifier in ids),
    )
    seeds = [
        RowSeed(
            seq=seq,
            id=f"step-{seq}",
            phase=Phase.MAIN,
            action=action,
            runs_on=RunsOn.CONTROL_PLANE,
            spec=spec(values),
        )
        for seq, values in enumerate(arguments)
    ]
    insert_steps(tx, ((identifier, seed) for identifier in ids for seed in seeds))
    tx.notify("workflows", "")
    return ids


def _active(tx: Transaction) -> bool:
    """By the index of what is due: those that have ended are not looked at."""
    due = "shard IN EACH(:shards) AND wake_at IS NOT NULL"
    return tx.one(f"SELECT 1 FROM workflows WHERE {due} LIMIT 1", {"shards": list(range(SHARDS))}) is not None


def _succeeded(tx: Transaction, ids: list[str]) -> int:
    row = tx.one("SELECT COUNT(*) FROM workflows WHERE id IN EACH(:ids) AND state = 'succeeded'", {"ids": ids})
    return int(row[0]) if row else 0


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
