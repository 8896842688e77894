"""Nodes: the machines, and how each one's BMC is reached."""

import msgspec

from control_plane.records import NodeRow, columns
from control_plane.store import Transaction, params_of
from protocol.addresses import Address, Scheme, TlsMode
from protocol.commands import TargetRef
from protocol.errors import RequestCode, RequestError
from protocol.ids import is_id

__all__ = [
    "WATCH_CHANNEL",
    "create_node",
    "delete_node",
    "find_node",
    "labels_of",
    "list_nodes",
    "pin_certificate",
    "target_by",
    "target_of",
    "update_node",
]

WATCH_CHANNEL = "watch"
"""Payload: the id of a site whose machines, or the ways to them, may have changed; empty for any site."""
_COLUMNS = columns(NodeRow)


def create_node(tx: Transaction, node: NodeRow) -> NodeRow:
    """Raises RequestError CONFLICT when the tenant has a node of this name."""
    changed = tx.run(
        f"INSERT INTO nodes ({_COLUMNS}) VALUES ({', '.join(':' + c for c in NodeRow.__struct_fields__)}) "
        "ON CONFLICT DO NOTHING",
        params_of(node),
    )
    if not changed:
        raise RequestError(RequestCode.CONFLICT, f"there is a node named {node.name!r} already")
    tx.notify(WATCH_CHANNEL, node.site_id)
    return node


def find_node(tx: Transaction, tenant_id: str, name_or_id: str, *, lock: bool = False, keep: bool = False) -> NodeRow:
    """By id or by name. Raises RequestError NOT_FOUND, the same for another tenant's node.

    `lock`: nobody else changes it until the transaction ends. `keep`: nobody deletes it until then.
    """
    column = "id" if is_id(name_or_id, "node") else "name"
    node = tx.one(
        f"SELECT {_COLUMNS} FROM nodes WHERE tenant_id = :tenant_id AND {column} = :name"
        + (" FOR UPDATE" if lock else " FOR KEY SHARE" if keep else ""),
        {"tenant_id": tenant_id, "name": name_or_id},
        into=NodeRow,
    )
    if node is None:
        raise RequestError(RequestCode.NOT_FOUND, f"there is no node {name_or_id!r}")
    return node


def labels_of(tx: Transaction, node_id: str | None) -> dict[str, str]:
    """What inventories have found of a node, and over it what an operator says. None where there is no node."""
    if node_id is None:
        return {}
    row = tx.one(
        "SELECT nodes.labels, found_labels.labels FROM nodes "
        "LEFT JOIN found_labels ON found_labels.node_id = nodes.id WHERE nodes.id = :id",
        {"id": node_id},
    )
    if row is None:
        return {}
    own, found = (msgspec.json.decode(text, type=dict[str, str]) if text else {} for text in row)
    return found | own


def target_of(tx: Transaction, node_id: str, driver: str = "auto") -> TargetRef | None:
    """How a node's BMC is reached by this driver; None when the node is gone."""
    row = tx.one("SELECT bmc_address, credential_ref, tls FROM nodes WHERE id = :id", {"id": node_id})
    return None if row is None else target_by(driver, TargetRef(*row))


def target_by(driver: str, target: TargetRef) -> TargetRef:
    """The same BMC in the driver's own address form: a node has one address, and may have another driver for its
    console, or for everything but its console. The port is the address' own for its driver, and the usual one for any
    other. A certificate's pin says nothing of an SSH host key, which the agent pins by itself."""
    address = Address.parse(target.address)
    if driver == "redfish":
        scheme = Scheme.HTTPS if address.scheme in (Scheme.IPMI, Scheme.SSH) else None
    else:
        scheme = {"ipmi": Scheme.IPMI, "ssh": Scheme.SSH}.get(driver)
    if scheme is None or address.scheme in (scheme, Scheme.SIMULATED):
        return target
    tls = target.tls if driver != "ssh" or target.tls == TlsMode.NONE else TlsMode.FIRST_USE.value
    if address.scheme is Scheme.ANY:
        return msgspec.structs.replace(target, tls=tls)
    host = f"[{address.host}]" if ":" in address.host else address.host
    return msgspec.structs.replace(target, address=f"{scheme}://{host}", tls=tls)


def list_nodes(tx: Transaction, tenant_id: str, after: str, limit: int, site_id: str | None = None) -> list[NodeRow]:
    """By id, behind the id `after`; of one site where given."""
    return tx.all(
        f"""
        SELECT {_COLUMNS} FROM nodes
        WHERE tenant_id = :tenant_id AND id > :after
            AND (CAST(:site_id AS TEXT) IS NULL OR site_id = CAST(:site_id AS TEXT))
        ORDER BY id LIMIT :limit
        """,
        {"tenant_id": tenant_id, "after": after, "limit": limit, "site_id": site_id},
        into=NodeRow,
    )


def update_node(tx: Transaction, node: NodeRow) -> NodeRow:
    """Stores the changed record, whose row the caller has locked. Raises CONFLICT when its new name is taken."""
    taken = tx.one(
        "SELECT id FROM nodes WHERE tenant_id = :tenant_id AND name = :name AND id <> :id",
        {"tenant_id": node.tenant_id, "name": node.name, "id": node.id},
    )
    if taken is not None:
        raise RequestError(RequestCode.CONFLICT, f"there is a node named {node.name!r} already")
    changed = msgspec.structs.replace(node, updated_at=tx.now())
    assigned = ", ".join(f"{c} = :{c}" for c in NodeRow.__struct_fields__ if c != "id")
    before = tx.one("SELECT site_id FROM nodes WHERE id = :id", {"id": node.id})
    tx.run(f"UPDATE nodes SET {assigned} WHERE id = :id", params_of(changed))
    for site_id in {changed.site_id, changed.site_id if before is None else str(before[0])}:
        tx.notify(WATCH_CHANNEL, site_id)
    return changed


def delete_node(tx: Transaction, node: NodeRow) -> None:
    """Raises RequestError INVALID_STATE while a workflow or a command of the node is open: its outcome would have no
    home. The caller holds the node's row, so that no workflow starts meanwhile. Ended workflows stay to be read."""
    workflow = tx.one(
        "SELECT id FROM workflows WHERE node_id = :node_id AND state IN ('pending', 'running', 'paused')",
        {"node_id": node.id},
    )
    if workflow is not None:
        raise RequestError(
            RequestCode.INVALID_STATE,
            f"node {node.name!r} has the active workflow {workflow[0]}: abort it, or wait for its end",
        )
    busy = tx.one(
        "SELECT COUNT(*) FROM commands WHERE tenant_id = :tenant_id AND node_id = :node_id "
        "AND state IN ('queued', 'delivered', 'running')",
        {"tenant_id": node.tenant_id, "node_id": node.id},
    )
    if busy is not None and busy[0]:
        raise RequestError(
            RequestCode.INVALID_STATE, f"node {node.name!r} has {busy[0]} open commands: cancel them or wait for them"
        )
    for table in ("desired_states", "found_labels", "provisions", "node_facts", "node_refusals", "node_boot"):
        tx.run(f"DELETE FROM {table} WHERE node_id = :id", {"id": node.id})
    tx.run("DELETE FROM nodes WHERE id = :id", {"id": node.id})
    tx.notify(WATCH_CHANNEL, node.site_id)


def pin_certificate(tx: Transaction, node_id: str, fingerprint: str, replaced: str | None = None) -> None:
    """Turns `first-use` into the certificate that was seen; a policy that somebody chose is left alone.

    `replaced`: the certificate in whose place the agent has put this one; a pin of it follows. The agent knows of
    both already, so that its watch list may wait for the next sweep.
    """
    known = "first-use" if replaced is None else f"sha256:{replaced}"
    tx.run(
        "UPDATE nodes SET tls = :tls, updated_at = :now WHERE id = :id AND tls IN ('first-use', :known)",
        {"id": node_id, "tls": f"sha256:{fingerprint}", "now": tx.now(), "known": known},
    )
