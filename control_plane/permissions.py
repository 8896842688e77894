"""Who may do what: an action such as `compute:nodes:read` against the patterns that a token holds.

A pattern has the same three words, each of which may be `*`; a `*` at the end stands for all the rest. So `*` allows
everything, `compute:nodes:*` everything with nodes, `compute:*:read` every read.
"""

import re
from collections.abc import Iterable

__all__ = ["allows", "covers", "pattern_fault"]

_WORD = re.compile(r"\*|[a-z][a-z-]{0,31}")
_WORDS = 3


def allows(patterns: Iterable[str], action: str) -> bool:
    """Whether one of the patterns matches the action."""
    return any(_covers(pattern.split(":"), action.split(":")) for pattern in patterns)


def covers(patterns: Iterable[str], wanted: Iterable[str]) -> list[str]:
    """Those of the wanted patterns that none of `patterns` covers: what a token may not hand on to another."""
    held = [pattern.split(":") for pattern in patterns]
    return [pattern for pattern in wanted if not any(_covers(own, pattern.split(":")) for own in held)]


def pattern_fault(pattern: str) -> str | None:
    """What is wrong with a pattern, or None."""
    words = pattern.split(":")
    if len(words) > _WORDS or not all(_WORD.fullmatch(word) for word in words):
        return f"{pattern!r} is no permission: write compute:<group>:<read or manage>, with * for any"
    if len(words) < _WORDS and words[-1] != "*":
        return f"{pattern!r} is too short: it has three words, or ends with *"
    return None


def _covers(own: list[str], other: list[str]) -> bool:
    """Whether whatever `other` matches is matched by `own` as well. A plain action is a pattern without stars."""
    for index, word in enumerate(own):
        if word == "*" and index == len(own) - 1:
            return True
        if index >= len(other):
            return False
        if word != "*" and word != other[index]:
            return False
    return len(own) == len(other) and not (other[-1] == "*" and own[-1] != "*")
