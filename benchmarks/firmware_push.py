"""A firmware image of 500 MiB pushed through the driver to a BMC: how much memory the sender takes for it.

The BMC is our server with TLS, in a process of its own; it counts and hashes what it gets, so that a body that came
short or twice would show. Sent once as a form and once as it is; the figure is the larger growth of the two.
"""

import asyncio
import hashlib
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import uvloop

from benchmarks import Figure
from benchmarks.children import Pipe, child
from drivers import Drivers, Target
from simulators.redfish import RedfishServer

SIZE = 500 * 1024 * 1024
LIMIT_MIB = 32
USER, PASSWORD = "admin", "password"
UPDATES = (("multipart", "bmc-3.0.0.bin", "3.0.0"), ("push", "bmc-3.1.0.bin", "3.1.0"))


@dataclass(frozen=True, slots=True)
class Push:
    growth_mib: float
    seconds: float


def run() -> list[Figure]:
    with child(_serve_bmc) as bmc, tempfile.TemporaryDirectory() as folder:
        url: str = bmc.receive()
        pushes = uvloop.run(_push_all(Path(folder), url))
        bmc.pipe.send("received")
        received: list[tuple[int, str]] = bmc.receive()
    _check(received)
    worst = max(push.growth_mib for push in pushes)
    rates = ", ".join(
        f"{way} {SIZE / 1048576 / push.seconds:.0f} MiB/s" for (way, _, _), push in zip(UPDATES, pushes, strict=True)
    )
    note = f"limit {LIMIT_MIB} MiB; growth of the resident memory over the state after a first read; TLS, {rates}"
    return [Figure("firmware.push.rss_mib", worst, "MiB", f"the image, {SIZE >> 20} MiB", SIZE / 1048576, None, note)]


async def _push_all(folder: Path, url: str) -> list[Push]:
    async with Drivers() as drivers:
        target = Target(address=url, username=USER, password=PASSWORD, verify=False)
        await drivers.invoke(target, "firmware.getFirmware")
        return [await _push(drivers, target, folder / name, way, version) for way, name, version in UPDATES]


async def _push(drivers: Drivers, target: Target, image: Path, way: str, version: str) -> Push:
    with image.open("wb") as file:
        file.truncate(SIZE)
    process = psutil.Process()
    before = most = process.memory_info().rss
    ended = 0.0
    started = time.perf_counter()

    def look(_message: str, percent: float | None) -> None:
        nonlocal most, ended
        most = max(most, process.memory_info().rss)
        ended = time.perf_counter() if percent == 100 else ended

    arguments = {"image": str(image), "expectVersion": version, "transport": way}
    await drivers.invoke(target, "firmware.updateFirmware", arguments, progress=look)
    image.unlink()
    return Push((most - before) / 1048576, ended - started)


def _check(received: list[tuple[int, str]]) -> None:
    digest = hashlib.sha256()
    for _ in range(SIZE >> 20):
        digest.update(bytes(1 << 20))
    if received != [(SIZE, digest.hexdigest())] * len(UPDATES):
        raise RuntimeError(f"the BMC got something else than the image: {received}")


def _serve_bmc(pipe: Pipe) -> None:
    uvloop.run(_bmc(pipe))


async def _bmc(pipe: Pipe) -> None:
    async with RedfishServer(users={USER: PASSWORD}, tls=True) as server:
        pipe.send(server.url)
        await asyncio.to_thread(pipe.recv)
        pipe.send([(upload.size, upload.sha256) for upload in server.state.uploads])
        await asyncio.to_thread(pipe.recv)
