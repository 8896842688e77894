"""The command ledger: what was asked of which agent, and what became of it.

A command is written here before it is sent, and the connection it is sent over is written before the frame leaves
(`sent_session`, `sent_journal`). From that and from what an agent says it holds, `plan_resume` decides after any
crash or cut whether a command may be sent again:

- never sent, or sent to the same journal that does not hold it: it never arrived. Send it.
- sent to another journal (the agent's disk was lost, or a ramdisk booted anew), or acknowledged by a journal that
  holds it no more: it may have been done. Harmless to repeat: send it. An act: it ends as OUTCOME_UNKNOWN.

Reports may overtake each other; a command's state only ever moves forward (`protocol.commands.TRANSITIONS`).
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

import msgspec

from control_plane.events import publish
from control_plane.nodes import pin_certificate
from control_plane.records import CommandRow, SessionRow, columns
from control_plane.store import Transaction, json_text, params_of
from protocol.commands import TERMINAL, CommandState, Ending, JournalState, Outcome, may_follow
from protocol.errors import ErrorCode, Failure
from protocol.operations import Repeat

__all__ = [
    "COMMANDS_CHANNEL",
    "SETTLED_CHANNEL",
    "Resume",
    "Settlement",
    "advance",
    "cancel",
    "cancels_owed",
    "enqueue",
    "expire",
    "get_command",
    "list_commands",
    "mark_sent",
    "owed_to_worker",
    "plan_resume",
    "settle",
]

COMMANDS_CHANNEL = "commands"
"""Payload: the id of the agent that has something to receive."""
SETTLED_CHANNEL = "settled"
"""Payload: the id of a command that has ended."""
ABSENCE_GRACE_MS = 60_000
"""How long past its `not_after` a command that an agent may hold is waited for before it is given up as unknown."""

_COLUMNS = columns(CommandRow)
_OPEN = "state IN ('queued', 'delivered', 'running')"


def enqueue(tx: Transaction, command: CommandRow) -> CommandRow:
    """Stores a command; a second one of the same key returns the first, unchanged.

    With `sent_session` and `sent_journal` set, the caller delivers it over that connection once this is durable;
    otherwise the worker that has the agent is woken.
    """
    fields = CommandRow.__struct_fields__
    stored = tx.run(
        f"INSERT INTO commands ({_COLUMNS}) VALUES ({', '.join(':' + field for field in fields)}) "
        "ON CONFLICT (tenant_id, node_id, key) DO NOTHING",
        params_of(command),
    )
    if not stored:
        first = tx.one(
            f"SELECT {_COLUMNS} FROM commands WHERE tenant_id = :tenant_id AND node_id = :node_id AND key = :key",
            {"tenant_id": command.tenant_id, "node_id": command.node_id, "key": command.key},
            into=CommandRow,
        )
        return first or command
    publish(tx, command.tenant_id, f"command/{command.id}", "command.queued", _facts(command))
    if command.sent_session is None:
        tx.notify(COMMANDS_CHANNEL, command.agent_id)
    return command


def get_command(tx: Transaction, tenant_id: str, command_id: str, *, lock: bool = False) -> CommandRow | None:
    """None also for another tenant's command."""
    return tx.one(
        f"SELECT {_COLUMNS} FROM commands WHERE id = :id AND tenant_id = :tenant_id"
        + (" FOR UPDATE" if lock else ""),
        {"id": command_id, "tenant_id": tenant_id},
        into=CommandRow,
    )


def list_commands(
    tx: Transaction,
    tenant_id: str,
    before: str | None,
    limit: int,
    node_id: str | None = None,
    *,
    open_only: bool = False,
) -> list[CommandRow]:
    """Newest first, older than the id `before`."""
    return tx.all(
        f"""
        SELECT {_COLUMNS} FROM commands WHERE tenant_id = :tenant_id
            AND (CAST(:before AS TEXT) IS NULL OR id < CAST(:before AS TEXT))
            AND (CAST(:node_id AS TEXT) IS NULL OR node_id = CAST(:node_id AS TEXT))
            {"AND " + _OPEN if open_only else ""}
        ORDER BY id DESC LIMIT :limit
        """,
        {"tenant_id": tenant_id, "before": before, "node_id": node_id, "limit": limit},
        into=CommandRow,
    )


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
    tx: Transaction, worker: str, agents: list[str], limit: int
) -> list[tuple[CommandRow, SessionRow]]:
    """Queued commands whose agent is connected to this worker and that were not sent over that connection.

    Of these agents only; of every one when the list is empty. The agents' rows are held, so that no newer connection
    is planned for meanwhile: a command marked for an old one could be sent over both.
    """
    rows = tx.all(
        f"""
        SELECT {columns(CommandRow, "commands")} FROM commands
            JOIN agents ON agents.id = commands.agent_id
            JOIN sessions ON sessions.id = agents.session_id
        WHERE commands.state = 'queued' {"AND commands.agent_id IN EACH(:agents)" if agents else ""}
            AND (commands.sent_session IS NULL OR commands.sent_session <> agents.session_id)
            AND commands.cancel_reason IS NULL
            AND sessions.worker = :worker AND sessions.disconnected_at IS NULL
        ORDER BY commands.id LIMIT :limit FOR UPDATE OF commands SKIP LOCKED FOR SHARE OF agents SKIP LOCKED
        """,
        {"worker": worker, "limit": limit} | ({"agents": agents} if agents else {}),
        into=CommandRow,
    )
    if not rows:
        return []
    sessions = tx.all(
        f"SELECT {columns(SessionRow)} FROM sessions WHERE disconnected_at IS NULL AND worker = :worker "
        "AND agent_id IN EACH(:agents)",
        {"worker": worker, "agents": list({row.agent_id for row in rows})},
        into=SessionRow,
    )
    by_agent = {session.agent_id: session for session in sessions}
    return [(row, by_agent[row.agent_id]) for row in rows if row.agent_id in by_agent]


def cancels_owed(tx: Transaction, worker: str, agents: list[str], limit: int) -> list[CommandRow]:
    """Open commands of this worker's agents for which a cancel was asked."""
    return tx.all(
        f"""
        SELECT {columns(CommandRow, "commands")} FROM commands
            JOIN agents ON agents.id = commands.agent_id
            JOIN sessions ON sessions.id = agents.session_id
        WHERE commands.{_OPEN} AND commands.cancel_reason IS NOT NULL
            {"AND commands.agent_id IN EACH(:agents)" if agents else ""}
            AND sessions.worker = :worker AND sessions.disconnected_at IS NULL
        ORDER BY commands.id LIMIT :limit
        """,
        {"worker": worker, "limit": limit} | ({"agents": agents} if agents else {}),
        into=CommandRow,
    )


def advance(tx: Transaction, agent_id: str, command_id: str, state: CommandState) -> None:
    """The agent has it (`delivered`) or began it (`running`). Late or repeated news changes nothing."""
    before = [old.value for old in CommandState if may_follow(old, state)]
    changed = tx.one(
        f"""
        UPDATE commands SET state = :state,
            started_at = CASE WHEN :state = 'running' THEN :now ELSE started_at END
        WHERE id = :id AND agent_id = :agent_id AND state IN EACH(:before) RETURNING {_COLUMNS}
        """,
        {"id": command_id, "agent_id": agent_id, "state": state.value, "before": before, "now": tx.now()},
        into=CommandRow,
    )
    if changed is not None and state is CommandState.RUNNING:
        publish(tx, changed.tenant_id, f"command/{changed.id}", "command.started", _facts(changed))


class Settlement(Enum):
    """What a report of an ending did."""

    SETTLED = "settled"
    REPEATED = "repeated"
    LATE = "late"
    """The ledger had given it up; the true ending is kept beside."""
    UNKNOWN = "unknown"
    """No such command of this agent."""


def settle(tx: Transaction, agent_id: str, command_id: str, ending: Ending) -> tuple[Settlement, CommandRow | None]:
    """Stores how a command ended, once. After every return but an exception the agent may forget it."""
    row = tx.one(
        f"SELECT {_COLUMNS} FROM commands WHERE id = :id AND agent_id = :agent_id FOR UPDATE",
        {"id": command_id, "agent_id": agent_id},
        into=CommandRow,
    )
    if row is None:
        return Settlement.UNKNOWN, None
    if row.state in TERMINAL:
        if row.ending == ending or row.late_ending is not None:
            return Settlement.REPEATED, row
        tx.run(
            "UPDATE commands SET late_ending = :ending WHERE id = :id", {"id": row.id, "ending": json_text(ending)}
        )
        publish(
            tx,
            row.tenant_id,
            f"command/{row.id}",
            "command.late",
            {**_facts(row), "ending": msgspec.to_builtins(ending)},
        )
        return Settlement.LATE, row
    fingerprint = ending.observed.get("tlsFingerprint")
    if fingerprint is not None:
        pin_certificate(tx, row.node_id, fingerprint)
    return Settlement.SETTLED, _end(tx, row, ending)


def cancel(tx: Transaction, row: CommandRow, reason: str) -> CommandRow:
    """Asks for an end. One that was never sent ends at once; any other when its agent says so.

    The row is locked by the caller. One that has ended, or whose cancel was asked for before, is returned as it is.
    """
    if row.state in TERMINAL or row.cancel_reason is not None:
        return row
    if row.sent_session is None:
        ending = Ending(
            Outcome.CANCELLED, error=Failure(ErrorCode.CANCELLED.value, f"cancelled before it was sent: {reason}")
        )
        return _end(tx, row, ending)
    tx.run("UPDATE commands SET cancel_reason = :reason WHERE id = :id", {"id": row.id, "reason": reason})
    tx.notify(COMMANDS_CHANNEL, row.agent_id)
    return msgspec.structs.replace(row, cancel_reason=reason)


def expire(tx: Transaction, limit: int) -> int:
    """Ends commands that are out of time: `expired` where no agent can hold it, else OUTCOME_UNKNOWN after a grace.

    Returns how many ended. A harmless command that was merely not delivered is expired like any other.
    """
    now = tx.now()
    due = tx.all(
        f"""
        SELECT {_COLUMNS} FROM commands WHERE {_OPEN} AND not_after < :now
            AND (sent_session IS NULL OR not_after < :given_up)
        ORDER BY not_after LIMIT :limit FOR UPDATE SKIP LOCKED
        """,
        {"now": now, "given_up": now - ABSENCE_GRACE_MS, "limit": limit},
        into=CommandRow,
    )
    for row in due:
        _end(tx, row, EXPIRED if row.sent_session is None else _in_doubt(row, "its agent has not come back in time"))
    return len(due)


EXPIRED = Ending(
    Outcome.EXPIRED,
    error=Failure("EXPIRED", "no agent took the command before its time was over; nothing was done"),
)


class Resume(NamedTuple):
    """What a reconnected agent is to be told."""

    forget: list[str]
    """Endings that the ledger has, and commands that it never knew."""
    send: list[CommandRow]
    """To be marked as sent, then sent (again)."""
    stop: list[CommandRow]
    """Held commands for which a cancel is owed."""


def plan_resume(tx: Transaction, session: SessionRow, held: Mapping[str, JournalState]) -> Resume:
    """Compares the ledger with what the agent holds, moves the ledger forward, and says what to send.

    Runs in the transaction that opens the session, so that nothing is queued in between unseen.
    """
    rows = tx.all(
        f"SELECT {_COLUMNS} FROM commands WHERE agent_id = :agent_id AND {_OPEN} ORDER BY id FOR UPDATE",
        {"agent_id": session.agent_id},
        into=CommandRow,
    )
    resume = Resume([], [], [])
    now = tx.now()
    for row in rows:
        state = held.get(row.id)
        if state is None:
            _plan_missing(tx, row, session, now, resume)
            continue
        if state is JournalState.ACCEPTED:
            advance(tx, session.agent_id, row.id, CommandState.DELIVERED)
            # The agent answers a repeated id from its journal; the frame renews its idea of the time left.
            resume.send.append(row)
        elif state is JournalState.STARTED:
            advance(tx, session.agent_id, row.id, CommandState.RUNNING)
        if row.cancel_reason is not None and state is not JournalState.FINISHED:
            resume.stop.append(row)
    known = {row.id for row in rows}
    _plan_closed(tx, session, {key: state for key, state in held.items() if key not in known}, resume)
    return resume


def _plan_missing(tx: Transaction, row: CommandRow, session: SessionRow, now: int, resume: Resume) -> None:
    lost = row.sent_journal is not None and (
        row.sent_journal != session.journal_id or row.state is not CommandState.QUEUED
    )
    if lost and row.repeat is Repeat.ONCE:
        _end(tx, row, _in_doubt(row, "the agent's journal that held it is gone"))
    elif row.cancel_reason is not None and lost and row.repeat is not Repeat.READ:
        _end(tx, row, _in_doubt(row, "it was to be cancelled, and the agent's journal that held it is gone"))
    elif row.cancel_reason is not None:
        failure = Failure(ErrorCode.CANCELLED.value, f"cancelled before it arrived: {row.cancel_reason}")
        _end(tx, row, Ending(Outcome.CANCELLED, error=failure))
    elif row.not_after <= now:
        _end(
            tx, row, EXPIRED if not lost else _in_doubt(row, "its time was over when its agent came back without it")
        )
    else:
        resume.send.append(row)


def _plan_closed(tx: Transaction, session: SessionRow, held: Mapping[str, JournalState], resume: Resume) -> None:
    """Held commands that are not open here: ended, or never known (a restored database)."""
    if not held:
        return
    rows = tx.all(
        f"SELECT {_COLUMNS} FROM commands WHERE id IN EACH(:ids) AND agent_id = :agent_id",
        {"ids": list(held), "agent_id": session.agent_id},
        into=CommandRow,
    )
    ended = {row.id: row for row in rows}
    for command_id, state in held.items():
        row = ended.get(command_id)
        if state is JournalState.ACCEPTED:
            # Given up here and not begun there: forgetting it is what keeps it from being done after all.
            resume.forget.append(command_id)
        elif state is JournalState.FINISHED and (row is None or not _given_up(row)):
            resume.forget.append(command_id)
        elif state is JournalState.STARTED and row is not None and row.state is CommandState.CANCELLED:
            resume.stop.append(row)


def _given_up(row: CommandRow) -> bool:
    """The ledger ended it without the agent's word, so the agent's ending is still wanted."""
    error = row.ending.error if row.ending else None
    return row.late_ending is None and error is not None and error.code in _GIVEN_UP


_GIVEN_UP = (ErrorCode.OUTCOME_UNKNOWN, ErrorCode.INTERRUPTED, "EXPIRED")


def _in_doubt(row: CommandRow, why: str) -> Ending:
    if row.repeat is Repeat.READ:
        return Ending(Outcome.FAILED, error=Failure(ErrorCode.INTERRUPTED.value, f"no answer: {why}", retryable=True))
    return Ending(
        Outcome.FAILED,
        error=Failure(
            ErrorCode.OUTCOME_UNKNOWN.value,
            f"it may have been done or not: {why}; read the machine's state before repeating it",
        ),
    )


def _end(tx: Transaction, row: CommandRow, ending: Ending) -> CommandRow:
    state = ending.outcome.state
    if not may_follow(row.state, state):
        # An agent that rejects what it had begun is wrong, but its word is still the only one there is.
        state = CommandState.FAILED
    ended = msgspec.structs.replace(row, state=state, finished_at=tx.now(), ending=ending)
    tx.run(
        "UPDATE commands SET state = :state, finished_at = :finished_at, ending = :ending WHERE id = :id",
        {"id": row.id, "state": state.value, "finished_at": ended.finished_at, "ending": json_text(ending)},
    )
    data = _facts(ended)
    if ending.error is not None:
        data["error"] = msgspec.to_builtins(ending.error)
    publish(tx, row.tenant_id, f"command/{row.id}", f"command.{state.value}", data)
    tx.notify(SETTLED_CHANNEL, row.id)
    return ended


def _facts(row: CommandRow) -> dict[str, object]:
    facts: dict[str, object] = {"commandId": row.id, "nodeId": row.node_id, "agentId": row.agent_id, "kind": row.kind}
    if "operation" in row.payload:
        facts["operation"] = f"{row.payload['concern']}.{row.payload['operation']}"
    return facts
