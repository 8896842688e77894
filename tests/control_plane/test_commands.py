"""The command ledger: every state, every crash that an agent can come back from, on both databases."""

import itertools

import msgspec
import pytest

from control_plane.commands import ABSENCE_GRACE_MS, Settlement
from control_plane.nodes import find_node
from protocol.commands import TERMINAL, CommandState, Ending, JournalState, Outcome, may_follow
from protocol.errors import ErrorCode, Failure
from protocol.ids import new_id
from protocol.operations import Repeat
from tests.control_plane.ledger import DONE, TENANT, WORKER, Ledger, failed

QUEUED, DELIVERED, RUNNING = CommandState.QUEUED, CommandState.DELIVERED, CommandState.RUNNING
ACCEPTED, STARTED, FINISHED = JournalState.ACCEPTED, JournalState.STARTED, JournalState.FINISHED
READ, CONVERGE, ONCE = Repeat.READ, Repeat.CONVERGE, Repeat.ONCE
OPEN = (QUEUED, DELIVERED, RUNNING)


def code_of(row_ending: Ending | None) -> str | None:
    return row_ending.error.code if row_ending is not None and row_ending.error is not None else None


# Keys


async def test_a_second_command_of_the_same_key_is_the_first_one_unchanged(ledger: Ledger) -> None:
    first = await ledger.command(ONCE, key="order-7")
    await ledger.settle(first.id)
    second = await ledger.command(READ, key="order-7")
    assert second == await ledger.row(first.id)
    assert [kind for kind, _ in await ledger.events()].count("command.queued") == 1


async def test_the_same_key_on_another_node_is_another_command(ledger: Ledger) -> None:
    first = await ledger.command(key="order-7")
    other = await ledger.command(key="order-7", node_id=new_id("node"))
    assert other.id != first.id


# Sending


async def test_a_command_is_owed_until_it_was_sent_over_the_present_connection(ledger: Ledger) -> None:
    row = await ledger.command()
    assert await ledger.send_owed() == []
    session, resume = await ledger.connect()
    assert [sent.id for sent in resume.send] == [row.id]
    assert (resume.send[0].sent_session, resume.send[0].sent_journal) == (session.id, "jrn_1")
    assert await ledger.send_owed() == []
    later = await ledger.command()
    assert await ledger.send_owed("another-worker") == []
    assert await ledger.send_owed() == [later.id]
    assert await ledger.send_owed() == []


async def test_nothing_is_owed_to_an_agent_whose_connection_is_closed(ledger: Ledger) -> None:
    session, _ = await ledger.connect()
    await ledger.disconnect(session)
    await ledger.command()
    assert await ledger.send_owed() == []


async def test_a_newer_connection_supersedes_the_older_one_at_another_worker(ledger: Ledger) -> None:
    await ledger.connect()
    await ledger.connect(worker="worker-2")
    row = await ledger.command()
    assert await ledger.send_owed(WORKER) == []
    assert await ledger.send_owed("worker-2") == [row.id]


# Reports


@pytest.mark.parametrize(("before", "after"), list(itertools.product(OPEN, (DELIVERED, RUNNING))))
async def test_a_report_moves_a_command_forward_or_not_at_all(
    ledger: Ledger, before: CommandState, after: CommandState
) -> None:
    row = await ledger.at(before)
    ledger.clock.pass_by(5)
    moved = await ledger.advance(row.id, after)
    assert moved.state is (after if may_follow(before, after) else before)
    if after is RUNNING and before is not RUNNING:
        assert moved.started_at == ledger.clock.now


@pytest.mark.parametrize(("before", "outcome"), list(itertools.product(OPEN, Outcome)))
async def test_an_ending_is_stored_from_every_open_state(
    ledger: Ledger, before: CommandState, outcome: Outcome
) -> None:
    row = await ledger.at(before)
    ending = DONE if outcome is Outcome.SUCCEEDED else Ending(outcome, error=Failure("BUSY", "later"))
    ledger.clock.pass_by(5)
    assert await ledger.settle(row.id, ending) is Settlement.SETTLED
    ended = await ledger.row(row.id)
    # What was begun cannot have been rejected or expired; the agent's words are kept all the same.
    assert ended.state is (outcome.state if may_follow(before, outcome.state) else CommandState.FAILED)
    assert (ended.ending, ended.finished_at, ended.late_ending) == (ending, ledger.clock.now, None)
    assert (f"command.{ended.state}", f"command/{row.id}") in await ledger.events()


async def test_a_repeated_ending_changes_nothing_and_may_be_forgotten(ledger: Ledger) -> None:
    row = await ledger.at(RUNNING)
    assert await ledger.settle(row.id) is Settlement.SETTLED
    events = await ledger.events()
    assert await ledger.settle(row.id) is Settlement.REPEATED
    assert await ledger.events() == events


async def test_news_after_the_end_changes_nothing(ledger: Ledger) -> None:
    row = await ledger.at(RUNNING)
    await ledger.settle(row.id)
    for state in (DELIVERED, RUNNING):
        assert (await ledger.advance(row.id, state)).state is CommandState.SUCCEEDED


async def test_another_agents_report_is_not_heard(ledger: Ledger) -> None:
    row = await ledger.at(RUNNING)
    ledger.agent_id, own = new_id("agent"), ledger.agent_id
    assert await ledger.settle(row.id) is Settlement.UNKNOWN
    await ledger.advance(row.id, RUNNING)
    ledger.agent_id = own
    assert (await ledger.row(row.id)).state is RUNNING


async def test_an_ending_of_an_unknown_command_may_be_forgotten(ledger: Ledger) -> None:
    assert await ledger.settle(new_id("cmd")) is Settlement.UNKNOWN


async def test_an_ending_after_the_command_was_given_up_is_kept_beside(ledger: Ledger) -> None:
    row = await ledger.at(RUNNING)
    ledger.clock.pass_by(60_000 + ABSENCE_GRACE_MS + 1)
    assert await ledger.expire() == 1
    assert await ledger.settle(row.id) is Settlement.LATE
    late = await ledger.row(row.id)
    assert late.state is CommandState.FAILED
    assert code_of(late.ending) == ErrorCode.OUTCOME_UNKNOWN
    assert late.late_ending == DONE
    assert (await ledger.events())[-1] == ("command.late", f"command/{row.id}")
    assert await ledger.settle(row.id) is Settlement.REPEATED
    assert await ledger.settle(row.id, failed("BUSY")) is Settlement.REPEATED
    assert (await ledger.row(row.id)).late_ending == DONE


async def test_a_certificate_seen_on_the_way_is_pinned_once(ledger: Ledger) -> None:
    for fingerprint in ("a" * 64, "b" * 64):
        row = await ledger.at(RUNNING)
        await ledger.settle(row.id, msgspec.structs.replace(DONE, observed={"tlsFingerprint": fingerprint}))
    node = await ledger.store.read(find_node, TENANT, "n1")
    assert node.tls == f"sha256:{'a' * 64}"


async def test_a_pin_follows_the_certificate_that_replaced_the_pinned_one_and_no_other(ledger: Ledger) -> None:
    a, b, c = ("a" * 64, "b" * 64, "c" * 64)
    for fingerprint, replaced, pinned in ((a, None, a), (b, a, b), (c, a, b)):
        row = await ledger.at(RUNNING)
        observed = {"tlsFingerprint": fingerprint}
        if replaced is not None:
            observed["tlsFingerprintReplaced"] = replaced
        await ledger.settle(row.id, msgspec.structs.replace(DONE, observed=observed))
        node = await ledger.store.read(find_node, TENANT, "n1")
        assert node.tls == f"sha256:{pinned}"


# Cancelling


async def test_a_command_that_was_never_sent_is_cancelled_at_once(ledger: Ledger) -> None:
    row = await ledger.command()
    ended = await ledger.cancel(row.id)
    assert ended.state is CommandState.CANCELLED
    assert ended.ending is not None
    assert ended.ending.error == Failure("CANCELLED", "cancelled before it was sent: no longer wanted")
    await ledger.connect()
    assert await ledger.send_owed() == []


@pytest.mark.parametrize("state", OPEN)
async def test_a_sent_command_is_cancelled_by_its_agent(ledger: Ledger, state: CommandState) -> None:
    row = await ledger.at(state)
    asked = await ledger.cancel(row.id)
    assert (asked.state, asked.cancel_reason) == (state, "no longer wanted")
    assert await ledger.cancels() == [row.id]
    assert await ledger.send_owed() == []
    assert (await ledger.cancel(row.id, "again")).cancel_reason == "no longer wanted"
    await ledger.settle(row.id, Ending(Outcome.CANCELLED, error=Failure("CANCELLED", "stopped")))
    assert (await ledger.row(row.id)).state is CommandState.CANCELLED
    assert await ledger.cancels() == []


async def test_a_command_that_ends_in_spite_of_its_cancel_keeps_its_result(ledger: Ledger) -> None:
    row = await ledger.at(RUNNING)
    await ledger.cancel(row.id)
    assert await ledger.settle(row.id) is Settlement.SETTLED
    assert (await ledger.row(row.id)).state is CommandState.SUCCEEDED


async def test_cancelling_what_has_ended_changes_nothing(ledger: Ledger) -> None:
    row = await ledger.at(RUNNING)
    await ledger.settle(row.id)
    before = await ledger.row(row.id)
    assert await ledger.cancel(row.id) == before
    assert await ledger.row(row.id) == before


# Running out of time


async def test_a_command_that_nobody_took_in_time_expires_and_says_that_nothing_was_done(ledger: Ledger) -> None:
    row = await ledger.command(lasts_ms=1_000)
    ledger.clock.pass_by(1_000)
    assert await ledger.expire() == 0
    ledger.clock.pass_by(1)
    assert await ledger.expire() == 1
    ended = await ledger.row(row.id)
    assert ended.state is CommandState.EXPIRED
    assert ended.ending is not None
    assert "nothing was done" in str(ended.ending.error)
    _, resume = await ledger.connect()
    assert resume.send == []


@pytest.mark.parametrize(("state", "repeat"), list(itertools.product(OPEN, Repeat)))
async def test_a_sent_command_is_given_up_only_after_a_grace_and_never_as_not_done(
    ledger: Ledger, state: CommandState, repeat: Repeat
) -> None:
    row = await ledger.at(state, repeat)
    ledger.clock.pass_by(60_000 + ABSENCE_GRACE_MS)
    assert await ledger.expire() == 0
    ledger.clock.pass_by(1)
    assert await ledger.expire() == 1
    ended = await ledger.row(row.id)
    assert ended.state is CommandState.FAILED
    assert code_of(ended.ending) == (ErrorCode.INTERRUPTED if repeat is READ else ErrorCode.OUTCOME_UNKNOWN)


async def test_expiring_goes_in_batches_oldest_first(ledger: Ledger) -> None:
    rows = [await ledger.command(lasts_ms=1_000 + n) for n in range(5)]
    ledger.clock.pass_by(10_000)
    assert [await ledger.expire(2) for _ in range(4)] == [2, 2, 1, 0]
    assert {(await ledger.row(row.id)).state for row in rows} == {CommandState.EXPIRED}


# Coming back: what the ledger says, what the journal says, and what follows


@pytest.mark.parametrize("repeat", Repeat)
async def test_a_command_that_never_left_is_sent(ledger: Ledger, repeat: Repeat) -> None:
    row = await ledger.command(repeat)
    _, resume = await ledger.connect()
    assert [sent.id for sent in resume.send] == [row.id]
    assert (resume.forget, resume.stop) == ([], [])


@pytest.mark.parametrize("repeat", Repeat)
async def test_a_frame_that_was_lost_on_the_way_to_the_same_journal_is_sent_again(
    ledger: Ledger, repeat: Repeat
) -> None:
    row = await ledger.at(QUEUED, repeat)
    session, resume = await ledger.connect()
    assert [sent.id for sent in resume.send] == [row.id]
    assert (await ledger.row(row.id)).sent_session == session.id


@pytest.mark.parametrize(
    ("state", "journal"), [*itertools.product(OPEN, ["jrn_2"]), (DELIVERED, "jrn_1"), (RUNNING, "jrn_1")]
)
@pytest.mark.parametrize("repeat", Repeat)
async def test_a_command_whose_journal_entry_is_gone_is_repeated_only_when_that_is_harmless(
    ledger: Ledger, state: CommandState, journal: str, repeat: Repeat
) -> None:
    row = await ledger.at(state, repeat)
    _, resume = await ledger.connect(journal=journal)
    now = await ledger.row(row.id)
    if repeat is ONCE:
        assert resume.send == []
        assert now.state is CommandState.FAILED
        assert code_of(now.ending) == ErrorCode.OUTCOME_UNKNOWN
    else:
        assert [sent.id for sent in resume.send] == [row.id]
        assert now.state is state
        assert now.sent_journal == journal


@pytest.mark.parametrize(("state", "held"), list(itertools.product(OPEN, JournalState)))
@pytest.mark.parametrize("repeat", Repeat)
async def test_a_held_command_is_never_sent_as_a_new_one(
    ledger: Ledger, state: CommandState, held: JournalState, repeat: Repeat
) -> None:
    row = await ledger.at(state, repeat)
    _, resume = await ledger.connect({row.id: held})
    if (repeat, state, held) == (ONCE, RUNNING, ACCEPTED):
        # The ledger knows more than the journal: see the test of a journal that was set back.
        assert resume == ([row.id], [], [])
        return
    assert (resume.forget, resume.stop) == ([], [])
    now = await ledger.row(row.id)
    reported = {ACCEPTED: DELIVERED, STARTED: RUNNING, FINISHED: DELIVERED}[held]
    assert now.state is (reported if may_follow(state, reported) else state)
    # An accepted one is told its remaining time anew; the journal knows the id.
    assert [sent.id for sent in resume.send] == ([row.id] if held is ACCEPTED else [])


@pytest.mark.parametrize("held", JournalState)
async def test_a_cancel_that_was_asked_for_meanwhile_follows_the_agent(ledger: Ledger, held: JournalState) -> None:
    row = await ledger.at(DELIVERED)
    await ledger.cancel(row.id)
    _, resume = await ledger.connect({row.id: held})
    assert [stop.id for stop in resume.stop] == ([] if held is FINISHED else [row.id])


@pytest.mark.parametrize("repeat", Repeat)
async def test_a_cancelled_command_that_never_arrived_is_not_sent(ledger: Ledger, repeat: Repeat) -> None:
    row = await ledger.at(QUEUED, repeat)
    await ledger.cancel(row.id)
    _, resume = await ledger.connect()
    assert resume == ([], [], [])
    ended = await ledger.row(row.id)
    assert ended.state is CommandState.CANCELLED
    assert "before it arrived" in str(ended.ending)


@pytest.mark.parametrize("repeat", Repeat)
async def test_a_cancelled_command_that_may_have_been_done_is_not_called_undone(
    ledger: Ledger, repeat: Repeat
) -> None:
    row = await ledger.at(RUNNING, repeat)
    await ledger.cancel(row.id)
    _, resume = await ledger.connect(journal="jrn_2")
    assert resume.send == []
    ended = await ledger.row(row.id)
    assert code_of(ended.ending) == ("CANCELLED" if repeat is READ else "OUTCOME_UNKNOWN")


@pytest.mark.parametrize(("state", "repeat"), list(itertools.product(OPEN, Repeat)))
async def test_an_agent_that_comes_back_too_late_without_the_command_does_not_get_it(
    ledger: Ledger, state: CommandState, repeat: Repeat
) -> None:
    row = await ledger.at(state, repeat)
    ledger.clock.pass_by(60_000)
    _, resume = await ledger.connect()
    assert resume.send == []
    ended = await ledger.row(row.id)
    arrived = state is not QUEUED
    expected = "EXPIRED" if not arrived else "INTERRUPTED" if repeat is READ else "OUTCOME_UNKNOWN"
    assert code_of(ended.ending) == expected


@pytest.mark.parametrize("held", JournalState)
async def test_a_restored_database_does_not_know_a_command_and_lets_the_agent_end_it(
    ledger: Ledger, held: JournalState
) -> None:
    stranger = new_id("cmd")
    _, resume = await ledger.connect({stranger: held})
    # What is begun is finished and reported; only then it is forgotten.
    assert resume == ([stranger] if held is ACCEPTED else [], [], [])
    assert await ledger.settle(stranger) is Settlement.UNKNOWN
    assert (await ledger.events())[-1] == ("command.unknown", f"command/{stranger}")


@pytest.mark.parametrize("held", JournalState)
async def test_a_settled_command_is_forgotten_unless_it_is_under_way(ledger: Ledger, held: JournalState) -> None:
    row = await ledger.at(RUNNING)
    await ledger.settle(row.id)
    _, resume = await ledger.connect({row.id: held})
    assert resume.forget == ([] if held is STARTED else [row.id])
    assert (resume.send, resume.stop) == ([], [])


@pytest.mark.parametrize("repeat", Repeat)
async def test_the_result_of_a_command_that_was_given_up_is_still_wanted(ledger: Ledger, repeat: Repeat) -> None:
    row = await ledger.at(RUNNING, repeat)
    ledger.clock.pass_by(60_000 + ABSENCE_GRACE_MS + 1)
    await ledger.expire()
    _, resume = await ledger.connect({row.id: FINISHED})
    assert resume.forget == []
    assert await ledger.settle(row.id) is Settlement.LATE
    _, resume = await ledger.connect({row.id: FINISHED})
    assert resume.forget == [row.id]


async def test_a_command_that_was_given_up_and_not_begun_is_kept_from_being_done_after_all(ledger: Ledger) -> None:
    row = await ledger.at(DELIVERED)
    ledger.clock.pass_by(60_000 + ABSENCE_GRACE_MS + 1)
    await ledger.expire()
    _, resume = await ledger.connect({row.id: ACCEPTED})
    assert resume.forget == [row.id]
    assert resume.send == []


async def test_no_act_is_ever_sent_to_two_journals(ledger: Ledger) -> None:
    """Every order of up to three reconnects with either journal: an act that may have arrived is not sent anew."""
    for journals in itertools.product(["jrn_1", "jrn_2"], repeat=3):
        row = await ledger.command(ONCE, lasts_ms=3_600_000)
        seen: set[str] = set()
        for journal in journals:
            _, resume = await ledger.connect(journal=journal)
            if row.id in {sent.id for sent in resume.send}:
                seen.add(journal)
        assert len(seen) == 1, journals
        if (await ledger.row(row.id)).state not in TERMINAL:
            await ledger.settle(row.id)
