"""Many agents that do nothing but be connected, all in one process; told to, they are cut off and come back."""

import asyncio
import ssl
import time
from pathlib import Path

import uvloop
from websockets.asyncio.client import ClientConnection

from benchmarks.children import Child, Pipe, more_files
from benchmarks.enrolment import agent_context, dial
from protocol.frames import Hello

__all__ = ["DIALS_AT_ONCE", "connect_all", "wait_connected"]

DIALS_AT_ONCE = 40


def connect_all(pipe: Pipe, folder: str, port: int, ids: list[str]) -> None:
    """Sends "connected" when they are. Then, for each message, cuts every connection at the same moment, has every
    agent dial at once, and sends the seconds until the last is welcome again."""
    more_files()
    try:
        uvloop.run(_connect_all(pipe, Path(folder), port, ids))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        raise


def wait_connected(agents: Child) -> None:
    """Raises RuntimeError with what kept them from it."""
    said = agents.receive(300)
    if said != "connected":
        raise RuntimeError(f"the agents could not connect: {said}")


async def _connect_all(pipe: Pipe, folder: Path, port: int, ids: list[str]) -> None:
    contexts = {agent_id: agent_context(folder, agent_id) for agent_id in ids}
    sessions: dict[str, str] = {}
    connections = await _dial_each(port, contexts, sessions)
    pipe.send("connected")
    while True:
        await asyncio.to_thread(pipe.recv)
        for connection in connections:
            connection.transport.abort()
        started = time.perf_counter()
        connections = await _dial_each(port, contexts, sessions)
        pipe.send(time.perf_counter() - started)


async def _dial_each(
    port: int, contexts: dict[str, ssl.SSLContext], sessions: dict[str, str]
) -> list[ClientConnection]:
    """No more than some at the same moment: what is measured is how fast a server takes them, not its backlog."""
    gate = asyncio.Semaphore(DIALS_AT_ONCE)

    async def one(agent_id: str, context: ssl.SSLContext) -> ClientConnection:
        hello = Hello(
            agent_id=agent_id,
            role="site",
            boot_id="b",
            journal_id=f"journal of {agent_id}",
            last_session=sessions.get(agent_id, ""),
            version="0",
        )
        async with gate:
            connection, welcome = await dial(port, context, hello)
        sessions[agent_id] = welcome.session_id
        return connection

    return await asyncio.gather(*(one(agent_id, context) for agent_id, context in contexts.items()))
