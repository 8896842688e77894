"""Ids sort by the time of their making and say what they name."""

import re
import time

import pytest

from protocol.ids import PREFIXES, id_pattern, is_id, new_id, time_of


@pytest.mark.parametrize("prefix", PREFIXES)
def test_an_id_matches_the_pattern_of_its_prefix(prefix: str) -> None:
    made = new_id(prefix)
    assert re.fullmatch(id_pattern(prefix), made)
    assert is_id(made, prefix)


def test_later_ids_sort_after_earlier_ones() -> None:
    made = [new_id("cmd") for _ in range(5000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_keep_sorting_when_the_wall_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first = new_id("cmd")
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert new_id("cmd") > first


def test_an_id_tells_when_it_was_made() -> None:
    before = time.time_ns() // 1_000_000
    made = time_of(new_id("evt"))
    # The clock of ids never goes back, so it may be a little ahead of the wall clock, never behind.
    assert made >= before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cmd",
        "cmd_",
        "cmd_01m8mf2dc24btk12dd08mhadd",
        "node_01m8mf2dc24btk12dd08mhaddd",
        "cmd_01M8MF2DC24BTK12DD08MHADDD",
        "cmd_01m8mf2dc24btk12dd08mhaddi",
        "cmd_01m8mf2dc24btk12dd08mhaddd\n",
    ],
)
def test_what_is_no_id_is_refused(text: str) -> None:
    assert not is_id(text, "cmd")


def test_the_time_of_what_is_no_id_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="is not an id"):
        time_of("cmd_nonsense")
