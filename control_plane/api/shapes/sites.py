"""Sites."""

from datetime import datetime

from msgspec import UNSET, UnsetType

from control_plane.api.shapes.common import AgentId, Name, PageRequest, Reference, Request, View, id_cursor

__all__ = ["CreateSite", "GetSite", "ListSites", "SiteList", "SiteView", "UpdateSite"]


class CreateSite(Request, frozen=True, kw_only=True):
    name: Name


class GetSite(Request, frozen=True, kw_only=True):
    site_id: Reference


class ListSites(PageRequest, frozen=True, kw_only=True):
    checks = {"cursor": id_cursor("site")}


class UpdateSite(Request, frozen=True, kw_only=True):
    site_id: Reference
    name: Name | UnsetType = UNSET
    agent_id: AgentId | UnsetType | None = UNSET
    """The site agent that serves the site from now on; null: none."""


class SiteView(View, frozen=True, kw_only=True):
    id: str
    tenant_id: str
    name: str
    agent_id: str | None
    created_at: datetime
    updated_at: datetime


class SiteList(View, frozen=True, kw_only=True):
    items: list[SiteView]
    cursor: str | None
