"""What happened: events for programs, the audit trail for people."""

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta

from control_plane.api.shapes.common import (
    Duration,
    PageRequest,
    Reference,
    View,
    duration_check,
    number_cursor,
)

__all__ = ["AuditList", "AuditView", "EventList", "EventView", "ListAudit", "ListEvents"]


class ListEvents(PageRequest, frozen=True, kw_only=True):
    """Oldest first, behind the cursor; the cursor of an answer is where to go on, also when it was empty.

    With `order: newest` the other way round, until the cursor is null. A search looks at so many events at a time
    and no more: its answer may be short, or empty, and still have a cursor.
    """

    order: Literal["oldest", "newest"] = "oldest"
    node_id: Reference | None = None
    """Only what is about this machine: its own events, its commands' and its workflows'."""
    kind: Annotated[str, Meta(pattern=r"^[A-Za-z]+(\.[A-Za-z]+)*$(?!\n)", max_length=64)] | None = None
    """Only events of this type, such as node.power, or of this beginning, such as command."""
    since: Duration | None = None
    """Only those that are not older, such as 2h."""

    checks = {"cursor": number_cursor, "since": duration_check(1, 3_660 * 86_400_000, "from 1ms to 3660d")}


class EventView(View, frozen=True, kw_only=True):
    seq: int
    id: str
    tenant_id: str
    at: datetime
    subject: str
    """`<kind>/<id>`, such as command/cmd_…"""
    type: str
    data: dict[str, Any]


class EventList(View, frozen=True, kw_only=True):
    items: list[EventView]
    cursor: str | None
    """Null where there are no older ones; newer ones may always come."""


class ListAudit(PageRequest, frozen=True, kw_only=True):
    """Newest first."""

    checks = {"cursor": number_cursor}


class AuditView(View, frozen=True, kw_only=True):
    id: str
    tenant_id: str
    at: datetime
    actor: str
    action: str
    resource: str
    request_id: str
    decision: str
    """allowed or denied."""
    detail: dict[str, Any]


class AuditList(View, frozen=True, kw_only=True):
    items: list[AuditView]
    cursor: str | None
