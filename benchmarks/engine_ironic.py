"""50 no-op deploys at once, against Ironic with fake-hardware; and what both hold in memory after it.

Like for like: Ironic's fake interfaces do nothing, in the conductor's own process, with no agent; its deploy has one
step. Ours has ten steps, which do nothing in the control plane's process, on SQLite as Ironic is. The second figure
is no longer like for like: each of six steps is a command to a real site agent, over its websocket and through its
journal, on simulated machines that do nothing.

Both are measured from before the first deploy is asked for until the last machine is done. Ironic is asked over HTTP,
as it must be; ours are started by the call that an API verb would make, since no verb starts a workflow yet.
"""

import contextlib
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks import Figure, ironic
from benchmarks.children import Child
from benchmarks.engine_plane import Deployed, Machines, control_plane, order
from tests.e2e.processes import AgentProcess, rackwright

MACHINES = 50
RUNS = 5
PEER_RUNS = 3
PEER = "Ironic, fake-hardware"
_IMAGE = {"url": "https://images.example/debian-12.raw.zst", "sha256": "0" * 64}
NOOP = {"profile": "noop", "steps": [{"id": f"step-{number}", "use": "bench.noop"} for number in range(10)]}
BY_AGENT = {
    "profile": "by-agent",
    "drivers": dict.fromkeys(("power", "boot", "virtual-media", "deploy"), "simulated"),
    "steps": [
        {"use": "virtual-media.insertMedia", "on": "site", "with": {"image": "https://images.example/r.iso"}},
        {"use": "boot.setBootDevice", "on": "site", "with": {"device": "cd", "mode": "uefi"}},
        {"id": "on", "use": "power.setPower", "on": "site", "with": {"action": "on"}},
        {"use": "deploy.writeImage", "on": "site", "with": {"image": _IMAGE, "rootDevice": {"smallest": True}}},
        {"use": "virtual-media.ejectMedia", "on": "site"},
        {"id": "reset", "use": "power.setPower", "on": "site", "with": {"action": "reset"}},
    ],
}


class _Ours(NamedTuple):
    noop: float
    """Deploys a second."""
    by_agent: float
    memory: int
    """Bytes that the control plane holds."""
    agent_memory: int


def run() -> list[Figure]:
    ours = _measure_ours()
    rate, memory = _measure_ironic()
    both, mib = ours.memory + ours.agent_memory, 1 << 20
    name = "engine.ironic_deploys"
    return [
        Figure(name, ours.noop, "deploys/s", PEER, rate, ours.noop / rate, f"{MACHINES} at once; limit 20 times"),
        Figure(
            f"{name}.by_agent",
            ours.by_agent,
            "deploys/s",
            PEER,
            rate,
            ours.by_agent / rate,
            "six commands each to a real site agent, where Ironic has no agent",
        ),
        Figure(
            f"{name}.memory",
            ours.memory / mib,
            "MiB",
            PEER,
            memory / mib,
            ours.memory / memory,
            f"limit a third; with the site agent {both / mib:.0f} MiB, {both / memory:.2f}",
        ),
    ]


def _measure_ours() -> _Ours:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with control_plane(folder) as plane, _site_agent(folder, plane) as agent:
            nodes = order(plane, "machines", Machines([f"m{number}" for number in range(MACHINES)]))
            for document in (NOOP, BY_AGENT):
                order(plane, "call", "profiles", "create", {"document": document})
            noop = _rate(plane, "noop", nodes)
            by_agent = _rate(plane, "by-agent", nodes)
            return _Ours(noop, by_agent, plane.memory, int(psutil.Process(agent.pid).memory_full_info().pss))


def _rate(plane: Child, profile: str, nodes: list[str]) -> float:
    """Deploys a second, the median of some rounds after a first."""
    walls = []
    for _ in range(RUNS + 1):
        deployed: Deployed = order(plane, "deploy", profile, nodes)
        if deployed.failures:
            raise RuntimeError(f"{len(deployed.failures)} deploys failed, such as: {deployed.failures[0]}")
        walls.append(deployed.wall)
    return len(nodes) / statistics.median(walls[1:])


@contextlib.contextmanager
def _site_agent(folder: Path, plane: Child) -> Iterator[AgentProcess]:
    """`rackwright agent run`, joined."""
    url = f"https://127.0.0.1:{plane.receive()}"
    token = order(plane, "call", "joinTokens", "create", {"siteId": "lab", "createSite": True})["token"]
    agent = AgentProcess(folder, log_level="warning")
    rackwright("agent", "join", url, "-", "--config", str(agent.config), stdin=str(token))
    with agent.running_for():
        yield agent


def _measure_ironic() -> tuple[float, int]:
    """Deploys a second, and bytes that its processes hold after them."""
    with tempfile.TemporaryDirectory() as name, ironic.running(Path(name)) as peer:
        names = [f"m{number}" for number in range(MACHINES)]
        peer.enrol(names)
        peer.provision(names, "manage", "manageable")
        peer.provision(names, "provide", "available")
        walls = []
        for _ in range(PEER_RUNS + 1):
            walls.append(peer.provision(names, "active", "active"))
            peer.provision(names, "deleted", "available")
        return MACHINES / statistics.median(walls[1:]), peer.memory
