"""How long to wait before asking a busy BMC again."""

import email.utils
from datetime import UTC, datetime

__all__ = ["LONGEST_WAIT", "pause", "retry_after"]

LONGEST_WAIT = 120.0
"""Seconds; a longer `Retry-After` is taken for this."""
_STEPS = (1.0, 2.0, 4.0, 8.0)
_OBEYED = 3
"""How many pauses may be as short as the BMC asks; one that asks for none for ever is not hammered."""


def retry_after(header: str | None, now: datetime | None = None) -> float | None:
    """Seconds that a `Retry-After` header asks for: a number, or an HTTP date; None where it says nothing usable."""
    if header is None or not header.strip():
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            moment = email.utils.parsedate_to_datetime(header.strip())
        except (ValueError, OverflowError):
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = (moment - (now or datetime.now(UTC))).total_seconds()
    if seconds != seconds:
        return None
    return min(max(seconds, 0.0), LONGEST_WAIT)


def pause(attempt: int, asked: float | None) -> float:
    """Seconds before attempt `attempt` + 1: what the BMC asked for, else 1, 2, 4, 8, 8, …

    After a few short ones at the BMC's wish a pause is a second at least.
    """
    if asked is None:
        return _STEPS[min(attempt, len(_STEPS) - 1)]
    return asked if attempt <= _OBEYED else max(asked, _STEPS[0])
