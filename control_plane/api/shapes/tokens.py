"""API tokens."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta

from control_plane.api.shapes.common import (
    TENANT,
    Duration,
    Name,
    PageRequest,
    Request,
    View,
    duration_check,
    id_cursor,
)
from control_plane.permissions import pattern_fault
from protocol.errors import Issue

__all__ = ["CreateToken", "ListTokens", "RevokeToken", "TokenList", "TokenMade", "TokenView"]

TokenId = Annotated[str, Meta(pattern=r"^tok_[0-9a-hjkmnp-tv-z]{26,52}$(?!\n)", max_length=56)]
AnyTenant = Annotated[str, Meta(pattern=rf"^\*$(?!\n)|{TENANT}", max_length=128)]
"""A tenant, or `*` for all of them."""


class CreateToken(Request, frozen=True, kw_only=True):
    name: Name
    permissions: Annotated[list[Annotated[str, Meta(max_length=100)]], Meta(min_length=1, max_length=50)]
    """Patterns such as `compute:nodes:*`, `compute:*:read` or `*`; none that the asking token has not."""
    for_tenant: AnyTenant | None = None
    """The new token's tenant, where it is another one than the request's; `*` for every tenant."""
    ttl: Duration | None = None
    """Without one it is good until it is revoked."""

    checks = {"ttl": duration_check(1_000, 3650 * 86_400_000, "from 1s to 3650d")}

    @classmethod
    def faults(cls, raw: Mapping[str, Any]) -> list[Issue]:
        patterns = raw.get("permissions")
        listed = patterns if isinstance(patterns, list) else []
        found = [pattern_fault(pattern) if isinstance(pattern, str) else None for pattern in listed]
        bad = [Issue(f"permissions[{i}]", fault) for i, fault in enumerate(found) if fault]
        return super().faults(raw) + bad


class ListTokens(PageRequest, frozen=True, kw_only=True):
    checks = {"cursor": id_cursor("tok")}


class RevokeToken(Request, frozen=True, kw_only=True):
    token_id: TokenId


class TokenView(View, frozen=True, kw_only=True):
    id: str
    tenant_id: str
    name: str
    permissions: list[str]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None


class TokenMade(TokenView, frozen=True, kw_only=True):
    token: str
    """The whole token. It is shown this once."""


class TokenList(View, frozen=True, kw_only=True):
    items: list[TokenView]
    cursor: str | None
