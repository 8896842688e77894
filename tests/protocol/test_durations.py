"""Durations as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.durations import format_duration, parse_duration, span_words


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("500ms", 500),
        ("90s", 90_000),
        ("15m", 900_000),
        ("1h", 3_600_000),
        ("2d", 172_800_000),
        (" 5s ", 5_000),
        (7, 7),
    ],
)
def test_a_number_and_a_unit_are_milliseconds(text: str | int, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "1.5h", "5 s", "5sec", "9999999999999s", "٥s", True, -1])
def test_anything_else_is_refused_with_a_reason(text: str | int) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=10**11))
def test_a_formatted_duration_is_read_back_exactly(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds)) == milliseconds


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(0, "0ms"), (1500, "1500ms"), (90_000, "90s"), (86_400_000, "1d")]
)
def test_the_shortest_exact_text_is_given(milliseconds: int, text: str) -> None:
    assert format_duration(milliseconds) == text


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [
        (-5, "0 s"),
        (999, "0 s"),
        (40_000, "40 s"),
        (90_000, "1 min"),
        (3_660_000, "1 h 1 min"),
        (100_000_000, "1 d 3 h"),
    ],
)
def test_a_span_is_told_to_two_units(milliseconds: int, words: str) -> None:
    assert span_words(milliseconds) == words
