"""How long a BMC wants to be left alone."""

from datetime import UTC, datetime

import pytest

from drivers.redfish.waiting import LONGEST_WAIT, pause, retry_after

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("5", 5.0),
        ("0", 0.0),
        ("1.5", 1.5),
        ("-3", 0.0),
        ("86400", LONGEST_WAIT),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("Thu, 01 Jan 2026 12:00:30", 30.0),
        ("soon", None),
        ("", None),
        (None, None),
        ("nan", None),
    ],
)
def test_retry_after_is_a_number_or_a_date_within_bounds(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, NOW) == seconds


def test_without_a_wish_the_pauses_grow_and_then_stay() -> None:
    assert [pause(attempt, None) for attempt in range(6)] == [1, 2, 4, 8, 8, 8]
    assert pause(3, 0.5) == 0.5
