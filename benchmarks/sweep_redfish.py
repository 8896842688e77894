"""A sweep of `power.getPower` over 500 Redfish BMCs that answer after 200 ms: one agent against 8 threads of sushy.

Both read warm: sessions are open, the system's address is known. The BMCs are our own Redfish server over HTTPS, in a
process of its own.
"""

import asyncio
import json
import statistics
import subprocess
from pathlib import Path

import uvloop

from benchmarks import Figure, swept_agent
from benchmarks.children import Pipe, child, more_files
from simulators.redfish import RedfishFleet, TlsMaterial

BMCS = 500
ANSWER_SECONDS = 0.2
SWEEPS = 5
PEER_SWEEPS = 3
PEER = "8 threads of sushy"
_PEER_PYTHON = Path(".peers/bin/python")


def run() -> list[Figure]:
    more_files()
    with child(_serve_bmcs, BMCS, ANSWER_SECONDS) as bmcs:
        addresses: list[str] = bmcs.receive()
        ours = _measure_ours(addresses)
        theirs = _measure_sushy(addresses)
    wall, cpu, rss = ours
    peer_wall, peer_cpu, peer_rss = theirs
    note = f"{BMCS} BMCs over HTTPS, each answer after {ANSWER_SECONDS * 1000:g} ms"
    mib = 1 << 20
    return [
        Figure("sweep.redfish", BMCS / wall, "BMCs/s", PEER, BMCS / peer_wall, peer_wall / wall, note),
        Figure("sweep.redfish.cpu", cpu / BMCS * 1000, "ms/read", PEER, peer_cpu / BMCS * 1000, cpu / peer_cpu, note),
        Figure("sweep.redfish.rss_mib", rss / mib, "MiB", PEER, peer_rss / mib, rss / peer_rss, "limit 250 MiB"),
    ]


def _measure_ours(addresses: list[str]) -> tuple[float, float, float]:
    with child(swept_agent.serve, addresses, "first-use") as agent:
        agent.receive()
        walls, cpus = [], []
        for number in range(SWEEPS + 1):
            agent.pipe.send("sweep")
            wall, cpu, failures = agent.receive(300)
            if failures:
                raise RuntimeError(f"{len(failures)} reads failed, such as: {failures[0]}")
            if number:
                walls.append(wall)
                cpus.append(cpu)
        rss = agent.rss
        agent.pipe.send("stop")
        agent.receive()
        return statistics.median(walls), statistics.median(cpus), rss


def _measure_sushy(addresses: list[str]) -> tuple[float, float, float]:
    if not _PEER_PYTHON.exists():
        raise RuntimeError("the peers are not installed: run make bench")
    task = {"addresses": addresses, "user": swept_agent.USER, "password": swept_agent.PASSWORD}
    with subprocess.Popen(
        [_PEER_PYTHON, "benchmarks/sushy_sweep.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        peer.stdin.write(json.dumps(task) + "\n")
        peer.stdin.flush()
        peer.stdout.readline()
        results = []
        for _ in range(PEER_SWEEPS):
            peer.stdin.write("\n")
            peer.stdin.flush()
            results.append(json.loads(peer.stdout.readline()))
        peer.stdin.close()
    if any(result[2] for result in results):
        raise RuntimeError(f"sushy failed: {results[0][2]}")
    return (
        statistics.median(result[0] for result in results),
        statistics.median(result[1] for result in results),
        results[-1][3],
    )


def _serve_bmcs(pipe: Pipe, count: int, latency: float) -> None:
    more_files()
    uvloop.run(_serve_fleet(pipe, count, latency))


async def _serve_fleet(pipe: Pipe, count: int, latency: float) -> None:
    users = {swept_agent.USER: swept_agent.PASSWORD}
    tls = TlsMaterial.self_signed(("127.0.0.1",))
    async with RedfishFleet(count=count, users=users, tls=tls, latency=latency) as fleet:
        pipe.send(list(fleet.urls))
        await asyncio.Event().wait()
