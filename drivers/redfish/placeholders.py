"""Texts that makers leave where a serial number or a name should be: they count as absent. Pure."""

import re

from drivers.redfish.document import text

__all__ = ["real", "real_text"]

_PLACEHOLDER = re.compile(
    r"^("
    r"to be filled by o\.?e\.?m\.?|default string|free form asset tag|(not|none) (specified|available|present)"
    r"|unknown|n/?a|none|nil|null|(0123456789)+ab|[0-]+|\.+|\?+"
    r")$",
    re.IGNORECASE,
)


def real(word: str | None) -> str | None:
    """The word, unless it is only a placeholder (AMI's "To be filled by O.E.M.", Intel's "....", SMBIOS' zeros)."""
    return None if word is None or _PLACEHOLDER.match(word) else word


def real_text(value: object, *keys: str) -> str | None:
    """The text at the end of the keys, where it says something real."""
    return real(text(value, *keys))
