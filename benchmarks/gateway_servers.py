"""Two servers of agents in processes of their own: our gateway, and bare websockets + uvloop, both over mutual TLS.

Both have the same certificates, pings and limits; what differs is what the gateway does and keeps for each agent.
"""

import asyncio
import contextlib
import gc
import ssl
from pathlib import Path

import uvloop
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from benchmarks.children import Pipe, more_files
from benchmarks.enrolment import agent_row, insert_agents, issue
from control_plane.authority import Authority
from control_plane.gateway import Gateway
from control_plane.sites import create_site
from control_plane.store import Transaction, migrate, open_store
from protocol.frames import MAX_FRAME_BYTES, SUBPROTOCOL, Welcome, encode
from protocol.ids import new_id

__all__ = ["PEER", "enrol", "serve_bare", "serve_ours"]

PEER = "bare websockets + uvloop, mutual TLS"


async def enrol(folder: Path, count: int) -> list[str]:
    """That many agents: certificates and a CA in the folder, rows in the gateway's store. Returns their ids."""
    ids = [new_id("agent") for _ in range(count)]
    issue(folder / "ca", folder, ids)
    store = open_store(f"sqlite://{folder}/bench.db")
    await migrate(store)
    await store.write(_put, ids)
    await store.close()
    return ids


def _put(tx: Transaction, ids: list[str]) -> None:
    site = create_site(tx, "root", "bench")
    insert_agents(tx, (agent_row(agent_id, "root", site.id, tx.now()) for agent_id in ids))


def serve_ours(pipe: Pipe, folder: str) -> None:
    """The gateway. Sends its port; then, for each message, collects garbage and says so."""
    more_files()
    uvloop.run(_ours(pipe, Path(folder)))


def serve_bare(pipe: Pipe, folder: str) -> None:
    """The same of a server that welcomes every agent, and knows none of them."""
    more_files()
    uvloop.run(_bare(pipe, Path(folder)))


async def _ours(pipe: Pipe, folder: Path) -> None:
    store = open_store(f"sqlite://{folder}/bench.db")
    gateway = Gateway(store, Authority.open(folder / "ca"), worker="bench")
    await gateway.start()
    pipe.send(gateway.port)
    await _obey(pipe)


async def _bare(pipe: Pipe, folder: Path) -> None:
    context = Authority.open(folder / "ca").server_context(["localhost", "127.0.0.1"])
    context.verify_mode = ssl.CERT_REQUIRED

    async def handler(connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            await connection.recv()
            await connection.send(encode(Welcome(session_id="")), text=True)
            async for _ in connection:
                pass

    async with serve(
        handler,
        "127.0.0.1",
        0,
        ssl=context,
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        compression=None,
        max_size=MAX_FRAME_BYTES,
        backlog=1024,
    ) as server:
        pipe.send(next(iter(server.sockets)).getsockname()[1])
        await _obey(pipe)


async def _obey(pipe: Pipe) -> None:
    while True:
        await asyncio.to_thread(pipe.recv)
        gc.collect()
        pipe.send("collected")
