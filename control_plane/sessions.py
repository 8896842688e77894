"""Agents and their connections: connecting, superseding, revoking."""

from control_plane.commands import WORKFLOWS_CHANNEL
from control_plane.events import publish
from control_plane.node_specs import note_held
from control_plane.records import AgentRow, SessionRow, columns
from control_plane.resume import Resume, plan_resume
from control_plane.store import Transaction, json_text, params_of
from protocol.errors import RequestCode, RequestError
from protocol.frames import Hello
from protocol.ids import new_id

__all__ = [
    "LONGEST_NAME",
    "SUPERSEDED_CHANNEL",
    "AgentRevoked",
    "close_session",
    "close_silent_sessions",
    "close_worker_sessions",
    "count_agents",
    "get_agent",
    "list_agents",
    "list_connected_agents",
    "lock_session",
    "make_ready",
    "note_gateway",
    "open_session",
    "record_certificate",
    "refuse_revoked",
    "revoke_agent",
    "revoke_agents_of",
    "revoked_of_worker",
    "supersede_agent",
    "supersede_agents_of",
]

_AGENT = columns(AgentRow)
_SESSION = columns(SessionRow)


LONGEST_NAME = 255
"""Of what a host says of itself: it is shown in lists."""
_FORGOTTEN_MS = 86_400_000
_SUPERSEDED = "superseded by a new boot of the machine"
SUPERSEDED_CHANNEL = "superseded"
"""Payload: the id of a session whose connection is to be closed."""


class AgentRevoked(Exception):
    """The agent is unknown here, or was revoked: it must not connect."""


def supersede_agent(tx: Transaction, agent: AgentRow) -> None:
    """The agent's earlier certificates are of no use any more, and its open connection is over."""
    now = tx.now()
    tx.run(
        "UPDATE certificates SET revoked_at = :now WHERE agent_id = :id AND revoked_at IS NULL",
        {"id": agent.id, "now": now},
    )
    if agent.session_id is not None:
        _close(tx, agent.session_id, _SUPERSEDED, now)
        tx.notify(SUPERSEDED_CHANNEL, agent.session_id)


def supersede_agents_of(tx: Transaction, node_id: str, role: str) -> None:
    """What the machine's agents of this role were given is of no use any more: the system that they ran in is gone,
    or another one is installed. They join anew by a ticket of their own."""
    agents = tx.all(
        f"SELECT {_AGENT} FROM agents WHERE node_id = :node AND role = :role AND revoked_at IS NULL FOR UPDATE",
        {"node": node_id, "role": role},
        into=AgentRow,
    )
    for agent in agents:
        supersede_agent(tx, agent)


def record_certificate(tx: Transaction, agent_id: str, serial: str, not_after: int) -> None:
    tx.run(
        "INSERT INTO certificates (serial, agent_id, issued_at, not_after) "
        "VALUES (:serial, :agent_id, :now, :not_after)",
        {"serial": serial, "agent_id": agent_id, "now": tx.now(), "not_after": not_after},
    )


def open_session(
    tx: Transaction, hello: Hello, worker: str, certificate: str | None = None
) -> tuple[SessionRow, AgentRow, Resume]:
    """Opens the agent's connection; an older one of the same agent is superseded.

    `certificate`: the serial number of the one that it connects with. Raises AgentRevoked. The plan's commands must
    be marked as sent before they are sent, and are sent only after `make_ready`. A journal that did not note the last
    ready session is a copy, or from before: what was sent since may have been done without its knowledge, and no act
    of it is sent again.
    """
    agent = tx.one(f"SELECT {_AGENT} FROM agents WHERE id = :id FOR UPDATE", {"id": hello.agent_id}, into=AgentRow)
    if agent is None or agent.revoked_at is not None:
        reason = agent.revoked_reason if agent else None
        raise AgentRevoked(reason or "the agent is not known here")
    if agent.node_id is not None and _is_superseded(tx, certificate):
        raise AgentRevoked(f"{_SUPERSEDED}: what an earlier one was given is of no use any more")
    now = tx.now()
    beside = _is_open_elsewhere(tx, agent, hello)
    if agent.session_id is not None:
        _close(tx, agent.session_id, "superseded by a newer connection of the same agent", now)
    session = SessionRow(
        new_id("ses"), agent.id, agent.role, hello.boot_id, hello.journal_id, worker, now, None, None, hello.instance
    )
    tx.run(
        f"INSERT INTO sessions ({_SESSION}) VALUES ({', '.join(':' + c for c in SessionRow.__struct_fields__)})",
        params_of(session),
    )
    tx.run(
        "UPDATE agents SET session_id = :session, version = :version, host_name = :host_name, drivers = :drivers "
        "WHERE id = :id",
        {
            "id": agent.id,
            "session": session.id,
            "version": hello.version[:LONGEST_NAME],
            "host_name": hello.host_name[:LONGEST_NAME],
            "drivers": json_text(hello.drivers),
        },
    )
    publish(
        tx,
        agent.tenant_id,
        f"agent/{agent.id}",
        "agent.connected",
        {"sessionId": session.id, "bootId": hello.boot_id},
    )
    note_held(tx, agent, hello.node_spec)
    _hint_workflow(tx, agent)
    continuous = not beside and (agent.ready_session is None or hello.last_session == agent.ready_session)
    if not continuous:
        publish(tx, agent.tenant_id, f"agent/{agent.id}", "agent.journal-behind", {"sessionId": session.id})
    resume = plan_resume(tx, session, {held.id: held.state for held in hello.held}, continuous=continuous)
    return session, agent, resume


def _is_superseded(tx: Transaction, certificate: str | None) -> bool:
    row = tx.one("SELECT revoked_at FROM certificates WHERE serial = :serial", {"serial": certificate or ""})
    return row is not None and row[0] is not None


def _is_open_elsewhere(tx: Transaction, agent: AgentRow, hello: Hello) -> bool:
    """Whether another process of this agent is still connected: a dead one's host closes its connections."""
    row = tx.one(
        "SELECT instance FROM sessions WHERE id = :id AND disconnected_at IS NULL", {"id": agent.session_id or ""}
    )
    return row is not None and row[0] != hello.instance


def make_ready(tx: Transaction, session: SessionRow) -> int | None:
    """The agent's journal has noted the session: commands may be sent over it from now on.

    Returns the store's time; None where a newer connection was opened meanwhile.
    """
    changed = tx.run(
        "UPDATE agents SET ready_session = :session WHERE id = :agent AND session_id = :session",
        {"session": session.id, "agent": session.agent_id},
    )
    return tx.now() if changed else None


def _hint_workflow(tx: Transaction, agent: AgentRow) -> None:
    """The machine's workflow may wait for just this: a rejoin, or an agent to send a step's command to."""
    if agent.node_id is None:
        return
    active = tx.one(
        "SELECT id FROM workflows WHERE node_id = :node_id AND state IN ('pending', 'running', 'paused')",
        {"node_id": agent.node_id},
    )
    if active is not None:
        tx.notify(WORKFLOWS_CHANNEL, active[0])


def close_session(tx: Transaction, session_id: str, reason: str) -> None:
    """The connection is gone. A session that was superseded meanwhile stays as it is."""
    closed = _close(tx, session_id, reason, tx.now())
    if closed is not None:
        publish(
            tx, closed[1], f"agent/{closed[0]}", "agent.disconnected", {"sessionId": session_id, "reason": reason}
        )


def close_worker_sessions(tx: Transaction, worker: str) -> int:
    """At a worker's start: what it left open when it last ended is not connected any more."""
    note_gateway(tx, worker)
    return tx.run(
        "UPDATE sessions SET disconnected_at = :now, disconnect_reason = 'the worker restarted' "
        "WHERE worker = :worker AND disconnected_at IS NULL",
        {"worker": worker, "now": tx.now()},
    )


def close_silent_sessions(tx: Transaction, silent_ms: int) -> int:
    """What workers left open that did not say for `silent_ms` that they live: most likely their host is gone.

    One that lives all the same, cut off from the database for a while, closes these connections when it hears of it.
    """
    now = tx.now()
    silent = tx.all(
        "SELECT sessions.id FROM gateways JOIN sessions ON sessions.worker = gateways.worker "
        "WHERE gateways.seen_at <= :since AND sessions.disconnected_at IS NULL",
        {"since": now - silent_ms},
    )
    for (session_id,) in silent:
        close_session(tx, session_id, "its worker fell silent")
        tx.notify(SUPERSEDED_CHANNEL, session_id)
    tx.run("DELETE FROM gateways WHERE seen_at < :long_ago", {"long_ago": now - _FORGOTTEN_MS})
    return len(silent)


def note_gateway(tx: Transaction, worker: str) -> None:
    """This worker lives, and so do the connections that it has."""
    tx.run(
        "INSERT INTO gateways (worker, seen_at) VALUES (:worker, :now) "
        "ON CONFLICT (worker) DO UPDATE SET seen_at = excluded.seen_at",
        {"worker": worker, "now": tx.now()},
    )


def get_agent(tx: Transaction, tenant_id: str, agent_id: str) -> tuple[AgentRow, SessionRow | None]:
    """The agent and its latest session. Raises RequestError NOT_FOUND."""
    agent = tx.one(
        f"SELECT {_AGENT} FROM agents WHERE id = :id AND tenant_id = :tenant_id",
        {"id": agent_id, "tenant_id": tenant_id},
        into=AgentRow,
    )
    if agent is None:
        raise RequestError(RequestCode.NOT_FOUND, f"there is no agent {agent_id!r}")
    return agent, _session(tx, agent)


def list_agents(tx: Transaction, tenant_id: str, after: str, limit: int) -> list[tuple[AgentRow, SessionRow | None]]:
    """By id, behind the id `after`, each with its latest session."""
    agents = tx.all(
        f"SELECT {_AGENT} FROM agents WHERE tenant_id = :tenant_id AND id > :after ORDER BY id LIMIT :limit",
        {"tenant_id": tenant_id, "after": after, "limit": limit},
        into=AgentRow,
    )
    sessions = tx.all(
        f"SELECT {_SESSION} FROM sessions WHERE id IN EACH(:ids)",
        {"ids": [agent.session_id for agent in agents if agent.session_id]},
        into=SessionRow,
    )
    by_id = {session.id: session for session in sessions}
    return [(agent, by_id.get(agent.session_id or "")) for agent in agents]


def list_connected_agents(tx: Transaction, tenant_id: str, after: str, limit: int) -> list[AgentRow]:
    """Those with an open connection, by id, behind the id `after`."""
    return tx.all(
        f"""
        SELECT {columns(AgentRow, "agents")} FROM agents JOIN sessions ON sessions.id = agents.session_id
        WHERE agents.tenant_id = :tenant_id AND agents.id > :after
            AND sessions.disconnected_at IS NULL AND agents.revoked_at IS NULL
        ORDER BY agents.id LIMIT :limit
        """,
        {"tenant_id": tenant_id, "after": after, "limit": limit},
        into=AgentRow,
    )


def lock_session(tx: Transaction, agent_id: str) -> str | None:
    """The agent's present session, which no newer connection can supersede until this transaction is over."""
    row = tx.one("SELECT session_id FROM agents WHERE id = :id FOR SHARE", {"id": agent_id})
    return None if row is None else row[0]


def revoke_agent(tx: Transaction, tenant_id: str, agent_id: str, reason: str) -> AgentRow:
    """Denies the agent for ever. Its live connection is closed by its worker, which hears of the event.

    Raises RequestError NOT_FOUND. Revoking twice changes nothing.
    """
    agent, _ = get_agent(tx, tenant_id, agent_id)
    changed = tx.run(
        "UPDATE agents SET revoked_at = :now, revoked_reason = :reason WHERE id = :id AND revoked_at IS NULL",
        {"id": agent_id, "now": tx.now(), "reason": reason},
    )
    if changed:
        tx.run("UPDATE sites SET agent_id = NULL WHERE agent_id = :id", {"id": agent_id})
        publish(tx, tenant_id, f"agent/{agent_id}", "agent.revoked", {"reason": reason})
        tx.notify(REVOKED_CHANNEL, agent_id)
    return get_agent(tx, tenant_id, agent.id)[0]


def revoke_agents_of(tx: Transaction, tenant_id: str, node_id: str, reason: str) -> None:
    """The machine's own agents, when it is forgotten."""
    rows = tx.all("SELECT id FROM agents WHERE node_id = :node AND revoked_at IS NULL", {"node": node_id})
    for (agent_id,) in rows:
        revoke_agent(tx, tenant_id, agent_id, reason)


REVOKED_CHANNEL = "revoked"
"""Payload: the id of an agent whose connection is to be closed."""


def refuse_revoked(tx: Transaction, agent_id: str) -> None:
    """Raises RequestError FORBIDDEN where the agent was revoked; it cannot be until this transaction is over."""
    row = tx.one("SELECT revoked_at FROM agents WHERE id = :id FOR SHARE", {"id": agent_id})
    if row is None or row[0] is not None:
        raise RequestError(RequestCode.FORBIDDEN, "this agent was revoked")


def revoked_of_worker(tx: Transaction, worker: str) -> list[str]:
    """Revoked agents with an open connection to this worker, whose hint may have been lost."""
    rows = tx.all(
        "SELECT agents.id FROM agents JOIN sessions ON sessions.id = agents.session_id "
        "WHERE sessions.worker = :worker AND sessions.disconnected_at IS NULL AND agents.revoked_at IS NOT NULL",
        {"worker": worker},
    )
    return [str(row[0]) for row in rows]


def count_agents(tx: Transaction) -> int:
    """How many could be connected at once."""
    row = tx.one("SELECT COUNT(*) FROM agents WHERE revoked_at IS NULL")
    return 0 if row is None else int(row[0])


def _session(tx: Transaction, agent: AgentRow) -> SessionRow | None:
    if agent.session_id is None:
        return None
    return tx.one(f"SELECT {_SESSION} FROM sessions WHERE id = :id", {"id": agent.session_id}, into=SessionRow)


def _close(tx: Transaction, session_id: str, reason: str, now: int) -> tuple[str, str] | None:
    row = tx.one(
        """
        UPDATE sessions SET disconnected_at = :now, disconnect_reason = :reason
        WHERE id = :id AND disconnected_at IS NULL
        RETURNING agent_id, (SELECT tenant_id FROM agents WHERE agents.id = sessions.agent_id)
        """,
        {"id": session_id, "now": now, "reason": reason},
    )
    return None if row is None else (row[0], row[1])
