"""Memory of an idle agent: our gateway against a bare websockets + uvloop server, both over mutual TLS."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import Figure
from benchmarks.children import child, more_files
from benchmarks.gateway_agents import connect_all, wait_connected
from benchmarks.gateway_servers import PEER, enrol, serve_bare, serve_ours

AGENTS = 5_000


def run() -> list[Figure]:
    more_files()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ids = asyncio.run(enrol(folder, AGENTS))
        bare = _measure(folder, ids, serve_bare)
        ours = _measure(folder, ids, serve_ours)
    note = f"{AGENTS} idle agents"
    return [Figure("gateway.idle_kib_per_agent", ours / 1024, "KiB", PEER, bare / 1024, ours / bare, note)]


def _measure(folder: Path, ids: list[str], server: Callable[..., None]) -> float:
    """Bytes per connection in the server."""
    with child(server, str(folder)) as serving:
        port = serving.receive()
        serving.settle()
        before = serving.rss
        with child(connect_all, str(folder), port, ids) as agents:
            wait_connected(agents)
            serving.settle()
            serving.pipe.send("collect")
            serving.receive()
            return (serving.rss - before) / len(ids)
