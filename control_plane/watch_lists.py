"""Watch lists: which machines each site's agent is to keep an eye on, and how their BMCs are reached.

The tables `nodes` and `sites` say it. A list is sent whole: after each connection, when a hint says that it may have
changed and it has, and by a sweep that needs no hints. It holds credential references, and never a credential.
"""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from typing import Protocol

import msgspec

from control_plane.nodes import WATCH_CHANNEL, target_by
from control_plane.records import SessionRow
from control_plane.store import Store, StoreError, Transaction
from protocol.commands import TargetRef
from protocol.frames import WatchedNode, WatchList

__all__ = ["WatchDelivery", "agents_of_sites", "frames_of", "lists_of"]

_log = logging.getLogger("control_plane.watch_lists")
_SINCE_MINOR = 2
"""The first minor version of the protocol that knows watch lists."""
_SWEEP_SECONDS = 60.0
_GATHER_SECONDS = 0.2
_AGENTS_AT_ONCE = 20
_NODES_IN_A_FRAME = 500
"""So that no frame comes near its limit, whatever the addresses are."""
_NOT_FROM_OUTSIDE = frozenset({"linux", "ssh"})
"""Drivers that tell no power of a machine from its site."""


class WatchLink(Protocol):
    """A connected agent, as far as this needs to know it."""

    session: SessionRow
    ready: bool
    protocol: int

    def post(self, frame: msgspec.Struct) -> None: ...


def lists_of(tx: Transaction, agent_ids: list[str]) -> dict[str, list[WatchedNode]]:
    """The machines of each agent's sites, by node."""
    rows = tx.all(
        """
        SELECT sites.agent_id, nodes.id, nodes.bmc_driver, nodes.drivers, nodes.bmc_address, nodes.credential_ref,
            nodes.tls
        FROM sites JOIN nodes ON nodes.site_id = sites.id
        WHERE sites.agent_id IN EACH(:agents) ORDER BY nodes.id
        """,
        {"agents": agent_ids},
    )
    lists: dict[str, list[WatchedNode]] = {agent_id: [] for agent_id in agent_ids}
    for agent_id, node_id, bmc_driver, drivers, address, credential_ref, tls in rows:
        driver = msgspec.json.decode(drivers, type=dict[str, str]).get("power") or bmc_driver
        if driver not in _NOT_FROM_OUTSIDE:
            target = target_by(driver, TargetRef(address, credential_ref, tls))
            lists[agent_id].append(WatchedNode(node_id=node_id, driver=driver, target=target))
    return lists


def agents_of_sites(tx: Transaction, site_ids: list[str]) -> list[str]:
    rows = tx.all("SELECT agent_id FROM sites WHERE id IN EACH(:ids) AND agent_id IS NOT NULL", {"ids": site_ids})
    return [row[0] for row in rows]


def frames_of(nodes: list[WatchedNode]) -> list[WatchList]:
    """The list in parts; an empty one is a part too. Its version follows from what it says."""
    version = hashlib.sha256(msgspec.json.encode(nodes)).hexdigest()[:16]
    starts = range(0, max(1, len(nodes)), _NODES_IN_A_FRAME)
    return [
        WatchList(
            version=version,
            nodes=nodes[start : start + _NODES_IN_A_FRAME],
            more=start + _NODES_IN_A_FRAME < len(nodes),
        )
        for start in starts
    ]


class WatchDelivery:
    """Sends the lists of one worker's agents; `links` are the connected agents, by id."""

    def __init__(self, store: Store, worker: str, links: Mapping[str, WatchLink]) -> None:
        self._store = store
        self._worker = worker
        self._links = links
        self._wake = asyncio.Event()
        self._agents: set[str] = set()
        self._sites: set[str] = set()
        self._all = False
        self._sent: dict[str, tuple[str, str]] = {}
        """By agent: the connection, and the version of the list that went over it."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="watch lists")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self, agent_id: str) -> None:
        """This agent has connected: it knows of no list."""
        self._agents.add(agent_id)
        self._wake.set()

    def _hint(self, site_id: str) -> None:
        """Something of this site has changed; with an empty id, anything may have."""
        if site_id:
            self._sites.add(site_id)
        else:
            self._all = True
        self._wake.set()

    async def _run(self) -> None:
        stop_listening = self._store.listen(WATCH_CHANNEL, self._hint)
        loop = asyncio.get_running_loop()
        next_sweep = loop.time()
        try:
            while True:
                try:
                    async with asyncio.timeout_at(next_sweep):
                        await self._wake.wait()
                        await asyncio.sleep(_GATHER_SECONDS)
                except TimeoutError:
                    self._all = True
                self._wake.clear()
                if self._all:
                    next_sweep = loop.time() + _SWEEP_SECONDS
                if not await self.deliver():
                    await asyncio.sleep(_GATHER_SECONDS * 10)
        finally:
            stop_listening()

    async def deliver(self) -> bool:
        """Sends what is due and has changed; False where it is to be tried again soon."""
        agents, sites, everybody = self._agents, self._sites, self._all
        self._agents, self._sites, self._all = set(), set(), False
        try:
            wanted = (
                set(self._links) if everybody else agents | set(await self._store.read(agents_of_sites, list(sites)))
            )
            listed = [agent_id for agent_id in wanted if self._takes_lists(agent_id)]
            for start in range(0, len(listed), _AGENTS_AT_ONCE):
                lists = await self._store.read(lists_of, listed[start : start + _AGENTS_AT_ONCE])
                for agent_id, nodes in lists.items():
                    self._send(agent_id, nodes)
        except StoreError as error:
            _log.warning("watch lists wait for the database: %s", error)
            self._agents |= agents
            self._sites |= sites
            self._all = self._all or everybody
            self._wake.set()
            return False
        except Exception:
            # Without this task no list is sent any more, so a fault in it is told, and it goes on.
            _log.exception("watch lists could not be sent")
        return True

    def _takes_lists(self, agent_id: str) -> bool:
        link = self._links.get(agent_id)
        return link is not None and link.ready and link.session.role == "site" and link.protocol >= _SINCE_MINOR

    def _send(self, agent_id: str, nodes: list[WatchedNode]) -> None:
        link = self._links.get(agent_id)
        if link is None or not self._takes_lists(agent_id):
            return
        frames = frames_of(nodes)
        mark = (link.session.id, frames[0].version)
        if self._sent.get(agent_id) == mark:
            return
        for frame in frames:
            link.post(frame)
        self._sent[agent_id] = mark
