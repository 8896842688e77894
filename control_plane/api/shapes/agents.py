"""Agents and the tokens with which they join."""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta

from control_plane.api.shapes.common import (
    AgentId,
    Duration,
    PageRequest,
    Reason,
    Reference,
    Request,
    View,
    duration_check,
    id_cursor,
)

__all__ = [
    "AgentList",
    "AgentView",
    "CreateJoinToken",
    "GetAgent",
    "JoinTokenList",
    "JoinTokenMade",
    "JoinTokenView",
    "ListAgents",
    "ListJoinTokens",
    "RevokeAgent",
    "RevokeJoinToken",
    "SessionView",
]

JoinTokenId = Annotated[str, Meta(pattern=r"^jtk_[0-9a-hjkmnp-tv-z]{26,52}$(?!\n)", max_length=56)]


class GetAgent(Request, frozen=True, kw_only=True):
    agent_id: AgentId


class ListAgents(PageRequest, frozen=True, kw_only=True):
    checks = {"cursor": id_cursor("agent")}


class RevokeAgent(Request, frozen=True, kw_only=True):
    agent_id: AgentId
    reason: Reason = "revoked by an operator"


class SessionView(View, frozen=True, kw_only=True):
    id: str
    worker: str
    boot_id: str
    connected_at: datetime
    disconnected_at: datetime | None
    disconnect_reason: str | None


class AgentView(View, frozen=True, kw_only=True):
    id: str
    tenant_id: str
    site_id: str | None
    node_id: str | None
    role: str
    host_name: str
    version: str
    connected: bool
    drivers: dict[str, list[str]]
    created_at: datetime
    revoked_at: datetime | None
    revoked_reason: str | None
    session: SessionView | None
    """The connection of now, or the last one."""


class AgentList(View, frozen=True, kw_only=True):
    items: list[AgentView]
    cursor: str | None


class CreateJoinToken(Request, frozen=True, kw_only=True):
    site_id: Reference
    role: Literal["site"] = "site"
    ttl: Duration = "1h"
    create_site: bool = False
    """Make the site where there is none of this name."""

    checks = {"ttl": duration_check(10_000, 30 * 86_400_000, "from 10s to 30d")}


class ListJoinTokens(PageRequest, frozen=True, kw_only=True):
    checks = {"cursor": id_cursor("jtk")}


class RevokeJoinToken(Request, frozen=True, kw_only=True):
    join_token_id: JoinTokenId


class JoinTokenView(View, frozen=True, kw_only=True):
    id: str
    tenant_id: str
    site_id: str
    role: str
    created_at: datetime
    created_by: str
    expires_at: datetime
    used_at: datetime | None
    used_by: str | None


class JoinTokenMade(JoinTokenView, frozen=True, kw_only=True):
    token: str
    """The whole token. It is shown this once."""
    agent_url: str
    """Where the agent connects to: `rackwright agent join URL TOKEN`."""


class JoinTokenList(View, frozen=True, kw_only=True):
    items: list[JoinTokenView]
    cursor: str | None
