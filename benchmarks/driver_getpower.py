"""A warm `power.getPower` through everything: API call to result, against a bare GET of the same resource.

A control plane, a site agent and one Redfish BMC (our server, HTTPS) as processes of their own. Both clients keep
their connections; the BMC's own count says how many requests one read cost it.
"""

import asyncio
import base64
import contextlib
import http.client
import json
import ssl
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from benchmarks import Figure
from benchmarks.children import Child, Pipe, child
from simulators.redfish import RedfishServer
from tests.e2e.processes import AgentProcess, ControlPlaneProcess

READS = 300
WARM_UP = 20
USER, PASSWORD = "admin", "password"
SYSTEM = "/redfish/v1/Systems/1"


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, child(_serve_bmc) as bmc:
        url: str = bmc.receive()
        with _site(Path(folder), url) as plane:
            through, bare, requests = _measure(plane, bmc, url)
    return [
        Figure("driver.getpower.requests", requests, "requests/read", "1", 1, requests),
        Figure(
            "driver.getpower.added_ms",
            (through - bare) * 1000,
            "ms",
            "a bare GET over a kept connection",
            bare * 1000,
            through / bare,
            f"medians of {READS}; API call to result {through * 1000:.2f} ms; limit 15 ms added",
        ),
    ]


@contextlib.contextmanager
def _site(folder: Path, bmc: str) -> Iterator[ControlPlaneProcess]:
    plane = ControlPlaneProcess(folder, log_level="info")
    with plane.running_for():
        agent = AgentProcess(folder, log_level="info")
        agent.join(plane)
        agent.credential("bmc", USER, PASSWORD)
        with agent.running_for():
            record = {"address": bmc, "credentialRef": "bmc", "tls": "first-use"}
            plane.call("nodes.create", tenantId="default", name="m1", siteId="lab", bmc=record)
            yield plane


def _measure(plane: ControlPlaneProcess, bmc: Child, url: str) -> tuple[float, float, float]:
    """Median seconds of a read through everything, of a bare GET, and the BMC's requests per read."""
    api = http.client.HTTPConnection("127.0.0.1", plane.api_port)
    parts = urlsplit(url)
    direct = http.client.HTTPSConnection(parts.hostname or "", parts.port, context=ssl._create_unverified_context())
    for _ in range(WARM_UP):
        _read(api, plane.token)
        _get(direct)
    before = _requests(bmc)
    through = [_timed(_read, api, plane.token) for _ in range(READS)]
    requests = (_requests(bmc) - before) / READS
    bare = [_timed(_get, direct) for _ in range(READS)]
    return statistics.median(through), statistics.median(bare), requests


def _timed(act: object, *arguments: object) -> float:
    started = time.perf_counter()
    act(*arguments)  # type: ignore[operator]
    return time.perf_counter() - started


def _read(api: http.client.HTTPConnection, token: str) -> None:
    body = json.dumps({"tenantId": "default", "nodeId": "m1", "operation": "power.getPower"})
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    api.request("POST", "/api/compute/drivers/invoke", body, headers)
    answer = json.loads(api.getresponse().read())
    if answer.get("state") != "succeeded":
        raise RuntimeError(f"the read failed: {answer}")


def _get(direct: http.client.HTTPSConnection) -> None:
    login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    direct.request("GET", SYSTEM, headers={"Authorization": f"Basic {login}"})
    json.loads(direct.getresponse().read())


def _requests(bmc: Child) -> int:
    bmc.pipe.send("count")
    return int(bmc.receive())


def _serve_bmc(pipe: Pipe) -> None:
    uvloop.run(_bmc(pipe))


async def _bmc(pipe: Pipe) -> None:
    async with RedfishServer(users={USER: PASSWORD}, tls=True) as server:
        pipe.send(server.url)
        while True:
            await asyncio.to_thread(pipe.recv)
            pipe.send(server.journal.total)
