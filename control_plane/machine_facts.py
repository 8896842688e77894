"""What is known of each machine by which it can be told from others: learnt from inventories, and from joins.

What the BMC tells comes first, since a node is the machine that its BMC commands: where its UUID or serial number has
changed (a mainboard was replaced), what the machine had said of itself before is forgotten.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

import msgspec

from control_plane.machine_match import Known
from control_plane.store import Transaction
from protocol.machine_facts import MachineFacts, Marks, marks_of
from protocol.shapes.inspect import Inventory

__all__ = ["Source", "find_machine", "known_elsewhere", "known_of", "note_inventory_marks", "note_marks"]

_log = logging.getLogger("control_plane.machine_facts")
Source = Literal["bmc", "host"]


def note_inventory_marks(tx: Transaction, node_id: str, result: object, source: Source) -> None:
    """Learns from an inventory; an unreadable one, or one of a node that is gone, changes nothing."""
    try:
        inventory = msgspec.convert(result, Inventory)
    except msgspec.ValidationError as error:
        _log.warning("the inventory of %s tells no machine from another: %s", node_id, error)
        return
    macs = [mac for nic in inventory.nics for mac in (nic.mac, nic.permanent_mac) if mac is not None]
    facts = MachineFacts(uuid=inventory.system.uuid, serial=inventory.system.serial, macs=macs)
    # The node's row is not waited for: whoever holds it may wait for the command whose ending this is part of.
    if tx.one("SELECT 1 FROM nodes WHERE id = :id", {"id": node_id}) is not None:
        note_marks(tx, node_id, source, marks_of(facts))


def note_marks(tx: Transaction, node_id: str, source: Source, marks: Marks) -> None:
    """Stores what one source says, kind by kind: what it does not tell this time stays as it was."""
    told = _by_kind(marks.pairs())
    before = _by_kind(
        (str(kind), str(value))
        for kind, value in tx.all(
            "SELECT kind, value FROM node_facts WHERE node_id = :node AND source = :source",
            {"node": node_id, "source": source},
        )
    )
    changed = {kind: values for kind, values in told.items() if values != before.get(kind)}
    for kind, values in changed.items():
        tx.run(
            "DELETE FROM node_facts WHERE node_id = :node AND source = :source AND kind = :kind",
            {"node": node_id, "source": source, "kind": kind},
        )
        for value in sorted(values):
            _put(tx, node_id, source, kind, value)
    if source == "bmc" and any(kind in before and kind != "mac" for kind in changed):
        tx.run("DELETE FROM node_facts WHERE node_id = :node AND source = 'host'", {"node": node_id})


def known_of(tx: Transaction, node_id: str) -> Known:
    """By any source."""
    rows = tx.all("SELECT kind, value FROM node_facts WHERE node_id = :node", {"node": node_id})
    return _by_kind((str(kind), str(value)) for kind, value in rows)


def known_elsewhere(tx: Transaction, tenant_id: str, node_id: str, marks: Marks) -> dict[tuple[str, str], str]:
    """Which of these values, and of those that are known of the node, another machine of the tenant has; its name."""
    own = {value for values in known_of(tx, node_id).values() for value in values}
    rows = tx.all(
        "SELECT node_facts.kind, node_facts.value, nodes.name FROM node_facts "
        "JOIN nodes ON nodes.id = node_facts.node_id "
        "WHERE node_facts.value IN EACH(:values) AND nodes.id <> :node AND nodes.tenant_id = :tenant",
        {"values": sorted(own | {value for _, value in marks.pairs()}), "node": node_id, "tenant": tenant_id},
    )
    return {(str(kind), str(value)): str(name) for kind, value, name in rows}


def find_machine(tx: Transaction, node_ids: list[str], marks: Marks) -> str | None:
    """The one of these nodes that is known with any of these values; None where there is none, or several are."""
    pairs = set(marks.pairs())
    rows = tx.all(
        "SELECT node_id, kind, value FROM node_facts WHERE value IN EACH(:values) AND node_id IN EACH(:nodes)",
        {"values": [value for _, value in pairs], "nodes": node_ids},
    )
    found = {str(node_id) for node_id, kind, value in rows if (kind, value) in pairs}
    return found.pop() if len(found) == 1 else None


def _put(tx: Transaction, node_id: str, source: Source, kind: str, value: str) -> None:
    tx.run(
        "INSERT INTO node_facts (node_id, source, kind, value, seen_at) VALUES (:node, :source, :kind, :value, :now) "
        "ON CONFLICT DO NOTHING",
        {"node": node_id, "source": source, "kind": kind, "value": value, "now": tx.now()},
    )


def _by_kind(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    kinds: defaultdict[str, set[str]] = defaultdict(set)
    for kind, value in pairs:
        kinds[kind].add(value)
    return dict(kinds)
