"""A sweep of `power.getPower` over 200 IPMI BMCs that answer after 20 ms, against 8 parallel ipmitool processes."""

import asyncio
import concurrent.futures
import os
import shutil
import statistics
import subprocess
import time

import uvloop

from benchmarks import Figure, swept_agent
from benchmarks.children import Pipe, child, more_files
from simulators.ipmi import IpmiBmc, IpmiFleet, User

BMCS = 200
ANSWER_SECONDS = 0.02
SWEEPS = 5
PEER = "8 parallel ipmitool"
PROCESSES = 8


def run() -> list[Figure]:
    if shutil.which("ipmitool") is None:
        raise RuntimeError("ipmitool is not installed: as root, make bench installs it")
    more_files()
    with child(_serve_bmcs, BMCS, ANSWER_SECONDS) as bmcs:
        places: list[tuple[str, int]] = bmcs.receive()
        cold, warm, cpu = _measure_ours([f"ipmi://{host}:{port}" for host, port in places])
        theirs = _measure_ipmitool(places)
    note = f"{BMCS} BMCs, each answer after {ANSWER_SECONDS * 1000:g} ms, suite 17"
    return [
        Figure("sweep.ipmi", BMCS / warm, "BMCs/s", PEER, BMCS / theirs, theirs / warm, f"{note}, sessions open"),
        Figure("sweep.ipmi.cold", BMCS / cold, "BMCs/s", PEER, BMCS / theirs, theirs / cold, f"{note}, with login"),
        Figure("sweep.ipmi.cpu", cpu / BMCS * 1000, "ms/read", PEER, note="our processor time per warm read"),
    ]


def _measure_ours(addresses: list[str]) -> tuple[float, float, float]:
    with child(swept_agent.serve, addresses, "none") as agent:
        agent.receive()
        walls, cpus = [], []
        for _ in range(SWEEPS + 1):
            agent.pipe.send("sweep")
            wall, cpu, failures = agent.receive(300)
            if failures:
                raise RuntimeError(f"{len(failures)} reads failed, such as: {failures[0]}")
            walls.append(wall)
            cpus.append(cpu)
        agent.pipe.send("stop")
        agent.receive()
        return walls[0], statistics.median(walls[1:]), statistics.median(cpus[1:])


def _measure_ipmitool(places: list[tuple[str, int]]) -> float:
    def read(place: tuple[str, int]) -> None:
        host, port = place
        words = ["ipmitool", "-I", "lanplus", "-C", "17", "-H", host, "-p", str(port), "-U", swept_agent.USER, "-E"]
        environment = {**os.environ, "IPMI_PASSWORD": swept_agent.PASSWORD}
        done = subprocess.run([*words, "power", "status"], env=environment, capture_output=True, check=False)
        if b"Chassis Power is" not in done.stdout:
            raise RuntimeError(f"ipmitool failed: {done.stderr.decode(errors='replace')}")

    started = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(PROCESSES) as pool:
        list(pool.map(read, places))
    return time.perf_counter() - started


def _serve_bmcs(pipe: Pipe, count: int, delay: float) -> None:
    more_files()
    uvloop.run(_serve_fleet(pipe, count, delay))


async def _serve_fleet(pipe: Pipe, count: int, delay: float) -> None:
    user = User(swept_agent.USER, swept_agent.PASSWORD.encode())
    bmcs = [IpmiBmc(users=[user], answer_delay=delay) for _ in range(count)]
    async with IpmiFleet(bmcs, host="127.0.0.1") as fleet:
        pipe.send([server.address for server in fleet.servers])
        await asyncio.Event().wait()
