"""Memory of an idle agent's connection: our gateway against a bare websockets + uvloop server, both over mutual TLS.

Both servers have the same certificates, pings and limits; what differs is what the gateway keeps per agent.
"""

import asyncio
import contextlib
import gc
import ssl
import tempfile
from pathlib import Path

import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from benchmarks import Figure
from benchmarks.children import Child, Pipe, child, more_files
from control_plane.authority import Authority
from control_plane.gateway import Gateway
from control_plane.records import AgentRow, columns
from control_plane.sites import create_site
from control_plane.store import Transaction, migrate, open_store, params_of
from protocol.frames import MAX_FRAME_BYTES, SUBPROTOCOL, Hello, Welcome, decode_control_frame, encode
from protocol.ids import new_id

AGENTS = 5_000
_DIALS_AT_ONCE = 40


def run() -> list[Figure]:
    more_files()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ids = asyncio.run(_enrol(folder, AGENTS))
        bare = _measure(folder, ids, _serve_bare)
        ours = _measure(folder, ids, _serve_ours)
    return [
        Figure(
            "gateway.idle_kib_per_agent",
            ours / 1024,
            "KiB",
            "bare websockets + uvloop, mutual TLS",
            bare / 1024,
            ours / bare,
            f"{AGENTS} idle agents",
        )
    ]


def _measure(folder: Path, ids: list[str], server: object) -> float:
    """Bytes per connection in the server."""
    with child(server, str(folder)) as serving:  # type: ignore[arg-type]
        port = serving.receive()
        serving.settle()
        before = serving.rss
        with child(_dial, str(folder), port, ids) as dialling:
            _wait_connected(dialling)
            serving.settle()
            serving.pipe.send("collect")
            serving.receive()
            return (serving.rss - before) / len(ids)


def _wait_connected(dialling: Child) -> None:
    said = dialling.receive(300)
    if said != "connected":
        raise RuntimeError(f"the agents could not connect: {said}")


async def _enrol(folder: Path, count: int) -> list[str]:
    authority = Authority.open(folder / "ca")
    store = open_store(f"sqlite://{folder}/bench.db")
    await migrate(store)
    ids = [new_id("agent") for _ in range(count)]
    await store.write(_insert, ids)
    await store.close()
    # One key for all: what is measured is the server, and a key of each agent's own would only slow the making.
    key = ec.generate_private_key(ec.SECP256R1())
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    csr = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, hashes.SHA256())
    request = csr.public_bytes(serialization.Encoding.PEM).decode()
    for agent_id in ids:
        (folder / f"{agent_id}.pem").write_text(authority.issue_agent(request, agent_id).pem)
    return ids


def _insert(tx: Transaction, ids: list[str]) -> None:
    site = create_site(tx, "root", "bench")
    names = AgentRow.__struct_fields__
    rows = (AgentRow(i, "root", site.id, None, "site", "host", "0", {}, tx.now(), None, None, None) for i in ids)
    tx.run_many(
        f"INSERT INTO agents ({columns(AgentRow)}) VALUES ({', '.join(':' + n for n in names)})",
        (params_of(row) for row in rows),
    )


def _serve_ours(pipe: Pipe, folder: str) -> None:
    more_files()
    uvloop.run(_ours(pipe, Path(folder)))


async def _ours(pipe: Pipe, folder: Path) -> None:
    store = open_store(f"sqlite://{folder}/bench.db")
    gateway = Gateway(store, Authority.open(folder / "ca"), worker="bench")
    await gateway.start()
    pipe.send(gateway.port)
    await _obey(pipe)


def _serve_bare(pipe: Pipe, folder: str) -> None:
    more_files()
    uvloop.run(_bare(pipe, Path(folder)))


async def _bare(pipe: Pipe, folder: Path) -> None:
    context = Authority.open(folder / "ca").server_context(["localhost", "127.0.0.1"])
    context.verify_mode = ssl.CERT_REQUIRED

    async def handler(connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for _ in connection:
                await connection.send(encode(Welcome(session_id="")), text=True)

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


def _dial(pipe: Pipe, folder: str, port: int, ids: list[str]) -> None:
    more_files()
    try:
        uvloop.run(_dial_all(pipe, Path(folder), port, ids))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        raise


async def _dial_all(pipe: Pipe, folder: Path, port: int, ids: list[str]) -> None:
    ca = (folder / "ca" / "ca.pem").read_text()
    gate = asyncio.Semaphore(_DIALS_AT_ONCE)

    async def dial(agent_id: str) -> ClientConnection:
        async with gate:
            context = ssl.create_default_context(cadata=ca)
            context.load_cert_chain(folder / f"{agent_id}.pem", folder / "key.pem")
            connection = await connect(
                f"wss://127.0.0.1:{port}/agent",
                ssl=context,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                compression=None,
                proxy=None,
                ping_interval=None,
                open_timeout=60,
            )
            hello = Hello(agent_id=agent_id, role="site", boot_id="b", journal_id="j", version="0")
            await connection.send(encode(hello), text=True)
            answer = decode_control_frame(await connection.recv())
            if not isinstance(answer, Welcome):
                raise TypeError(f"no welcome: {answer}")
            return connection

    connections = await asyncio.gather(*(dial(agent_id) for agent_id in ids))
    pipe.send("connected")
    await asyncio.gather(*(connection.wait_closed() for connection in connections))
