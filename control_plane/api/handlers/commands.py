"""Commands."""

from typing import Any, cast

from control_plane.api.call import Call
from control_plane.api.handlers.paging import page
from control_plane.api.shapes.commands import (
    AgentStanding,
    CancelCommand,
    CommandList,
    CommandView,
    GetCommand,
    ListCommands,
    ProgressView,
)
from control_plane.api.shapes.common import instant, of
from control_plane.commands import cancel as cancel_command
from control_plane.commands import get_command, list_commands
from control_plane.nodes import find_node
from control_plane.records import CommandRow
from control_plane.store import Transaction
from protocol.commands import TERMINAL
from protocol.errors import RequestCode, RequestError
from protocol.frames import Progress

__all__ = ["cancel", "get", "list_", "view", "wait"]


async def get(call: Call, request: GetCommand) -> CommandView:
    """The command; at once, or when it has ended, or when the time that the caller waits is over."""
    tenant = call.tenant
    row = await call.services.store.read(_get, tenant, request.command_id)
    return await wait(call, row, request.wait_ms)


async def list_(call: Call, request: ListCommands) -> CommandList:
    services = call.services
    rows, cursor = await services.store.read(_listed, call.tenant, request)
    return CommandList(items=[view(row, services.links.progress_of(row)) for row in rows], cursor=cursor)


def cancel(tx: Transaction, call: Call, request: CancelCommand) -> CommandView:
    """Asks for the end; a command that has ended is returned as it is."""
    row = get_command(tx, call.tenant, request.command_id, lock=True)
    if row is None:
        raise _unknown(request.command_id)
    return view(cancel_command(tx, row, request.reason))


async def wait(call: Call, row: CommandRow, wait_ms: int) -> CommandView:
    """The command's view once it has ended, or as it is when the time is over."""
    services = call.services
    if row.state in TERMINAL:
        return view(row)
    with services.waiters.watch(row.id) as watch:
        # It may have ended between the caller's reading and the watch's beginning.
        row = await services.store.read(_get, row.tenant_id, row.id)
        if wait_ms and row.state not in TERMINAL:
            ended = await watch.ended(wait_ms / 1000)
            row = ended if ended is not None else await services.store.read(_get, row.tenant_id, row.id)
    if row.state in TERMINAL:
        return view(row)
    return view(row, services.links.progress_of(row), await services.store.read(_standing, row.agent_id))


def view(row: CommandRow, progress: Progress | None = None, agent: AgentStanding | None = None) -> CommandView:
    payload = cast("dict[str, Any]", row.payload)
    operation = f"{payload['concern']}.{payload['operation']}" if "operation" in payload else None
    ending = row.ending
    return CommandView(
        id=row.id,
        tenant_id=row.tenant_id,
        node_id=row.node_id,
        agent_id=row.agent_id,
        kind=row.kind,
        operation=operation,
        driver=payload.get("driver"),
        args=payload.get("args", {}),
        key=row.key,
        repeat=row.repeat.value,
        state=row.state.value,
        created_at=instant(row.created_at),
        created_by=row.created_by,
        not_after=instant(row.not_after),
        started_at=of(row.started_at),
        finished_at=of(row.finished_at),
        cancel_reason=row.cancel_reason,
        progress=None if progress is None else ProgressView(message=progress.message, percent=progress.percent),
        result=None if ending is None else ending.result,
        error=None if ending is None else ending.error,
        late_ending=row.late_ending,
        agent=agent,
    )


def _standing(tx: Transaction, agent_id: str) -> AgentStanding | None:
    row = tx.one(
        """
        SELECT agents.host_name, sites.name, sessions.connected_at, sessions.disconnected_at
        FROM agents LEFT JOIN sites ON sites.id = agents.site_id AND agents.role = 'site'
            LEFT JOIN sessions ON sessions.id = agents.session_id
        WHERE agents.id = :id
        """,
        {"id": agent_id},
    )
    if row is None:
        return None
    host_name, site, connected_at, left_at = row
    connected = connected_at is not None and left_at is None
    return AgentStanding(
        host_name=host_name, site=site, connected=connected, since=of(connected_at if connected else left_at)
    )


def _listed(tx: Transaction, tenant_id: str, request: ListCommands) -> tuple[list[CommandRow], str | None]:
    node_id = None if request.node_id is None else find_node(tx, tenant_id, request.node_id).id
    return page(
        request,
        lambda before, limit: list_commands(tx, tenant_id, before or None, limit, node_id, open_only=request.open),
    )


def _get(tx: Transaction, tenant_id: str, command_id: str) -> CommandRow:
    row = get_command(tx, tenant_id, command_id)
    if row is None:
        raise _unknown(command_id)
    return row


def _unknown(command_id: str) -> RequestError:
    return RequestError(RequestCode.NOT_FOUND, f"there is no command {command_id!r}")
