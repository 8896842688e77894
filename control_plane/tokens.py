"""API tokens: `rwt_<id>_<secret>`, shown once, kept as a SHA-256, revocable at once.

The secret is 256 random bits, so a plain hash is enough.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable

import msgspec

from control_plane.records import ALL_TENANTS, ApiTokenRow, columns
from control_plane.store import Transaction, params_of
from protocol.errors import RequestCode, RequestError
from protocol.ids import new_id
from protocol.secret import Secret

__all__ = [
    "LOCAL_OPERATOR",
    "ApiToken",
    "Principal",
    "TokenCache",
    "authenticate",
    "create_token",
    "list_tokens",
    "revoke_token",
    "token_name",
]

_COLUMNS = columns(ApiTokenRow)
_TEXT = re.compile(r"rwt_([0-9a-hjkmnp-tv-z]{26})_([A-Za-z0-9_-]{32,128})")
_CACHE_SECONDS = 2.0
_MOST_CACHED = 4096


class ApiToken(msgspec.Struct, frozen=True):
    """A parsed token. `text()` is the whole of it: to be shown once."""

    id: str
    secret: Secret

    @classmethod
    def new(cls) -> "ApiToken":
        return cls(new_id("tok"), Secret(secrets.token_urlsafe(32)))

    @classmethod
    def parse(cls, text: str) -> "ApiToken | None":
        """None when the text cannot be a token."""
        match = _TEXT.fullmatch(text)
        return None if match is None else cls(f"tok_{match[1]}", Secret(match[2]))

    def text(self) -> str:
        return f"rwt_{self.id.removeprefix('tok_')}_{self.secret.reveal()}"


class Principal(msgspec.Struct, frozen=True):
    """Whoever asks, once known: the token's id, its tenant (`*`: all of them), and what it may do."""

    id: str
    tenant_id: str
    permissions: list[str]
    expires_at: int | None = None


LOCAL_OPERATOR = Principal("local", ALL_TENANTS, ["*"])
"""Whoever can open the state folder's socket or the database: the host's own administrator."""


def create_token(
    tx: Transaction,
    token: ApiToken,
    *,
    tenant_id: str,
    name: str,
    permissions: list[str],
    created_by: str,
    ttl_ms: int | None,
) -> ApiTokenRow:
    """Stores the token's hash; the token itself is shown once by the caller and kept nowhere.

    Raises RequestError CONFLICT when the tenant has a live token of this name.
    """
    now = tx.now()
    taken = tx.one(
        "SELECT COUNT(*) FROM tokens WHERE tenant_id = :tenant_id AND name = :name AND revoked_at IS NULL "
        "AND (expires_at IS NULL OR expires_at > :now)",
        {"tenant_id": tenant_id, "name": name, "now": now},
    )
    if taken is not None and taken[0]:
        raise RequestError(
            RequestCode.CONFLICT, f"there is a token named {name!r} already: revoke it, or take another name"
        )
    row = ApiTokenRow(
        token.id,
        tenant_id,
        name,
        _hash(token.secret),
        permissions,
        now,
        created_by,
        None if ttl_ms is None else now + ttl_ms,
        None,
    )
    tx.run(
        f"INSERT INTO tokens ({_COLUMNS}) VALUES ({', '.join(':' + c for c in ApiTokenRow.__struct_fields__)})",
        params_of(row),
    )
    return row


def authenticate(tx: Transaction, token: ApiToken) -> Principal:
    """Who presents the token. Raises RequestError UNAUTHENTICATED that says whether it is wrong, old or revoked."""
    row = tx.one(f"SELECT {_COLUMNS} FROM tokens WHERE id = :id", {"id": token.id}, into=ApiTokenRow)
    if row is None or not hmac.compare_digest(row.secret_hash, _hash(token.secret)):
        raise RequestError(RequestCode.UNAUTHENTICATED, "this token is not known here: log in with another one")
    if row.revoked_at is not None:
        raise RequestError(RequestCode.UNAUTHENTICATED, "this token was revoked: ask for a new one")
    if row.expires_at is not None and row.expires_at <= tx.now():
        raise RequestError(RequestCode.UNAUTHENTICATED, "this token has expired: ask for a new one")
    return Principal(row.id, row.tenant_id, row.permissions, row.expires_at)


def token_name(tx: Transaction, principal: Principal) -> str:
    """What people call whoever asks: the name of the token; the id where it has none."""
    row = tx.one("SELECT name FROM tokens WHERE id = :id", {"id": principal.id})
    return principal.id if row is None else str(row[0])


def list_tokens(tx: Transaction, tenant_id: str, after: str, limit: int) -> list[ApiTokenRow]:
    """By id, behind the id `after`; `*` lists every tenant's."""
    return tx.all(
        f"SELECT {_COLUMNS} FROM tokens WHERE (:tenant_id = '*' OR tenant_id = :tenant_id) AND id > :after "
        "ORDER BY id LIMIT :limit",
        {"tenant_id": tenant_id, "after": after, "limit": limit},
        into=ApiTokenRow,
    )


def revoke_token(tx: Transaction, tenant_id: str, token_id: str) -> ApiTokenRow:
    """Denies the token for ever; revoking twice changes nothing. Raises RequestError NOT_FOUND."""
    tx.run(
        "UPDATE tokens SET revoked_at = :now WHERE id = :id AND revoked_at IS NULL "
        "AND (:tenant_id = '*' OR tenant_id = :tenant_id)",
        {"id": token_id, "tenant_id": tenant_id, "now": tx.now()},
    )
    row = tx.one(
        f"SELECT {_COLUMNS} FROM tokens WHERE id = :id AND (:tenant_id = '*' OR tenant_id = :tenant_id)",
        {"id": token_id, "tenant_id": tenant_id},
        into=ApiTokenRow,
    )
    if row is None:
        raise RequestError(RequestCode.NOT_FOUND, f"there is no token {token_id!r}")
    return row


class TokenCache:
    """Principals that were looked up within the last two seconds, by the hash of the token's text.

    A revocation in this process is immediate (`forget`); one in another worker takes effect within those two seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[bytes, tuple[float, Principal]] = {}

    def get(self, text: str) -> Principal | None:
        found = self._known.get(_key(text))
        if found is None or found[0] < self._clock():
            return None
        return found[1]

    def put(self, text: str, principal: Principal, now_ms: int) -> None:
        """`now_ms`: the store's clock, by which a token that expires sooner is kept for less."""
        if len(self._known) >= _MOST_CACHED:
            self._known.clear()
        left = _CACHE_SECONDS if principal.expires_at is None else (principal.expires_at - now_ms) / 1000
        self._known[_key(text)] = (self._clock() + min(_CACHE_SECONDS, left), principal)

    def forget(self, token_id: str) -> None:
        self._known = {key: entry for key, entry in self._known.items() if entry[1].id != token_id}


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _hash(secret: Secret) -> str:
    return hashlib.sha256(secret.reveal().encode()).hexdigest()
