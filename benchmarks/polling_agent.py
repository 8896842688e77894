"""A site agent's watch without its link, in a process of its own: it polls the machines of a list, as configured.

Everything of the agent is real (vault, drivers, watcher, observations) but the websocket: the list comes from the
benchmark, and what is seen is taken and counted. So the figures are the agent's own, with no control plane in them.
"""

import asyncio
import gc
import tempfile
from pathlib import Path

import uvloop

from agent.bmcs import BmcMemory, Bmcs
from agent.config import WatchSection
from agent.observations import Observations
from agent.vault import Vault, VaultKey
from agent.watching import Watcher
from benchmarks.children import Pipe, more_files
from benchmarks.swept_agent import PASSWORD, USER
from protocol.commands import TargetRef
from protocol.frames import WatchedNode, WatchList
from protocol.secret import Secret

__all__ = ["serve"]


def serve(pipe: Pipe, addresses: list[str], interval: float) -> None:
    """Polls until the pipe closes. Answers each message with (machines seen on or off, machines in trouble)."""
    more_files()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(_serve(pipe, addresses, interval, Path(folder)))


async def _serve(pipe: Pipe, addresses: list[str], interval: float, folder: Path) -> None:
    key_file = folder / "vault.key"
    VaultKey.load(key_file, make=True)
    vault = Vault(folder / "vault.json", lambda: VaultKey.load(key_file))
    vault.set("bmc", USER, Secret(PASSWORD))
    bmcs = Bmcs(vault, BmcMemory(folder / "bmcs.json"))
    told = asyncio.Event()
    observations = Observations(told.set)
    watcher = Watcher(bmcs, observations, WatchSection(interval_seconds=interval, events=()))
    ids = [f"node_{number}" for number in range(len(addresses))]
    nodes = [
        WatchedNode(node_id=node_id, driver="redfish", target=TargetRef(address, "bmc", "first-use"))
        for node_id, address in zip(ids, addresses, strict=True)
    ]
    watcher.take(WatchList(version="1", nodes=nodes))
    pipe.send("ready")
    while await asyncio.to_thread(pipe.recv) != "stop":
        while observations.take() is not None:
            pass
        gc.collect()
        seen = [state for node_id in ids if (state := observations.last(node_id)) is not None]
        pipe.send((sum(state.power in ("on", "off") for state in seen), watcher.counts()["troubled"]))
    await watcher.aclose()
    await bmcs.aclose()
    pipe.send("stopped")
