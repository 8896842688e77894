"""1,000 simulated machines, each a deploy of twelve steps, all begun at once: how long until the last is done.

Held against the longest single path: the machine whose own simulated durations are the longest, with a control plane
that costs nothing. What is more is the engine's: starting, sending, noticing, and 2,000 connections that come and go.

Real: the control plane (API, gateway with mutual TLS, engine, SQLite with synchronous=FULL) in a process of its own;
the protocol, with a connection and a certificate for each of 1,001 agents. Simulated, in a second process: what the
agents do, which is to let time go by; they have no journals. The minute that a path takes is about a tenth of a real
deploy's, so the load is about ten times that of real machines. On two cores both processes have one each.
"""

import tempfile
from pathlib import Path

from benchmarks import Figure, fleet_agents
from benchmarks.children import child, more_files
from benchmarks.engine_plane import Deployed, Machines, control_plane, order
from benchmarks.enrolment import issue
from benchmarks.fleet_agents import Fleet
from benchmarks.fleet_path import PROFILE, path_seconds
from protocol.ids import new_id

MACHINES = 1_000


def run() -> list[Figure]:
    more_files()
    with tempfile.TemporaryDirectory() as name:
        deployed = _deploy(Path(name))
    if deployed.failures:
        raise RuntimeError(f"{len(deployed.failures)} deploys failed, such as: {deployed.failures[0]}")
    longest = max(path_seconds(machine) for machine in range(MACHINES))
    note = f"{MACHINES} machines, 12 steps each; {deployed.cpu:.1f} s of the control plane's processor; limit 1.15"
    return [
        Figure("engine.fleet", deployed.wall, "s", "the longest single path", longest, deployed.wall / longest, note)
    ]


def _deploy(folder: Path) -> Deployed:
    agents = [new_id("agent") for _ in range(MACHINES)]
    site_agent = new_id("agent")
    # Before the control plane starts, so that it finds this CA as its own.
    (folder / "control-plane").mkdir(mode=0o700)
    issue(folder / "control-plane" / "ca", folder, [*agents, site_agent])
    with control_plane(folder) as plane:
        port = plane.receive()
        order(plane, "call", "sites", "create", {"name": "lab"})
        order(plane, "call", "profiles", "create", {"document": PROFILE})
        nodes = order(plane, "machines", Machines([f"m{number}" for number in range(MACHINES)], site_agent, agents))
        with child(fleet_agents.serve, Fleet(str(folder), port, site_agent, agents, nodes)) as swarm:
            swarm.receive()
            swarm.settle()
            plane.settle()
            deployed: Deployed = order(plane, "deploy", "fleet", nodes, patience=600)
    return deployed
