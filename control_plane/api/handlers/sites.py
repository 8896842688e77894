"""Sites."""

from msgspec import UNSET

from control_plane.api.call import Call
from control_plane.api.handlers.paging import page
from control_plane.api.shapes.common import instant
from control_plane.api.shapes.sites import CreateSite, GetSite, ListSites, SiteList, SiteView, UpdateSite
from control_plane.records import SiteRow
from control_plane.sessions import get_agent
from control_plane.sites import create_site, find_site, list_sites, rename_site, serve_by
from control_plane.store import Transaction
from protocol.errors import RequestCode, RequestError

__all__ = ["create", "get", "list_", "update"]


def create(tx: Transaction, call: Call, request: CreateSite) -> SiteView:
    return view(create_site(tx, call.tenant, request.name))


def get(tx: Transaction, call: Call, request: GetSite) -> SiteView:
    return view(find_site(tx, call.tenant, request.site_id))


def list_(tx: Transaction, call: Call, request: ListSites) -> SiteList:
    rows, cursor = page(request, lambda after, limit: list_sites(tx, call.tenant, after, limit))
    return SiteList(items=[view(row) for row in rows], cursor=cursor)


def update(tx: Transaction, call: Call, request: UpdateSite) -> SiteView:
    site = find_site(tx, call.tenant, request.site_id)
    if request.name is not UNSET and request.name != site.name:
        rename_site(tx, site, request.name)
    if request.agent_id is not UNSET:
        if request.agent_id is not None:
            agent, _ = get_agent(tx, call.tenant, request.agent_id)
            if agent.revoked_at is not None or agent.role != "site":
                why = "it was revoked" if agent.revoked_at is not None else f"its role is {agent.role}"
                raise RequestError(RequestCode.INVALID_STATE, f"agent {agent.id} cannot serve a site: {why}")
        serve_by(tx, site.id, request.agent_id)
    return view(find_site(tx, call.tenant, site.id))


def view(row: SiteRow) -> SiteView:
    return SiteView(
        id=row.id,
        tenant_id=row.tenant_id,
        name=row.name,
        agent_id=row.agent_id,
        created_at=instant(row.created_at),
        updated_at=instant(row.updated_at),
    )
