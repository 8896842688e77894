"""The escape key of a console: what an operator says to this program, told apart from what is typed. Pure.

After the escape key (Ctrl-] unless another is chosen) one more key says what to do; any other pair goes to the
machine as it is, and the escape key twice sends it once.
"""

from enum import Enum
from typing import Final

__all__ = ["DEFAULT_ESCAPE", "HELP", "EscapeKeys", "Wish", "escape_key", "escape_name"]

DEFAULT_ESCAPE: Final = "^]"


class Wish(Enum):
    END = b"."
    BREAK = b"b"
    TAKE = b"w"
    HELP = b"?"


HELP: Final = (
    "{escape} .  end this session      {escape} b  send a break\n"
    "{escape} w  be the one who types  {escape} ?  this help\n"
    "{escape} {escape}  send the escape key itself"
)


def escape_key(text: str) -> bytes | None:
    """The key that `^]`, `~` or such stands for; None for `none`. Raises ValueError."""
    if text.lower() == "none":
        return None
    if len(text) == 2 and text[0] == "^" and "@" <= text[1].upper() <= "_":
        return bytes((ord(text[1].upper()) & 0x1F,))
    if len(text) == 1 and text.isascii() and (text.isprintable() or ord(text) < 0x20):
        return text.encode()
    raise ValueError(f"{text!r} is no key: write ^] or such for Ctrl and a key, one character, or none")


def escape_name(key: bytes) -> str:
    """As it is written on a keyboard."""
    return f"Ctrl-{chr(key[0] | 0x40)}" if key[0] < 0x20 else key.decode()


class EscapeKeys:
    """Takes keys as they come; a pair may come in two parts."""

    def __init__(self, escape: bytes | None) -> None:
        self._escape = escape
        self._pending = False

    def feed(self, keys: bytes) -> list[bytes | Wish]:
        """What to send and what to do, in order."""
        if self._escape is None:
            return [keys] if keys else []
        done: list[bytes | Wish] = []
        plain = bytearray()
        for number in keys:
            key = bytes((number,))
            if self._pending:
                self._pending = False
                wish = _WISHES.get(key.lower())
                if wish is not None:
                    if plain:
                        done.append(bytes(plain))
                        plain.clear()
                    done.append(wish)
                elif key == self._escape:
                    plain += key
                else:
                    plain += self._escape + key
            elif key == self._escape:
                self._pending = True
            else:
                plain += key
        if plain:
            done.append(bytes(plain))
        return done


_WISHES: Final = {wish.value: wish for wish in Wish}
