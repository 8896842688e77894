"""Driving a machine: one operation of the table, on one node."""

import difflib
from collections.abc import Mapping
from typing import Any

from control_plane.api.shapes.common import (
    Duration,
    Key,
    PageRequest,
    Reference,
    Request,
    View,
    WaitMs,
    duration_check,
    id_cursor,
)
from control_plane.api.shapes.nodes import DriverName
from protocol.address_logins import login_faults
from protocol.errors import Issue
from protocol.operations import CONCERNS, OPERATIONS, Concern
from protocol.validation import faults

__all__ = ["Invoke", "ListOperations", "MatrixList", "MatrixRequest", "MatrixRow", "OperationList", "OperationView"]

LONGEST_TIMEOUT_MS = 7 * 86_400_000


class Invoke(Request, frozen=True, kw_only=True):
    node_id: Reference
    operation: str
    """`<concern>.<operation>`, such as power.setPower."""
    args: dict[str, Any] = {}
    driver: DriverName | None = None
    """The node's own for this concern where it is left out."""
    key: Key | None = None
    """An idempotency key: a second request of the same key gives the first one's command."""
    timeout: Duration | None = None
    """How long the operation may take, the waiting for an absent agent included; the operation's own by default."""
    wait_ms: WaitMs = 30_000

    checks = {"timeout": duration_check(1_000, LONGEST_TIMEOUT_MS, "from 1s to 7d")}

    @classmethod
    def faults(cls, raw: Mapping[str, Any]) -> list[Issue]:
        return super().faults(raw) + operation_faults(raw.get("operation"), raw.get("args", {}))


def operation_faults(operation: object, args: object) -> list[Issue]:
    """Every fault of an operation's name and arguments."""
    if not isinstance(operation, str):
        return []
    row = OPERATIONS.get(operation)
    if row is None:
        close = difflib.get_close_matches(operation[:100], OPERATIONS, 3, 0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else f"concerns: {', '.join(CONCERNS)}"
        return [Issue("operation", f"there is no operation {operation[:100]!r}", hint)]
    return [*faults(row.arguments, args, "args"), *login_faults(args, "args")] if isinstance(args, Mapping) else []


class ListOperations(Request, frozen=True, kw_only=True):
    concern: Concern | None = None


class OperationView(View, frozen=True, kw_only=True):
    id: str
    concern: str
    summary: str
    repeat: str
    """read, converge or once: what doing it twice means."""
    timeout_ms: int
    arguments: dict[str, Any]
    """JSON Schema."""
    result: dict[str, Any]
    """JSON Schema."""


class OperationList(View, frozen=True, kw_only=True):
    items: list[OperationView]
    definitions: dict[str, Any]
    """The schemas that `arguments` and `result` refer to."""


class MatrixRequest(PageRequest, frozen=True, kw_only=True):
    checks = {"cursor": id_cursor("agent")}


class MatrixRow(View, frozen=True, kw_only=True):
    """What one connected agent's drivers can do."""

    agent_id: str
    site_id: str | None
    host_name: str
    version: str
    drivers: dict[str, list[str]]


class MatrixList(View, frozen=True, kw_only=True):
    items: list[MatrixRow]
    cursor: str | None
