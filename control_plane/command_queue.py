"""What the agents are owed: commands that wait to be sent, in their order, and cancels that were asked for."""

from collections.abc import Iterable

import msgspec

from control_plane.commands import OPEN
from control_plane.records import CommandRow, SessionRow, columns
from control_plane.store import Transaction

__all__ = ["SEND_WINDOW", "cancels_owed", "mark_sent", "owed_to_worker", "queue_order"]

SEND_WINDOW = 2_000
"""How many unfinished commands an agent is sent from the queue; an agent holds a bounded number and rejects more."""


def queue_order(tx: Transaction) -> str:
    """How commands that wait follow each other: as they were queued.

    One process makes ids that only grow; several have clocks that differ, and the database's own decides.
    """
    return "commands.id" if tx.dialect == "sqlite" else "commands.created_at, commands.id"


def mark_sent(tx: Transaction, rows: Iterable[CommandRow], session: SessionRow) -> list[CommandRow]:
    """The rows as they are now. Durable before the frames leave: it tells an arrived command from a lost one."""
    sent = [msgspec.structs.replace(row, sent_session=session.id, sent_journal=session.journal_id) for row in rows]
    if sent:
        tx.run(
            "UPDATE commands SET sent_session = :session, sent_journal = :journal WHERE id IN EACH(:ids)",
            {"session": session.id, "journal": session.journal_id, "ids": [row.id for row in sent]},
        )
    return sent


def owed_to_worker(
    tx: Transaction, worker: str, agents: list[str], limit: int, live: frozenset[str] | None = None
) -> list[tuple[CommandRow, SessionRow]]:
    """Queued commands whose agent is connected to this worker and that were not sent over that connection.

    Of these agents only; of every one when the list is empty. `live` names the connections that are really there: a
    command of another one is left as never sent, which it is. Each agent is given no more than leaves it within
    `SEND_WINDOW`, so that a long queue neither overruns it nor keeps others waiting. The agents' rows are held, so
    that no newer connection is planned for meanwhile: a command marked for an old one could be sent over both.
    """
    owed: list[tuple[CommandRow, SessionRow]] = []
    for session in _owed_sessions(tx, worker, agents):
        if live is not None and session.id not in live:
            continue
        held = tx.one(
            f"SELECT COUNT(*) FROM commands WHERE agent_id = :agent_id AND {OPEN} AND sent_session = :session",
            {"agent_id": session.agent_id, "session": session.id},
        )
        room = min(limit - len(owed), SEND_WINDOW - (int(held[0]) if held is not None else 0))
        if room > 0:
            owed += [(row, session) for row in _owed_over(tx, session, room)]
        if len(owed) >= limit:
            break
    return owed


def _owed_sessions(tx: Transaction, worker: str, agents: list[str]) -> list[SessionRow]:
    return tx.all(
        f"""
        SELECT {columns(SessionRow, "sessions")} FROM sessions JOIN agents ON agents.session_id = sessions.id
        WHERE sessions.worker = :worker AND sessions.disconnected_at IS NULL AND agents.revoked_at IS NULL
            {"AND agents.id IN EACH(:agents)" if agents else ""}
            AND EXISTS (
                SELECT 1 FROM commands WHERE commands.agent_id = agents.id AND commands.state = 'queued'
                    AND (commands.sent_session IS NULL OR commands.sent_session <> sessions.id)
                    AND commands.cancel_reason IS NULL
            )
        """,
        {"worker": worker} | ({"agents": agents} if agents else {}),
        into=SessionRow,
    )


def _owed_over(tx: Transaction, session: SessionRow, limit: int) -> list[CommandRow]:
    return tx.all(
        f"""
        SELECT {columns(CommandRow, "commands")} FROM commands JOIN agents ON agents.id = commands.agent_id
        WHERE commands.agent_id = :agent_id AND commands.state = 'queued' AND agents.session_id = :session
            AND (commands.sent_session IS NULL OR commands.sent_session <> :session)
            AND commands.cancel_reason IS NULL
        ORDER BY {queue_order(tx)} LIMIT :limit
        FOR UPDATE OF commands SKIP LOCKED FOR SHARE OF agents SKIP LOCKED
        """,
        {"agent_id": session.agent_id, "session": session.id, "limit": limit},
        into=CommandRow,
    )


def cancels_owed(tx: Transaction, worker: str, agents: list[str], limit: int, after: str = "") -> list[CommandRow]:
    """Open commands of this worker's agents for which a cancel was asked; by id, behind the id `after`."""
    return tx.all(
        f"""
        SELECT {columns(CommandRow, "commands")} FROM commands
            JOIN agents ON agents.id = commands.agent_id
            JOIN sessions ON sessions.id = agents.session_id
        WHERE commands.{OPEN} AND commands.cancel_reason IS NOT NULL
            {"AND commands.agent_id IN EACH(:agents)" if agents else ""}
            AND sessions.worker = :worker AND sessions.disconnected_at IS NULL AND commands.id > :after
        ORDER BY commands.id LIMIT :limit
        """,
        {"worker": worker, "limit": limit, "after": after} | ({"agents": agents} if agents else {}),
        into=CommandRow,
    )
