"""What the shapes of every group share: names, ids, pages, and the checks that a type alone cannot say."""

import base64
import binascii
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from protocol.durations import parse_duration
from protocol.errors import Issue
from protocol.ids import is_id

__all__ = [
    "NAME",
    "TENANT",
    "AgentId",
    "CommandId",
    "Cursor",
    "Duration",
    "Key",
    "Name",
    "PageRequest",
    "Reason",
    "Reference",
    "Request",
    "TenantId",
    "View",
    "WaitMs",
    "decode_cursor",
    "duration_check",
    "encode_cursor",
    "id_cursor",
    "instant",
    "number_cursor",
    "of",
]

# `$(?!\n)`: a plain `$` also stands before a newline at the end, in Python's regular expressions.
NAME = r"^(?!(agent|node|site|tok|jtk)_)[A-Za-z0-9][A-Za-z0-9._-]*$(?!\n)"
TENANT = r"^[A-Za-z0-9._:-]{1,128}$(?!\n)"
_BODY = "[0-9a-hjkmnp-tv-z]{26,52}"

TenantId = Annotated[str, Meta(pattern=TENANT, max_length=128, description="The tenant; the token's own by default.")]
Name = Annotated[str, Meta(pattern=NAME, max_length=128)]
Reference = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$(?!\n)", max_length=128)]
"""An id or a name."""
CommandId = Annotated[str, Meta(pattern=rf"^cmd_{_BODY}$(?!\n)", max_length=56)]
AgentId = Annotated[str, Meta(pattern=rf"^agent_{_BODY}$(?!\n)", max_length=58)]
Cursor = Annotated[str, Meta(max_length=256, min_length=1, description="Where the last answer ended.")]
Limit = Annotated[int, Meta(ge=1, le=100)]
Reason = Annotated[str, Meta(max_length=512, pattern=r"^[^\x00-\x1f\x7f]*$(?!\n)")]
Key = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:#/-]+$(?!\n)", max_length=200)]
WaitMs = Annotated[int, Meta(ge=0, le=60_000, description="How long the answer may wait for the end.")]
Duration = Annotated[str, Meta(max_length=20)] | Annotated[int, Meta(ge=1)]
"""`90s`, `15m`, `1h`, or whole milliseconds."""

Check = Callable[[Any], object]


class Request(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A request's body. `checks` are parsers for fields, by path, that raise ValueError with what is wrong."""

    checks: ClassVar[Mapping[str, Check]] = {}

    tenant_id: TenantId | None = None

    @classmethod
    def faults(cls, raw: Mapping[str, Any]) -> list[Issue]:
        """The faults that the types alone cannot say. `raw` may have other faults: those are left alone."""
        issues = []
        for path, check in cls.checks.items():
            value: Any = raw
            for name in path.split("."):
                value = value.get(name) if isinstance(value, Mapping) else None
            if value is not None:
                try:
                    check(value)
                except ValueError as error:
                    issues.append(Issue(path, str(error)))
                except (TypeError, AttributeError):
                    # Of another type than the check is for: the types have said so.
                    continue
        return issues


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An answer, or a part of one. Fields may be added in later versions."""


class PageRequest(Request, frozen=True, kw_only=True):
    """A list's common part."""

    limit: Limit = 20
    cursor: Cursor | None = None


def instant(milliseconds: int) -> datetime:
    """The stored time as it is shown (RFC 3339, UTC)."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def of(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else instant(milliseconds)


def duration_check(least_ms: int, most_ms: int, words: str) -> Check:
    """A check for a duration within bounds; `words` names them."""

    def check(value: Any) -> None:
        if not isinstance(value, str | int):
            return
        if not least_ms <= parse_duration(value) <= most_ms:
            raise ValueError(f"must be {words}")

    return check


def encode_cursor(position: str) -> str:
    """A position as the opaque text that clients hand back."""
    return base64.urlsafe_b64encode(position.encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> str:
    """Raises ValueError."""
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        raise ValueError("this is no cursor of ours: hand back the one that the last answer held") from None


def id_cursor(prefix: str) -> Check:
    """A check for the cursor of a list that is ordered by ids with this prefix."""

    def check(value: Any) -> None:
        if not is_id(decode_cursor(value), prefix):
            raise ValueError("this is no cursor of this list: hand back the one that its last answer held")

    return check


def number_cursor(value: Any) -> None:
    """A check for the cursor of a list that is ordered by a growing number."""
    position = decode_cursor(value)
    if not position.isdigit() or len(position) > 18:
        raise ValueError("this is no cursor of this list: hand back the one that its last answer held")
