"""A machine's own agent joins: a new boot with a good token takes the place of the boot before, at once.

A node has one agent of each role. Each boot gets a certificate of its own, so that what an earlier boot was given,
and older tokens of the machine, are dead from then on (case B47). What was under way follows the rules of `resume`:
the new boot's journal knows nothing of it.
"""

from typing import NamedTuple

from control_plane.events import publish
from control_plane.join_tokens import JoinedBefore, join_agent, spendable_token
from control_plane.machine_facts import known_elsewhere, known_of, note_marks
from control_plane.machine_match import contradiction
from control_plane.nodes import find_node
from control_plane.records import AgentRow, JoinTokenRow, NodeRow, columns
from control_plane.store import Transaction
from protocol.errors import RequestCode, RequestError
from protocol.machine_facts import MachineFacts, marks_of

__all__ = ["Ambiguous", "bound_node", "join_machine", "last_refusal"]

_AGENT = columns(AgentRow)


class Ambiguous(NamedTuple):
    """The machine cannot be the one that the token is for. The token is dead: it has come to the wrong place."""

    message: str


def bound_node(tx: Transaction, token_id: str) -> str | None:
    """The machine that a token is bound to."""
    row = tx.one("SELECT node_id FROM join_tokens WHERE id = :id", {"id": token_id})
    return None if row is None else row[0]


def join_machine(
    tx: Transaction,
    token_id: str,
    secret: str,
    key_sha256: str,
    host_name: str,
    version: str,
    machine: MachineFacts | None,
) -> AgentRow | JoinedBefore | Ambiguous:
    """Spends a machine's token, and gives the agent that has joined. Raises RequestError FORBIDDEN.

    The refusal of a contradiction is stored, so it is returned and not raised.
    """
    node_id = bound_node(tx, token_id)
    # The node first, as everybody else locks: then two boots of it join one after the other.
    tx.one("SELECT id FROM nodes WHERE id = :id FOR UPDATE", {"id": node_id})
    token = spendable_token(tx, token_id, secret, key_sha256)
    if isinstance(token, JoinedBefore):
        return token
    try:
        node = find_node(tx, token.tenant_id, token.node_id or "")
    except RequestError as error:
        raise RequestError(
            RequestCode.FORBIDDEN, "the machine that this token is for is not there any more"
        ) from error
    marks = marks_of(machine or MachineFacts())
    why = contradiction(marks, known_of(tx, node.id), known_elsewhere(tx, node.tenant_id, node.id, marks))
    if why is not None:
        return _refuse(tx, node, token, why)
    _kill_tokens(tx, token)
    note_marks(tx, node.id, "host", marks)
    tx.run("DELETE FROM node_refusals WHERE node_id = :node", {"node": node.id})
    return join_agent(tx, token, host_name, version, _agent_of(tx, node.id, token.role))


def last_refusal(tx: Transaction, node_id: str, since_ms: int = 0) -> str | None:
    """Why the machine's own agent was last refused, at that time or later; None once it has joined."""
    row = tx.one(
        "SELECT reason FROM node_refusals WHERE node_id = :node AND refused_at >= :since",
        {"node": node_id, "since": since_ms},
    )
    return None if row is None else str(row[0])


def _agent_of(tx: Transaction, node_id: str, role: str) -> AgentRow | None:
    """An agent that an operator has revoked stays so: another one joins in its place."""
    return tx.one(
        f"SELECT {_AGENT} FROM agents WHERE node_id = :node AND role = :role AND revoked_at IS NULL "
        "ORDER BY id DESC LIMIT 1 FOR UPDATE",
        {"node": node_id, "role": role},
        into=AgentRow,
    )


def _kill_tokens(tx: Transaction, used: JoinTokenRow) -> None:
    """Those that were made before the one that is used, for the same machine and role."""
    tx.run(
        "UPDATE join_tokens SET expires_at = :now WHERE node_id = :node AND role = :role AND used_at IS NULL "
        "AND expires_at > :now AND id <> :used AND (created_at < :made OR (created_at = :made AND id < :used))",
        {"node": used.node_id, "role": used.role, "used": used.id, "made": used.created_at, "now": tx.now()},
    )


def _refuse(tx: Transaction, node: NodeRow, token: JoinTokenRow, why: str) -> Ambiguous:
    tx.run("UPDATE join_tokens SET expires_at = :now WHERE id = :id", {"id": token.id, "now": tx.now()})
    reason = f"AMBIGUOUS_MACHINE: the machine that has started is not {node.name!r}: {why}"
    tx.run(
        "INSERT INTO node_refusals (node_id, role, reason, refused_at) VALUES (:node, :role, :reason, :now) "
        "ON CONFLICT (node_id) DO UPDATE SET role = excluded.role, reason = excluded.reason, "
        "refused_at = excluded.refused_at",
        {"node": node.id, "role": token.role, "reason": reason, "now": tx.now()},
    )
    publish(
        tx,
        node.tenant_id,
        f"node/{node.id}",
        "node.ambiguous",
        {"nodeId": node.id, "name": node.name, "role": token.role, "reason": why},
    )
    return Ambiguous(
        f"this machine is not {node.name!r}: {why}. If its mainboard was replaced, read its inventory through its "
        "BMC (inspect.getInventory) and start it again; else look whether the node's BMC address is the right one"
    )
