"""A whole control plane in a process of its own: store, gateway, API and engine, as `control-plane serve` has them.

It is told what to do over a pipe, since the API has no verb yet by which a workflow starts. The benchmarks' own steps
come to it as a plugin's do, by an entry point.
"""

import asyncio
import contextlib
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks.children import Child, Pipe, child, more_files
from benchmarks.enrolment import agent_row, insert_agents
from control_plane.config import AgentsConfig, ApiConfig, Config
from control_plane.engine.registry import StepRegistry, default_registry
from control_plane.engine.start import Start, start
from control_plane.engine.timing import Timing
from control_plane.server import ControlPlane
from control_plane.sites import serve_by
from control_plane.store import Transaction
from control_plane.tokens import LOCAL_OPERATOR

__all__ = ["TENANT", "Deployed", "Machines", "control_plane", "order", "serve"]

TENANT = "default"
_MOST_STARTS_AT_ONCE = 64
_LOOK_SECONDS = 0.01


class Machines(msgspec.Struct, frozen=True):
    """What stands at the site: `site_agent` serves it; each node has an agent of its own where `agents` names one."""

    names: list[str]
    site_agent: str = ""
    agents: list[str] = []


class Deployed(msgspec.Struct, frozen=True):
    """What a round of workflows cost."""

    wall: float
    """Seconds from before the first is started until the last has ended."""
    cpu: float
    """Seconds of this process's processor time meanwhile."""
    failures: list[str]


@contextlib.contextmanager
def control_plane(folder: Path) -> Iterator[Child]:
    """A control plane with its state below the folder, for the length of a block. It says its agents' port first."""
    _put_plugin(folder / "plugins")
    with child(serve, str(folder / "control-plane"), str(folder / "plugins")) as plane:
        yield plane


def order(plane: Child, *words: object, patience: float = 300.0) -> Any:
    """One message, and what it is answered with: see `serve`."""
    plane.pipe.send(words)
    return plane.receive(patience)


def _put_plugin(folder: Path) -> None:
    """Makes the folder into one from which the steps of `engine_worker` are registered."""
    info = folder / "bench-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bench\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[rackwright.steps]\nbench = benchmarks.engine_worker:register\n")


def serve(pipe: Pipe, state: str, plugins: str) -> None:
    """Sends the agents' port. Then answers each message, until the pipe closes:

    `("call", group, method, request)` with the verb's answer; `("machines", Machines)` with their node ids;
    `("deploy", profile, node ids)` with `Deployed`.
    """
    more_files()
    sys.path.insert(0, plugins)
    uvloop.run(_serve(pipe, state))


async def _serve(pipe: Pipe, state: str) -> None:
    config = Config(
        state_dir=state,
        worker="bench",
        api=ApiConfig(listen="127.0.0.1:0"),
        agents=AgentsConfig(listen="127.0.0.1:0", names=["localhost", "127.0.0.1"]),
    )
    registry = default_registry()
    async with ControlPlane(config) as plane:
        pipe.send(plane.agents_port)
        while True:
            what, *words = await asyncio.to_thread(pipe.recv)
            if what == "call":
                pipe.send(msgspec.to_builtins(await _call(plane, *words)))
            elif what == "machines":
                pipe.send(await _machines(plane, *words))
            else:
                pipe.send(await _deploy(plane, registry, *words))


async def _call(plane: ControlPlane, group: str, method: str, request: dict[str, Any]) -> Any:
    verb = getattr(getattr(plane.compute.api, group), method)
    return await verb(LOCAL_OPERATOR, {"tenantId": TENANT, **request})


async def _machines(plane: ControlPlane, machines: Machines) -> list[str]:
    site = await plane.store.read(_site_id)
    nodes = [
        (await _call(plane, "nodes", "create", _node(site, name, simulated=not machines.site_agent))).id
        for name in machines.names
    ]
    await plane.store.write(_put_agents, site, machines, nodes)
    return nodes


def _node(site: str, name: str, *, simulated: bool) -> dict[str, Any]:
    address = f"simulated://{name}" if simulated else f"https://{name}.example"
    return {"name": name, "siteId": site, "bmc": {"address": address}}


def _site_id(tx: Transaction) -> str:
    row = tx.one("SELECT id FROM sites")
    assert row is not None
    return str(row[0])


def _put_agents(tx: Transaction, site: str, machines: Machines, nodes: list[str]) -> None:
    own = [
        agent_row(agent, TENANT, site, tx.now(), role="ramdisk", node_id=node)
        for agent, node in zip(machines.agents, nodes, strict=False)
    ]
    if machines.site_agent:
        own.append(agent_row(machines.site_agent, TENANT, site, tx.now()))
    insert_agents(tx, own)
    if machines.site_agent:
        serve_by(tx, site, machines.site_agent)


async def _deploy(plane: ControlPlane, registry: StepRegistry, profile: str, nodes: list[str]) -> Deployed:
    """One workflow on each node, all at once, each started in a transaction of its own."""
    began, used = time.perf_counter(), _cpu()
    gate = asyncio.Semaphore(_MOST_STARTS_AT_ONCE)

    async def begin(node: str) -> str:
        async with gate:
            return await plane.store.write(_start, registry, profile, node)

    ids = await asyncio.gather(*(begin(node) for node in nodes))
    while await plane.store.read(_active):
        await asyncio.sleep(_LOOK_SECONDS)
    wall, cpu = time.perf_counter() - began, _cpu() - used
    return Deployed(wall, cpu, await plane.store.read(_failures, ids))


def _start(tx: Transaction, registry: StepRegistry, profile: str, node: str) -> str:
    return start(tx, registry, Timing(), Start(tenant_id=TENANT, profile_id=profile, node_id=node)).id


def _active(tx: Transaction) -> bool:
    active = "node_id IS NOT NULL AND state IN ('pending', 'running', 'paused')"
    return tx.one(f"SELECT 1 FROM workflows WHERE {active} LIMIT 1") is not None


def _failures(tx: Transaction, ids: list[str]) -> list[str]:
    rows = tx.all("SELECT state, error FROM workflows WHERE id IN EACH(:ids) AND state <> 'succeeded'", {"ids": ids})
    return [f"{state}: {error}" for state, error in rows]


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
