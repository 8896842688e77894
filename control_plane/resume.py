"""What a reconnected agent is to be told: the ledger compared with what its journal holds.

    the journal does not hold it
        never sent, or sent to this journal under this boot: it never arrived      send it
        sent to another journal, or acknowledged and gone, or sent before a boot   harmless: send it; an act: unknown
    accepted       the ledger knows of no more, and no boot since                  send it: its time left is renewed
                   the ledger knows of more, or a boot since                       harmless: send it; an act: unknown
    started        wait for its ending
    finished       its ending is told after the welcome
    held, and ended here: not begun is forgotten, so that it is not done after all

A journal's word counts only if it goes on where the ledger left it, because a copy has the same id:

- a host that was set back to a snapshot, or a disk that lost what it had acknowledged, has been booted since;
- a copy that runs beside the original has not noted the last session over which commands were sent, or connects while
  the other one is still connected (`open_session` tells both as `continuous`).

A boot in the very moment between sending and acknowledging is rare, so this caution costs next to nothing.
"""

from collections.abc import Mapping
from typing import NamedTuple

from control_plane.command_queue import SEND_WINDOW, queue_order
from control_plane.commands import EXPIRED, OPEN, advance, end, in_doubt
from control_plane.records import CommandRow, SessionRow, columns
from control_plane.store import Transaction
from protocol.commands import CommandState, Ending, JournalState, Outcome
from protocol.errors import ErrorCode, Failure
from protocol.operations import Repeat

__all__ = ["Resume", "plan_resume"]

_COLUMNS = columns(CommandRow)
_GIVEN_UP = (ErrorCode.OUTCOME_UNKNOWN, ErrorCode.INTERRUPTED, ErrorCode.CANCELLED, "EXPIRED")
"""Codes of endings that the ledger gives by itself: of such a command the agent's own ending is still wanted."""


class Resume(NamedTuple):
    """What a reconnected agent is to be told."""

    forget: list[str]
    """Endings that the ledger has, and commands that are not begun and no longer wanted."""
    send: list[CommandRow]
    """To be marked as sent, then sent (again)."""
    stop: list[CommandRow]
    """Held commands for which a cancel is owed."""


def plan_resume(
    tx: Transaction, session: SessionRow, held: Mapping[str, JournalState], *, continuous: bool = True
) -> Resume:
    """Compares the ledger with what the agent holds, moves the ledger forward, and says what to send.

    `continuous`: as far as it shows, the journal is the one that noted the last session over which commands went.
    Runs in the transaction that opens the session, so that nothing is queued in between unseen. Of the commands that
    were never sent it plans the oldest ones only, as many as `SEND_WINDOW` has room for: `owed_to_worker` follows.
    """
    sent = tx.all(
        f"SELECT {_COLUMNS} FROM commands WHERE agent_id = :agent_id AND {OPEN} "
        f"AND (sent_session IS NOT NULL OR id IN EACH(:held)) ORDER BY {queue_order(tx)} FOR UPDATE",
        {"agent_id": session.agent_id, "held": list(held)},
        into=CommandRow,
    )
    waiting = tx.all(
        f"SELECT {_COLUMNS} FROM commands WHERE agent_id = :agent_id AND state = 'queued' "
        f"AND sent_session IS NULL AND id NOT IN EACH(:held) ORDER BY {queue_order(tx)} LIMIT :room FOR UPDATE",
        {"agent_id": session.agent_id, "held": list(held), "room": max(0, SEND_WINDOW - len(sent))},
        into=CommandRow,
    )
    resume = Resume([], [], [])
    boots = _boots(tx, sent)
    for row in (*sent, *waiting):
        state = held.get(row.id)
        if state is None:
            lost = row.sent_session is not None and (not continuous or _may_have_arrived(row, session, boots))
            _plan_missing(tx, row, lost, resume)
        elif (
            state is JournalState.ACCEPTED
            and row.repeat is Repeat.ONCE
            and (not continuous or _may_be_begun(row, session, boots))
        ):
            end(tx, row, in_doubt(row, "the agent came back with a journal that may be from before it was begun"))
            resume.forget.append(row.id)
        else:
            _plan_held(tx, row, state, resume)
    known = {row.id for row in sent}
    _plan_closed(tx, session, {key: state for key, state in held.items() if key not in known}, resume)
    return resume


def _boots(tx: Transaction, rows: list[CommandRow]) -> dict[str, str]:
    """Under which boot of the agent's host each connection was that a command was sent over."""
    sessions = list({row.sent_session for row in rows if row.sent_session is not None})
    if not sessions:
        return {}
    return {
        str(found[0]): str(found[1])
        for found in tx.all("SELECT id, boot_id FROM sessions WHERE id IN EACH(:ids)", {"ids": sessions})
    }


def _may_have_arrived(row: CommandRow, session: SessionRow, boots: Mapping[str, str]) -> bool:
    """Whether a command that the journal does not hold may have been taken and done all the same."""
    return (
        row.sent_journal != session.journal_id
        or row.state is not CommandState.QUEUED
        or boots.get(row.sent_session or "") != session.boot_id
    )


def _may_be_begun(row: CommandRow, session: SessionRow, boots: Mapping[str, str]) -> bool:
    """Whether a command that the journal calls accepted may have been begun since that journal was written."""
    booted = row.sent_session is not None and boots.get(row.sent_session) != session.boot_id
    return row.state is CommandState.RUNNING or booted


def _plan_held(tx: Transaction, row: CommandRow, state: JournalState, resume: Resume) -> None:
    begun = state is JournalState.STARTED
    advance(tx, row.agent_id, row.id, CommandState.RUNNING if begun else CommandState.DELIVERED)
    if row.cancel_reason is not None:
        if state is not JournalState.FINISHED:
            resume.stop.append(row)
    elif state is JournalState.ACCEPTED:
        # The agent answers a repeated id from its journal; the frame renews its idea of the time left.
        resume.send.append(row)


def _plan_missing(tx: Transaction, row: CommandRow, lost: bool, resume: Resume) -> None:
    if lost and row.repeat is Repeat.ONCE:
        end(tx, row, in_doubt(row, "it was sent, and the agent came back without any knowledge of it"))
    elif row.cancel_reason is not None and lost and row.repeat is not Repeat.READ:
        end(tx, row, in_doubt(row, "it was to be cancelled, and the agent came back without any knowledge of it"))
    elif row.cancel_reason is not None:
        failure = Failure(ErrorCode.CANCELLED.value, f"cancelled before it arrived: {row.cancel_reason}")
        end(tx, row, Ending(Outcome.CANCELLED, error=failure))
    elif row.not_after <= tx.now():
        end(tx, row, EXPIRED if not lost else in_doubt(row, "its time was over when its agent came back without it"))
    else:
        resume.send.append(row)


def _plan_closed(tx: Transaction, session: SessionRow, held: Mapping[str, JournalState], resume: Resume) -> None:
    """Held commands that are not open here: ended, or never known (a restored database).

    One that is finished and never known is not forgotten yet: its ending is told, and kept as an event.
    """
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
        elif state is JournalState.FINISHED and row is not None and not _given_up(row):
            resume.forget.append(command_id)
        elif state is JournalState.STARTED and row is not None and row.state is CommandState.CANCELLED:
            resume.stop.append(row)


def _given_up(row: CommandRow) -> bool:
    """The ledger may have ended it without the agent's word, so the agent's ending is still wanted."""
    error = row.ending.error if row.ending else None
    return row.late_ending is None and error is not None and error.code in _GIVEN_UP
