"""Commands: what was asked of an agent, and what became of it."""

from datetime import datetime
from typing import Any

from control_plane.api.shapes.common import (
    CommandId,
    PageRequest,
    Reason,
    Reference,
    Request,
    View,
    WaitMs,
    id_cursor,
)
from protocol.commands import Ending
from protocol.errors import Failure

__all__ = [
    "AgentStanding",
    "CancelCommand",
    "CommandList",
    "CommandView",
    "GetCommand",
    "ListCommands",
    "ProgressView",
]


class GetCommand(Request, frozen=True, kw_only=True):
    command_id: CommandId
    wait_ms: WaitMs = 0


class ListCommands(PageRequest, frozen=True, kw_only=True):
    """Newest first."""

    node_id: Reference | None = None
    open: bool = False
    """Only those that have not ended."""

    checks = {"cursor": id_cursor("cmd")}


class CancelCommand(Request, frozen=True, kw_only=True):
    command_id: CommandId
    reason: Reason = "cancelled by an operator"


class ProgressView(View, frozen=True, kw_only=True):
    message: str
    percent: float | None


class AgentStanding(View, frozen=True, kw_only=True):
    """The agent that is to do a command, or does it."""

    host_name: str
    site: str | None
    """The name of the site that it serves; null for a machine's own agent."""
    connected: bool
    since: datetime | None
    """Since when it is connected, or away; null for one that has never connected."""


class CommandView(View, frozen=True, kw_only=True):
    id: str
    tenant_id: str
    node_id: str
    agent_id: str
    kind: str
    operation: str | None
    driver: str | None
    args: dict[str, Any]
    key: str
    repeat: str
    state: str
    created_at: datetime
    created_by: str
    not_after: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_reason: str | None
    progress: ProgressView | None
    """The last news, while it runs."""
    agent: AgentStanding | None = None
    """Of a command that has not ended, where it was asked for by commands.get: who is to do it."""
    result: dict[str, Any] | None
    error: Failure | None
    late_ending: Ending | None
    """What the agent reported after the command had been given up."""


class CommandList(View, frozen=True, kw_only=True):
    items: list[CommandView]
    cursor: str | None
