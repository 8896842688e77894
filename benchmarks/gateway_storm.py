"""5,000 agents lose their connections at the same moment and all come back at once: how fast a server takes them.

Each comes back over a full mutual TLS handshake, websocket upgrade, hello and welcome. The gateway stores, durably,
the end of the old session and the new one, and plans what the agent is owed; the bare server only says welcome. The
agents dial without the waits by which real ones spread a storm, 40 at a time, from one process on a core of its own:
so the rate is bound by the agents too, and the server's processor time for one reconnect is given beside it.
"""

import asyncio
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import Figure
from benchmarks.children import child, more_files
from benchmarks.gateway_agents import connect_all, wait_connected
from benchmarks.gateway_servers import PEER, enrol, serve_bare, serve_ours

AGENTS = 5_000
STORMS = 3


def run() -> list[Figure]:
    more_files()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ids = asyncio.run(enrol(folder, AGENTS))
        bare, bare_cpu = _measure(folder, ids, serve_bare)
        ours, our_cpu = _measure(folder, ids, serve_ours)
    name = "gateway.reconnect_storm"
    note = f"{AGENTS} agents, median of {STORMS} storms"
    return [
        Figure(name, ours, "agents/s", PEER, bare, ours / bare, note),
        Figure(f"{name}.cpu", our_cpu * 1000, "ms/agent", PEER, bare_cpu * 1000, our_cpu / bare_cpu, "of the server"),
    ]


def _measure(folder: Path, ids: list[str], server: Callable[..., None]) -> tuple[float, float]:
    """Agents a second, and seconds of the server's processor for each."""
    rates, costs = [], []
    with child(server, str(folder)) as serving:
        port = serving.receive()
        with child(connect_all, str(folder), port, ids) as agents:
            wait_connected(agents)
            for _ in range(STORMS):
                serving.settle()
                before = serving.cpu
                agents.pipe.send("cut")
                seconds = agents.receive(300)
                if not isinstance(seconds, float):
                    raise RuntimeError(f"the agents could not come back: {seconds}")
                # What the server still does for them, such as closing old sessions, is part of the cost.
                serving.settle()
                rates.append(len(ids) / seconds)
                costs.append((serving.cpu - before) / len(ids))
    return statistics.median(rates), statistics.median(costs)
