"""Node specs: what a machine is to be like, brought to the daemon that runs on it.

The table `desired_states` says what is wanted, by generation, and which generation the daemon has said it holds.
Whatever differs is sent: after a hello, on a hint, and by a sweep that needs neither. What the daemon holds is its
own word, said with each hello: a machine that was installed anew holds nothing, whatever its predecessor had.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

from control_plane.engine.outcomes import NODE_SPEC_CHANNEL
from control_plane.records import AgentRow, SessionRow, columns
from control_plane.store import Store, StoreError, Transaction
from protocol.frames import MAX_FRAME_BYTES, NodeSpec, encode

__all__ = ["DAEMON", "SpecDelivery", "note_applied", "note_held", "owed_specs"]

_log = logging.getLogger("control_plane.node_specs")
DAEMON = "daemon"
_SWEEP_SECONDS = 30.0
_BATCH = 200


class SpecLink(Protocol):
    """A connected agent, as far as this needs to know it."""

    session: SessionRow

    def post(self, frame: msgspec.Struct) -> None: ...


class OwedSpec(NamedTuple):
    session_id: str
    agent_id: str
    node_id: str
    generation: int
    spec: dict[str, object]


def note_held(tx: Transaction, agent: AgentRow, generation: int) -> None:
    """A daemon says which generation it holds (0: none); of any other agent it means nothing."""
    if agent.role == DAEMON and agent.node_id is not None:
        tx.run(
            "UPDATE desired_states SET applied = :held WHERE node_id = :node AND tenant_id = :tenant "
            "AND (applied IS NULL OR applied <> :held)",
            {"held": generation, "node": agent.node_id, "tenant": agent.tenant_id},
        )


def note_applied(tx: Transaction, session: SessionRow, generation: int) -> None:
    """The daemon's word over its present connection that it holds this generation.

    Of an older connection it may come late, and then knows nothing of what the newer one's hello has said.
    """
    agent = tx.one(
        f"SELECT {columns(AgentRow)} FROM agents WHERE id = :id AND session_id = :session FOR SHARE",
        {"id": session.agent_id, "session": session.id},
        into=AgentRow,
    )
    if agent is not None:
        note_held(tx, agent, generation)


def owed_specs(tx: Transaction, worker: str, after: str, limit: int) -> list[OwedSpec]:
    """Specs that a daemon connected to this worker does not hold; by node, behind the node `after`."""
    rows = tx.all(
        """
        SELECT sessions.id, agents.id, desired_states.node_id, desired_states.generation, desired_states.spec
        FROM desired_states
            JOIN agents ON agents.node_id = desired_states.node_id AND agents.tenant_id = desired_states.tenant_id
            JOIN sessions ON sessions.id = agents.session_id
        WHERE (desired_states.applied IS NULL OR desired_states.applied <> desired_states.generation)
            AND desired_states.node_id > :after AND agents.role = 'daemon' AND agents.revoked_at IS NULL
            AND sessions.worker = :worker AND sessions.disconnected_at IS NULL
        ORDER BY desired_states.node_id LIMIT :limit
        """,
        {"worker": worker, "after": after, "limit": limit},
    )
    return [
        OwedSpec(session_id, agent_id, node_id, generation, msgspec.json.decode(spec, type=dict[str, object]))
        for session_id, agent_id, node_id, generation, spec in rows
    ]


class SpecDelivery:
    """Sends what is owed over the links of one worker; `links` are the connected agents, by id."""

    def __init__(self, store: Store, worker: str, links: Mapping[str, SpecLink]) -> None:
        self._store = store
        self._worker = worker
        self._links = links
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._sent: dict[str, tuple[str, int]] = {}
        """By node: the connection and the generation that went over it since the last sweep."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="node specs")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self, _node_id: str = "") -> None:
        """Something may be owed."""
        self._wake.set()

    async def _run(self) -> None:
        stop_listening = self._store.listen(NODE_SPEC_CHANNEL, self.wake)
        try:
            while True:
                try:
                    async with asyncio.timeout(_SWEEP_SECONDS):
                        await self._wake.wait()
                except TimeoutError:
                    # What was sent and never acknowledged is sent again.
                    self._sent.clear()
                self._wake.clear()
                if self._links:
                    await self._deliver()
        finally:
            stop_listening()

    async def _deliver(self) -> None:
        after, full = "", True
        try:
            while full:
                owed = await self._store.read(owed_specs, self._worker, after, _BATCH)
                for spec in owed:
                    self._send(spec)
                full = len(owed) >= _BATCH
                after = owed[-1].node_id if owed else ""
        except StoreError as error:
            _log.warning("node specs wait for the database: %s", error)
        except Exception:
            # One spec that cannot be read must not keep all the others from being sent.
            _log.exception("node specs could not be sent")

    def _send(self, owed: OwedSpec) -> None:
        link = self._links.get(owed.agent_id)
        if link is None or link.session.id != owed.session_id:
            return
        if self._sent.get(owed.node_id) == (owed.session_id, owed.generation):
            return
        frame = NodeSpec(generation=owed.generation, spec=owed.spec)
        size = len(encode(frame))
        if size > MAX_FRAME_BYTES:
            # It would end the connection, and come back with the next one.
            _log.error("the node spec of %s has %d bytes and may have %d", owed.node_id, size, MAX_FRAME_BYTES)
        else:
            link.post(frame)
        self._sent[owed.node_id] = (owed.session_id, owed.generation)
