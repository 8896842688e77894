"""The escape key tells what is for this program from what is for the machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackwright.escape_keys import EscapeKeys, Wish, escape_key, escape_name

KEY = b"\x1d"


@pytest.mark.parametrize(
    ("keys", "done"),
    [
        (b"ls\r", [b"ls\r"]),
        (KEY + b".", [Wish.END]),
        (b"a" + KEY + b"b" + b"c", [b"a", Wish.BREAK, b"c"]),
        (KEY + b"W", [Wish.TAKE]),
        (KEY + b"?", [Wish.HELP]),
        (KEY + KEY + b".", [KEY + b"."]),
        (KEY + b"x", [KEY + b"x"]),
        (KEY, []),
        (b"", []),
    ],
)
def test_what_is_pressed_is_sent_or_done(keys: bytes, done: list[bytes | Wish]) -> None:
    assert EscapeKeys(KEY).feed(keys) == done


@given(st.binary(max_size=30).map(lambda keys: keys.replace(b"a", KEY)), st.integers(0, 30))
def test_a_pair_may_come_in_two_parts(keys: bytes, place: int) -> None:
    whole, parts = EscapeKeys(KEY), EscapeKeys(KEY)
    together = whole.feed(keys)
    apart = parts.feed(keys[:place]) + parts.feed(keys[place:])
    assert _joined(apart) == _joined(together)


@given(st.binary())
def test_without_an_escape_key_everything_is_sent(keys: bytes) -> None:
    assert b"".join(part for part in EscapeKeys(None).feed(keys) if isinstance(part, bytes)) == keys


@pytest.mark.parametrize(
    ("text", "key", "name"),
    [("^]", KEY, "Ctrl-]"), ("^a", b"\x01", "Ctrl-A"), ("~", b"~", "~"), ("^^", b"\x1e", "Ctrl-^")],
)
def test_keys_are_written_as_usual(text: str, key: bytes, name: str) -> None:
    assert escape_key(text) == key
    assert escape_name(key) == name


def test_none_is_no_key_and_garbage_is_refused() -> None:
    assert escape_key("none") is None
    for text in ("", "^", "^^^", "ab", "é", "^1", "\x7f"):
        if text == "^":
            assert escape_key(text) == b"^"
            continue
        with pytest.raises(ValueError, match="is no key"):
            escape_key(text)


def _joined(parts: list[bytes | Wish]) -> list[bytes | Wish]:
    """Neighbouring keys together."""
    joined: list[bytes | Wish] = []
    for part in parts:
        if isinstance(part, bytes) and joined and isinstance(joined[-1], bytes):
            joined[-1] += part
        else:
            joined.append(part)
    return joined
