"""Identifiers: a prefix that says what a thing is, then a ULID in lower-case Crockford base32.

Shape: `<prefix>_<26 characters>`, alphabet `0-9 a-h j k m n p-t v-z` (no i, l, o, u). The first ten
characters are milliseconds since 1970, the rest is random, so ids sort by the time of their making and
need no coordination. Source: the ULID specification; the regexes of the workflow API.
"""

import re
import secrets
import threading
import time

__all__ = ["PREFIXES", "id_pattern", "is_id", "new_id", "time_of"]

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_VALUE = {character: value for value, character in enumerate(_ALPHABET)}
_SHIFTS = range(120, 9, -10)
_RANDOM_BITS = 80
_RANDOM_LIMIT = 1 << _RANDOM_BITS
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_BODY = re.compile(r"[0-9a-hjkmnp-tv-z]{26,52}")

PREFIXES: dict[str, str] = {
    "agent": "an agent's identity, made when it joins",
    "aud": "a line of the audit trail",
    "cmd": "a command to an agent",
    "evt": "an event of the outbox",
    "jrn": "one agent journal, made when its file is made",
    "node": "a machine",
    "prof": "a profile",
    "req": "one API request",
    "ses": "one connection of an agent",
    "site": "a place with machines and a site agent",
    "strm": "a console stream",
    "jtk": "a join token",
    "tok": "an API token",
    "wf": "a workflow",
}
"""Every prefix in use and what it names."""


def id_pattern(prefix: str) -> str:
    """The regular expression that an id with this prefix matches, for schemas and messages."""
    return rf"^{prefix}_[0-9a-hjkmnp-tv-z]{{26,52}}$"


class _Clock:
    """Milliseconds that never go back, and random bits that grow within one millisecond."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_ms = 0
        self._last_random = 0
        self._head = (-1, "")
        """All but the last two characters, as of the last id: ids that are made together share them."""

    def text(self) -> str:
        """The next value's 26 characters."""
        value = self.next()
        high, head = self._head
        if value >> 10 != high:
            high = value >> 10
            head = "".join([_PAIRS[(value >> shift) & 1023] for shift in _SHIFTS])
            self._head = (high, head)
        return head + _PAIRS[value & 1023]

    def next(self) -> int:
        with self._lock:
            now = time.time_ns() // 1_000_000
            if now > self._last_ms:
                self._last_ms = now
                # The top bit stays clear so that counting up within the millisecond cannot overflow.
                self._last_random = secrets.randbits(_RANDOM_BITS - 1)
            else:
                self._last_random += 1
            return (self._last_ms << _RANDOM_BITS) | (self._last_random % _RANDOM_LIMIT)


_clock = _Clock()


def new_id(prefix: str) -> str:
    """A new id; later ids of this process sort after earlier ones, also when the wall clock steps back."""
    return f"{prefix}_{_clock.text()}"


def is_id(text: str, prefix: str) -> bool:
    """Whether `text` is an id with this prefix; upper case and look-alike letters are refused."""
    head, separator, body = text.partition("_")
    return separator == "_" and head == prefix and _BODY.fullmatch(body) is not None


def time_of(identifier: str) -> int:
    """Milliseconds since 1970 at which the id was made, by the maker's wall clock.

    Raises ValueError when the text is no id.
    """
    _, separator, body = identifier.partition("_")
    if not separator or _BODY.fullmatch(body) is None:
        raise ValueError(f"{identifier!r} is not an id")
    value = 0
    for character in body[:10]:
        value = value * 32 + _VALUE[character]
    return value
