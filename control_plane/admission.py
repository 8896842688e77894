"""How an agent is let in: its certificate, its hello, and the session that is opened for it."""

import asyncio
import logging
from typing import NamedTuple

from websockets.asyncio.server import ServerConnection

from control_plane.authority import agent_of
from control_plane.command_queue import mark_sent
from control_plane.records import AgentRow, SessionRow
from control_plane.resume import Resume
from control_plane.sessions import AgentRevoked, open_session
from control_plane.store import Store, Transaction
from protocol.errors import ProtocolError
from protocol.frames import ErrorFrame, Goodbye, Hello, decode_agent_frame, encode

__all__ = ["Admitted", "admit", "peer_agent"]

_log = logging.getLogger("control_plane.admission")
_HELLO_TIMEOUT = 10.0


class Admitted(NamedTuple):
    """An agent whose connection is open in the tables. The plan's commands to send are marked as sent."""

    hello: Hello
    session: SessionRow
    agent: AgentRow
    resume: Resume


async def admit(connection: ServerConnection, store: Store, worker: str) -> Admitted | None:
    """None where it was turned away, and told why. Raises StoreError and ConnectionClosed."""
    agent_id = peer_agent(connection)
    hello = await _hello(connection)
    if hello is None or agent_id is None:
        return None
    if hello.agent_id != agent_id:
        await connection.close(1008, "the hello names another agent than the certificate")
        return None
    try:
        return await store.write(_open, hello, worker, _peer_certificate(connection))
    except AgentRevoked as revoked:
        _log.warning("agent %s was turned away: %s", agent_id, revoked)
        await connection.send(encode(Goodbye(reason=f"this agent was revoked: {revoked}")), text=True)
        await connection.close(1008, "revoked")
        return None


def _open(tx: Transaction, hello: Hello, worker: str, certificate: str | None) -> Admitted:
    session, agent, resume = open_session(tx, hello, worker, certificate)
    return Admitted(hello, session, agent, resume._replace(send=mark_sent(tx, resume.send, session)))


def peer_agent(connection: ServerConnection) -> str | None:
    """The agent that its certificate names."""
    tls = connection.transport.get_extra_info("ssl_object")
    return agent_of(tls.getpeercert()) if tls is not None else None


def _peer_certificate(connection: ServerConnection) -> str | None:
    """The serial number of the peer's certificate, as `certificates` has it."""
    tls = connection.transport.get_extra_info("ssl_object")
    certificate = tls.getpeercert() if tls is not None else None
    return f"{int(certificate['serialNumber'], 16):x}" if certificate else None


async def _hello(connection: ServerConnection) -> Hello | None:
    """The first frame; None when the connection was closed because it was no hello."""
    try:
        async with asyncio.timeout(_HELLO_TIMEOUT):
            frame = decode_agent_frame(await connection.recv())
    except TimeoutError:
        await connection.close(1002, "no hello came within 10 s")
        return None
    except ProtocolError as error:
        await connection.send(encode(ErrorFrame(message=error.message, about="hello")), text=True)
        await connection.close(1002, "the first frame must be a hello")
        return None
    if isinstance(frame, Hello):
        return frame
    await connection.close(1002, "the first frame must be a hello")
    return None
