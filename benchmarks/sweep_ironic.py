"""One sweep of the power of 30 Redfish BMCs: our agent against Ironic's conductor, over the same server.

Ironic's is its own periodic power synchronisation with its default of 8 workers, from its first request of a sweep to
its last. Ironic hashes the password by PBKDF2 for each look at a node, 600,000 rounds; that is most of its time, so
it is measured a second time with a single round. Ours is a sweep of `power.getPower` commands, as in `sweep.redfish`,
with journal and executor. Both read warm: ours after one sweep, Ironic after it has verified each node.
"""

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks import Figure, ironic, swept_agent
from benchmarks.bmc_fleet import requests_of, serve_bmcs
from benchmarks.children import Child, child, more_files

BMCS = 30
ANSWER_SECONDS = 0.2
SWEEPS = 5
SYNC_SECONDS = 60
"""Its default; a sweep of so many BMCs is over before the next one begins."""
WORKERS = 8
PEER = "Ironic's conductor, power sync"
_SAMPLE_SECONDS = 0.25
_IDLE_SAMPLES = 8
"""So many in a row without a request and without work end a sweep."""
_PATIENCE = 600.0
_ONE_ROUND = """\
import hashlib

_hash = hashlib.pbkdf2_hmac


def pbkdf2_hmac(name, password, salt, rounds, dklen=None):
    return _hash(name, password, salt, 1, dklen)


hashlib.pbkdf2_hmac = pbkdf2_hmac
"""
_INTERFACES = {
    "power_interface": "redfish",
    "management_interface": "redfish",
    "boot_interface": "redfish-virtual-media",
    "deploy_interface": "direct",
    "bios_interface": "no-bios",
    "inspect_interface": "no-inspect",
    "firmware_interface": "no-firmware",
    "raid_interface": "no-raid",
    "vendor_interface": "no-vendor",
    "console_interface": "no-console",
}


class Cost(NamedTuple):
    """Of one sweep: seconds, processor seconds; and bytes that the process holds."""

    wall: float
    cpu: float
    memory: int


def run() -> Iterator[Figure]:
    more_files()
    with child(serve_bmcs, BMCS, ANSWER_SECONDS) as bmcs:
        addresses: list[str] = bmcs.receive()
        ours = _measure_ours(addresses)
        with _with_one_round_of_pbkdf2():
            light = _measure_ironic(bmcs, addresses)
        theirs = _measure_ironic(bmcs, addresses)
    mib = 1 << 20
    note = f"{BMCS} BMCs over HTTPS, each answer after {ANSWER_SECONDS * 1000:g} ms"
    without = f"{note}; Ironic with its PBKDF2 taken out"
    yield Figure("sweep.ironic", ours.wall, "s", PEER, theirs.wall, ours.wall / theirs.wall, note)
    yield Figure("sweep.ironic.without_pbkdf2", ours.wall, "s", PEER, light.wall, ours.wall / light.wall, without)
    yield Figure("sweep.ironic.cpu", ours.cpu, "s", PEER, theirs.cpu, ours.cpu / theirs.cpu, note)
    yield Figure("sweep.ironic.cpu.without_pbkdf2", ours.cpu, "s", PEER, light.cpu, ours.cpu / light.cpu, without)
    yield Figure(
        "sweep.ironic.memory_mib",
        ours.memory / mib,
        "MiB",
        PEER,
        theirs.memory / mib,
        ours.memory / theirs.memory,
        "PSS, all of Ironic's processes",
    )


def _measure_ours(addresses: list[str]) -> Cost:
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
        memory = agent.memory
        agent.pipe.send("stop")
        agent.receive()
    return Cost(statistics.median(walls), statistics.median(cpus), memory)


def _measure_ironic(bmcs: Child, addresses: list[str]) -> Cost:
    names = [f"bmc-{number}" for number in range(len(addresses))]
    by_name = dict(zip(names, addresses, strict=True))

    def info(name: str) -> dict[str, object]:
        return {
            "redfish_address": by_name[name],
            "redfish_system_id": "/redfish/v1/Systems/1",
            "redfish_username": swept_agent.USER,
            "redfish_password": swept_agent.PASSWORD,
            "redfish_verify_ca": False,
        }

    with (
        tempfile.TemporaryDirectory() as folder,
        ironic.running(
            Path(folder), drivers=("redfish",), power_sync_seconds=SYNC_SECONDS, sync_workers=WORKERS
        ) as conductor,
    ):
        conductor.enrol(names, driver="redfish", driver_info=info, interfaces=_INTERFACES)
        conductor.provision(names, "manage", "manageable")
        return _next_sweep(bmcs, conductor)


def _next_sweep(bmcs: Child, conductor: ironic.Ironic) -> Cost:
    """Waits until it is idle, then for a whole sweep: what lies between two idle times and asks every BMC."""
    end = time.monotonic() + _PATIENCE
    idle_for = 0
    start: _Sample | None = None
    before = last = _Sample(bmcs, conductor)
    while time.monotonic() < end:
        time.sleep(_SAMPLE_SECONDS)
        now = _Sample(bmcs, conductor)
        if now.is_busy_since(before):
            if idle_for >= _IDLE_SAMPLES:
                start = before
            idle_for, last = 0, now
        else:
            idle_for += 1
            whole = start is not None and last.requests - start.requests >= BMCS
            if start is not None and whole and idle_for == _IDLE_SAMPLES:
                return Cost(last.at - start.at, last.cpu - start.cpu, conductor.memory)
        before = now
    raise RuntimeError(f"Ironic made no whole sweep within {_PATIENCE:g} s")


class _Sample:
    """What has been asked and used so far."""

    def __init__(self, bmcs: Child, conductor: ironic.Ironic) -> None:
        self.at, self.requests, self.cpu = time.monotonic(), requests_of(bmcs), conductor.cpu

    def is_busy_since(self, earlier: "_Sample") -> bool:
        return self.requests > earlier.requests or self.cpu - earlier.cpu > 0.2 * (self.at - earlier.at)


@contextlib.contextmanager
def _with_one_round_of_pbkdf2() -> Iterator[None]:
    """For processes that are started within: Python reads `sitecustomize` first of all."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(_ONE_ROUND)
        kept = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = folder
        try:
            yield
        finally:
            if kept is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = kept
