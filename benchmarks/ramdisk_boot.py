"""Our image to *connected*, against the same kernel with an initial ramdisk that only prints its boot_id.

The same QEMU under software emulation, in turns. Ours joins a control plane, a process of its own, by the ticket that
it was given, over QEMU's own network. Once from the kernel on, which QEMU starts itself. And once as a machine does,
from being switched on: UEFI firmware, the medium, its boot loader, which reads our whole image and little of the bare
one. Of each the fastest round counts, since whatever else the host does only makes a round slower.

What no agent in Python gets below is measured beside them: our image with its interpreter and the libraries that
speak to the control plane, none of our own code and nothing sent.
"""

import asyncio
import contextlib
import fcntl
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks import Figure
from benchmarks.children import Child, Pipe, child
from benchmarks.ramdisk_iso import image
from control_plane.config import AgentsConfig, ApiConfig, Config
from control_plane.records import NodeRow, columns
from control_plane.server import ControlPlane
from control_plane.store import Transaction
from control_plane.tickets import Issuer, mint
from control_plane.tokens import LOCAL_OPERATOR
from protocol.boot_ticket import BootTicket, encode_archive, encode_area, from_json, to_json
from protocol.join_token import JoinToken
from ramdisk.image import cpio
from ramdisk.image.build import Description

ROUNDS = 3
LIMIT = 1.5
PATIENCE = 300.0
TENANT = "default"
HOST = "10.0.2.2"
"""Of QEMU's own network, as the guest sees it."""
FIRMWARE = Path("/usr/share/OVMF")
_BOOT_ID = b"boot_id "
_BARE_INIT = """#!/busybox sh
/busybox mount -t proc proc /proc
echo "boot_id $(/busybox cat /proc/sys/kernel/random/boot_id)" >/dev/ttyS0
/busybox sleep 1000000
"""
_LOADED = b"libraries loaded"
_LIBRARIES = r"""#!/usr/bin/python3 -IS
import gc, sys, time
sys.path.insert(0, "/usr/lib/rackwright/lib")
gc.disable()
import asyncio, ssl, cryptography.x509, msgspec, structlog, websockets.asyncio.client
with open("/dev/ttyS0", "w") as console:
    console.write("libraries loaded\n")
time.sleep(1000000)
"""
_AGENT = "early/usr/lib/rackwright/image/agent"
"""In the initial ramdisk."""
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Files:
    """What the machines are started from. `bare`: the same with an initial ramdisk that only prints its boot_id."""

    folder: Path
    iso: Path
    facts: Description
    bare_iso: Path
    bare_initrd: Path

    @property
    def kernel(self) -> Path:
        return self.iso.with_name(self.facts.kernel)


def run() -> Iterator[Figure]:
    missing = [
        program for program in ("qemu-system-x86_64", "busybox", "xorriso", "zstd") if not shutil.which(program)
    ]
    if missing or not FIRMWARE.is_dir():
        raise RuntimeError(f"the machines need {', '.join(missing) or 'OVMF'}: install what is missing")
    with tempfile.TemporaryDirectory() as name, child(serve, f"{name}/control-plane") as plane, _only_machine():
        files = _files(Path(name))
        yield _figure("ramdisk.boot", plane, files, _from_kernel, _bare_kernel, f"limit {LIMIT}")
        yield _libraries(files)
        yield _figure(
            "ramdisk.boot.medium", plane, files, _from_medium, _bare_medium, "with firmware and boot loader"
        )


def _figure(
    name: str,
    plane: Child,
    files: Files,
    ours: Callable[[Files, BootTicket], list[str]],
    bare: Callable[[Files], list[str]],
    more: str,
) -> Figure:
    mine, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(_seconds_to(_BOOT_ID, files, bare(files)))
        mine.append(_seconds_to_connected(plane, files, ours))
    best, floor = min(mine), min(theirs)
    note = (
        f"best of {ROUNDS} (ours {', '.join(f'{one:.1f}' for one in mine)} s; bare "
        f"{', '.join(f'{one:.1f}' for one in theirs)} s); software emulation, 2 processors; {more}"
    )
    return Figure(name, best, "s to connected", "the same kernel to boot_id", floor, best / floor, note)


def _libraries(files: Files) -> Figure:
    mine = [_seconds_to(_LOADED, files, _libraries_kernel(files)) for _ in range(ROUNDS)]
    floor = min(_seconds_to(_BOOT_ID, files, _bare_kernel(files)) for _ in range(ROUNDS))
    note = "the interpreter and its libraries alone, without our code and the network: what `ramdisk.boot` stands on"
    return Figure(
        "ramdisk.boot.libraries",
        min(mine),
        "s to loaded",
        "the same kernel to boot_id",
        floor,
        min(mine) / floor,
        note,
    )


def _libraries_kernel(files: Files) -> list[str]:
    folders = [str(above) for above in Path(_AGENT).parents if above.name]
    script = cpio.file(_AGENT, _LIBRARIES.encode(), 0o755)
    archive = cpio.make_archive([*map(cpio.folder, sorted(folders)), script], time=0)
    initrd = files.folder / "libraries.initrd"
    initrd.write_bytes(files.iso.with_name(files.facts.initrd).read_bytes() + archive)
    return _kernel_words(files, initrd)


def _from_medium(files: Files, ticket: BootTicket) -> list[str]:
    machine = files.folder / "machine.iso"
    shutil.copyfile(files.iso, machine)
    with machine.open("r+b") as medium:
        medium.seek(files.facts.area_offset)
        medium.write(encode_area(ticket))
    return _medium_words(files, machine)


def _bare_medium(files: Files) -> list[str]:
    return _medium_words(files, files.bare_iso)


def _medium_words(files: Files, iso: Path) -> list[str]:
    variables = files.folder / "variables"
    shutil.copyfile(FIRMWARE / "OVMF_VARS_4M.fd", variables)
    return [
        *("-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={FIRMWARE / 'OVMF_CODE_4M.fd'}"),
        *("-drive", f"if=pflash,unit=1,format=raw,file={variables}"),
        *("-drive", f"file={iso},format=raw,readonly=on,media=cdrom"),
    ]


def _from_kernel(files: Files, ticket: BootTicket) -> list[str]:
    initrd = files.folder / "machine.initrd"
    initrd.write_bytes(files.iso.with_name(files.facts.initrd).read_bytes() + encode_archive(ticket))
    return _kernel_words(files, initrd)


def _bare_kernel(files: Files) -> list[str]:
    return _kernel_words(files, files.bare_initrd)


def _kernel_words(files: Files, initrd: Path) -> list[str]:
    return ["-kernel", str(files.kernel), "-initrd", str(initrd), "-append", files.facts.command_line]


def _files(folder: Path) -> Files:
    iso, facts = image()
    archive = cpio.make_archive(
        [
            *(cpio.folder(name) for name in ("dev", "proc")),
            cpio.device("dev/console", 5, 1),
            cpio.device("dev/ttyS0", 4, 64),
            cpio.file("busybox", Path(shutil.which("busybox") or "").read_bytes(), 0o755),
            cpio.file("init", _BARE_INIT.encode(), 0o755),
        ],
        time=0,
    )
    (folder / "bare.cpio").write_bytes(archive)
    initrd, medium = folder / "bare.zst", folder / "bare.iso"
    subprocess.run(["zstd", "-q", "-19", folder / "bare.cpio", "-o", initrd], check=True)
    replace = ["-boot_image", "any", "replay", "-update", str(initrd), "/boot/initrd.zst"]
    subprocess.run(["xorriso", "-indev", iso, "-outdev", medium, *replace], check=True, capture_output=True)
    return Files(folder, iso, facts, medium, initrd)


@contextlib.contextmanager
def _only_machine() -> Iterator[None]:
    """Software emulation takes a whole core: one machine at a time on a host."""
    with (Path(tempfile.gettempdir()) / "qemu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _machine(words: Sequence[str], serial: Path, mac: str = "52:54:00:00:00:01") -> Iterator[float]:
    """A machine for the length of a block, and when it was switched on."""
    serial.unlink(missing_ok=True)
    begun = time.monotonic()
    machine = subprocess.Popen(
        [
            *("qemu-system-x86_64", "-accel", "tcg", "-machine", "q35", "-cpu", "max", "-m", "1024", "-smp", "2"),
            *("-display", "none", "-no-reboot", "-monitor", "none", "-serial", f"file:{serial}"),
            *("-netdev", "user,id=net", "-device", f"virtio-net-pci,netdev=net,romfile=,mac={mac}", *words),
        ],
        stdin=subprocess.DEVNULL,
    )
    try:
        yield begun
    finally:
        machine.kill()
        machine.wait()


def _seconds_to(said: bytes, files: Files, words: Sequence[str]) -> float:
    """Until the machine has said this on its serial port."""
    serial = files.folder / "serial.log"
    with _machine(words, serial) as begun:
        while not (serial.exists() and said in serial.read_bytes()):
            if time.monotonic() - begun > PATIENCE:
                raise RuntimeError(f"the machine never said {said.decode()!r}")
            time.sleep(_LOOK_SECONDS)
        return time.monotonic() - begun


def _seconds_to_connected(plane: Child, files: Files, words: Callable[[Files, BootTicket], list[str]]) -> float:
    plane.pipe.send("ticket")
    mac, ticket = plane.receive()
    prepared, serial = words(files, from_json(ticket)), files.folder / "serial.log"
    with _machine(prepared, serial, mac) as begun:
        plane.pipe.send("connected")
        try:
            connected: float = plane.receive(PATIENCE)
        except TimeoutError:
            said = serial.read_bytes()[-2000:].decode(errors="replace")
            raise RuntimeError(f"the machine did not connect; it said: {said}") from None
    return connected - begun


def serve(pipe: Pipe, state: str) -> None:
    """A control plane. Answers `"ticket"` with a new machine's MAC address and its ticket as JSON, and `"connected"`
    with the moment at which the ramdisk of the last one was connected."""
    uvloop.run(_serve(pipe, state))


async def _serve(pipe: Pipe, state: str) -> None:
    config = Config(
        state_dir=state,
        worker="bench",
        api=ApiConfig(listen="127.0.0.1:0"),
        agents=AgentsConfig(listen="127.0.0.1:0", names=["localhost", HOST]),
    )
    async with ControlPlane(config) as plane:
        issuer, machines, node_id = await _issuer(plane), 0, ""
        while True:
            if await asyncio.to_thread(pipe.recv) == "ticket":
                machines += 1
                node_id, ticket = await _ticket(plane, issuer, machines)
                pipe.send((f"52:54:00:00:01:{machines:02x}", to_json(ticket)))
                continue
            while not await plane.store.read(_is_connected, node_id):
                await asyncio.sleep(_LOOK_SECONDS)
            pipe.send(time.monotonic())


async def _issuer(plane: ControlPlane) -> Issuer:
    request = {"tenantId": TENANT, "siteId": "lab", "role": "site", "createSite": True}
    made = await plane.compute.api.joinTokens.create(LOCAL_OPERATOR, request)
    return Issuer(JoinToken.parse(made.token).ca_sha256, f"wss://{HOST}:{plane.agents_port}")


async def _ticket(plane: ControlPlane, issuer: Issuer, number: int) -> tuple[str, BootTicket]:
    record = {"name": f"n{number}", "siteId": "lab", "bmc": {"address": f"simulated://n{number}"}}
    node = await plane.compute.api.nodes.create(LOCAL_OPERATOR, {"tenantId": TENANT, **record})
    return node.id, await plane.store.write(_mint, node.id, issuer)


def _mint(tx: Transaction, node_id: str, issuer: Issuer) -> BootTicket:
    node = tx.one(f"SELECT {columns(NodeRow)} FROM nodes WHERE id = :id", {"id": node_id}, into=NodeRow)
    assert node is not None
    return mint(tx, node, "ramdisk", issuer, by="benchmark")


def _is_connected(tx: Transaction, node_id: str) -> bool:
    query = "SELECT session_id FROM agents WHERE node_id = :node AND role = 'ramdisk'"
    row = tx.one(query, {"node": node_id})
    return row is not None and row[0] is not None
