"""Nodes: the machines, and how each one's BMC is reached."""

import msgspec

from control_plane.records import NodeRow, columns
from control_plane.store import Transaction, params_of
from protocol.commands import TargetRef
from protocol.errors import RequestCode, RequestError
from protocol.ids import is_id

__all__ = [
    "create_node",
    "delete_node",
    "find_node",
    "labels_of",
    "list_nodes",
    "pin_certificate",
    "target_of",
    "update_node",
]

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
    """A node's labels; none where there is no node."""
    row = tx.one("SELECT labels FROM nodes WHERE id = :id", {"id": node_id}) if node_id is not None else None
    return {} if row is None else msgspec.json.decode(row[0], type=dict[str, str])


def target_of(tx: Transaction, node_id: str) -> TargetRef | None:
    """How a node's BMC is reached; None when the node is gone."""
    row = tx.one("SELECT bmc_address, credential_ref, tls FROM nodes WHERE id = :id", {"id": node_id})
    return None if row is None else TargetRef(*row)


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
    tx.run(f"UPDATE nodes SET {assigned} WHERE id = :id", params_of(changed))
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
    tx.run("DELETE FROM desired_states WHERE node_id = :id", {"id": node.id})
    tx.run("DELETE FROM nodes WHERE id = :id", {"id": node.id})


def pin_certificate(tx: Transaction, node_id: str, fingerprint: str) -> None:
    """Turns `first-use` into the certificate that was seen; a policy that somebody chose is left alone."""
    tx.run(
        "UPDATE nodes SET tls = :tls, updated_at = :now WHERE id = :id AND tls = 'first-use'",
        {"id": node_id, "tls": f"sha256:{fingerprint}", "now": tx.now()},
    )
