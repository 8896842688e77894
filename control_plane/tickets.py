"""Boot tickets: made when a site's agent, or a machine's ramdisk, asks for one, and kept as a hash alone.

A site's agent gets tickets for machines of its own site only, a ramdisk only the one of the system that it has
installed, while a step that is to bring it is under way.
"""

import hashlib
import hmac
import re
from typing import NamedTuple

from control_plane.boot_settings import boot_settings
from control_plane.events import publish
from control_plane.join_tokens import create_join_token
from control_plane.machine_facts import find_machine
from control_plane.machine_joining import last_refusal
from control_plane.metal.image_steps import daemon_ticket_wanted
from control_plane.records import AgentRow, NodeRow, SessionRow, columns
from control_plane.sessions import supersede_agents_of
from control_plane.store import Transaction
from protocol.boot_ticket import BootTicket, to_json
from protocol.frames import Ticket, TicketRequest
from protocol.image_admission import CHECKSUM
from protocol.join_token import JoinToken
from protocol.machine_facts import marks_of
from protocol.secret import Secret

__all__ = ["Issuer", "answer_request", "last_refusal", "mint"]

RAMDISK_LIFE_MS = 3_600_000
DAEMON_LIFE_MS = 86_400_000
"""The installed system may be started long after it was written."""
_ADMISSION_DIGITS = 40
"""160 bits, in hexadecimal."""
_FRESH_SHARE = 3
"""A ticket at hand is renewed once less than this part (a third) of its life is left."""


class Issuer(NamedTuple):
    """What every ticket says of this control plane."""

    ca_sha256: str
    agent_url: str


def answer_request(
    tx: Transaction, session: SessionRow, asked: TicketRequest, issuer: Issuer, image_key: Secret
) -> Ticket:
    """The answer to an agent's request over its present connection."""
    agent = tx.one(
        f"SELECT {columns(AgentRow)} FROM agents WHERE id = :id AND session_id = :session AND revoked_at IS NULL "
        "FOR SHARE",
        {"id": session.agent_id, "session": session.id},
        into=AgentRow,
    )
    if agent is None:
        return Ticket(id=asked.id, refusal="this connection is not the agent's present one")
    node_id = _meant(tx, agent, asked)
    node = None if node_id is None else _servable(tx, agent, node_id, asked.purpose)
    if node is None:
        return Ticket(id=asked.id, refusal=_no_such_machine(agent, asked))
    if asked.purpose == "image":
        return _admission(node.id, asked, image_key)
    if asked.purpose == "daemon" and not daemon_ticket_wanted(tx, node.id):
        return Ticket(
            id=asked.id, node_id=node.id, refusal="no step of the machine's workflow is to bring it a daemon's ticket"
        )
    if asked.holds and _is_fresh(tx, node.id, asked.holds):
        return Ticket(id=asked.id, node_id=node.id)
    joined = bool(asked.holds) and _has_joined_since(tx, node.id, asked.holds)
    if asked.purpose == "daemon":
        # Only the new system's agent is to be taken for it: one of before may start from another disk.
        supersede_agents_of(tx, node.id, "daemon")
    ticket = mint(tx, node, asked.purpose, issuer, by=agent.id)
    return Ticket(id=asked.id, node_id=node.id, ticket=to_json(ticket).decode(), joined=joined)


def mint(tx: Transaction, node: NodeRow, role: str, issuer: Issuer, *, by: str) -> BootTicket:
    """A ticket for one join of this machine in this role. Those made before stay good until one of them is used."""
    token = JoinToken.new(issuer.ca_sha256)
    row = create_join_token(
        tx,
        token,
        tenant_id=node.tenant_id,
        site_id=node.site_id,
        role=role,
        created_by=by,
        ttl_ms=_life_ms(role),
        node_id=node.id,
    )
    publish(
        tx,
        node.tenant_id,
        f"node/{node.id}",
        "node.ticket-made",
        {"nodeId": node.id, "joinTokenId": row.id, "role": role, "by": by},
    )
    settings = boot_settings(tx, node.id)
    return BootTicket(
        node_id=node.id,
        control_plane=issuer.agent_url,
        token=Secret(token.text()),
        network=settings.network,
        serial_console=settings.serial_console,
        expires_at=row.expires_at,
    )


def _meant(tx: Transaction, agent: AgentRow, asked: TicketRequest) -> str | None:
    if asked.node_id:
        return asked.node_id
    if asked.purpose != "ramdisk":
        return agent.node_id
    return find_machine(tx, asked.among, marks_of(asked.machine)) if asked.machine is not None else None


def _servable(tx: Transaction, agent: AgentRow, node_id: str, purpose: str) -> NodeRow | None:
    """The node, where this agent may have this ticket for it."""
    node = tx.one(
        f"SELECT {columns(NodeRow)} FROM nodes WHERE id = :id AND tenant_id = :tenant",
        {"id": node_id, "tenant": agent.tenant_id},
        into=NodeRow,
    )
    if node is None:
        return None
    is_own = agent.role == "ramdisk" and agent.node_id == node.id
    if purpose == "daemon" or (purpose == "image" and is_own):
        return node if is_own else None
    site = tx.one("SELECT agent_id FROM sites WHERE id = :id", {"id": node.site_id})
    return node if agent.role == "site" and site is not None and site[0] == agent.id else None


def _admission(node_id: str, asked: TicketRequest, key: Secret) -> Ticket:
    if not re.fullmatch(CHECKSUM, asked.checksum):
        return Ticket(id=asked.id, node_id=node_id, refusal="this is no checksum of an image")
    made = hmac.digest(bytes.fromhex(key.reveal()), f"image {node_id} {asked.checksum}".encode(), hashlib.sha256)
    return Ticket(id=asked.id, node_id=node_id, ticket=made.hex()[:_ADMISSION_DIGITS])


def _no_such_machine(agent: AgentRow, asked: TicketRequest) -> str:
    if asked.purpose == "image":
        return "images are for the machine's own ramdisk and its site's agent alone"
    if asked.purpose == "daemon":
        return "a daemon's ticket is for the machine's own ramdisk alone"
    if agent.role != "site":
        return "a ramdisk's ticket is for the site's own agent alone"
    return "this agent's site has no such machine" if asked.node_id else "no machine that is to start is known so"


def _is_fresh(tx: Transaction, node_id: str, token_id: str) -> bool:
    row = tx.one(
        "SELECT role, expires_at FROM join_tokens WHERE id = :id AND node_id = :node AND used_at IS NULL",
        {"id": token_id, "node": node_id},
    )
    return row is not None and row[1] - tx.now() > _life_ms(row[0]) // _FRESH_SHARE


def _has_joined_since(tx: Transaction, node_id: str, token_id: str) -> bool:
    """A token that is no longer known is one that was forgotten long after its time."""
    row = tx.one(
        """
        SELECT 1 FROM join_tokens AS held JOIN join_tokens AS used
            ON used.node_id = held.node_id AND used.role = held.role AND used.used_at >= held.created_at
        WHERE held.id = :id AND held.node_id = :node LIMIT 1
        """,
        {"id": token_id, "node": node_id},
    )
    return row is not None


def _life_ms(role: str) -> int:
    return DAEMON_LIFE_MS if role == "daemon" else RAMDISK_LIFE_MS
