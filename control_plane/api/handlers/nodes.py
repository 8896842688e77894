"""Nodes."""

import msgspec
from msgspec import UNSET, UnsetType

from control_plane.api.call import Call
from control_plane.api.handlers.paging import page
from control_plane.api.shapes.common import instant
from control_plane.api.shapes.metal import ProvisionView
from control_plane.api.shapes.nodes import (
    BmcChange,
    BmcView,
    CreateNode,
    DeleteNode,
    GetNode,
    ListNodes,
    NodeDeleted,
    NodeList,
    NodeView,
    UpdateNode,
    plain_http_faults,
)
from control_plane.events import publish
from control_plane.found_labels import found_labels
from control_plane.metal.rows import ProvisionRow, find_provision, provisions_of, store_provision
from control_plane.metal.states import ProvisionState
from control_plane.nodes import create_node, delete_node, find_node, list_nodes, update_node
from control_plane.observations import Sight, sights_of
from control_plane.records import NodeRow
from control_plane.sessions import revoke_agents_of
from control_plane.sites import find_site, site_names
from control_plane.store import Transaction
from protocol.addresses import Address, Scheme, TlsPolicy
from protocol.errors import RequestError
from protocol.ids import new_id

__all__ = ["create", "delete", "get", "list_", "seen", "update"]

_DRIVER_OF = {
    Scheme.HTTPS: "redfish",
    Scheme.HTTP: "redfish",
    Scheme.IPMI: "ipmi",
    Scheme.SSH: "ssh",
    Scheme.SIMULATED: "simulated",
    Scheme.ANY: "auto",
}


def create(tx: Transaction, call: Call, request: CreateNode) -> NodeView:
    site = find_site(tx, call.tenant, request.site_id)
    address = Address.parse(request.bmc.address)
    credential_ref = request.bmc.credential_ref
    now = tx.now()
    node = create_node(
        tx,
        NodeRow(
            id=new_id("node"),
            tenant_id=call.tenant,
            name=request.name,
            site_id=site.id,
            labels=request.labels,
            drivers=request.drivers,
            bmc_address=str(address),
            bmc_driver=_driver(request.bmc.driver, address),
            credential_ref=None if credential_ref is UNSET else credential_ref,
            tls="first-use" if request.bmc.tls is UNSET else str(TlsPolicy.parse(request.bmc.tls)),
            created_at=now,
            updated_at=now,
        ),
    )
    _change_provision(tx, node, request.profiles or UNSET, UNSET if request.remediate == "off" else "on")
    publish(tx, call.tenant, f"node/{node.id}", "node.created", {"nodeId": node.id, "name": node.name})
    return seen(tx, node)


def get(tx: Transaction, call: Call, request: GetNode) -> NodeView:
    return seen(tx, find_node(tx, call.tenant, request.node_id))


def list_(tx: Transaction, call: Call, request: ListNodes) -> NodeList:
    site_id = None if request.site_id is None else find_site(tx, call.tenant, request.site_id).id
    rows, cursor = page(request, lambda after, limit: list_nodes(tx, call.tenant, after, limit, site_id))
    return NodeList(items=_views(tx, rows), cursor=cursor)


def update(tx: Transaction, call: Call, request: UpdateNode) -> NodeView:
    node = find_node(tx, call.tenant, request.node_id, lock=True)
    changes: dict[str, object] = {}
    if request.name is not UNSET:
        changes["name"] = request.name
    if request.site_id is not UNSET:
        changes["site_id"] = find_site(tx, call.tenant, request.site_id).id
    if request.labels is not UNSET:
        changes["labels"] = request.labels
    if request.drivers is not UNSET:
        changes["drivers"] = request.drivers
    if request.bmc is not UNSET:
        changes |= _bmc_changes(node, request.bmc)
    changed = update_node(tx, msgspec.structs.replace(node, **changes))
    _change_provision(tx, changed, request.profiles, request.remediate)
    publish(tx, call.tenant, f"node/{node.id}", "node.updated", {"nodeId": node.id, "name": changed.name})
    return seen(tx, changed)


def delete(tx: Transaction, call: Call, request: DeleteNode) -> NodeDeleted:
    node = find_node(tx, call.tenant, request.node_id, lock=True)
    delete_node(tx, node)
    revoke_agents_of(tx, call.tenant, node.id, "its machine was forgotten")
    publish(tx, call.tenant, f"node/{node.id}", "node.deleted", {"nodeId": node.id, "name": node.name})
    return NodeDeleted(id=node.id)


def seen(tx: Transaction, row: NodeRow) -> NodeView:
    """The node as it stands now, with what is known of it elsewhere."""
    return _views(tx, [row])[0]


def _views(tx: Transaction, rows: list[NodeRow]) -> list[NodeView]:
    ids = [row.id for row in rows]
    sights, found, provisions = sights_of(tx, ids), found_labels(tx, ids), provisions_of(tx, rows)
    sites = site_names(tx, {row.site_id for row in rows})
    return [
        _view(row, sites[row.site_id], sights.get(row.id), found.get(row.id, {}), provisions[row.id]) for row in rows
    ]


def _view(row: NodeRow, site: str, sight: Sight | None, found: dict[str, str], provision: ProvisionRow) -> NodeView:
    seen = sight.row if sight is not None else None
    is_seen = seen is not None and seen.trouble is None
    return NodeView(
        id=row.id,
        tenant_id=row.tenant_id,
        name=row.name,
        site_id=row.site_id,
        site=site,
        state=provision.state.value,
        power=seen.power if seen is not None else "unknown",
        health=seen.health if seen is not None else "unknown",
        seen_at=instant(seen.seen_at) if seen is not None and is_seen else None,
        seen_by=seen.how if seen is not None and is_seen else None,
        watched=sight is not None and sight.watched,
        trouble=seen.trouble if seen is not None else None,
        trouble_since=instant(seen.seen_at) if seen is not None and not is_seen else None,
        labels=row.labels,
        found_labels=found,
        drivers=row.drivers,
        bmc=BmcView(address=row.bmc_address, driver=row.bmc_driver, credential_ref=row.credential_ref, tls=row.tls),
        provision=_provision(provision),
        created_at=instant(row.created_at),
        updated_at=instant(row.updated_at),
    )


def _provision(row: ProvisionRow) -> ProvisionView:
    in_maintenance = row.state is ProvisionState.MAINTENANCE
    shows_error = row.origin if in_maintenance else row.state
    return ProvisionView(
        state=row.state.value,
        since=instant(row.since),
        verb=row.verb,
        workflow_id=row.workflow_id,
        aborting=row.aborting,
        error=row.cause if shows_error in (ProvisionState.FAILED, ProvisionState.RESCUE) else None,
        residue=row.residue,
        behind_maintenance=row.origin if in_maintenance else None,
        maintenance_reason=row.note,
        profiles=row.profiles,
        remediate=row.remediate,
    )


def _change_provision(
    tx: Transaction, node: NodeRow, profiles: dict[str, str] | UnsetType, remediate: str | UnsetType
) -> None:
    """The caller holds the node's row, or has just made it."""
    before = find_provision(tx, node)
    changes: dict[str, object] = {}
    if profiles is not UNSET:
        changes["profiles"] = profiles
    if remediate is not UNSET:
        changes["remediate"] = remediate == "on"
    if changes:
        store_provision(tx, node, before, msgspec.structs.replace(before, **changes))


def _bmc_changes(node: NodeRow, bmc: BmcChange) -> dict[str, object]:
    address = Address.parse(node.bmc_address if bmc.address is UNSET else bmc.address)
    tls = node.tls if bmc.tls is UNSET else str(TlsPolicy.parse(bmc.tls))
    issues = plain_http_faults(str(address), tls)
    if issues:
        raise RequestError.invalid(issues)
    changes: dict[str, object] = {"bmc_address": str(address), "tls": tls}
    if bmc.driver is not UNSET or str(address) != node.bmc_address:
        changes["bmc_driver"] = _driver(bmc.driver, address)
    if bmc.credential_ref is not UNSET:
        changes["credential_ref"] = bmc.credential_ref
    return changes


def _driver(asked: str | UnsetType, address: Address) -> str:
    return _DRIVER_OF[address.scheme] if asked is UNSET else asked
