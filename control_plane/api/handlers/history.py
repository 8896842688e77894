"""Events and the audit trail."""

from control_plane.api.call import Call
from control_plane.api.shapes.common import decode_cursor, encode_cursor, instant
from control_plane.api.shapes.history import AuditList, AuditView, EventList, EventView, ListAudit, ListEvents
from control_plane.audit import list_audit
from control_plane.events import read_from
from control_plane.records import EventRow
from control_plane.store import Transaction

__all__ = ["audit_list", "event_view", "events_list"]

_PATIENCE_SECONDS = 1.0
"""How long a list waits for an open transaction that may come before its newest events; then it ends without them."""


async def events_list(call: Call, request: ListEvents) -> EventList:
    after = 0 if request.cursor is None else int(decode_cursor(request.cursor))
    horizon = call.services.horizon
    await horizon.refresh(_PATIENCE_SECONDS)
    rows = await call.services.store.read(read_from, call.tenant_id, after, request.limit, horizon.seq)
    return EventList(
        items=[event_view(row) for row in rows], cursor=encode_cursor(str(rows[-1].seq if rows else after))
    )


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
