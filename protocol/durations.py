"""Durations as people write them: `500ms`, `90s`, `15m`, `1h`, `2d`, or a whole number of milliseconds."""

import re

__all__ = ["format_duration", "parse_duration", "span_words"]

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PATTERN = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")


def parse_duration(value: str | int) -> int:
    """Milliseconds. Raises ValueError whose text says what a duration looks like."""
    if isinstance(value, bool):
        raise ValueError("a duration is text such as '15m', or whole milliseconds; true and false are neither")
    if isinstance(value, int):
        if value < 0:
            raise ValueError(f"a duration cannot be negative: {value}")
        return value
    match = _PATTERN.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not a duration: write a number and a unit, such as 500ms, 90s, 15m, 1h or 2d")
    return int(match[1]) * _UNITS[match[2]]


def format_duration(milliseconds: int) -> str:
    """The shortest exact text: 90000 is `90s`, 3600000 is `1h`."""
    for unit in ("d", "h", "m", "s"):
        size = _UNITS[unit]
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def span_words(milliseconds: int) -> str:
    """For people, to two units: `3 d 4 h`, `12 min`, `40 s`; a negative one is `0 s`."""
    seconds = max(0, milliseconds) // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{seconds} s"
