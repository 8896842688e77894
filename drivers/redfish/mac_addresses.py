"""MAC addresses in all the spellings that BMCs have for them. Pure."""

import re

__all__ = ["mac_of", "macs_in"]

_MAC = re.compile(r"[0-9a-f]{12}")
_WRITTEN = re.compile(
    r"(?<![0-9a-f])(?<!\b[0-9a-f]{2}[:-])(?:(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}|[0-9a-f]{12})(?![:-]?[0-9a-f])",
    re.IGNORECASE,
)
_MULTICAST = 0x01


def mac_of(word: str | None) -> str | None:
    """A station's address in lower case with colons.

    None for what is no MAC address ("Not Available", InfiniBand's 64-bit GUIDs), and for those that no station has:
    all zeros, multicast, broadcast.
    """
    digits = re.sub(r"[:.\s-]", "", (word or "").lower())
    if not _MAC.fullmatch(digits) or not int(digits, 16) or int(digits[:2], 16) & _MULTICAST:
        return None
    return ":".join(digits[place : place + 2] for place in range(0, 12, 2))


def macs_in(words: str) -> list[str]:
    """The addresses that a text mentions, each once."""
    found = (mac_of(match.group()) for match in _WRITTEN.finditer(words))
    return list(dict.fromkeys(mac for mac in found if mac is not None))
