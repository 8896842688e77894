"""Agents and join tokens."""

from control_plane.api.call import Call
from control_plane.api.handlers.paging import page
from control_plane.api.shapes.agents import (
    AgentList,
    AgentView,
    CreateJoinToken,
    GetAgent,
    JoinTokenList,
    JoinTokenMade,
    JoinTokenView,
    ListAgents,
    ListJoinTokens,
    RevokeAgent,
    RevokeJoinToken,
    SessionView,
)
from control_plane.api.shapes.common import decode_cursor, encode_cursor, instant, of
from control_plane.join_tokens import create_join_token, end_join_token, list_join_tokens
from control_plane.records import AgentRow, JoinTokenRow, SessionRow
from control_plane.sessions import get_agent, list_agents, revoke_agent
from control_plane.sites import create_site, find_site
from control_plane.store import Transaction
from protocol.durations import parse_duration
from protocol.errors import RequestCode, RequestError
from protocol.ids import is_id
from protocol.join_token import JoinToken

__all__ = ["create_join", "get", "list_", "list_joins", "revoke", "revoke_join"]


def get(tx: Transaction, call: Call, request: GetAgent) -> AgentView:
    return view(*get_agent(tx, call.tenant, request.agent_id))


def list_(tx: Transaction, call: Call, request: ListAgents) -> AgentList:
    after = decode_cursor(request.cursor) if request.cursor is not None else ""
    found = list_agents(tx, call.tenant, after, request.limit + 1)
    more = len(found) > request.limit
    found = found[: request.limit]
    return AgentList(
        items=[view(agent, session) for agent, session in found],
        cursor=encode_cursor(found[-1][0].id) if more else None,
    )


def revoke(tx: Transaction, call: Call, request: RevokeAgent) -> AgentView:
    revoke_agent(tx, call.tenant, request.agent_id, request.reason)
    return view(*get_agent(tx, call.tenant, request.agent_id))


def create_join(tx: Transaction, call: Call, request: CreateJoinToken) -> JoinTokenMade:
    try:
        site = find_site(tx, call.tenant, request.site_id)
    except RequestError as error:
        if error.code is not RequestCode.NOT_FOUND:
            raise
        if not request.create_site:
            raise RequestError(error.code, f"{error.message}: make it first, or ask for createSite") from None
        if is_id(request.site_id, "site"):
            raise
        site = create_site(tx, call.tenant, request.site_id)
    token = JoinToken.new(call.services.ca_sha256)
    row = create_join_token(
        tx,
        token,
        tenant_id=call.tenant,
        site_id=site.id,
        role=request.role,
        created_by=call.principal.id,
        ttl_ms=parse_duration(request.ttl),
    )
    shown = join_view(row)
    return JoinTokenMade(
        **{name: getattr(shown, name) for name in shown.__struct_fields__},
        token=token.text(),
        agent_url=call.services.agent_url,
    )


def list_joins(tx: Transaction, call: Call, request: ListJoinTokens) -> JoinTokenList:
    rows, cursor = page(request, lambda after, limit: list_join_tokens(tx, call.tenant, after, limit))
    return JoinTokenList(items=[join_view(row) for row in rows], cursor=cursor)


def revoke_join(tx: Transaction, call: Call, request: RevokeJoinToken) -> JoinTokenView:
    return join_view(end_join_token(tx, call.tenant, request.join_token_id))


def view(agent: AgentRow, session: SessionRow | None) -> AgentView:
    return AgentView(
        id=agent.id,
        tenant_id=agent.tenant_id,
        site_id=agent.site_id,
        node_id=agent.node_id,
        role=agent.role,
        host_name=agent.host_name,
        version=agent.version,
        connected=session is not None and session.disconnected_at is None,
        drivers=agent.drivers,
        created_at=instant(agent.created_at),
        revoked_at=of(agent.revoked_at),
        revoked_reason=agent.revoked_reason,
        session=None if session is None else _session_view(session),
    )


def join_view(row: JoinTokenRow) -> JoinTokenView:
    return JoinTokenView(
        id=row.id,
        tenant_id=row.tenant_id,
        site_id=row.site_id,
        role=row.role,
        created_at=instant(row.created_at),
        created_by=row.created_by,
        expires_at=instant(row.expires_at),
        used_at=of(row.used_at),
        used_by=row.used_by,
    )


def _session_view(session: SessionRow) -> SessionView:
    return SessionView(
        id=session.id,
        worker=session.worker,
        boot_id=session.boot_id,
        connected_at=instant(session.connected_at),
        disconnected_at=of(session.disconnected_at),
        disconnect_reason=session.disconnect_reason,
    )
