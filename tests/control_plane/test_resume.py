"""A reconnected agent whose knowledge, or whose order of things, is not what it was; on both databases."""

from typing import Any

import msgspec
import pytest

from control_plane.command_queue import SEND_WINDOW
from control_plane.commands import OPEN, Settlement, enqueue
from control_plane.nodes import create_node, find_node
from control_plane.records import CommandRow, NodeRow
from control_plane.sessions import close_session
from control_plane.store import Transaction
from protocol.commands import TERMINAL, CommandState, Ending, JournalState, Outcome
from protocol.errors import ErrorCode, Failure, RequestCode, RequestError
from protocol.frames import MAX_FRAME_BYTES
from protocol.ids import new_id
from protocol.operations import Repeat
from tests.control_plane.ledger import TENANT, Ledger

ACCEPTED, STARTED, FINISHED = JournalState.ACCEPTED, JournalState.STARTED, JournalState.FINISHED
REFUSED = Ending(Outcome.REJECTED, error=Failure("BUSY", "this agent holds 10000 commands already, its limit"))


def code_of(row: CommandRow) -> str | None:
    return row.ending.error.code if row.ending is not None and row.ending.error is not None else None


# Snapshots, copies and lying disks


@pytest.mark.parametrize("repeat", Repeat)
async def test_a_booted_host_without_the_command_may_be_a_snapshot_and_its_act_is_not_sent_again(
    ledger: Ledger, repeat: Repeat
) -> None:
    row = await ledger.at(CommandState.QUEUED, repeat)
    _, resume = await ledger.connect(boot="boot-2")
    now = await ledger.row(row.id)
    if repeat is Repeat.ONCE:
        assert resume.send == []
        assert code_of(now) == ErrorCode.OUTCOME_UNKNOWN
    else:
        assert [sent.id for sent in resume.send] == [row.id]


async def test_what_was_never_sent_is_sent_to_a_booted_host(ledger: Ledger) -> None:
    await ledger.connect()
    row = await ledger.command()
    _, resume = await ledger.connect(boot="boot-2")
    assert [sent.id for sent in resume.send] == [row.id]


async def test_a_restarted_process_of_the_same_boot_gets_the_frame_that_was_lost(ledger: Ledger) -> None:
    row = await ledger.at(CommandState.QUEUED)
    _, resume = await ledger.connect()
    assert [sent.id for sent in resume.send] == [row.id]


@pytest.mark.parametrize("repeat", Repeat)
async def test_a_journal_older_than_the_ledger_does_not_begin_an_act_again(ledger: Ledger, repeat: Repeat) -> None:
    row = await ledger.at(CommandState.RUNNING, repeat)
    _, resume = await ledger.connect({row.id: ACCEPTED}, boot="boot-2")
    if repeat is Repeat.ONCE:
        assert (resume.send, resume.forget) == ([], [row.id])
        assert code_of(await ledger.row(row.id)) == ErrorCode.OUTCOME_UNKNOWN
    else:
        assert [sent.id for sent in resume.send] == [row.id]


@pytest.mark.case("B51")
async def test_an_act_that_waited_through_a_boot_may_be_begun_and_is_not_begun_again(ledger: Ledger) -> None:
    row = await ledger.at(CommandState.DELIVERED)
    _, resume = await ledger.connect({row.id: ACCEPTED}, boot="boot-2")
    assert (resume.send, resume.forget) == ([], [row.id])
    assert code_of(await ledger.row(row.id)) == ErrorCode.OUTCOME_UNKNOWN


@pytest.mark.parametrize("repeat", [Repeat.READ, Repeat.CONVERGE])
async def test_a_harmless_command_goes_on_after_a_boot(ledger: Ledger, repeat: Repeat) -> None:
    row = await ledger.at(CommandState.DELIVERED, repeat)
    _, resume = await ledger.connect({row.id: ACCEPTED}, boot="boot-2")
    assert [sent.id for sent in resume.send] == [row.id]


@pytest.mark.parametrize("held", [False, True])
async def test_a_copy_of_the_agent_that_takes_turns_with_it_is_not_sent_an_act_again(
    ledger: Ledger, held: bool
) -> None:
    first, _ = await ledger.connect()
    await ledger.connect(noted=first.id)
    row = await ledger.at(CommandState.DELIVERED if held else CommandState.QUEUED)
    _, resume = await ledger.connect({row.id: ACCEPTED} if held else {}, noted=first.id)
    assert resume.send == []
    assert code_of(await ledger.row(row.id)) == ErrorCode.OUTCOME_UNKNOWN


async def test_a_copy_that_connects_beside_the_agent_for_the_first_time_is_not_sent_an_act_again(
    ledger: Ledger,
) -> None:
    row = await ledger.at(CommandState.QUEUED)
    _, resume = await ledger.connect(instance="copy")
    assert resume.send == []
    assert code_of(await ledger.row(row.id)) == ErrorCode.OUTCOME_UNKNOWN


async def test_an_agent_that_was_started_anew_after_its_connection_was_closed_gets_the_frame_that_was_lost(
    ledger: Ledger,
) -> None:
    row = await ledger.at(CommandState.QUEUED)
    assert row.sent_session is not None
    await ledger.store.write(close_session, row.sent_session, "cut")
    _, resume = await ledger.connect(instance="next")
    assert [sent.id for sent in resume.send] == [row.id]


async def test_the_result_of_a_command_that_the_ledger_called_cancelled_is_still_wanted(ledger: Ledger) -> None:
    row = await ledger.at(CommandState.QUEUED)
    await ledger.cancel(row.id)
    await ledger.connect()
    assert (await ledger.row(row.id)).state is CommandState.CANCELLED
    _, resume = await ledger.connect({row.id: FINISHED})
    assert resume.forget == []
    assert await ledger.settle(row.id) is Settlement.LATE
    assert (await ledger.row(row.id)).late_ending is not None


# Frames of a superseded connection


@pytest.mark.parametrize("outcome", [Outcome.REJECTED, Outcome.EXPIRED, Outcome.CANCELLED])
async def test_a_refusal_that_a_newer_connection_overtook_does_not_end_what_that_one_does(
    ledger: Ledger, outcome: Outcome
) -> None:
    older, _ = await ledger.connect()
    row = await ledger.command()
    await ledger.send_owed()
    newer, resume = await ledger.connect()
    assert [sent.id for sent in resume.send] == [row.id]
    refusal = msgspec.structs.replace(REFUSED, outcome=outcome)
    assert await ledger.settle(row.id, refusal, over=older) is Settlement.STALE
    assert (await ledger.row(row.id)).state is CommandState.QUEUED
    assert await ledger.settle(row.id, over=newer) is Settlement.SETTLED
    assert (await ledger.row(row.id)).state is CommandState.SUCCEEDED


async def test_a_result_counts_over_whichever_connection_it_comes(ledger: Ledger) -> None:
    older, _ = await ledger.connect()
    row = await ledger.command()
    await ledger.send_owed()
    await ledger.connect({row.id: STARTED})
    assert await ledger.settle(row.id, over=older) is Settlement.SETTLED


async def test_a_refusal_over_the_present_connection_counts(ledger: Ledger) -> None:
    session, _ = await ledger.connect()
    row = await ledger.command()
    await ledger.send_owed()
    assert await ledger.settle(row.id, REFUSED, over=session) is Settlement.SETTLED
    assert (await ledger.row(row.id)).state is CommandState.REJECTED


# Order and amount


async def test_a_command_does_not_overtake_an_older_one_of_its_machine(ledger: Ledger) -> None:
    session, _ = await ledger.connect()
    direct: dict[str, Any] = {"sent_session": session.id, "sent_journal": session.journal_id}
    older = await ledger.command()
    newer = await ledger.command(**direct)
    assert newer.sent_session is None
    assert await ledger.send_owed() == [older.id, newer.id]
    assert (await ledger.command(**direct)).sent_session == session.id


async def test_an_older_command_of_another_machine_holds_up_nobody(ledger: Ledger) -> None:
    session, _ = await ledger.connect()
    await ledger.command()
    other = await ledger.store.write(_another_node, ledger.node_id)
    row = await ledger.command(node_id=other, sent_session=session.id, sent_journal=session.journal_id)
    assert row.sent_session == session.id


async def test_what_waited_is_sent_in_its_order_after_a_reconnect(ledger: Ledger) -> None:
    await ledger.connect()
    rows = []
    for _ in range(3):
        ledger.clock.pass_by(1)
        rows.append((await ledger.command()).id)
    await ledger.send_owed()
    rows.append((await ledger.command()).id)
    _, resume = await ledger.connect()
    assert [row.id for row in resume.send] == rows


async def test_a_long_queue_is_sent_as_the_agent_gets_done_with_it(ledger: Ledger) -> None:
    total = SEND_WINDOW + 50
    await ledger.store.write(_queue, ledger, total)
    session, resume = await ledger.connect()
    assert len(resume.send) == SEND_WINDOW
    assert await ledger.send_owed() == []
    for row in resume.send[:30]:
        await ledger.settle(row.id, over=session)
    following = await ledger.send_owed()
    assert len(following) == 30
    assert min(following) > max(row.id for row in resume.send)
    open_rows = await ledger.store.read(lambda tx: tx.one(f"SELECT COUNT(*) FROM commands WHERE {OPEN}"))
    assert open_rows is not None
    assert open_rows[0] == total - 30


async def test_a_connection_that_is_gone_is_not_taken_for_one_that_got_the_command(ledger: Ledger) -> None:
    await ledger.connect()
    row = await ledger.command(lasts_ms=1_000)
    assert await ledger.send_owed(live=frozenset()) == []
    ledger.clock.pass_by(2_000)
    await ledger.expire()
    ended = await ledger.row(row.id)
    assert ended.state is CommandState.EXPIRED
    assert "nothing was done" in str(ended.ending)


async def test_cancels_are_told_page_by_page_so_that_none_starves(ledger: Ledger) -> None:
    await ledger.connect()
    rows = [await ledger.command() for _ in range(25)]
    await ledger.send_owed()
    for row in rows:
        await ledger.cancel(row.id)
    told: list[str] = []
    while page := await ledger.cancels(after=told[-1] if told else ""):
        told += page
    assert told == [row.id for row in rows]


async def test_a_command_too_large_for_a_frame_is_refused_before_it_is_stored(ledger: Ledger) -> None:
    payload: dict[str, object] = {"concern": "power", "operation": "setPower", "args": {"x": "y" * MAX_FRAME_BYTES}}
    with pytest.raises(RequestError) as refused:
        await ledger.command(payload=payload)
    assert refused.value.code is RequestCode.TOO_LARGE
    assert await ledger.events() == []


async def test_a_revoked_agent_is_sent_nothing(ledger: Ledger) -> None:
    await ledger.connect()
    row = await ledger.command()
    await ledger.store.write(
        lambda tx: tx.run("UPDATE agents SET revoked_at = 1 WHERE id = :id", {"id": ledger.agent_id})
    )
    assert await ledger.send_owed() == []
    assert (await ledger.row(row.id)).state not in TERMINAL


def _another_node(tx: Transaction, like: str) -> str:
    node: NodeRow = find_node(tx, TENANT, like)
    return create_node(tx, msgspec.structs.replace(node, id=new_id("node"), name="n2")).id


def _queue(tx: Transaction, ledger: Ledger, count: int) -> None:
    for _ in range(count):
        enqueue(tx, ledger.new(Repeat.ONCE))
