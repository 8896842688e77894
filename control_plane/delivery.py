"""What one worker's agents are owed: queued commands, cancels, and the goodbye of those that were revoked.

Wake-ups only make it faster. Every two seconds all of it is looked up anew, however busy the wake-ups are, so a hint
that was lost delays something and loses nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from control_plane.agent_link import AgentLink
from control_plane.command_queue import cancels_owed, mark_sent, owed_to_worker
from control_plane.records import CommandRow, SessionRow
from control_plane.sessions import revoked_of_worker
from control_plane.store import Store, StoreError, Transaction

__all__ = ["Delivery"]

_log = logging.getLogger("control_plane.delivery")
_SWEEP_SECONDS = 2.0
_BATCH = 500


class Delivery:
    """`links` are the connected agents, by id; `revoked` is called for each that is to be sent away."""

    def __init__(
        self, store: Store, worker: str, links: Mapping[str, AgentLink], revoked: Callable[[AgentLink], None]
    ) -> None:
        self._store = store
        self._worker = worker
        self._links = links
        self._revoked = revoked
        self._wake = asyncio.Event()
        self._woken: set[str] = set()
        self._sweep = True
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="gateway delivery")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self, agent_id: str) -> None:
        """This agent may be owed something; with an empty id, anybody may."""
        if agent_id:
            self._woken.add(agent_id)
        else:
            self._sweep = True
        self._wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_sweep = loop.time()
        while True:
            try:
                async with asyncio.timeout_at(next_sweep):
                    await self._wake.wait()
            except TimeoutError:
                self._sweep = True
            self._wake.clear()
            woken, self._woken = self._woken, set()
            sweep, self._sweep = self._sweep or loop.time() >= next_sweep, False
            if sweep:
                next_sweep = loop.time() + _SWEEP_SECONDS
            if not await self._try(woken, sweep=sweep):
                self._sweep = True
                await asyncio.sleep(_SWEEP_SECONDS)

    async def _try(self, woken: set[str], *, sweep: bool) -> bool:
        try:
            await self.deliver(woken, sweep=sweep)
        except StoreError as error:
            if not self._failing:
                _log.error("commands wait for the database: %s", error)
            self._failing = True
            return False
        except Exception:
            # Without this task nothing is sent any more, so a fault in it is told, and it goes on.
            _log.exception("what is owed to the agents could not be sent")
            return False
        if self._failing:
            _log.info("the database answers again: commands are sent")
        self._failing = False
        return True

    async def deliver(self, woken: set[str], *, sweep: bool) -> None:
        """What the woken agents are owed; with `sweep`, every agent of this worker."""
        agents = [] if sweep else list(woken & self._links.keys())
        if not self._links or (not sweep and not agents):
            return
        full = True
        while full:
            live = frozenset(link.session.id for link in self._links.values() if link.ready)
            owed = await self._store.write(_take_owed, self._worker, agents, live)
            for row in owed.send:
                link = self._links.get(row.agent_id)
                if link is not None and link.session.id == row.sent_session:
                    link.send_command(row, owed.now)
            full = len(owed.send) >= _BATCH
        await self._cancel(agents)
        if sweep:
            await self._send_revoked_away()

    async def _cancel(self, agents: list[str]) -> None:
        after, full = "", True
        while full:
            rows = await self._store.read(cancels_owed, self._worker, agents, _BATCH, after)
            for row in rows:
                link = self._links.get(row.agent_id)
                if link is not None and link.ready:
                    link.cancel(row.id, row.cancel_reason or "")
            full = len(rows) >= _BATCH
            after = rows[-1].id if rows else ""

    async def _send_revoked_away(self) -> None:
        for agent_id in await self._store.read(revoked_of_worker, self._worker):
            link = self._links.get(agent_id)
            if link is not None:
                self._revoked(link)


class _Owed(NamedTuple):
    send: list[CommandRow]
    now: int


def _take_owed(tx: Transaction, worker: str, agents: list[str], live: frozenset[str]) -> _Owed:
    """Marks as sent only what goes over a connection that is there: of the rest it stays known that it never left."""
    by_session: dict[str, tuple[SessionRow, list[CommandRow]]] = {}
    for row, session in owed_to_worker(tx, worker, agents, _BATCH, live):
        by_session.setdefault(session.id, (session, []))[1].append(row)
    send = [sent for session, rows in by_session.values() for sent in mark_sent(tx, rows, session)]
    return _Owed(send, tx.now())
