"""The labels that inventories have found: kept beside the node's own, which an operator writes, and which win."""

import logging
from collections.abc import Mapping

import msgspec

from control_plane.inventory_labels import with_found
from control_plane.store import Transaction, json_text
from protocol.shapes.inspect import Inventory

__all__ = ["INVENTORY", "found_labels", "note_inventory"]

_log = logging.getLogger("control_plane.found_labels")
INVENTORY = "inspect.getInventory"
"""The operation whose result is read for labels."""


def note_inventory(tx: Transaction, node_id: str, result: object) -> dict[str, str]:
    """Stores what an inventory says of the node; an unreadable one changes nothing. The labels found so far."""
    known = found_labels(tx, [node_id]).get(node_id, {})
    try:
        inventory = msgspec.convert(result, Inventory)
    except msgspec.ValidationError as error:
        _log.warning("the inventory of %s gives no labels: %s", node_id, error)
        return known
    labels = with_found(known, inventory)
    tx.run(
        "INSERT INTO found_labels (node_id, labels, found_at) VALUES (:node, :labels, :now) "
        "ON CONFLICT (node_id) DO UPDATE SET labels = excluded.labels, found_at = excluded.found_at",
        {"node": node_id, "labels": json_text(labels), "now": tx.now()},
    )
    return labels


def found_labels(tx: Transaction, node_ids: list[str]) -> Mapping[str, dict[str, str]]:
    """By node; one of which nothing was found is not there."""
    rows = tx.all("SELECT node_id, labels FROM found_labels WHERE node_id IN EACH(:ids)", {"ids": node_ids})
    return {node_id: msgspec.json.decode(labels, type=dict[str, str]) for node_id, labels in rows}
