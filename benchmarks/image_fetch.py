"""200 machines fetch one image through one site's agent: one download from the origin, and the rate to the machines.

The peer is nginx with one worker and sendfile, out of the same file, with the same readers: what a plain file server
does. Each is run three times, in turns, and the best run counts. Before, all readers begin with an empty cache and
read along with the one download. Agent, nginx, origin and readers are processes of their own on the same processors.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import structlog
import uvloop
from aiohttp import web

from agent.boot_server import site_boot_server
from agent.clock import KernelClock
from agent.config import BootSection, Config, ImagesSection
from agent.tickets import Tickets
from benchmarks import Figure
from benchmarks.children import Child, Pipe, child

READERS = 200
SIZE = 64 << 20
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Run:
    """All readers, from the first request to the last byte."""

    seconds: float

    @property
    def rate(self) -> float:
        """MiB a second, of all of them together."""
        return READERS * SIZE / 1048576 / self.seconds


def run() -> list[Figure]:
    if shutil.which("nginx") is None:
        raise RuntimeError("the peer nginx is not installed: apt-get install nginx-light")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        image = folder / "image"
        checksum = _make(image)
        origin = stack.enter_context(child(_serve_origin, str(image)))
        agent = stack.enter_context(child(_serve_agent, str(folder), checksum, origin.receive()))
        readers = stack.enter_context(child(_read))
        url: str = agent.receive()
        cold = _timed(readers, url, checksum)
        asked, sent = _count(origin)
        if (asked, sent) != (1, SIZE):
            raise RuntimeError(f"the origin was asked {asked} times and sent {sent} bytes: once and {SIZE} are right")
        peer_url = stack.enter_context(_nginx(folder))
        ours, peers = [], []
        for _ in range(_ROUNDS):
            ours.append(_timed(readers, url, checksum))
            peers.append(_timed(readers, peer_url, checksum))
        best, peer = max(run.rate for run in ours), max(run.rate for run in peers)
        rss = agent.rss / 1048576
    note = (
        f"{READERS} readers of {SIZE >> 20} MiB, all their MiB/s together; an empty cache {cold.rate:.0f} MiB/s, "
        f"and the origin was asked once; the agent then held {rss:.0f} MiB"
    )
    return [Figure("image.fetch", best, "MiB/s", "nginx, one worker, sendfile", peer, best / peer, note)]


def _make(image: Path) -> str:
    content = random.Random(1).randbytes(SIZE)
    image.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def _timed(readers: Child, url: str, checksum: str) -> Run:
    readers.pipe.send((url, checksum))
    answer = readers.receive()
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return Run(answer)


def _count(origin: Child) -> tuple[int, int]:
    origin.pipe.send("count")
    counted: tuple[int, int] = origin.receive()
    return counted


# The readers


def _read(pipe: Pipe) -> None:
    while True:
        url, checksum = pipe.recv()
        results: list[tuple[int, str]] = []
        # One of them looks at what it gets; hashing in all would measure the hash.
        threads = [
            threading.Thread(target=_read_one, args=(url, results, number == 0), daemon=True)
            for number in range(READERS)
        ]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
        wrong = [count for count, _ in results if count != SIZE]
        hashed = [digest for _, digest in results if digest]
        if wrong or len(results) != READERS or hashed != [checksum]:
            pipe.send(f"{len(results)} readers were answered, {len(wrong)} of them short; checksum {hashed}")
        else:
            pipe.send(seconds)


def _read_one(url: str, results: list[tuple[int, str]], look: bool) -> None:
    parts = urlsplit(url)
    digest = hashlib.sha256() if look else None
    buffer = bytearray(256 * 1024)
    with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=120) as connection:
        connection.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(1)
        count = 0
        while received := connection.recv_into(buffer):
            count += received
            if digest is not None:
                digest.update(memoryview(buffer)[:received])
    results.append((count, digest.hexdigest() if digest is not None else ""))


# The servers


def _serve_agent(pipe: Pipe, folder: str, checksum: str, origin: str) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    uvloop.run(_agent(pipe, Path(folder), checksum, origin))


async def _agent(pipe: Pipe, folder: Path, checksum: str, origin: str) -> None:
    boot, images = BootSection(listen="127.0.0.1:0"), ImagesSection(allow=("127.0.0.1",))
    config = Config(state_dir=str(folder / "agent"), boot=boot, images=images)
    config.state.mkdir()
    server = site_boot_server(config, KernelClock(), Tickets(lambda _frame: None))
    pipe.send(await server.offer_image("node_1", f"sha256-{checksum}", "image.raw", origin, token="0" * 40))
    await asyncio.to_thread(pipe.recv)
    await server.aclose()


def _serve_origin(pipe: Pipe, image: str) -> None:
    asyncio.run(_origin(pipe, Path(image)))


async def _origin(pipe: Pipe, image: Path) -> None:
    asked = sent = 0

    async def answer(_request: web.BaseRequest) -> web.StreamResponse:
        nonlocal asked, sent
        asked += 1
        sent += image.stat().st_size
        return web.FileResponse(image)

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    pipe.send(f"http://127.0.0.1:{runner.addresses[0][1]}/image.raw")
    while True:
        await asyncio.to_thread(pipe.recv)
        pipe.send((asked, sent))


@contextlib.contextmanager
def _nginx(folder: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "nginx.conf").write_text(
        f"daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log;\n"
        "events { worker_connections 1024; }\n"
        f"http {{ access_log off; sendfile on; tcp_nopush on; client_body_temp_path {folder}/body;\n"
        f"proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;\n"
        f"scgi_temp_path {folder}/scgi; server {{ listen 127.0.0.1:{port}; root {folder}; }} }}\n"
    )
    if os.geteuid() == 0:
        folder.chmod(0o755)
    process = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")])
    try:
        _wait_for(lambda: socket.create_connection(("127.0.0.1", port), timeout=1).close())
        yield f"http://127.0.0.1:{port}/image"
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(attempt: Callable[[], None]) -> None:
    end = time.monotonic() + 10
    while True:
        try:
            attempt()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
