"""The command ledger: what was asked of which agent, and what became of it.

A command is written here before it is sent, and the connection it is sent over is written before the frame leaves
(`sent_session`, `sent_journal`: `command_queue.mark_sent`). From that and from what an agent says it holds,
`resume.plan_resume` decides after any crash or cut whether a command may be sent again.

Reports may overtake each other; a command's state only ever moves forward (`protocol.commands.TRANSITIONS`).
"""

from collections.abc import Sequence
from enum import Enum

import msgspec

from control_plane.events import publish
from control_plane.machine_facts import note_inventory_marks
from control_plane.nodes import pin_certificate
from control_plane.records import CommandRow, columns
from control_plane.store import Transaction, json_text, params_of
from protocol.commands import TERMINAL, CommandState, Ending, Outcome, may_follow
from protocol.errors import ErrorCode, Failure, RequestCode, RequestError
from protocol.frames import MAX_FRAME_BYTES
from protocol.operations import Repeat

__all__ = [
    "COMMANDS_CHANNEL",
    "EXPIRED",
    "OPEN",
    "SETTLED_CHANNEL",
    "WORKFLOWS_CHANNEL",
    "Settlement",
    "advance",
    "cancel",
    "end",
    "enqueue",
    "expire",
    "get_command",
    "get_commands",
    "in_doubt",
    "list_commands",
    "settle",
]

COMMANDS_CHANNEL = "commands"
"""Payload: the id of the agent that has something to receive."""
SETTLED_CHANNEL = "settled"
"""Payload: the id of a command that has ended."""
WORKFLOWS_CHANNEL = "workflows"
"""Payload: the id of a workflow that is to be looked at now."""
ABSENCE_GRACE_MS = 60_000
"""How long past its `not_after` a command that an agent may hold is waited for before it is given up as unknown."""
OPEN = "state IN ('queued', 'delivered', 'running')"
_COLUMNS = columns(CommandRow)
_LARGEST_PAYLOAD = MAX_FRAME_BYTES // 2
_LARGEST_TOLD = 64 * 1024
_DENIES_THE_DEED = (Outcome.REJECTED, Outcome.EXPIRED, Outcome.CANCELLED)


def enqueue(tx: Transaction, command: CommandRow) -> CommandRow:
    """Stores a command; a second one of the same key returns the first, unchanged.

    With `sent_session` and `sent_journal` set, the caller delivers it over that connection once this is durable,
    unless the row that is returned has none: then an older command of the machine still waits, and this one follows
    it. Without them the worker that has the agent is woken. Raises RequestError TOO_LARGE.
    """
    size = len(json_text(command.payload).encode())
    if size > _LARGEST_PAYLOAD:
        # Every connection that carried it would break, and the agent's other commands would wait behind it.
        raise RequestError(
            RequestCode.TOO_LARGE, f"the command has {size} bytes and may have {_LARGEST_PAYLOAD}: give it less"
        )
    if command.sent_session is not None and _an_older_one_waits(tx, command):
        command = msgspec.structs.replace(command, sent_session=None, sent_journal=None)
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


def _an_older_one_waits(tx: Transaction, command: CommandRow) -> bool:
    waits = tx.one(
        "SELECT 1 FROM commands WHERE agent_id = :agent_id AND state = 'queued' AND node_id = :node_id "
        "AND (sent_session IS NULL OR sent_session <> :session) LIMIT 1",
        {"agent_id": command.agent_id, "node_id": command.node_id, "session": command.sent_session},
    )
    return waits is not None


def get_command(tx: Transaction, tenant_id: str, command_id: str, *, lock: bool = False) -> CommandRow | None:
    """None also for another tenant's command."""
    return tx.one(
        f"SELECT {_COLUMNS} FROM commands WHERE id = :id AND tenant_id = :tenant_id"
        + (" FOR UPDATE" if lock else ""),
        {"id": command_id, "tenant_id": tenant_id},
        into=CommandRow,
    )


def get_commands(tx: Transaction, command_ids: Sequence[str]) -> list[CommandRow]:
    """Those of the commands that are there, whichever tenant's."""
    return tx.all(f"SELECT {_COLUMNS} FROM commands WHERE id IN EACH(:ids)", {"ids": command_ids}, into=CommandRow)


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
            {"AND " + OPEN if open_only else ""}
        ORDER BY id DESC LIMIT :limit
        """,
        {"tenant_id": tenant_id, "before": before, "node_id": node_id, "limit": limit},
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
    """No such command of this agent: its ending is told as the event `command.unknown`."""
    STALE = "stale"
    """Said over a connection that a newer one has superseded: nothing was stored, and the agent is told nothing."""


def settle(
    tx: Transaction, agent_id: str, command_id: str, ending: Ending, session_id: str | None = None
) -> tuple[Settlement, CommandRow | None]:
    """Stores how a command ended, once. The agent may forget it after every answer but STALE.

    `session_id` is the connection that it was said over. An ending that denies the deed (rejected, expired,
    cancelled) need not be in the agent's journal; over the newer connection the command may be on its way once more,
    to be done. So it counts over the present connection only, where the agent says it again if it still holds.
    """
    if session_id is not None and ending.outcome in _DENIES_THE_DEED:
        present = tx.one("SELECT session_id FROM agents WHERE id = :id FOR SHARE", {"id": agent_id})
        if present is None or present[0] != session_id:
            return Settlement.STALE, None
    row = tx.one(
        f"SELECT {_COLUMNS} FROM commands WHERE id = :id AND agent_id = :agent_id FOR UPDATE",
        {"id": command_id, "agent_id": agent_id},
        into=CommandRow,
    )
    if row is None:
        _tell_unknown(tx, agent_id, command_id, ending)
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
        pin_certificate(tx, row.node_id, fingerprint, ending.observed.get("tlsFingerprintReplaced"))
    if ending.outcome is Outcome.SUCCEEDED and row.payload.get("operation") == "getInventory":
        note_inventory_marks(
            tx, row.node_id, ending.result, "host" if row.payload.get("driver") == "linux" else "bmc"
        )
    return Settlement.SETTLED, end(tx, row, ending)


def _tell_unknown(tx: Transaction, agent_id: str, command_id: str, ending: Ending) -> None:
    """Keeps the ending of a command that a restored database has forgotten: the event is all that will be left."""
    agent = tx.one("SELECT tenant_id FROM agents WHERE id = :id", {"id": agent_id})
    if agent is not None:
        told = ending if len(json_text(ending)) <= _LARGEST_TOLD else msgspec.structs.replace(ending, result=None)
        facts = {"commandId": command_id, "agentId": agent_id, "ending": msgspec.to_builtins(told)}
        publish(tx, agent[0], f"command/{command_id}", "command.unknown", facts)


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
        return end(tx, row, ending)
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
        SELECT {_COLUMNS} FROM commands WHERE {OPEN} AND not_after < :now
            AND (sent_session IS NULL OR not_after < :given_up)
        ORDER BY not_after LIMIT :limit FOR UPDATE SKIP LOCKED
        """,
        {"now": now, "given_up": now - ABSENCE_GRACE_MS, "limit": limit},
        into=CommandRow,
    )
    for row in due:
        end(tx, row, EXPIRED if row.sent_session is None else in_doubt(row, "its agent has not come back in time"))
    return len(due)


EXPIRED = Ending(
    Outcome.EXPIRED,
    error=Failure("EXPIRED", "no agent took the command before its time was over; nothing was done"),
)


def in_doubt(row: CommandRow, why: str) -> Ending:
    """The ending of a command that was sent and of which nobody can tell whether it was done."""
    if row.repeat is Repeat.READ:
        return Ending(Outcome.FAILED, error=Failure(ErrorCode.INTERRUPTED.value, f"no answer: {why}", retryable=True))
    return Ending(
        Outcome.FAILED,
        error=Failure(
            ErrorCode.OUTCOME_UNKNOWN.value,
            f"it may have been done or not: {why}; read the machine's state before repeating it",
        ),
    )


def end(tx: Transaction, row: CommandRow, ending: Ending) -> CommandRow:
    """Ends an open command, whose row the caller has locked, and tells whoever waits for it."""
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
    if row.workflow_id is not None:
        tx.notify(WORKFLOWS_CHANNEL, row.workflow_id)
    return ended


def _facts(row: CommandRow) -> dict[str, object]:
    facts: dict[str, object] = {"commandId": row.id, "nodeId": row.node_id, "agentId": row.agent_id, "kind": row.kind}
    if "operation" in row.payload:
        facts["operation"] = f"{row.payload['concern']}.{row.payload['operation']}"
    return facts
