"""Words that makers leave where a serial number or a name should be: they count as absent. Pure."""

import re

__all__ = ["gibibytes", "real"]

_PLACEHOLDER = re.compile(
    r"to be filled by o\.?e\.?m\.?|default string|free form asset tag|system serial number|system product name"
    r"|(not|none|no) (specified|available|present|applicable|asset tag|dimm|module installed)|not settable"
    r"|unknown|undefined|n/?a|none|nil|null|empty|(0123456789)+(ab)?|123456789|[0-]+|[.]+|[?]+|x+|ffffffff",
    re.IGNORECASE,
)
_GIB = 1 << 30


def real(word: str | None) -> str | None:
    """The word without its padding, unless it is only a placeholder (AMI's "To Be Filled By O.E.M.", zeros)."""
    stripped = (word or "").strip("\0 \t\r\n")
    return None if not stripped or _PLACEHOLDER.fullmatch(stripped) else stripped


def gibibytes(size: int) -> str:
    """A size for an operator to read."""
    return f"{size / _GIB:.4g} GiB" if size >= _GIB // 10 else f"{size / (1 << 20):.4g} MiB"
