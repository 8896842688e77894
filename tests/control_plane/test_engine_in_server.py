"""The workflow engine inside the control plane's process."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from control_plane.config import EngineConfig
from control_plane.engine.context import StepContext, StepFailed
from control_plane.engine.registry import NoArguments, StepRegistry
from control_plane.engine.start import Start, start
from control_plane.engine.timing import Timing
from control_plane.server import ControlPlane
from control_plane.store import Transaction
from control_plane.tokens import LOCAL_OPERATOR
from tests.control_plane.running import config_for


def _registry() -> StepRegistry:
    registry = StepRegistry()

    @registry.step("test.noop")
    async def noop(context: StepContext, arguments: NoArguments) -> dict[str, object]:
        return {"attempt": context.attempt}

    @registry.step("test.fail")
    async def fail(context: StepContext, arguments: NoArguments) -> dict[str, object]:
        raise StepFailed("it is broken")

    @registry.step("test.wait")
    async def wait(context: StepContext, arguments: NoArguments) -> dict[str, object]:
        raise context.not_ready(60_000)

    return registry


@pytest.fixture(autouse=True)
def own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control_plane.server.default_registry", _registry)


def plane_of(tmp_path: Path, *, enabled: bool = True, worker: str = "worker-1", store_url: str = "") -> ControlPlane:
    config = config_for(tmp_path / worker, worker=worker, store_url=store_url)
    return ControlPlane(msgspec.structs.replace(config, engine=EngineConfig(enabled=enabled)))


async def call(plane: ControlPlane, group: str, method: str, **request: Any) -> Any:
    verb = getattr(getattr(plane.compute.api, group), method)
    return await verb(LOCAL_OPERATOR, {"tenantId": "acme", **request})


async def make_node(plane: ControlPlane) -> str:
    await call(plane, "sites", "create", name="lab")
    node = await call(plane, "nodes", "create", name="n1", siteId="lab", bmc={"address": "simulated://n1"})
    return str(node.id)


async def begin(plane: ControlPlane, node_id: str, *steps: str) -> str:
    document = {"profile": "p", "steps": [{"use": step} for step in steps]}
    await call(plane, "profiles", "create", document=document)

    def work(tx: Transaction) -> str:
        return start(tx, _registry(), Timing(), Start(tenant_id="acme", profile_id="p", node_id=node_id)).id

    return await plane.store.write(work)


async def until(
    plane: ControlPlane, node_id: str, workflow_id: str, state: str, step_state: str | None = None
) -> Any:
    async with asyncio.timeout(20):
        while True:
            shown = await call(plane, "workflows", "get", nodeId=node_id, workflowId=workflow_id)
            if shown.state == state and step_state in (None, shown.steps[0].state):
                return shown
            await asyncio.sleep(0.02)


async def metrics(plane: ControlPlane) -> list[str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", plane.api_port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await writer.drain()
    text = (await reader.read()).decode()
    writer.close()
    return [line for line in text.splitlines() if line.startswith("rackwright_workflow")]


async def test_a_worker_drives_workflows_to_their_end_and_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control_plane.engine.gauges._SECONDS", 0.05)
    async with plane_of(tmp_path) as plane:
        before = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in await metrics(plane)}
        node_id = await make_node(plane)
        shown = await until(plane, node_id, await begin(plane, node_id, "test.noop", "test.noop"), "succeeded")
        assert [step.result for step in shown.steps] == [{"attempt": 1}, {"attempt": 1}]
        shown = await until(plane, node_id, await begin(plane, node_id, "test.fail"), "failed")
        assert shown.error.message == "test.fail (test.fail): it is broken"
        await until(plane, node_id, await begin(plane, node_id, "test.wait"), "running", "waiting")
        await asyncio.sleep(0.2)
        after = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in await metrics(plane)}
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    assert grown['rackwright_workflows_total{event="created"}'] == 3
    assert grown['rackwright_workflows_total{event="succeeded"}'] == 1
    assert grown['rackwright_workflows_total{event="failed"}'] == 1
    assert grown['rackwright_workflow_steps_total{outcome="succeeded"}'] == 2
    assert grown['rackwright_workflow_steps_total{outcome="failed"}'] == 1
    assert after['rackwright_workflows_active{state="running"}'] == 1
    assert after["rackwright_workflows_due_lag_seconds"] == 0


async def test_a_worker_whose_engine_is_off_serves_the_api_and_drives_nothing(tmp_path: Path, store_url: str) -> None:
    url = store_url if store_url.startswith("postgresql") else ""
    await _prepared(url)
    async with plane_of(tmp_path, enabled=False, store_url=url) as plane:
        node_id = await make_node(plane)
        workflow_id = await begin(plane, node_id, "test.noop")
        assert await plane.store.read(_held) == 0
        shown = await call(plane, "workflows", "get", nodeId=node_id, workflowId=workflow_id)
        assert (shown.state, shown.steps[0].state) == ("pending", "pending")
        assert (await call(plane, "workflows", "abort", nodeId=node_id, workflowId=workflow_id)).state == "cancelled"


async def test_a_graceful_stop_gives_the_shards_back_so_that_the_next_worker_goes_on_at_once(
    tmp_path: Path, postgres_url: str
) -> None:
    await _prepared(postgres_url)
    async with plane_of(tmp_path, worker="w1", enabled=False, store_url=postgres_url) as watcher:
        async with plane_of(tmp_path, worker="w2", store_url=postgres_url) as first:
            node_id = await make_node(watcher)
            workflow_id = await begin(watcher, node_id, "test.wait")
            await until(watcher, node_id, workflow_id, "running", "waiting")
            assert await first.store.read(_held) > 0
        # No lease of fifteen seconds is waited for.
        assert await watcher.store.read(_held) == 0
        async with plane_of(tmp_path, worker="w3", store_url=postgres_url):
            await call(watcher, "workflows", "abort", nodeId=node_id, workflowId=workflow_id)
            async with asyncio.timeout(10):
                await until(watcher, node_id, workflow_id, "cancelled")


async def _prepared(url: str) -> None:
    """PostgreSQL's tables are made on purpose only."""
    if url:
        from control_plane.store import migrate, open_store

        store = open_store(url)
        await migrate(store)
        await store.close()


def _held(tx: Transaction) -> int:
    row = tx.one("SELECT COUNT(*) FROM shards WHERE expires_at > :now", {"now": tx.now()})
    return 0 if row is None else int(row[0])
