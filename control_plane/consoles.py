"""The consoles that somebody reads at this worker, and the agents' binary frames on their way to them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from control_plane.agent_link import AgentLink
from control_plane.console_reader import Ended, Reader
from control_plane.node_console import NodeConsole, Opened, Wire
from control_plane.records import SessionRow, columns
from control_plane.store import Store, StoreError, Transaction
from protocol.console_frames import ConsoleFrame, FrameKind, decode_console_frame
from protocol.errors import RequestCode, RequestError

__all__ = ["Consoles", "locate", "serving_session"]

_MOST_CONSOLES: Final = 500
_MOST_READERS: Final = 2_000


class Consoles:
    """One for each worker. `links` are the agents that are connected to it, by id."""

    def __init__(
        self,
        store: Store,
        links: Mapping[str, AgentLink],
        *,
        worker: str,
    ) -> None:
        self.closing = False
        self.worker = worker
        self.ring_bytes = 262_144
        """Of each console's output, kept for whoever joins late."""
        self.linger = 20.0
        """Seconds that a console is followed after its last reader has left."""
        self._store = store
        self._links = links
        self._consoles: dict[str, NodeConsole] = {}
        self._streams: dict[str, NodeConsole] = {}
        self._ready = asyncio.Event()

    @property
    def open(self) -> int:
        return len(self._consoles)

    def has(self, node_id: str) -> bool:
        """Whether somebody reads the machine's console here."""
        return node_id in self._consoles

    def join(
        self,
        node_id: str,
        name: str,
        open_stream: Callable[[bool], Awaitable[Opened]],
        *,
        wishes_to_write: bool = True,
        take_over: bool = False,
        replay: int | None = None,
    ) -> Reader:
        """A reader of the machine's console, which is opened by `open_stream` where nobody reads it yet.

        Raises RequestError UNAVAILABLE when the process stops, or has too many.
        """
        console = self._consoles.get(node_id)
        readers = sum(len(console.readers) for console in self._consoles.values())
        if self.closing or readers >= _MOST_READERS or (console is None and len(self._consoles) >= _MOST_CONSOLES):
            why = (
                "stopping" if self.closing else f"serving {readers} readers of {len(self._consoles)} consoles already"
            )
            raise RequestError(RequestCode.UNAVAILABLE, f"the control plane is {why}: try again later")
        if console is None:
            console = self._consoles[node_id] = self._made(node_id, open_stream, take_over)
        return console.join(name, wishes_to_write=wishes_to_write, replay=replay)

    def stop(self) -> None:
        """Sends every reader away, who is to come again."""
        self.closing = True
        for console in list(self._consoles.values()):
            console.end(Ended("away", "the control plane is stopping", RequestCode.UNAVAILABLE.value))

    # The gateway's calls

    def link_ready(self, agent_id: str) -> None:
        """An agent has connected: consoles that wait for it go on."""
        event, self._ready = self._ready, asyncio.Event()
        event.set()

    def link_lost(self, link: AgentLink) -> None:
        """A connection is gone; where a newer one has taken its place already, consoles are on that one."""
        for console in list(self._consoles.values()):
            console.link_lost(link)

    def receive(self, agent_id: str, message: bytes) -> None:
        """A binary message of an agent. Raises ProtocolError for what cannot be taken."""
        frame = decode_console_frame(message)
        console = self._of_stream(frame.stream)
        if console is not None and console.agent_id == agent_id:
            console.receive(frame)
        elif frame.kind is FrameKind.DATA and (link := self._links.get(agent_id)) is not None:
            # Nobody here reads it: a worker that was started anew, or a reader that left meanwhile.
            link.post(ConsoleFrame(FrameKind.DETACH, frame.stream).encode())

    def _of_stream(self, stream: str) -> NodeConsole | None:
        """A console's stream changes when its agent is started anew, so the index is made again on a miss."""
        console = self._streams.get(stream)
        if console is None or console.stream != stream:
            self._streams = {c.stream: c for c in self._consoles.values() if c.stream is not None}
            console = self._streams.get(stream)
        return console

    def _made(self, node_id: str, open_stream: Callable[[bool], Awaitable[Opened]], take_over: bool) -> NodeConsole:
        def over() -> None:
            if self._consoles.get(node_id) is console:
                del self._consoles[node_id]
            self._streams.pop(console.stream or "", None)

        console = NodeConsole(
            ring_bytes=self.ring_bytes,
            linger=self.linger,
            open_stream=open_stream,
            find=self._find,
            take_over=take_over,
            over=over,
        )
        return console

    async def _find(self, agent_id: str) -> Wire | Ended | None:
        """The agent's link, once it is ready; None after a while without one."""
        link = self._links.get(agent_id)
        if link is not None and link.ready:
            return link
        ready = self._ready
        try:
            session = await self._store.read(_open_session, agent_id)
        except StoreError:
            session = None
        if session is not None and session.worker != self.worker:
            return Ended("moved", _elsewhere(session), RequestCode.INVALID_STATE.value)
        try:
            async with asyncio.timeout(1.0):
                await ready.wait()
        except TimeoutError:
            return None
        return None


def serving_session(tx: Transaction, site_id: str) -> SessionRow | None:
    """The open connection of the agent that serves the site."""
    row = tx.one("SELECT agent_id FROM sites WHERE id = :id", {"id": site_id})
    return None if row is None or row[0] is None else _open_session(tx, row[0])


def locate(session: SessionRow | None, worker: str) -> None:
    """Raises RequestError unless the agent is connected to this worker, saying which one it is connected to."""
    if session is None:
        raise RequestError(
            RequestCode.UNAVAILABLE, "the site's agent is not connected: look at `rackwright agents list`"
        )
    if session.worker != worker:
        raise RequestError(RequestCode.INVALID_STATE, _elsewhere(session))


def _elsewhere(session: SessionRow) -> str:
    return (
        f"the site's agent is connected to the control plane's worker {session.worker!r}, and consoles are not "
        "relayed between workers: ask the API of that one"
    )


def _open_session(tx: Transaction, agent_id: str) -> SessionRow | None:
    return tx.one(
        f"SELECT {columns(SessionRow, 'sessions')} FROM sessions JOIN agents ON agents.session_id = sessions.id "
        "WHERE agents.id = :id AND sessions.disconnected_at IS NULL",
        {"id": agent_id},
        into=SessionRow,
    )
