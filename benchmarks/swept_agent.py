"""A site agent without its link, in a process of its own, that sweeps `power.getPower` over many BMCs when told to.

Everything of the agent is real (executor, journal, vault, drivers) but the websocket: commands come from a list, and
endings are taken from the executor's reports. So the figures are the agent's own, with no control plane in them.
"""

import asyncio
import gc
import resource
import tempfile
import time
from pathlib import Path

import uvloop

from agent.bmcs import BmcMemory, Bmcs
from agent.clock import KernelClock
from agent.executor import Executor
from agent.journal import Journal
from agent.vault import Vault, VaultKey
from benchmarks.children import Pipe, more_files
from protocol.commands import CommandKind, Outcome
from protocol.frames import Command, Finished
from protocol.ids import new_id
from protocol.secret import Secret

USER, PASSWORD = "admin", "password"


def serve(pipe: Pipe, addresses: list[str], tls: str) -> None:
    """Answers each `"sweep"` with (wall seconds, processor seconds, failures), until the pipe closes."""
    more_files()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(_serve(pipe, addresses, tls, Path(folder)))


async def _serve(pipe: Pipe, addresses: list[str], tls: str, folder: Path) -> None:
    key_file = folder / "vault.key"
    VaultKey.load(key_file, make=True)
    vault = Vault(folder / "vault.json", lambda: VaultKey.load(key_file))
    vault.set("bmc", USER, Secret(PASSWORD))
    clock = KernelClock()
    journal = Journal.open(folder / "journal.db", clock)
    bmcs = Bmcs(vault, BmcMemory(folder / "bmcs.json"))
    executor = Executor(journal, {CommandKind.DRIVER_INVOKE: bmcs}, clock)
    pipe.send("ready")
    while await asyncio.to_thread(pipe.recv) == "sweep":
        gc.collect()
        pipe.send(await _sweep(executor, addresses, tls))
    await bmcs.aclose()
    journal.close()
    pipe.send("stopped")


async def _sweep(executor: Executor, addresses: list[str], tls: str) -> tuple[float, float, list[str]]:
    started, used = time.perf_counter(), _cpu()
    for address in addresses:
        executor.command(_command(address, tls))
    failures: list[str] = []
    left = len(addresses)
    while left:
        await executor.reports.wait()
        while (frame := executor.reports.take()) is not None:
            if isinstance(frame, Finished):
                left -= 1
                executor.settled([frame.id])
                if frame.ending.outcome is not Outcome.SUCCEEDED:
                    failures.append(str(frame.ending.error))
    return time.perf_counter() - started, _cpu() - used, failures


def _command(address: str, tls: str) -> Command:
    payload: dict[str, object] = {
        "driver": "auto",
        "concern": "power",
        "operation": "getPower",
        "args": {},
        "targetNodeId": f"node of {address}",
        "target": {"address": address, "credentialRef": "bmc", "tls": tls},
    }
    return Command(id=new_id("cmd"), kind="driver.invoke", payload=payload, remaining_ms=60_000)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
