"""API tokens."""

from control_plane.api.call import Call
from control_plane.api.handlers.paging import page
from control_plane.api.shapes.common import instant, of
from control_plane.api.shapes.tokens import CreateToken, ListTokens, RevokeToken, TokenList, TokenMade, TokenView
from control_plane.permissions import covers
from control_plane.records import ALL_TENANTS, ApiTokenRow
from control_plane.store import Transaction
from control_plane.tokens import ApiToken, create_token, list_tokens, revoke_token
from protocol.durations import parse_duration
from protocol.errors import Issue, RequestCode, RequestError

__all__ = ["create", "list_", "revoke", "then_revoked"]


def create(tx: Transaction, call: Call, request: CreateToken) -> TokenMade:
    tenant = request.for_tenant or call.tenant
    if call.principal.tenant_id not in (ALL_TENANTS, tenant):
        raise RequestError(RequestCode.FORBIDDEN, "a token makes tokens of its own tenant only")
    beyond = covers(call.principal.permissions, request.permissions)
    if beyond:
        raise RequestError(
            RequestCode.FORBIDDEN,
            "a token hands on only what it may do itself",
            [Issue("permissions", f"the asking token has not {pattern}") for pattern in beyond],
        )
    token = ApiToken.new()
    row = create_token(
        tx,
        token,
        tenant_id=tenant,
        name=request.name,
        permissions=request.permissions,
        created_by=call.principal.id,
        ttl_ms=None if request.ttl is None else parse_duration(request.ttl),
    )
    shown = view(row)
    return TokenMade(**{name: getattr(shown, name) for name in shown.__struct_fields__}, token=token.text())


def list_(tx: Transaction, call: Call, request: ListTokens) -> TokenList:
    rows, cursor = page(request, lambda after, limit: list_tokens(tx, call.tenant_id, after, limit))
    return TokenList(items=[view(row) for row in rows], cursor=cursor)


def revoke(tx: Transaction, call: Call, request: RevokeToken) -> TokenView:
    return view(revoke_token(tx, call.tenant_id, request.token_id))


async def then_revoked(call: Call, request: RevokeToken, answer: TokenView) -> TokenView:
    call.services.tokens.forget(request.token_id)
    return answer


def view(row: ApiTokenRow) -> TokenView:
    return TokenView(
        id=row.id,
        tenant_id=row.tenant_id,
        name=row.name,
        permissions=row.permissions,
        created_at=instant(row.created_at),
        created_by=row.created_by,
        expires_at=of(row.expires_at),
        revoked_at=of(row.revoked_at),
    )
