"""The rows of the store as frozen records; each table has one, with the columns as fields."""

import msgspec

from protocol.commands import CommandState, Ending
from protocol.operations import Repeat

__all__ = [
    "ALL_TENANTS",
    "AgentRow",
    "ApiTokenRow",
    "AuditRow",
    "CommandRow",
    "EventRow",
    "JoinTokenRow",
    "NodeRow",
    "SessionRow",
    "SiteRow",
    "columns",
]

ALL_TENANTS = "*"
"""The tenant of a token that may act for every tenant."""


class SiteRow(msgspec.Struct, frozen=True):
    id: str
    tenant_id: str
    name: str
    agent_id: str | None
    created_at: int
    updated_at: int


class AgentRow(msgspec.Struct, frozen=True):
    id: str
    tenant_id: str
    site_id: str | None
    node_id: str | None
    role: str
    host_name: str
    version: str
    drivers: dict[str, list[str]]
    created_at: int
    revoked_at: int | None
    revoked_reason: str | None
    session_id: str | None
    ready_session: str | None = None


class JoinTokenRow(msgspec.Struct, frozen=True):
    id: str
    tenant_id: str
    site_id: str
    role: str
    secret_hash: str
    created_at: int
    created_by: str
    expires_at: int
    used_at: int | None
    used_by: str | None
    node_id: str | None = None
    """The machine that it is bound to."""


class SessionRow(msgspec.Struct, frozen=True):
    id: str
    agent_id: str
    role: str
    boot_id: str
    journal_id: str
    worker: str
    connected_at: int
    disconnected_at: int | None
    disconnect_reason: str | None
    instance: str = ""


class NodeRow(msgspec.Struct, frozen=True):
    id: str
    tenant_id: str
    name: str
    site_id: str
    labels: dict[str, str]
    drivers: dict[str, str]
    bmc_address: str
    bmc_driver: str
    credential_ref: str | None
    tls: str
    created_at: int
    updated_at: int


class CommandRow(msgspec.Struct, frozen=True):
    id: str
    tenant_id: str
    node_id: str
    agent_id: str
    kind: str
    payload: dict[str, object]
    key: str
    repeat: Repeat
    state: CommandState
    created_at: int
    created_by: str
    not_after: int
    sent_session: str | None
    sent_journal: str | None
    started_at: int | None
    finished_at: int | None
    cancel_reason: str | None
    ending: Ending | None
    late_ending: Ending | None
    workflow_id: str | None = None
    """The workflow whose step asked for it."""


class ApiTokenRow(msgspec.Struct, frozen=True):
    id: str
    tenant_id: str
    name: str
    secret_hash: str
    permissions: list[str]
    created_at: int
    created_by: str
    expires_at: int | None
    revoked_at: int | None


class AuditRow(msgspec.Struct, frozen=True):
    seq: int
    id: str
    tenant_id: str
    at: int
    actor: str
    action: str
    resource: str
    request_id: str
    decision: str
    detail: dict[str, object]


class EventRow(msgspec.Struct, frozen=True):
    seq: int
    id: str
    tenant_id: str
    at: int
    subject: str
    type: str
    data: dict[str, object]


def columns(record: type[msgspec.Struct], table: str = "") -> str:
    """The record's columns as a list for SELECT, in the order of its fields; with the table's name where given."""
    prefix = f"{table}." if table else ""
    return ", ".join(prefix + name for name in record.__struct_fields__)
