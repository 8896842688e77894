"""Times and spans of the API in words: `2026-11-30 02:19:49 UTC`, `3 min ago`, `10 min`."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from protocol.durations import span_words

__all__ = ["ago", "in_words", "moment"]

_CLOCKS_DIFFER_MS = 5_000
"""What two hosts' clocks may differ by without anybody being told. The Date of an answer is cut to whole seconds."""

_MOMENTS = ("since", "troubleSince")
"""Names of fields that hold a time, beside those that end with At, After and Before."""


def moment(text: str | None) -> str:
    """A time of the API to the second, in UTC; `-` for none."""
    when = _parsed(text)
    return text or "-" if when is None else f"{when:%Y-%m-%d %H:%M:%S} UTC"


def ago(text: str | None, now: datetime) -> str:
    """How long ago, or how far away it is; what is less than clocks differ by is `just now`. `-` for none."""
    when = _parsed(text)
    if when is None:
        return text or "-"
    milliseconds = int((now - when).total_seconds() * 1000)
    if -_CLOCKS_DIFFER_MS < milliseconds < 1_000:
        return "just now"
    return f"{span_words(milliseconds)} ago" if milliseconds > 0 else f"in {span_words(-milliseconds)}"


def in_words(answer: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """An answer of the API with its times and durations as people read them."""
    return dict(_in_words(name, value, now) for name, value in answer.items())


def _in_words(name: str, value: Any, now: datetime) -> tuple[str, Any]:
    if isinstance(value, Mapping):
        return name, in_words(value, now)
    if isinstance(value, list):
        return name, [in_words(item, now) if isinstance(item, Mapping) else item for item in value]
    if isinstance(value, str) and (name in _MOMENTS or name.endswith(("At", "After", "Before"))):
        return name, value if _parsed(value) is None else f"{moment(value)} ({ago(value, now)})"
    if name.endswith("Ms") and isinstance(value, int):
        return name.removesuffix("Ms"), span_words(value)
    return name, value


def _parsed(text: str | None) -> datetime | None:
    """None for what is no time."""
    try:
        when = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return when.astimezone(UTC) if when.tzinfo is not None else None
