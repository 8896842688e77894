"""The event outbox: what happened, written in the transaction that made it happen.

`seq` grows with each event and is the cursor of every reader. On PostgreSQL two transactions may commit in the other
order than their numbers: how far a reader may go without passing over one is told by `horizon.py`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from control_plane.records import ALL_TENANTS, EventRow, columns
from control_plane.store import Transaction, json_text
from protocol.ids import new_id

__all__ = [
    "EVENTS_CHANNEL",
    "SEARCHED",
    "EventFilter",
    "NewEvent",
    "newest",
    "publish",
    "publish_all",
    "read_from",
    "search",
]

EVENTS_CHANNEL = "events"
_INSERT = """
INSERT INTO events (id, tenant_id, at, subject, type, data) VALUES (:id, :tenant_id, :at, :subject, :type, :data)
"""
_INSERT_ALL = """
INSERT INTO events (id, tenant_id, at, subject, type, data)
SELECT id, tenant_id, at, subject, type, data
FROM ROWS(:rows AS new (place BIGINT, id TEXT, tenant_id TEXT, at BIGINT, subject TEXT, type TEXT, data TEXT))
ORDER BY place
"""


SEARCHED = 50_000
"""How many numbers one search looks at: what is rare may be far away, and a transaction must not take long."""


class EventFilter(NamedTuple):
    """Which events are looked for; what is None does not matter."""

    node_id: str | None = None
    kind: str | None = None
    """A type, or its beginning up to a point: letters and points only."""
    since: int | None = None


class NewEvent(NamedTuple):
    """An event that is to be published; `data` holds no secret."""

    tenant_id: str
    subject: str
    type: str
    data: dict[str, object] | msgspec.Struct


def publish(tx: Transaction, tenant_id: str, subject: str, kind: str, data: dict[str, object]) -> None:
    """Adds an event; readers are woken once the transaction is durable. `data` holds no secret."""
    tx.run(
        _INSERT,
        {
            "id": new_id("evt"),
            "tenant_id": tenant_id,
            "at": tx.now(),
            "subject": subject,
            "type": kind,
            "data": json_text(data),
        },
    )
    tx.notify(EVENTS_CHANNEL)


def publish_all(tx: Transaction, events: Sequence[NewEvent]) -> None:
    """Adds events in their order, in one statement. Not in that of their ids, which a language's rules may sort."""
    now = tx.now()
    rows = [
        (place, new_id("evt"), event.tenant_id, now, event.subject, event.type, json_text(event.data))
        for place, event in enumerate(events)
    ]
    tx.run(_INSERT_ALL, {"rows": rows})
    tx.notify(EVENTS_CHANNEL)


def newest(tx: Transaction, tenant_id: str) -> int:
    """The number of the newest event that can be seen now, 0 for none; `*` for every tenant's."""
    condition = "" if tenant_id == ALL_TENANTS else "WHERE tenant_id = :tenant_id"
    row = tx.one(f"SELECT MAX(seq) FROM events {condition}", {"tenant_id": tenant_id})
    return int(row[0]) if row is not None and row[0] is not None else 0


def read_from(tx: Transaction, tenant_id: str, after: int, limit: int, horizon: int) -> list[EventRow]:
    """The events behind the cursor `after` and up to `horizon`, oldest first; `*` reads every tenant's.

    `horizon` is `Horizon.seq`, taken before the reading began: then no event is passed over.
    """
    condition = "" if tenant_id == ALL_TENANTS else "AND tenant_id = :tenant_id"
    return tx.all(
        f"SELECT {columns(EventRow)} FROM events WHERE seq > :after AND seq <= :horizon {condition} "
        "ORDER BY seq LIMIT :limit",
        {"after": after, "tenant_id": tenant_id, "horizon": horizon, "limit": limit},
        into=EventRow,
    )


def search(
    tx: Transaction, tenant_id: str, wanted: EventFilter, place: int, limit: int, horizon: int, *, newest_first: bool
) -> tuple[list[EventRow], int | None]:
    """The events that fit, behind the place in the order that is asked for; `*` searches every tenant's.

    Beside them the place where to go on; None once there is nothing older. `place` is a number of an event, for
    newest first one that is greater than any to begin with.
    """
    bounds = tx.one("SELECT (SELECT MIN(seq) FROM events), (SELECT MAX(seq) FROM events)")
    oldest, latest = (int(bounds[0] or 0), int(bounds[1] or 0)) if bounds is not None else (0, 0)
    if newest_first:
        last = min(place - 1, horizon, latest)
        first = max(last - SEARCHED + 1, oldest)
    else:
        first = max(place + 1, oldest)
        last = min(first + SEARCHED - 1, horizon, latest)
    conditions = ["seq >= :first AND seq <= :last"]
    params: dict[str, object] = {"first": first, "last": last, "limit": limit}
    for condition, name, value in (
        ("tenant_id = :tenant_id", "tenant_id", None if tenant_id == ALL_TENANTS else tenant_id),
        ("(subject = :subject OR data LIKE :about)", "subject", wanted.node_id and f"node/{wanted.node_id}"),
        ("(type = :kind OR type LIKE :below)", "kind", wanted.kind),
        ("at >= :since", "since", wanted.since),
    ):
        if value is not None:
            conditions.append(condition)
            params[name] = value
    if wanted.node_id is not None:
        params["about"] = f'%"nodeId":"{wanted.node_id}"%'
    if wanted.kind is not None:
        params["below"] = f"{wanted.kind}.%"
    rows = tx.all(
        f"SELECT {columns(EventRow)} FROM events WHERE {' AND '.join(conditions)} "
        f"ORDER BY seq {'DESC' if newest_first else 'ASC'} LIMIT :limit",
        params,
        into=EventRow,
    )
    if len(rows) == limit:
        return rows, rows[-1].seq
    if not newest_first:
        return rows, max(place, last)
    at_the_end = first <= oldest or (wanted.since is not None and bool(_older_than(tx, first, wanted.since)))
    return rows, None if at_the_end else first


def _older_than(tx: Transaction, seq: int, moment: int) -> bool:
    row = tx.one("SELECT at FROM events WHERE seq >= :seq ORDER BY seq LIMIT 1", {"seq": seq})
    return row is not None and int(row[0]) < moment
