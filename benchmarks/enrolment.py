"""Agents that have joined: certificates in a folder and rows in a store, made at once and not by joining."""

import ssl
from collections.abc import Iterable, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from control_plane.authority import Authority
from control_plane.records import AgentRow, columns
from control_plane.store import Transaction, params_of
from protocol.frames import SUBPROTOCOL, Hello, Ready, Welcome, decode_control_frame, encode

__all__ = ["agent_context", "agent_row", "dial", "insert_agents", "issue"]


def issue(ca: Path, folder: Path, ids: Sequence[str]) -> None:
    """A certificate for each id, signed by the CA that lies in `ca` (made where there is none).

    One key for all: what is measured is the server, and a key of each agent's own would only slow the making.
    """
    authority = Authority.open(ca)
    key = ec.generate_private_key(ec.SECP256R1())
    (folder / "ca.pem").write_text(authority.pem)
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    csr = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, hashes.SHA256())
    request = csr.public_bytes(serialization.Encoding.PEM).decode()
    for agent_id in ids:
        (folder / f"{agent_id}.pem").write_text(authority.issue_agent(request, agent_id).pem)


def agent_row(
    agent_id: str, tenant_id: str, site_id: str, now: int, *, role: str = "site", node_id: str | None = None
) -> AgentRow:
    return AgentRow(agent_id, tenant_id, site_id, node_id, role, "host", "0", {}, now, None, None, None)


def insert_agents(tx: Transaction, rows: Iterable[AgentRow]) -> None:
    names = ", ".join(":" + name for name in AgentRow.__struct_fields__)
    tx.run_many(f"INSERT INTO agents ({columns(AgentRow)}) VALUES ({names})", (params_of(row) for row in rows))


def agent_context(folder: Path, agent_id: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / f"{agent_id}.pem", folder / "key.pem")
    return context


async def dial(port: int, context: ssl.SSLContext, hello: Hello) -> tuple[ClientConnection, Welcome]:
    """An agent's connection up to its ready: TLS, websocket, hello, welcome. Raises what goes wrong."""
    connection = await connect(
        f"wss://127.0.0.1:{port}/agent",
        ssl=context,
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        compression=None,
        proxy=None,
        ping_interval=None,
        open_timeout=60,
    )
    await connection.send(encode(hello), text=True)
    answer = decode_control_frame(await connection.recv())
    if not isinstance(answer, Welcome):
        raise TypeError(f"no welcome: {answer}")
    await connection.send(encode(Ready(session_id=answer.session_id)), text=True)
    return connection, answer
