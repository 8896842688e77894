"""What the sites' agents see of the machines: taken in, compared with what is known, and stored where it differs.

An agent tells changes only, and everything anew after each watch list. So most of what comes here is known already:
it is read and dropped, and no transaction is written for it. What is new of all agents is written together. An agent
is believed about the machines of its own site alone, and only over its present connection.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from control_plane.events import publish
from control_plane.records import SessionRow, columns
from control_plane.store import Store, StoreError, Transaction
from protocol.frames import NodeState, Observation
from protocol.ids import is_id
from protocol.shapes.management import Health
from protocol.shapes.power import PowerState

__all__ = ["ObservationIntake", "ObservationRow", "Reported", "Sight", "differing", "sights_of", "store_observations"]

_log = logging.getLogger("control_plane.observations")
_BATCH = 500
_GATHER_SECONDS = 0.05
"""What comes within so long is stored together."""
_RETRY_SECONDS = 2.0
_MOST_WAITING = 200_000
_POWERS = frozenset(PowerState)
_HEALTHS = frozenset(Health)
_HOWS = frozenset({"poll", "stream", "push"})
_LONGEST = 500
_OLDEST_MS = 86_400_000


class ObservationRow(msgspec.Struct, frozen=True):
    node_id: str
    power: str
    health: str
    raw: str | None
    trouble: str | None
    how: str
    agent_id: str
    seen_at: int


class Reported(NamedTuple):
    """One machine's state, and over which connection it came."""

    session_id: str
    agent_id: str
    state: NodeState


class Sight(NamedTuple):
    """What is known of a node's state; `watched`: the agent that saw it is connected, so that it is of now."""

    row: ObservationRow
    watched: bool


_COLUMNS = columns(ObservationRow)


class ObservationIntake:
    """Takes what the agents of one worker tell. `counts` is what has come of it, for `/metrics`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, Reported] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.counts: Counter[str] = Counter({"received": 0, "stored": 0, "power": 0, "health": 0})

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="observations")

    async def stop(self) -> None:
        """What waits is lost here, and told again over the agents' next connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def take(self, session: SessionRow, frame: Observation) -> None:
        """Never waits. A later state of a machine takes the place of one that waits."""
        for state in frame.nodes:
            if not is_id(state.node_id, "node"):
                continue
            self._waiting.pop(state.node_id, None)
            self._waiting[state.node_id] = Reported(session.id, session.agent_id, _bounded(state))
        self.counts["received"] += len(frame.nodes)
        while len(self._waiting) > _MOST_WAITING:
            self._waiting.pop(next(iter(self._waiting)))
        if self._waiting:
            self._wake.set()

    async def _run(self) -> None:
        failing = False
        while True:
            await self._wake.wait()
            await asyncio.sleep(_GATHER_SECONDS)
            self._wake.clear()
            batch: list[Reported] = []
            try:
                while self._waiting:
                    batch = [
                        self._waiting.pop(next(iter(self._waiting))) for _ in range(min(_BATCH, len(self._waiting)))
                    ]
                    await self._store_changes(batch)
                    batch = []
                failing = False
            except StoreError as error:
                if not failing:
                    _log.error("what is seen of the machines waits for the database: %s", error)
                failing = True
                self._put_back(batch)
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception:
                # One state that cannot be stored must not keep all others out.
                _log.exception("what was seen of %d machines could not be stored", len(batch))

    async def _store_changes(self, batch: list[Reported]) -> None:
        changed = await self._store.read(differing, batch)
        if changed:
            stored = await self._store.write(store_observations, changed)
            self.counts.update(stored)

    def _put_back(self, batch: list[Reported]) -> None:
        """What came meanwhile is newer."""
        newer, self._waiting = self._waiting, {reported.state.node_id: reported for reported in batch}
        self._waiting |= newer
        self._wake.set()


def differing(tx: Transaction, batch: Iterable[Reported]) -> list[Reported]:
    """Those whose state is not the one that is known."""
    listed = list(batch)
    known = _known(tx, [reported.state.node_id for reported in listed])
    return [reported for reported in listed if _differs(known.get(reported.state.node_id), reported.state)]


def store_observations(tx: Transaction, batch: list[Reported]) -> dict[str, int]:
    """Stores what is of the site's own agent and new, with an event for each change of power or health.

    Returns how many rows were stored, and how many changes of each kind there were.
    """
    owners = _owners(tx, [reported.state.node_id for reported in batch])
    known = _known(tx, list(owners), lock=True)
    now = tx.now()
    rows: list[ObservationRow] = []
    counts = Counter[str]()
    for reported in batch:
        state, owner = reported.state, owners.get(reported.state.node_id)
        if owner is None or owner.session_id != reported.session_id:
            continue
        before = known.get(state.node_id)
        if not _differs(before, state):
            continue
        row = ObservationRow(
            node_id=state.node_id,
            power=state.power,
            health=state.health,
            raw=state.raw,
            trouble=state.trouble,
            how=state.how,
            agent_id=reported.agent_id,
            seen_at=now - min(max(state.age_ms, 0), _OLDEST_MS),
        )
        rows.append(row)
        counts.update(_publish(tx, owner, before, row))
    if rows:
        tx.run(
            f"""
            INSERT INTO node_observations ({_COLUMNS})
            SELECT {columns(ObservationRow, "seen")} FROM ROWS(:rows AS seen (
                node_id TEXT, power TEXT, health TEXT, raw TEXT, trouble TEXT, how TEXT, agent_id TEXT, seen_at BIGINT
            )) WHERE TRUE
            ON CONFLICT (node_id) DO UPDATE SET power = excluded.power, health = excluded.health, raw = excluded.raw,
                trouble = excluded.trouble, how = excluded.how, agent_id = excluded.agent_id,
                seen_at = excluded.seen_at
            """,
            {"rows": [list(msgspec.structs.astuple(row)) for row in rows]},
        )
    counts["stored"] = len(rows)
    return dict(counts)


def sights_of(tx: Transaction, node_ids: list[str]) -> Mapping[str, Sight]:
    """What is known of these nodes; one that nobody has seen is not there."""
    rows = tx.all(
        f"""
        SELECT {columns(ObservationRow, "node_observations")},
            CASE WHEN agents.id = node_observations.agent_id AND sessions.disconnected_at IS NULL
                AND sessions.id IS NOT NULL THEN 1 ELSE 0 END
        FROM node_observations
            JOIN nodes ON nodes.id = node_observations.node_id
            LEFT JOIN sites ON sites.id = nodes.site_id
            LEFT JOIN agents ON agents.id = sites.agent_id
            LEFT JOIN sessions ON sessions.id = agents.session_id
        WHERE node_observations.node_id IN EACH(:ids)
        """,
        {"ids": node_ids},
    )
    return {row[0]: Sight(ObservationRow(*row[:-1]), bool(row[-1])) for row in rows}


class _Owner(NamedTuple):
    tenant_id: str
    name: str
    session_id: str | None


def _owners(tx: Transaction, node_ids: list[str]) -> dict[str, _Owner]:
    """By node: whose it is, and the present connection of the agent that serves its site. They stay until the end."""
    rows = tx.all(
        """
        SELECT nodes.id, nodes.tenant_id, nodes.name, agents.session_id
        FROM nodes JOIN sites ON sites.id = nodes.site_id JOIN agents ON agents.id = sites.agent_id
        WHERE nodes.id IN EACH(:ids) AND agents.revoked_at IS NULL AND agents.role = 'site'
        ORDER BY nodes.id FOR KEY SHARE OF nodes
        """,
        {"ids": node_ids},
    )
    return {row[0]: _Owner(*row[1:]) for row in rows}


def _known(tx: Transaction, node_ids: list[str], *, lock: bool = False) -> dict[str, ObservationRow]:
    rows = tx.all(
        f"SELECT {_COLUMNS} FROM node_observations WHERE node_id IN EACH(:ids) ORDER BY node_id"
        + (" FOR UPDATE" if lock else ""),
        {"ids": node_ids},
        into=ObservationRow,
    )
    return {row.node_id: row for row in rows}


def _differs(known: ObservationRow | None, state: NodeState) -> bool:
    """Of troubles only the code counts: their words may tell of seconds, which differ each time."""
    if known is None:
        return True
    return (known.power, known.health, known.raw, _code(known.trouble)) != (
        state.power,
        state.health,
        state.raw,
        _code(state.trouble),
    )


def _code(trouble: str | None) -> str | None:
    return None if trouble is None else trouble.partition(":")[0]


def _publish(tx: Transaction, owner: _Owner, before: ObservationRow | None, row: ObservationRow) -> Counter[str]:
    """An event for what has changed; what nobody knew before counts as unknown."""
    counts = Counter[str]()
    for what, was, now in (
        ("power", before.power if before else "unknown", row.power),
        ("health", before.health if before else "unknown", row.health),
    ):
        if was == now:
            continue
        data: dict[str, object] = {
            "nodeId": row.node_id,
            "name": owner.name,
            "from": was,
            "to": now,
            "how": row.how,
        }
        if what == "power" and row.raw is not None:
            data["raw"] = row.raw
        if row.trouble is not None:
            data["trouble"] = row.trouble
        publish(tx, owner.tenant_id, f"node/{row.node_id}", f"node.{what}", data)
        counts[what] += 1
    return counts


def _bounded(state: NodeState) -> NodeState:
    """A word that this version does not know is unknown; no text is endless, nor has what PostgreSQL refuses."""
    return msgspec.structs.replace(
        state,
        power=state.power if state.power in _POWERS else PowerState.UNKNOWN.value,
        health=state.health if state.health in _HEALTHS else Health.UNKNOWN.value,
        raw=_text(state.raw),
        trouble=_text(state.trouble),
        how=state.how if state.how in _HOWS else "poll",
    )


def _text(words: str | None) -> str | None:
    return None if words is None else words.replace("\0", "")[:_LONGEST]
