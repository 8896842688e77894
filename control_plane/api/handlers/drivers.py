"""`drivers.invoke`: from a request to a stored and sent command; and what can be invoked at all."""

import functools
from typing import Any

import msgspec

from control_plane import audit
from control_plane.api.call import Call
from control_plane.api.handlers import commands
from control_plane.api.openapi import any_value
from control_plane.api.shapes.commands import CommandView
from control_plane.api.shapes.common import decode_cursor, encode_cursor
from control_plane.api.shapes.drivers import (
    Invoke,
    ListOperations,
    MatrixList,
    MatrixRequest,
    MatrixRow,
    OperationList,
    OperationView,
)
from control_plane.commands import enqueue
from control_plane.nodes import find_node, target_by
from control_plane.records import CommandRow, NodeRow, SessionRow
from control_plane.sessions import list_connected_agents, lock_session
from control_plane.sites import get_site
from control_plane.store import Transaction
from protocol.commands import CommandKind, CommandState, DriverInvoke, TargetRef
from protocol.durations import parse_duration
from protocol.errors import RequestCode, RequestError
from protocol.ids import new_id
from protocol.operations import OPERATIONS, Operation

__all__ = ["choose_driver", "invoke", "matrix", "operations"]


async def invoke(call: Call, request: Invoke) -> CommandView:
    """Stores the command, sends it where its agent is connected here, and waits for its end as long as asked."""
    services = call.services
    command_id = new_id("cmd")
    with services.waiters.watch(command_id) as watch:
        row, fresh = await services.store.write(_enqueue, call, request, command_id)
        if not fresh:
            _require_the_same(row, request)
            return await commands.wait(call, row, request.wait_ms)
        services.waiters.seen(row)
        if row.sent_session is not None:
            await services.links.deliver(row)
        ended = await watch.ended(request.wait_ms / 1000) if request.wait_ms else None
    if ended is not None:
        return commands.view(ended)
    return await commands.wait(call, row, 0) if request.wait_ms else commands.view(row)


def _require_the_same(row: CommandRow, request: Invoke) -> None:
    """A key stands for one request: another one under it must not be answered with the first one's success."""
    asked = {**row.payload, "args": request.args}
    if f"{row.payload.get('concern')}.{row.payload.get('operation')}" != request.operation or asked != row.payload:
        raise RequestError(
            RequestCode.CONFLICT,
            f"the key {row.key!r} was used before for another request ({row.id}): use a new key for this one",
        )


def _enqueue(tx: Transaction, call: Call, request: Invoke, command_id: str) -> tuple[CommandRow, bool]:
    """The command, and whether it is a new one."""
    node = find_node(tx, call.tenant, request.node_id, keep=True)
    operation = OPERATIONS[request.operation]
    driver = choose_driver(node, operation, request.driver)
    agent_id = _serving_agent(tx, node)
    session = _live_session(tx, call, agent_id)
    payload = DriverInvoke(
        driver=driver,
        concern=operation.concern.value,
        operation=operation.name,
        args=request.args,
        target_node_id=node.id,
        target=target_by(driver, TargetRef(node.bmc_address, node.credential_ref, node.tls)),
    )
    now = tx.now()
    timeout = operation.timeout * 1000 if request.timeout is None else parse_duration(request.timeout)
    command = CommandRow(
        id=command_id,
        tenant_id=call.tenant,
        node_id=node.id,
        agent_id=agent_id,
        kind=CommandKind.DRIVER_INVOKE.value,
        payload=msgspec.to_builtins(payload),
        key=request.key or f"api:{command_id}",
        repeat=operation.repeat_for(request.args),
        state=CommandState.QUEUED,
        created_at=now,
        created_by=call.principal.id,
        not_after=now + int(timeout),
        sent_session=None if session is None else session.id,
        sent_journal=None if session is None else session.journal_id,
        started_at=None,
        finished_at=None,
        cancel_reason=None,
        ending=None,
        late_ending=None,
    )
    stored = enqueue(tx, command)
    audit.record(
        tx,
        tenant_id=call.tenant,
        actor=call.principal.id,
        action="compute:drivers:invoke",
        resource=f"compute-node/{node.id}",
        request_id=call.request_id,
        detail={"commandId": stored.id, "operation": operation.id},
    )
    return stored, stored.id == command_id


def choose_driver(node: NodeRow, operation: Operation, asked: str | None) -> str:
    """The asked one, else the node's for this concern, else its BMC's. Raises RequestError INVALID_STATE."""
    driver = asked or node.drivers.get(operation.concern.value) or node.bmc_driver
    if driver == "linux":
        raise RequestError(
            RequestCode.INVALID_STATE,
            "the driver linux works on the machine itself, which only steps of a profile reach (`on: ramdisk`): "
            "name another driver",
        )
    return driver


def _serving_agent(tx: Transaction, node: NodeRow) -> str:
    site = get_site(tx, node.tenant_id, node.site_id)
    if site is None or site.agent_id is None:
        name = node.site_id if site is None else site.name
        raise RequestError(
            RequestCode.INVALID_STATE,
            f"site {name!r} has no agent: make a join token for it (join-tokens create) and join one",
        )
    return site.agent_id


def _live_session(tx: Transaction, call: Call, agent_id: str) -> SessionRow | None:
    """The connection on this worker over which the command can go at once, if that is still the agent's own."""
    session = call.services.links.live_session(agent_id)
    if session is None or lock_session(tx, agent_id) != session.id:
        return None
    return session


def operations(tx: Transaction, call: Call, request: ListOperations) -> OperationList:
    """The table of operations; nothing is read from the store."""
    listed, definitions = _described()
    items = [item for item in listed if request.concern is None or item.concern == request.concern]
    return OperationList(items=items, definitions=definitions)


@functools.cache
def _described() -> tuple[list[OperationView], dict[str, Any]]:
    kinds = [kind for row in OPERATIONS.values() for kind in (row.arguments, row.result)]
    schemas, definitions = msgspec.json.schema_components(
        kinds, schema_hook=any_value, ref_template="#/definitions/{name}"
    )
    schemas = tuple(schemas)
    items = [
        OperationView(
            id=row.id,
            concern=row.concern.value,
            summary=row.summary,
            repeat=row.repeat.value,
            timeout_ms=int(row.timeout * 1000),
            arguments=schemas[2 * index],
            result=schemas[2 * index + 1],
        )
        for index, row in enumerate(OPERATIONS.values())
    ]
    return items, definitions


def matrix(tx: Transaction, call: Call, request: MatrixRequest) -> MatrixList:
    after = decode_cursor(request.cursor) if request.cursor is not None else ""
    agents = list_connected_agents(tx, call.tenant, after, request.limit + 1)
    more = len(agents) > request.limit
    agents = agents[: request.limit]
    return MatrixList(
        items=[
            MatrixRow(
                agent_id=agent.id,
                site_id=agent.site_id,
                host_name=agent.host_name,
                version=agent.version,
                drivers=agent.drivers,
            )
            for agent in agents
        ],
        cursor=encode_cursor(agents[-1].id) if more else None,
    )
