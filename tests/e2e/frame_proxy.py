"""Stands between an agent and its control plane, sees every frame, and does to it what networks do.

It ends TLS on both sides: towards the agent it is the control plane (a certificate of the same CA), towards the
control plane it is the agent (the agent's own certificate, or none: an agent that joins). Frames are counted over the
proxy's whole life.
"""

import asyncio
import contextlib
import http
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import WebSocketException
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from control_plane.authority import Authority
from protocol.frames import JOIN_SUBPROTOCOL, SUBPROTOCOL


class Way(Enum):
    UP = "agent → control plane"
    DOWN = "control plane → agent"


class Deed(Enum):
    """What happens to one frame."""

    PASS = "pass"
    DROP_AND_CUT = "lost with the connection"
    PASS_AND_CUT = "passed, then the connection is cut"
    TWICE = "passed twice"


@dataclass(frozen=True)
class Seen:
    """One frame that came by."""

    number: int
    way: Way
    type: str


class _Typed(msgspec.Struct):
    type: str = ""


Plan = Callable[[Seen], Awaitable[Deed]]


async def let_pass(_frame: Seen) -> Deed:
    return Deed.PASS


@dataclass
class FrameProxy:
    """`identity` gives the agent's certificate and key files. `plan` decides on each frame."""

    authority: Authority
    certificate: Path | None
    key: Path | None
    upstream: int
    plan: Plan = let_pass
    seen: list[Seen] = field(default_factory=list)
    _server: Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(next(iter(self._server.sockets)).getsockname()[1])

    async def __aenter__(self) -> "FrameProxy":
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            0,
            ssl=self.authority.server_context(["localhost", "127.0.0.1"]),
            process_request=self._give_ca,
            subprotocols=[Subprotocol(SUBPROTOCOL), Subprotocol(JOIN_SUBPROTOCOL)],
            compression=None,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def _give_ca(self, agent: ServerConnection, request: Request) -> Response | None:
        return agent.respond(http.HTTPStatus.OK, self.authority.pem) if request.path == "/ca.pem" else None

    async def _serve(self, agent: ServerConnection) -> None:
        assert agent.request is not None
        assert agent.subprotocol is not None
        context = ssl.create_default_context(cadata=self.authority.pem)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        try:
            async with connect(
                f"wss://127.0.0.1:{self.upstream}{agent.request.path}",
                ssl=context,
                subprotocols=[agent.subprotocol],
                compression=None,
                proxy=None,
            ) as control_plane:
                ways = [
                    asyncio.create_task(self._pump(agent, control_plane, Way.UP)),
                    asyncio.create_task(self._pump(control_plane, agent, Way.DOWN)),
                ]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                control_plane.transport.abort()
        except (OSError, WebSocketException):
            pass
        finally:
            agent.transport.abort()

    async def _pump(
        self, source: ServerConnection | ClientConnection, sink: ServerConnection | ClientConnection, way: Way
    ) -> None:
        with contextlib.suppress(WebSocketException, OSError):
            async for data in source:
                frame = Seen(len(self.seen), way, _type_of(data))
                self.seen.append(frame)
                deed = await self.plan(frame)
                if deed is Deed.DROP_AND_CUT:
                    return
                for _ in range(2 if deed is Deed.TWICE else 1):
                    await sink.send(data)
                if deed is Deed.PASS_AND_CUT:
                    return


def _type_of(data: Any) -> str:
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(data, type=_Typed).type
    return "binary"
