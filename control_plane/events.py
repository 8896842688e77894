"""The event outbox: what happened, written in the transaction that made it happen.

`seq` grows with each event and is the cursor of every reader. On PostgreSQL two transactions may commit in the other
order than their numbers; `read_from` therefore holds the youngest events back for a moment.
"""

from collections.abc import Sequence
from typing import NamedTuple

from control_plane.records import ALL_TENANTS, EventRow, columns
from control_plane.store import Transaction, json_text
from protocol.ids import new_id

__all__ = ["EVENTS_CHANNEL", "NewEvent", "newest", "publish", "publish_all", "read_from"]

EVENTS_CHANNEL = "events"
_SETTLE_MS = 1_000
_MOST_UNSETTLED = 50_000
"""Events that one second can bring at the most."""
_NO_HORIZON = 1 << 62
_INSERT = """
INSERT INTO events (id, tenant_id, at, subject, type, data) VALUES (:id, :tenant_id, :at, :subject, :type, :data)
"""
_INSERT_ALL = """
INSERT INTO events (id, tenant_id, at, subject, type, data)
SELECT id, tenant_id, at, subject, type, data
FROM ROWS(:rows AS new (id TEXT, tenant_id TEXT, at BIGINT, subject TEXT, type TEXT, data TEXT))
ORDER BY id
"""


class NewEvent(NamedTuple):
    """An event that is to be published; `data` holds no secret."""

    tenant_id: str
    subject: str
    type: str
    data: dict[str, object]


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
    """Adds events in their order, in one statement: ids of one process only grow."""
    now = tx.now()
    rows = [
        (new_id("evt"), event.tenant_id, now, event.subject, event.type, json_text(event.data)) for event in events
    ]
    tx.run(_INSERT_ALL, {"rows": rows})
    tx.notify(EVENTS_CHANNEL)


def newest(tx: Transaction, tenant_id: str) -> int:
    """The cursor behind every event that `read_from` would give now; `*` for every tenant's."""
    condition = "" if tenant_id == ALL_TENANTS else "AND tenant_id = :tenant_id"
    row = tx.one(
        f"SELECT MAX(seq) FROM events WHERE seq < :horizon {condition}",
        {"tenant_id": tenant_id, "horizon": _horizon(tx)},
    )
    return int(row[0]) if row is not None and row[0] is not None else 0


def read_from(tx: Transaction, tenant_id: str, after: int, limit: int) -> list[EventRow]:
    """The events behind the cursor `after`, oldest first; `*` reads every tenant's.

    On PostgreSQL the reading stops before the first event that is younger than a second: an older number may still
    be uncommitted, and a reader that had passed it would never see it.
    """
    condition = "" if tenant_id == ALL_TENANTS else "AND tenant_id = :tenant_id"
    return tx.all(
        f"SELECT {columns(EventRow)} FROM events WHERE seq > :after AND seq < :horizon {condition} "
        "ORDER BY seq LIMIT :limit",
        {"after": after, "tenant_id": tenant_id, "horizon": _horizon(tx), "limit": limit},
        into=EventRow,
    )


def _horizon(tx: Transaction) -> int:
    """The number that readers must not reach yet."""
    if tx.dialect == "sqlite":
        # One writer: numbers become visible in their order.
        return _NO_HORIZON
    row = tx.one(
        "SELECT MIN(seq) FROM (SELECT seq, at FROM events ORDER BY seq DESC LIMIT :most) AS latest "
        "WHERE at >= :since",
        {"since": tx.now() - _SETTLE_MS, "most": _MOST_UNSETTLED},
    )
    return int(row[0]) if row is not None and row[0] is not None else _NO_HORIZON
