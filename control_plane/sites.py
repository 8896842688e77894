"""Sites: places with machines, each served by one site agent."""

from collections.abc import Iterable, Mapping

from control_plane.nodes import WATCH_CHANNEL
from control_plane.records import SiteRow, columns
from control_plane.store import Transaction, params_of
from protocol.errors import RequestCode, RequestError
from protocol.ids import new_id

__all__ = ["create_site", "find_site", "get_site", "list_sites", "rename_site", "serve_by", "site_names"]

_COLUMNS = columns(SiteRow)


def create_site(tx: Transaction, tenant_id: str, name: str) -> SiteRow:
    """Raises RequestError CONFLICT when the tenant has a site of this name."""
    now = tx.now()
    site = SiteRow(new_id("site"), tenant_id, name, None, now, now)
    changed = tx.run(
        """
        INSERT INTO sites (id, tenant_id, name, agent_id, created_at, updated_at)
        VALUES (:id, :tenant_id, :name, :agent_id, :created_at, :updated_at) ON CONFLICT DO NOTHING
        """,
        params_of(site),
    )
    if not changed:
        raise RequestError(RequestCode.CONFLICT, f"there is a site named {name!r} already")
    return site


def get_site(tx: Transaction, tenant_id: str, site_id: str) -> SiteRow | None:
    return tx.one(
        f"SELECT {_COLUMNS} FROM sites WHERE id = :id AND tenant_id = :tenant_id",
        {"id": site_id, "tenant_id": tenant_id},
        into=SiteRow,
    )


def find_site(tx: Transaction, tenant_id: str, name_or_id: str) -> SiteRow:
    """Raises RequestError NOT_FOUND."""
    site = tx.one(
        f"SELECT {_COLUMNS} FROM sites WHERE tenant_id = :tenant_id AND (id = :name OR name = :name)",
        {"tenant_id": tenant_id, "name": name_or_id},
        into=SiteRow,
    )
    if site is None:
        raise RequestError(RequestCode.NOT_FOUND, f"there is no site {name_or_id!r}")
    return site


def site_names(tx: Transaction, site_ids: Iterable[str]) -> Mapping[str, str]:
    """Their names, by id."""
    return {
        row[0]: row[1] for row in tx.all("SELECT id, name FROM sites WHERE id IN EACH(:ids)", {"ids": list(site_ids)})
    }


def list_sites(tx: Transaction, tenant_id: str, after: str, limit: int) -> list[SiteRow]:
    """By id, behind the id `after`."""
    return tx.all(
        f"SELECT {_COLUMNS} FROM sites WHERE tenant_id = :tenant_id AND id > :after ORDER BY id LIMIT :limit",
        {"tenant_id": tenant_id, "after": after, "limit": limit},
        into=SiteRow,
    )


def rename_site(tx: Transaction, site: SiteRow, name: str) -> None:
    """Raises RequestError CONFLICT when the tenant has another site of this name."""
    taken = tx.one(
        "SELECT id FROM sites WHERE tenant_id = :tenant_id AND name = :name AND id <> :id",
        {"tenant_id": site.tenant_id, "name": name, "id": site.id},
    )
    if taken is not None:
        raise RequestError(RequestCode.CONFLICT, f"there is a site named {name!r} already")
    tx.run(
        "UPDATE sites SET name = :name, updated_at = :now WHERE id = :id",
        {"id": site.id, "name": name, "now": tx.now()},
    )


def serve_by(tx: Transaction, site_id: str, agent_id: str | None) -> None:
    """From now on the site's commands go to this agent (None: to nobody); those that another one has stay its own."""
    tx.run(
        "UPDATE sites SET agent_id = :agent_id, updated_at = :now WHERE id = :id",
        {"id": site_id, "agent_id": agent_id, "now": tx.now()},
    )
    # The agent that served it before has fewer machines to watch now.
    tx.notify(WATCH_CHANNEL)
