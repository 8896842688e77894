"""Events and the audit trail."""

from control_plane.api.call import Call
from control_plane.api.shapes.common import decode_cursor, encode_cursor, instant
from control_plane.api.shapes.history import AuditList, AuditView, EventList, EventView, ListAudit, ListEvents
from control_plane.audit import list_audit
from control_plane.events import EventFilter, read_from, search
from control_plane.nodes import find_node
from control_plane.records import EventRow
from control_plane.store import Transaction
from protocol.durations import parse_duration

__all__ = ["audit_list", "event_view", "events_list"]

_BEHIND_ALL = 10**18 - 1
_PATIENCE_SECONDS = 1.0
"""How long a list waits for an open transaction that may come before its newest events; then it ends without them."""


async def events_list(call: Call, request: ListEvents) -> EventList:
    horizon = call.services.horizon
    await horizon.refresh(_PATIENCE_SECONDS)
    rows, place = await call.services.store.read(_events, call, request, horizon.seq)
    return EventList(
        items=[event_view(row) for row in rows], cursor=None if place is None else encode_cursor(str(place))
    )


def _events(tx: Transaction, call: Call, request: ListEvents, horizon: int) -> tuple[list[EventRow], int | None]:
    newest_first = request.order == "newest"
    beginning = _BEHIND_ALL if newest_first else 0
    place = beginning if request.cursor is None else int(decode_cursor(request.cursor))
    node_id = None if request.node_id is None else find_node(tx, call.tenant, request.node_id).id
    since = None if request.since is None else tx.now() - parse_duration(request.since)
    wanted = EventFilter(node_id, request.kind, since)
    if wanted == EventFilter() and not newest_first:
        rows = read_from(tx, call.tenant_id, place, request.limit, horizon)
        return rows, rows[-1].seq if rows else place
    return search(tx, call.tenant_id, wanted, place, request.limit, horizon, newest_first=newest_first)


def event_view(row: EventRow) -> EventView:
    return EventView(
        seq=row.seq,
        id=row.id,
        tenant_id=row.tenant_id,
        at=instant(row.at),
        subject=row.subject,
        type=row.type,
        data=row.data,
    )


def audit_list(tx: Transaction, call: Call, request: ListAudit) -> AuditList:
    before = None if request.cursor is None else int(decode_cursor(request.cursor))
    rows = list_audit(tx, call.tenant_id, before, request.limit + 1)
    more = len(rows) > request.limit
    rows = rows[: request.limit]
    items = [
        AuditView(
            id=row.id,
            tenant_id=row.tenant_id,
            at=instant(row.at),
            actor=row.actor,
            action=row.action,
            resource=row.resource,
            request_id=row.request_id,
            decision=row.decision,
            detail=row.detail,
        )
        for row in rows
    ]
    return AuditList(items=items, cursor=encode_cursor(str(rows[-1].seq)) if more else None)
