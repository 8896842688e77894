"""Metal's rows, how they are read, and the one way in which a node's state is changed."""

from collections.abc import Mapping

import msgspec

from control_plane.engine.records import WorkflowError
from control_plane.events import publish
from control_plane.metal.states import TRANSITIONS, MetalVerb, ProvisionState, Residue
from control_plane.nodes import find_node
from control_plane.records import NodeRow, columns
from control_plane.store import Transaction, params_of
from protocol.shapes.deploy import Image, RootDeviceHints

__all__ = [
    "Asked",
    "ProvisionRow",
    "RunRow",
    "find_provision",
    "get_run",
    "lock_provision",
    "provisions_of",
    "put_provision",
    "put_run",
    "store_provision",
]


class Asked(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What an operator has asked of one workflow, beside its profile."""

    image: Image | None = None
    root_device: RootDeviceHints | None = None
    user_data: str | None = None
    meta_data: str | None = None
    network_data: str | None = None
    reason: str | None = None
    """Of a remediation: what was found."""


class ProvisionRow(msgspec.Struct, frozen=True, kw_only=True):
    node_id: str
    tenant_id: str
    state: ProvisionState = ProvisionState.ENROLLED
    since: int = 0
    base: ProvisionState = ProvisionState.ENROLLED
    residue: Residue | None = None
    verb: MetalVerb | None = None
    workflow_id: str | None = None
    origin: ProvisionState | None = None
    aborting: bool = False
    cause: WorkflowError | None = None
    note: str | None = None
    profiles: dict[str, str] = {}
    remediate: bool = False
    asked_off_at: int | None = None
    deployed_at: int | None = None
    """When it was last brought into service; None where that is not known."""
    updated_at: int = 0


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow that metal started, and what was asked of it."""

    workflow_id: str
    tenant_id: str
    node_id: str
    verb: MetalVerb
    asked: Asked
    started_at: int
    started_by: str


_COLUMNS = columns(ProvisionRow)
_RUN_COLUMNS = columns(RunRow)
_NAMES = ProvisionRow.__struct_fields__
_STORE = (
    f"INSERT INTO provisions ({_COLUMNS}) VALUES ({', '.join(f':{name}' for name in _NAMES)}) "
    "ON CONFLICT (node_id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _NAMES if name not in ("node_id", "tenant_id"))
)


def lock_provision(tx: Transaction, tenant_id: str, name_or_id: str) -> tuple[NodeRow, ProvisionRow]:
    """The node and its state; the node's row is held, so nobody else changes either until the transaction ends.

    Raises RequestError NOT_FOUND.
    """
    node = find_node(tx, tenant_id, name_or_id, lock=True)
    return node, find_provision(tx, node)


def find_provision(tx: Transaction, node: NodeRow) -> ProvisionRow:
    """A node of which nothing was ever asked is enrolled, since it was registered."""
    found = tx.one(f"SELECT {_COLUMNS} FROM provisions WHERE node_id = :id", {"id": node.id}, into=ProvisionRow)
    return found or _unasked(node)


def provisions_of(tx: Transaction, nodes: list[NodeRow]) -> Mapping[str, ProvisionRow]:
    """Every node's state, by its id."""
    rows = tx.all(
        f"SELECT {_COLUMNS} FROM provisions WHERE node_id IN EACH(:ids)",
        {"ids": [node.id for node in nodes]},
        into=ProvisionRow,
    )
    return {node.id: _unasked(node) for node in nodes} | {row.node_id: row for row in rows}


def store_provision(tx: Transaction, node: NodeRow, before: ProvisionRow, after: ProvisionRow) -> ProvisionRow:
    """Stores the row, and tells of a changed state. The caller holds the node's row."""
    moved = after.state is not before.state
    if moved and after.state not in TRANSITIONS[before.state]:
        raise ValueError(f"node {node.id} cannot become {after.state}: it is {before.state}")
    now = tx.now()
    stored = msgspec.structs.replace(after, since=now if moved else after.since, updated_at=now)
    put_provision(tx, stored)
    if moved:
        data: dict[str, object] = {
            "nodeId": node.id,
            "name": node.name,
            "from": before.state.value,
            "to": stored.state.value,
            "workflowId": stored.workflow_id,
        }
        if stored.state is ProvisionState.FAILED and stored.cause is not None:
            data["error"] = stored.cause
        publish(tx, node.tenant_id, f"node/{node.id}", "node.state", data)
    return stored


def put_provision(tx: Transaction, row: ProvisionRow) -> None:
    """Stores the row as it is, whatever was there before, and tells nobody."""
    tx.run(_STORE, params_of(row))


def put_run(tx: Transaction, run: RunRow) -> None:
    places = ", ".join(f":{name}" for name in RunRow.__struct_fields__)
    tx.run(f"INSERT INTO provision_runs ({_RUN_COLUMNS}) VALUES ({places})", params_of(run))


def get_run(tx: Transaction, workflow_id: str) -> RunRow | None:
    """None for a workflow that metal did not start, or that was forgotten."""
    return tx.one(
        f"SELECT {_RUN_COLUMNS} FROM provision_runs WHERE workflow_id = :id", {"id": workflow_id}, into=RunRow
    )


def _unasked(node: NodeRow) -> ProvisionRow:
    return ProvisionRow(node_id=node.id, tenant_id=node.tenant_id, since=node.created_at, updated_at=node.created_at)
