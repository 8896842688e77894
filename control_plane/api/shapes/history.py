"""What happened: events for programs, the audit trail for people."""

from datetime import datetime
from typing import Any

from control_plane.api.shapes.common import PageRequest, View, number_cursor

__all__ = ["AuditList", "AuditView", "EventList", "EventView", "ListAudit", "ListEvents"]


class ListEvents(PageRequest, frozen=True, kw_only=True):
    """Oldest first, behind the cursor; the cursor of an answer is where to go on, also when it was empty."""

    checks = {"cursor": number_cursor}


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
    cursor: str


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
