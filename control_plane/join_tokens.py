"""Join tokens, as operators see them; making and spending one is `sessions`' business."""

from control_plane.records import JoinTokenRow, columns
from control_plane.store import Transaction
from protocol.errors import RequestCode, RequestError

__all__ = ["end_join_token", "list_join_tokens"]

_COLUMNS = columns(JoinTokenRow)


def list_join_tokens(tx: Transaction, tenant_id: str, after: str, limit: int) -> list[JoinTokenRow]:
    """By id, behind the id `after`."""
    return tx.all(
        f"SELECT {_COLUMNS} FROM join_tokens WHERE tenant_id = :tenant_id AND id > :after ORDER BY id LIMIT :limit",
        {"tenant_id": tenant_id, "after": after, "limit": limit},
        into=JoinTokenRow,
    )


def end_join_token(tx: Transaction, tenant_id: str, token_id: str) -> JoinTokenRow:
    """Lets the token expire now; one that has expired stays as it is.

    Raises RequestError NOT_FOUND, and INVALID_STATE for one that was used: its agent is what can be revoked.
    """
    row = tx.one(
        f"SELECT {_COLUMNS} FROM join_tokens WHERE id = :id AND tenant_id = :tenant_id FOR UPDATE",
        {"id": token_id, "tenant_id": tenant_id},
        into=JoinTokenRow,
    )
    if row is None:
        raise RequestError(RequestCode.NOT_FOUND, f"there is no join token {token_id!r}")
    if row.used_at is not None:
        raise RequestError(RequestCode.INVALID_STATE, f"this join token was used: revoke agent {row.used_by} instead")
    ended = tx.one(
        f"UPDATE join_tokens SET expires_at = :now WHERE id = :id AND expires_at > :now RETURNING {_COLUMNS}",
        {"id": token_id, "now": tx.now()},
        into=JoinTokenRow,
    )
    return ended or row
