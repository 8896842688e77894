"""Join tokens: made, shown, ended, and spent by the agent that joins.

A token is spent once, for one key. Its answer may be lost after the commit, so it is given again to whoever asks with
the same token for the same key, while the token's time lasts and what it gave still holds.
"""

import hashlib
import hmac
from typing import NamedTuple

from control_plane import audit
from control_plane.authority import IssuedCertificate
from control_plane.events import publish
from control_plane.records import AgentRow, JoinTokenRow, columns
from control_plane.sessions import LONGEST_NAME, supersede_agent
from control_plane.sites import serve_by
from control_plane.store import Transaction, params_of
from protocol.errors import RequestCode, RequestError
from protocol.ids import new_id
from protocol.join_token import JoinToken

__all__ = [
    "JoinedBefore",
    "create_join_token",
    "end_join_token",
    "join_agent",
    "keep_answer",
    "list_join_tokens",
    "redeem_join_token",
    "spendable_token",
]

_COLUMNS = columns(JoinTokenRow)
_AGENT = columns(AgentRow)


class JoinedBefore(NamedTuple):
    """What the token was spent on: the one who asks has the same key."""

    agent: AgentRow
    certificate: str
    """PEM."""


def create_join_token(
    tx: Transaction,
    token: JoinToken,
    *,
    tenant_id: str,
    site_id: str,
    role: str,
    created_by: str,
    ttl_ms: int,
    node_id: str | None = None,
) -> JoinTokenRow:
    """Stores the token's hash; the token itself is shown once by the caller and kept nowhere."""
    now = tx.now()
    row = JoinTokenRow(
        token.id,
        tenant_id,
        site_id,
        role,
        _hash(token.secret.reveal()),
        now,
        created_by,
        now + ttl_ms,
        None,
        None,
        node_id,
    )
    tx.run(
        f"INSERT INTO join_tokens ({_COLUMNS}) VALUES ({', '.join(':' + c for c in JoinTokenRow.__struct_fields__)})",
        params_of(row),
    )
    return row


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


def redeem_join_token(
    tx: Transaction, token_id: str, secret: str, key_sha256: str, host_name: str, version: str
) -> AgentRow | JoinedBefore:
    """Spends a site's token and makes the agent that it was for, in one transaction.

    Raises RequestError FORBIDDEN, with what to do; nothing is spent then. A site without an agent gets this one.
    """
    row = spendable_token(tx, token_id, secret, key_sha256)
    if isinstance(row, JoinedBefore):
        return row
    if row.node_id is not None:
        raise RequestError(RequestCode.FORBIDDEN, "this join token is for a machine's own agent")
    agent = join_agent(tx, row, host_name, version)
    site = tx.one("SELECT agent_id FROM sites WHERE id = :id FOR UPDATE", {"id": row.site_id})
    if row.role == "site" and site is not None and site[0] is None:
        serve_by(tx, row.site_id, agent.id)
    return agent


def spendable_token(tx: Transaction, token_id: str, secret: str, key_sha256: str) -> JoinTokenRow | JoinedBefore:
    """The token, or what it was spent on for this key; its row is held until the transaction is over.

    Raises RequestError FORBIDDEN, with what to do.
    """
    row = tx.one(f"SELECT {_COLUMNS} FROM join_tokens WHERE id = :id FOR UPDATE", {"id": token_id}, into=JoinTokenRow)
    if row is None or not hmac.compare_digest(row.secret_hash, _hash(secret)):
        raise RequestError(
            RequestCode.FORBIDDEN, "this join token is not known here: make a new one and use it whole"
        )
    before = _joined_before(tx, row, key_sha256)
    if before is not None:
        return before
    if row.node_id is not None and (row.used_at is not None or row.expires_at <= tx.now()):
        raise RequestError(
            RequestCode.FORBIDDEN,
            "this boot ticket is used up, or a later one of the machine was used, or its time is over: start the "
            "machine from its boot medium again, which brings a new one",
        )
    if row.used_at is not None:
        raise RequestError(
            RequestCode.FORBIDDEN,
            f"this join token was used before, by {row.used_by}: a token joins one agent; make a new one",
        )
    if row.expires_at <= tx.now():
        raise RequestError(RequestCode.FORBIDDEN, "this join token has expired: make a new one and use it in time")
    return row


def join_agent(
    tx: Transaction, token: JoinTokenRow, host_name: str, version: str, known: AgentRow | None = None
) -> AgentRow:
    """Spends the token. `known`: the agent that joins anew, in place of its earlier self; else one is made."""
    now = tx.now()
    host_name, version = host_name[:LONGEST_NAME], version[:LONGEST_NAME]
    agent = known or AgentRow(
        new_id("agent"),
        token.tenant_id,
        token.site_id,
        token.node_id,
        token.role,
        host_name,
        version,
        {},
        now,
        None,
        None,
        None,
    )
    if known is None:
        tx.run(
            f"INSERT INTO agents ({_AGENT}) VALUES ({', '.join(':' + c for c in AgentRow.__struct_fields__)})",
            params_of(agent),
        )
    else:
        supersede_agent(tx, known)
        tx.run("UPDATE agents SET site_id = :site WHERE id = :id", {"site": token.site_id, "id": agent.id})
    tx.run(
        "UPDATE join_tokens SET used_at = :now, used_by = :agent_id WHERE id = :id",
        {"id": token.id, "now": now, "agent_id": agent.id},
    )
    told: dict[str, object] = {"siteId": token.site_id, "hostName": host_name, "role": token.role}
    if token.node_id is not None:
        told["nodeId"] = token.node_id
    publish(tx, token.tenant_id, f"agent/{agent.id}", "agent.joined", told)
    return agent


def keep_answer(tx: Transaction, token_id: str, key_sha256: str, issued: IssuedCertificate) -> None:
    """What the token, which was spent in this transaction, is answered with."""
    tx.run(
        "INSERT INTO join_answers (token_id, key_sha256, serial, certificate) "
        "VALUES (:token, :key, :serial, :certificate)",
        {"token": token_id, "key": key_sha256, "serial": issued.serial, "certificate": issued.pem},
    )


def _joined_before(tx: Transaction, token: JoinTokenRow, key_sha256: str) -> JoinedBefore | None:
    """None unless this key has spent the token, whose time is not over, and what it was given still holds.

    The certificate is the first one, not another: a request that was held up may be served after its repetition, and
    what that was given must hold.
    """
    if token.used_by is None or token.expires_at <= tx.now():
        return None
    agent = tx.one(
        f"SELECT {_AGENT} FROM agents WHERE id = :id AND revoked_at IS NULL FOR SHARE",
        {"id": token.used_by},
        into=AgentRow,
    )
    answer = tx.one(
        "SELECT join_answers.certificate FROM join_answers JOIN certificates "
        "ON certificates.serial = join_answers.serial WHERE token_id = :token AND key_sha256 = :key "
        "AND certificates.revoked_at IS NULL AND certificates.not_after > :now",
        {"token": token.id, "key": key_sha256, "now": tx.now()},
    )
    if agent is None or answer is None:
        return None
    audit.record(
        tx,
        tenant_id=token.tenant_id,
        actor=agent.id,
        action="compute:agents:join",
        resource=f"compute-agent/{agent.id}",
        request_id="",
        detail={"joinTokenId": token.id, "repeated": True},
    )
    return JoinedBefore(agent, str(answer[0]))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
