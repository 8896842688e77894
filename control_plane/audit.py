"""The audit trail: every mutation and every refusal, by whom, on what; written in the mutation's own transaction."""

from control_plane.records import ALL_TENANTS, AuditRow, columns
from control_plane.store import Transaction, json_text
from protocol.ids import new_id

__all__ = ["list_audit", "record"]

_INSERT = """
INSERT INTO audit (id, tenant_id, at, actor, action, resource, request_id, decision, detail)
VALUES (:id, :tenant_id, :at, :actor, :action, :resource, :request_id, :decision, :detail)
"""


def record(
    tx: Transaction,
    *,
    tenant_id: str,
    actor: str,
    action: str,
    resource: str,
    request_id: str,
    decision: str = "allowed",
    detail: dict[str, object] | None = None,
) -> None:
    """Adds a line. `actor` is a token's or an agent's id; `detail` holds no secret."""
    tx.run(
        _INSERT,
        {
            "id": new_id("aud"),
            "tenant_id": tenant_id,
            "at": tx.now(),
            "actor": actor,
            "action": action,
            "resource": resource,
            "request_id": request_id,
            "decision": decision,
            "detail": json_text(detail or {}),
        },
    )


def list_audit(tx: Transaction, tenant_id: str, before: int | None, limit: int) -> list[AuditRow]:
    """Newest first, older than the number `before`; `*` reads every tenant's."""
    conditions = [] if tenant_id == ALL_TENANTS else ["tenant_id = :tenant_id"]
    conditions += [] if before is None else ["seq < :before"]
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    return tx.all(
        f"SELECT {columns(AuditRow)} FROM audit {where} ORDER BY seq DESC LIMIT :limit",
        {"tenant_id": tenant_id, "before": before, "limit": limit},
        into=AuditRow,
    )
