"""An image from a web server to a disk: our driver against `curl | zstd -d | dd oflag=direct`, same image, same disk.

The disk is a loop device on a file, empty before each run: it takes a user who may make one. Ours also checks the
published SHA-256, leaves out no zero that the disk does not have, reads samples back, and moves the partition table.
The runs take turns; of each side the fastest counts, since whatever else the machine does only makes a run slower.
"""

import asyncio
import contextlib
import hashlib
import http.server
import random
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import Figure
from benchmarks.children import Pipe, child
from drivers.driver import Call
from drivers.linux.disks import read_disks
from drivers.linux.host import Host
from drivers.linux.write_image import ImageWriting
from protocol.shapes.deploy import Image, ImageFormat, WriteImage

SIZE = 1536 << 20
ROUNDS = 4
LIMIT_MIB = 128
NEEDS = ("curl", "zstd", "dd")
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Taken:
    seconds: float
    cpu: float
    rss_mib: float = 0.0


def run() -> list[Figure]:
    missing = [program for program in NEEDS if shutil.which(program) is None]
    if missing:
        raise RuntimeError(f"the peer needs {', '.join(missing)}: install them")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        digest = _make_image(folder)
        with _disk(folder) as path, child(_serve, str(folder)) as server:
            url = f"http://127.0.0.1:{server.receive()}/image.raw.zst"
            ours, peers = [], []
            for _ in range(ROUNDS):
                ours.append(_ours(folder, path, url, digest))
                _check(folder, path)
                peers.append(_peer(folder, path, url))
    return _figures(ours, peers)


def _figures(ours: list[Taken], peers: list[Taken]) -> list[Figure]:
    mib = SIZE / 1048576
    rate, theirs = mib / min(run.seconds for run in ours), mib / min(run.seconds for run in peers)
    note = (
        f"{mib:.0f} MiB, best of {ROUNDS} (ours {', '.join(f'{run.seconds:.1f}' for run in ours)} s; peer "
        f"{', '.join(f'{run.seconds:.1f}' for run in peers)} s); processor seconds: ours "
        f"{min(run.cpu for run in ours):.1f}, peer {min(run.cpu for run in peers):.1f}; limit 0.95"
    )
    rss = max(run.rss_mib for run in ours)
    return [
        Figure("image.write", rate, "MiB/s", "curl | zstd -d | dd oflag=direct", theirs, rate / theirs, note),
        Figure("image.write.rss_mib", rss, "MiB", f"the image, {mib:.0f} MiB", mib, None, f"limit {LIMIT_MIB} MiB"),
    ]


def _make_image(folder: Path) -> str:
    """A third zeros, a third noise, a third text, in runs as file systems have them; its checksum as published."""
    chance = random.Random(5)
    text = b"".join(b"%x %x\n" % (chance.getrandbits(60), index) for index in range(80_000))
    raw, packed = folder / "image.raw", folder / "image.raw.zst"
    with raw.open("wb") as file:
        for index in range(SIZE // _PIECE):
            kind = (0, 1, 2, 2, 1, 0)[index // 8 % 6]
            start = chance.randrange(len(text) - _PIECE)
            file.write((bytes(_PIECE), chance.randbytes(_PIECE), text[start : start + _PIECE])[kind])
    subprocess.run(["zstd", "-q", "-3", "-T2", raw, "-o", packed], check=True)
    with packed.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[str]:
    file = folder / "disk"
    _empty(folder)
    words = ["losetup", "--find", "--show", "--direct-io=on", str(file)]
    made = subprocess.run(words, check=False, capture_output=True, text=True)
    if made.returncode:
        raise RuntimeError(
            f"no loop device can be made; it takes root, and a kernel with some: {made.stderr.strip()}"
        )
    try:
        yield made.stdout.strip()
    finally:
        subprocess.run(["losetup", "--detach", made.stdout.strip()], check=False)


def _empty(folder: Path, path: str = "") -> None:
    if path:
        subprocess.run(["blkdiscard", path], check=True)
        return
    with (folder / "disk").open("wb") as file:
        file.truncate(SIZE + (64 << 20))


def _ours(folder: Path, path: str, url: str, digest: str) -> Taken:
    """In a process of its own, so that its memory is its own."""
    _empty(folder, path)
    with child(_write, str(folder), path, url, digest) as writer:
        taken: Taken = writer.receive(600)
        return taken


def _write(pipe: Pipe, folder: str, path: str, url: str, digest: str) -> None:
    host = Host(state=Path(folder) / "state", loop_devices=True)
    disk = next(disk for disk in read_disks(host) if disk.path == path)
    image = Image(url=url, sha256=digest, format=ImageFormat.RAW_ZST)

    async def write() -> None:
        call = Call("deploy.writeImage", asyncio.get_running_loop().time() + 600)
        await ImageWriting(host, disk, WriteImage(image=image), call).run()

    begun, cpu = time.perf_counter(), time.process_time()
    asyncio.run(write())
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    pipe.send(Taken(seconds, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def _peer(folder: Path, path: str, url: str) -> Taken:
    _empty(folder, path)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    last = f"dd of={path} bs=4M iflag=fullblock oflag=direct conv=fsync,notrunc status=none"
    subprocess.run(["bash", "-o", "pipefail", "-c", f"curl -sf {url} | zstd -dc | {last}"], check=True)
    seconds = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Taken(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _check(folder: Path, path: str) -> None:
    """That what was written is the image."""
    words = ["cmp", "-n", str(SIZE), path, str(folder / "image.raw")]
    compared = subprocess.run(words, check=False, capture_output=True, text=True)
    if compared.returncode:
        raise RuntimeError(f"the disk does not hold the image: {compared.stdout or compared.stderr}")


class _Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


def _serve(pipe: Pipe, folder: str) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=folder)) as server:
        pipe.send(server.server_port)
        server.serve_forever()
