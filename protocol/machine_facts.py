"""What a machine says of itself when it joins, and what of that can tell one machine from another. Pure.

Firmware is full of values that say nothing: a UUID of zeros, AMI's `03000200-0400-0500-0006-000700080009`, a serial
number `To be filled by O.E.M.`, a MAC of zeros. They are left out; so is whatever cannot be read. A UUID is told in
two byte orders (SMBIOS 2.6 turned the first three fields round, and not every BMC followed): both count as one.
"""

import re
import uuid

import msgspec

__all__ = ["MachineFacts", "Marks", "marks_of", "turned"]

_LONGEST = 255
_MOST_MACS = 128
_PLACEHOLDER_SERIAL = re.compile(
    r"to be filled by o\.?e\.?m\.?|default string|system serial number|chassis serial number|serial number"
    r"|(not|none) (specified|available|present|applicable)|unknown|n/?a|none|nil|null|invalid|empty"
    r"|(0123456789)+(ab)?|(1234567890?)+|[0-]+|[xX]+|\.+|\?+|f+",
    re.IGNORECASE,
)
_PLACEHOLDER_UUIDS = frozenset(
    {
        "03000200-0400-0500-0006-000700080009",
        "00020003-0004-0005-0006-000700080009",
        "12345678-1234-5678-90ab-cddeefaabbcc",
        "12345678-1234-1234-1234-123456789012",
        "fefefefe-fefe-fefe-fefe-fefefefefefe",
        "00112233-4455-6677-8899-aabbccddeeff",
    }
)
_LEAST_DIGITS = 3
"""A UUID of fewer different digits is a filling: all zeros, all ones, a pattern."""


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """As they were found, in whatever form."""

    uuid: str | None = None
    """The system's, as SMBIOS type 1 has it."""
    serial: str | None = None
    macs: list[str] = []
    """Of the ports that are hardware."""


class Marks(msgspec.Struct, frozen=True):
    """What of the facts can tell machines apart, each value in one spelling."""

    uuid: str | None = None
    serial: str | None = None
    macs: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        return self.uuid is None and self.serial is None and not self.macs

    def pairs(self) -> list[tuple[str, str]]:
        """Each value with its kind: uuid, serial or mac."""
        single = [
            (kind, value) for kind, value in (("uuid", self.uuid), ("serial", self.serial)) if value is not None
        ]
        return single + [("mac", mac) for mac in sorted(self.macs)]


def marks_of(facts: MachineFacts) -> Marks:
    """Without what is malformed, a placeholder, or no machine's own."""
    macs = {mac for text in facts.macs[:_MOST_MACS] if (mac := _mac(text)) is not None}
    return Marks(_uuid(facts.uuid), _serial(facts.serial), frozenset(macs))


def _uuid(text: str | None) -> str | None:
    """The lesser of its two byte orders."""
    if text is None or len(text) > _LONGEST:
        return None
    try:
        found = uuid.UUID(text.strip())
    except ValueError:
        return None
    orders = {str(found), turned(str(found))}
    if _PLACEHOLDER_UUIDS & orders or len(set(found.hex)) < _LEAST_DIGITS:
        return None
    return min(orders)


def turned(text: str) -> str:
    """The same UUID in its other byte order."""
    return str(uuid.UUID(bytes_le=uuid.UUID(text).bytes))


def _serial(text: str | None) -> str | None:
    if text is None:
        return None
    plain = " ".join(text.split()).upper()
    if not plain or len(plain) > _LONGEST or not plain.isprintable() or _PLACEHOLDER_SERIAL.fullmatch(plain):
        return None
    return plain


def _mac(text: str) -> str | None:
    """Lower case with colons. Six bytes of an Ethernet port: no group address, no filling."""
    digits = re.sub(r"[:.\-\s]", "", text).lower() if len(text) <= _LONGEST else ""
    if not re.fullmatch(r"[0-9a-f]{12}", digits) or len(set(digits)) == 1 or int(digits[1], 16) & 1:
        return None
    return ":".join(digits[i : i + 2] for i in range(0, 12, 2))
