"""Times of the API as people read them."""

from datetime import UTC, datetime

import pytest

from rackwright.time_words import ago, in_words, moment

NOW = datetime(2026, 11, 30, 2, 20, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2026-11-30T02:17:00.123456Z", "2 min ago"),
        ("2026-11-30T02:19:58.900000Z", "1 s ago"),
        ("2026-11-30T02:19:59.100000Z", "just now"),
        ("2026-11-30T02:20:04.900000Z", "just now"),
        ("2026-11-30T02:20:05Z", "in 5 s"),
        ("2026-11-30T03:25:00Z", "in 1 h 5 min"),
        ("2026-11-29T00:20:00+00:00", "1 d 2 h ago"),
        (None, "-"),
        ("soon", "soon"),
    ],
)
def test_how_long_ago(text: str | None, words: str) -> None:
    assert ago(text, NOW) == words


def test_a_moment_is_told_to_the_second_and_with_its_zone() -> None:
    assert moment("2026-11-30T03:17:00.123456+01:00") == "2026-11-30 02:17:00 UTC"
    assert moment(None) == "-"


def test_an_answers_times_and_durations_are_told_in_words_and_nothing_else() -> None:
    answer = {
        "createdAt": "2026-11-30T02:17:00Z",
        "seenAt": None,
        "name": "2026-11-30T02:17:00Z",
        "provision": {"since": "2026-11-30T02:17:00Z"},
        "steps": [{"elapsedMs": 61_000, "limits": [1]}],
    }
    words = "2026-11-30 02:17:00 UTC (3 min ago)"
    assert in_words(answer, NOW) == {
        "createdAt": words,
        "seenAt": None,
        "name": "2026-11-30T02:17:00Z",
        "provision": {"since": words},
        "steps": [{"elapsed": "1 min", "limits": [1]}],
    }
