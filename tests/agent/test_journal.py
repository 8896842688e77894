"""The journal: durable before it answers, one disk wait for many writes, and never silently a new file."""

import asyncio
import shutil
import sqlite3
from pathlib import Path

import pytest

from agent.clock import Deadline
from agent.errors import JournalDamaged, JournalError
from agent.journal import Journal
from protocol.commands import Ending, JournalState, Outcome
from protocol.frames import Command
from protocol.ids import is_id
from tests.agent.rig import FakeClock, setting

DONE = Ending(Outcome.SUCCEEDED, result={"state": "on"})
SOON = Deadline(2_000_000, "boot-1")


def opened(folder: Path, clock: FakeClock) -> Journal:
    return Journal.open(folder / "journal.db", clock)


async def test_a_row_goes_through_its_states_and_leaves_when_it_is_settled(folder: Path, clock: FakeClock) -> None:
    journal = opened(folder, clock)
    command = setting()
    assert await journal.accept(command, SOON) is None
    entry = journal.get(command.id)
    assert entry is not None
    assert (entry.state, entry.deadline, entry.payload) == (JournalState.ACCEPTED, SOON, command.payload)
    await journal.start(command.id)
    assert [held.state for held in journal.held()] == [JournalState.STARTED]
    await journal.finish(command.id, DONE)
    entry = journal.get(command.id)
    assert entry is not None
    assert entry.ending == DONE
    await journal.forget([(command.id, DONE)])
    assert journal.held() == []
    journal.close()


async def test_every_answer_is_on_the_disk_when_it_is_given(folder: Path, clock: FakeClock, tmp_path: Path) -> None:
    journal = opened(folder, clock)
    command = setting()
    await journal.accept(command, SOON)
    await journal.start(command.id)
    # A copy of the files as they are now is what a power cut would leave.
    shutil.copytree(folder, tmp_path / "after")
    journal.close()
    later = opened(tmp_path / "after", clock)
    assert [entry.state for entry in later.held()] == [JournalState.STARTED]
    later.close()


async def test_an_id_is_known_while_held_and_after_it_was_settled(folder: Path, clock: FakeClock) -> None:
    journal = opened(folder, clock)
    command = setting()
    await journal.accept(command, SOON)
    known = await journal.accept(command, SOON)
    assert known is not None
    assert known.state is JournalState.ACCEPTED
    await journal.finish(command.id, DONE)
    await journal.forget([(command.id, DONE)])
    journal.close()
    journal = opened(folder, clock)
    known = await journal.accept(command, SOON)
    assert known is not None
    assert known.ending == DONE
    assert journal.held() == []
    assert await journal.recall("cmd_other") is None
    journal.close()


async def test_the_first_ending_stays_and_a_finished_command_is_not_started_again(
    folder: Path, clock: FakeClock
) -> None:
    journal = opened(folder, clock)
    command = setting()
    await journal.accept(command, SOON)
    await journal.finish(command.id, DONE)
    await journal.finish(command.id, Ending(Outcome.FAILED))
    await journal.start(command.id)
    entry = journal.get(command.id)
    assert entry is not None
    assert (entry.state, entry.ending) == (JournalState.FINISHED, DONE)
    journal.close()


async def test_writes_that_come_together_wait_for_the_disk_together(folder: Path, clock: FakeClock) -> None:
    journal = opened(folder, clock)
    await asyncio.gather(*(journal.accept(setting(), SOON) for _ in range(500)))
    assert journal.commits <= 10
    assert len(journal.held()) == 500
    journal.close()


async def test_one_write_that_cannot_be_made_takes_no_other_with_it(folder: Path, clock: FakeClock) -> None:
    journal = opened(folder, clock)
    pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
    journal._connection.execute(f"PRAGMA max_page_count = {pages + 12}")
    large = setting()
    large = Command(id=large.id, kind="k", payload={"x": "x" * 500_000}, remaining_ms=1)
    small = setting()
    results = await asyncio.gather(journal.accept(large, SOON), journal.accept(small, SOON), return_exceptions=True)
    assert isinstance(results[0], JournalError)
    assert "full" in str(results[0])
    assert results[1] is None
    assert [entry.id for entry in journal.held()] == [small.id]
    journal.close()


def test_the_journals_id_is_made_with_its_file_and_stays(folder: Path, clock: FakeClock, tmp_path: Path) -> None:
    first = opened(folder, clock)
    first.close()
    again = opened(folder, clock)
    again.close()
    (tmp_path / "other").mkdir()
    other = opened(tmp_path / "other", clock)
    other.close()
    assert is_id(first.id, "jrn")
    assert again.id == first.id != other.id
    assert (folder / "journal.db").stat().st_mode & 0o777 == 0o600


async def _filled(folder: Path, clock: FakeClock) -> Path:
    journal = opened(folder, clock)
    for _ in range(200):
        await journal.accept(setting(), SOON)
    journal.close()
    return folder / "journal.db"


@pytest.mark.parametrize("damage", ["empty", "noise", "page", "row", "meta", "foreign"])
async def test_a_damaged_file_stops_the_start_and_is_left_as_it_is(
    damage: str, folder: Path, clock: FakeClock
) -> None:
    file = await _filled(folder, clock)
    if damage == "empty":
        file.write_bytes(b"")
    elif damage == "noise":
        file.write_bytes(b"not a database " * 1000)
    elif damage == "page":
        data = bytearray(file.read_bytes())
        data[4096 * 3 : 4096 * 6] = b"\xff" * (4096 * 3)
        file.write_bytes(bytes(data))
    else:
        db = sqlite3.connect(file)
        statement = {
            "row": "UPDATE commands SET payload = '{' WHERE sequence = 7",
            "meta": "DELETE FROM meta",
            "foreign": "PRAGMA application_id = 7",
        }[damage]
        db.execute(statement)
        db.commit()
        db.close()
    before = file.read_bytes()
    with pytest.raises(JournalDamaged) as failure:
        opened(folder, clock)
    assert "OUTCOME_UNKNOWN" in str(failure.value)
    assert "out of the way" in str(failure.value)
    assert file.read_bytes() == before


def test_a_journal_of_a_newer_version_says_so(folder: Path, clock: FakeClock) -> None:
    opened(folder, clock).close()
    db = sqlite3.connect(folder / "journal.db")
    db.execute("PRAGMA user_version = 9")
    db.commit()
    db.close()
    with pytest.raises(JournalDamaged, match=r"format 9.*install the newer agent"):
        opened(folder, clock)


def test_a_crash_while_the_file_is_made_leaves_no_half_journal(folder: Path, clock: FakeClock) -> None:
    (folder / ".journal.db.new").write_bytes(b"half")
    journal = opened(folder, clock)
    assert journal.held() == []
    journal.close()


async def test_settled_ids_are_remembered_for_seven_days_of_running_time(folder: Path, clock: FakeClock) -> None:
    journal = opened(folder, clock)
    await journal.forget([("cmd_old", DONE)])
    journal.close()
    clock.now_ms += 6 * 86_400_000
    journal = opened(folder, clock)
    assert await journal.recall("cmd_old") is not None
    journal.close()
    # Another boot: how long the host was off is not known, so the days begin anew.
    clock.reboot()
    journal = opened(folder, clock)
    clock.now_ms += 6 * 86_400_000
    journal.close()
    journal = opened(folder, clock)
    assert await journal.recall("cmd_old") is not None
    journal.close()
    clock.now_ms += 2 * 86_400_000
    journal = opened(folder, clock)
    assert await journal.recall("cmd_old") is None
    journal.close()


async def test_a_large_result_is_not_kept_after_it_was_settled(folder: Path, clock: FakeClock) -> None:
    journal = opened(folder, clock)
    await journal.forget([("cmd_big", Ending(Outcome.SUCCEEDED, result={"x": "x" * 10_000}))])
    known = await journal.recall("cmd_big")
    assert known is not None
    assert known.ending is not None
    assert known.ending.outcome is Outcome.SUCCEEDED
    assert known.ending.result is None
    journal.close()


async def test_a_closed_journal_takes_nothing(folder: Path, clock: FakeClock) -> None:
    journal = opened(folder, clock)
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="closed"):
        await journal.accept(setting(), SOON)


async def test_at_most_a_hundred_thousand_settled_ids_are_kept_also_by_an_agent_that_runs_for_years(
    folder: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent import journal as module

    monkeypatch.setattr(module, "_KEPT_COUNT", 1_500)
    journal = opened(folder, clock)
    for start in range(0, 4_000, 500):
        await journal.forget([(f"cmd_{number}", DONE) for number in range(start, start + 500)])
    assert await journal.recall("cmd_3999") is not None
    assert await journal.recall("cmd_0") is None
    assert journal._connection.execute("SELECT count(*) FROM settled").fetchone()[0] <= 2_500
    journal.close()
