"""API tokens."""

import pytest

from control_plane.records import ApiTokenRow
from control_plane.store import Store, Transaction, migrate
from control_plane.tokens import ApiToken, Principal, TokenCache, authenticate, create_token, revoke_token
from protocol.errors import RequestCode, RequestError


def make(tx: Transaction, token: ApiToken, ttl_ms: int | None = None) -> ApiTokenRow:
    return create_token(
        tx, token, tenant_id="acme", name=token.id, permissions=["*"], created_by="test", ttl_ms=ttl_ms
    )


def test_a_tokens_text_is_read_back_whole() -> None:
    token = ApiToken.new()
    assert ApiToken.parse(token.text()) == token
    assert token.secret.reveal() not in repr(token)


@pytest.mark.parametrize("text", ["", "rwt_", "rwt_x_y", "rwj1.a.b.c", "Bearer x", "rwt_" + "0" * 26 + "_short"])
def test_a_text_that_cannot_be_a_token_is_none(text: str) -> None:
    assert ApiToken.parse(text) is None


async def test_a_token_is_stored_as_a_hash_and_found_by_its_secret(store: Store) -> None:
    await migrate(store)
    token = ApiToken.new()
    row = await store.write(make, token)
    assert token.secret.reveal() not in str(row)
    assert await store.read(authenticate, token) == Principal(token.id, "acme", ["*"], None)
    with pytest.raises(RequestError, match="not known here") as caught:
        await store.read(authenticate, ApiToken(token.id, ApiToken.new().secret))
    assert caught.value.code is RequestCode.UNAUTHENTICATED


async def test_another_tenant_cannot_revoke_a_token(store: Store) -> None:
    await migrate(store)
    token = ApiToken.new()
    await store.write(make, token)
    with pytest.raises(RequestError, match="there is no token"):
        await store.write(revoke_token, "umbrella", token.id)
    assert await store.read(authenticate, token)
    first = await store.write(revoke_token, "acme", token.id)
    assert await store.write(revoke_token, "*", token.id) == first
    with pytest.raises(RequestError, match="was revoked"):
        await store.read(authenticate, token)


def test_the_cache_keeps_a_token_for_two_seconds_and_never_past_its_end() -> None:
    now = 100.0
    cache = TokenCache(lambda: now)
    cache.put("long", Principal("tok_1", "acme", ["*"]), 0)
    cache.put("short", Principal("tok_2", "acme", ["*"], expires_at=500), 0)
    assert cache.get("long") is not None
    now = 100.6
    assert cache.get("short") is None
    assert cache.get("long") is not None
    now = 102.1
    assert cache.get("long") is None


def test_a_revoked_token_is_forgotten_at_once() -> None:
    cache = TokenCache()
    cache.put("text", Principal("tok_1", "acme", ["*"]), 0)
    cache.forget("tok_1")
    assert cache.get("text") is None
