"""The operators' end of a console: one websocket per reader, its rights, its audit lines."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from starlette.datastructures import QueryParams
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from control_plane import audit
from control_plane.api.call import Call
from control_plane.api.dispatch import Dispatcher
from control_plane.api.handlers.drivers import choose_driver, invoke
from control_plane.api.shapes.commands import CommandView
from control_plane.api.shapes.common import View
from control_plane.api.shapes.console import (
    CONSOLE_ACTION,
    BreakMessage,
    ClientMessage,
    EndedMessage,
    GapMessage,
    OpenConsoleRequest,
    OpenedMessage,
    ReadyMessage,
    ServerMessage,
    TakeMessage,
    WriterMessage,
)
from control_plane.api.shapes.drivers import Invoke
from control_plane.api.shapes.nodes import DriverName
from control_plane.api.verbs import Verb
from control_plane.console_reader import Ended, Gap, Output, Reader, Ready, WriterChanged
from control_plane.consoles import Consoles, locate, serving_session
from control_plane.node_console import Opened
from control_plane.nodes import find_node
from control_plane.records import NodeRow, SessionRow
from control_plane.store import StoreError, Transaction
from control_plane.tokens import Principal, token_name
from protocol.errors import ErrorCode, OperationError, RequestCode, RequestError
from protocol.operations import OPERATIONS
from protocol.shapes.console import ConsoleKind

__all__ = ["CONSOLE", "ConsoleDoor", "Visit"]

_log = logging.getLogger("control_plane.api.console")
CONSOLE: Final = Verb(
    group="console",
    method="open",
    summary="read and type at a machine's console (a websocket)",
    request=OpenConsoleRequest,
    response=View,
    action=CONSOLE_ACTION,
    resource="compute-node",
    subject="nodeId",
    mutation=True,
)
_OPEN: Final = OPERATIONS["console.openConsole"]
_DRIVER_OF: Final[Mapping[ConsoleKind, DriverName]] = {ConsoleKind.SOL: "ipmi", ConsoleKind.SSH: "ssh"}
_OPEN_MS: Final = 60_000
_CHECK_SECONDS: Final = 2.0
_SEND_SECONDS: Final = 60.0
"""A client that takes nothing for so long, though its connection lives, is given up."""
_FLAGS: Final = ("readOnly", "force", "takeOver")
_TRUTH: Final = {"": True, "1": True, "true": True, "0": False, "false": False}
_NORMAL, _POLICY, _UNREADABLE = 1000, 1008, 1007


class ConsoleDoor:
    """Lets operators in. `consoles` is None in a process that serves no agents."""

    def __init__(self, dispatcher: Dispatcher, consoles: Consoles | None) -> None:
        self._dispatcher = dispatcher
        self._consoles = consoles

    async def admit(self, websocket: WebSocket, principal: Principal, request_id: str) -> "Visit":
        """The right, the machine and its agent are looked at before the websocket is accepted.

        Raises RequestError, StoreError.
        """
        raw = _asked(websocket.path_params["node"], websocket.query_params)
        call, request = await self._dispatcher.admit(CONSOLE, raw, principal, request_id)
        if self._consoles is None:
            raise RequestError(RequestCode.UNAVAILABLE, "this process serves no agents, and so no consoles")
        node, session, name = await self._dispatcher.services.store.read(_look, call, request.node_id)
        if not self._consoles.has(node.id):
            locate(session, self._consoles.worker)
        opening = _Opening(call, node, request)
        reader = self._consoles.join(
            node.id,
            name,
            opening.stream,
            wishes_to_write=not request.read_only,
            take_over=request.take_over,
            replay=request.replay,
        )
        visit = Visit(websocket, call, node, reader, force=request.force and not request.read_only)
        try:
            await visit.record({"event": "opened", "readOnly": request.read_only})
        except BaseException:
            reader.leave()
            raise
        return visit


class _Opening:
    """Asks the node's agent for the stream, on behalf of the reader that came first."""

    def __init__(self, call: Call, node: NodeRow, request: OpenConsoleRequest) -> None:
        self._call = call
        self._node = node
        self._request = request

    async def stream(self, take_over: bool) -> Opened:
        """Raises OperationError, RequestError, StoreError."""
        request = self._request
        arguments = {"kind": request.kind, "command": request.command, "takeOver": take_over}
        asked = Invoke(
            node_id=self._node.id,
            operation=_OPEN.id,
            args={name: msgspec.to_builtins(value) for name, value in arguments.items() if value is not None},
            driver=self._driver(),
            timeout=_OPEN_MS,
            wait_ms=_OPEN_MS,
        )
        return _opened(await invoke(self._call, asked))

    def _driver(self) -> DriverName | None:
        """The kind that was asked for tells the driver where the node's own opens no console."""
        bound = choose_driver(self._node, _OPEN, None)
        kind = self._request.kind
        return _DRIVER_OF[kind] if kind is not None and bound in ("redfish", "auto") else None


class Visit:
    """One reader's websocket, from its acceptance to its end."""

    def __init__(self, websocket: WebSocket, call: Call, node: NodeRow, reader: Reader, *, force: bool) -> None:
        self._websocket = websocket
        self._call = call
        self._node = node
        self._reader = reader
        self._force = force
        self._typed = 0

    async def serve(self, still_allowed: Callable[[], Awaitable[bool]]) -> None:
        """Returns when either side has ended it."""
        loop = asyncio.get_running_loop()
        began, reason = loop.time(), "the client is gone"
        try:
            await self._websocket.accept()
            if self._force:
                await self._take_writer()
                self._reader.news.clear()
            await self._send(
                OpenedMessage(
                    node_id=self._node.id,
                    node_name=self._node.name,
                    writer=self._reader.is_writer,
                    holder=self._reader.holder,
                    ready=self._reader.is_ready,
                )
            )
            reason = await self._until_over(still_allowed)
        except (WebSocketDisconnect, RuntimeError, TimeoutError):
            # A client that has hung up (Starlette says so by a RuntimeError, too), or takes nothing any more.
            pass
        finally:
            self._reader.leave()
            seconds = round(loop.time() - began, 1)
            facts = {"event": "closed", "reason": reason, "seconds": seconds, "typedBytes": self._typed}
            with contextlib.suppress(StoreError):
                await self.record(facts)

    async def _until_over(self, still_allowed: Callable[[], Awaitable[bool]]) -> str:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(work) for work in (self._show(), self._hear(), self._watch(still_allowed))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _show(self) -> str:
        """The machine's bytes, and what happens beside them, to the client."""
        while True:
            match await self._reader.next():
                case Output(data):
                    async with asyncio.timeout(_SEND_SECONDS):
                        await self._websocket.send_bytes(data)
                case Gap(count):
                    await self._send(GapMessage(bytes=count))
                case Ready():
                    await self._send(ReadyMessage())
                case WriterChanged(mine, holder):
                    await self._send(WriterMessage(mine=mine, holder=holder))
                case Ended(reason, message, code):
                    await self._say_ended(EndedMessage(reason=reason, message=message, code=code))
                    return message

    async def _hear(self) -> str:
        """The client's keys and wishes."""
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return "the client closed it"
            data = message.get("bytes")
            if data is not None:
                self._typed += len(data) if self._reader.is_writer else 0
                await self._reader.type(data)
                continue
            try:
                wish = msgspec.json.decode(message.get("text") or "", type=ClientMessage)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                await self._close(_UNREADABLE, "text messages are take or break, as JSON")
                return "the client sent what is no message"
            if isinstance(wish, TakeMessage):
                await self._take_writer()
            elif isinstance(wish, BreakMessage):
                self._reader.send_break()

    async def _watch(self, still_allowed: Callable[[], Awaitable[bool]]) -> str:
        """A token that was revoked, or has expired, ends what it opened."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            with contextlib.suppress(StoreError):
                if not await still_allowed():
                    message = "this token is not good any more"
                    await self._say_ended(
                        EndedMessage(reason="forbidden", message=message, code=RequestCode.UNAUTHENTICATED.value)
                    )
                    return message

    async def _take_writer(self) -> None:
        before = self._reader.holder
        if not self._reader.is_writer:
            self._reader.take_writer()
            await self.record({"event": "tookWriter", "from": before})

    async def _say_ended(self, message: EndedMessage) -> None:
        await self._send(message)
        await self._close(_POLICY if message.reason == "forbidden" else _NORMAL, message.message)

    async def _send(self, message: ServerMessage) -> None:
        await self._websocket.send_text(msgspec.json.encode(message).decode())

    async def _close(self, code: int, reason: str) -> None:
        if self._websocket.application_state is WebSocketState.CONNECTED:
            # A close frame holds 123 bytes of reason.
            await self._websocket.close(code, reason.encode()[:120].decode(errors="ignore"))

    async def record(self, detail: dict[str, object]) -> None:
        await self._call.services.store.write(_audit, self._call, self._node, detail)


def _asked(node: str, query: QueryParams) -> Mapping[str, object]:
    """The request as its shape wants it; what cannot be read is left as text, for its check to refuse."""
    raw: dict[str, object] = {**query, "nodeId": node}
    for name in _FLAGS:
        if name in raw:
            raw[name] = _TRUTH.get(str(raw[name]).lower(), raw[name])
    replay = raw.get("replay")
    if isinstance(replay, str) and replay.isascii() and replay.isdigit() and len(replay) < 12:
        raw["replay"] = int(replay)
    return raw


def _look(tx: Transaction, call: Call, name_or_id: str) -> tuple[NodeRow, SessionRow | None, str]:
    """The node, the connection of the agent that serves it, and what the others are told of who asks."""
    node = find_node(tx, call.tenant, name_or_id)
    return node, serving_session(tx, node.site_id), token_name(tx, call.principal)


def _opened(view: CommandView) -> Opened:
    """Raises OperationError."""
    if view.error is not None:
        raise OperationError.from_failure(view.error)
    stream = (view.result or {}).get("stream")
    if view.state != "succeeded" or not isinstance(stream, str):
        raise OperationError(
            ErrorCode.TIMEOUT, f"the console was not open within {_OPEN_MS / 1000:g} s: command {view.id} goes on"
        )
    return Opened(stream, view.agent_id)


def _audit(tx: Transaction, call: Call, node: NodeRow, detail: dict[str, object]) -> None:
    audit.record(
        tx,
        tenant_id=call.tenant,
        actor=call.principal.id,
        action=CONSOLE.action,
        resource=f"{CONSOLE.resource}/{node.id}",
        request_id=call.request_id,
        detail={"verb": CONSOLE.id, **detail},
    )
