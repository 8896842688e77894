"""A client for the simulated BMCs, and servers that end with their test."""

import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
import pytest
from multidict import CIMultiDictProxy

from simulators.login import DEFAULT_PASSWORD, DEFAULT_USER
from simulators.redfish import RedfishServer

USER, PASSWORD = DEFAULT_USER, DEFAULT_PASSWORD
SYSTEM = "/redfish/v1/Systems/1"
RESET = f"{SYSTEM}/Actions/ComputerSystem.Reset"
MANAGER = "/redfish/v1/Managers/1"
CD = f"{MANAGER}/VirtualMedia/Cd"
SESSIONS = "/redfish/v1/SessionService/Sessions"


def basic(user: str = USER, password: str = PASSWORD) -> dict[str, str]:
    """The header of a basic login."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@dataclass
class Reply:
    """A complete answer."""

    status: int
    headers: "CIMultiDictProxy[str]"
    body: bytes
    data: Any = field(default=None)

    @property
    def message_ids(self) -> list[str]:
        """The keys of the extended error's messages, without their registry."""
        entries = self.data["error"]["@Message.ExtendedInfo"]
        return [entry["MessageId"].rpartition(".")[2] for entry in entries]


class RedfishClient:
    """Sends requests to one server, with a basic login unless told otherwise."""

    def __init__(self, server: RedfishServer) -> None:
        self.server = server
        self.headers: dict[str, str] = basic()
        context = server.tls.client_context() if server.tls else None
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context or True))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def request(
        self, method: str, path: str, json: Any = None, *, headers: dict[str, str] | None = None, **more: Any
    ) -> Reply:
        url = path if path.startswith("http") else self.server.url + path
        sent = {**self.headers, **(headers or {})}
        async with self._session.request(method, url, json=json, headers=sent, **more) as answer:
            body = await answer.read()
            is_json = answer.content_type == "application/json" and body and method != "HEAD"
            return Reply(answer.status, answer.headers, body, await answer.json() if is_json else None)

    async def get(self, path: str, **more: Any) -> Reply:
        return await self.request("GET", path, **more)

    async def post(self, path: str, json: Any = None, **more: Any) -> Reply:
        return await self.request("POST", path, json, **more)

    async def patch(self, path: str, json: Any, **more: Any) -> Reply:
        return await self.request("PATCH", path, json, **more)

    async def delete(self, path: str, **more: Any) -> Reply:
        return await self.request("DELETE", path, **more)

    async def reset(self, reset_type: str, path: str = RESET) -> Reply:
        return await self.post(path, {"ResetType": reset_type})

    async def log_in(self, user: str = USER, password: str = PASSWORD) -> Reply:
        """Opens a session and uses it from now on."""
        reply = await self.request("POST", SESSIONS, {"UserName": user, "Password": password})
        if reply.status == 201:
            self.headers = {"X-Auth-Token": reply.headers["X-Auth-Token"]}
        return reply


class FakeClock:
    """A monotonic clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds


Start = Callable[..., Awaitable[RedfishClient]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts a simulated BMC (the arguments are those of RedfishServer) and gives a client of it."""
    async with AsyncExitStack() as stack:

        async def begin(*args: Any, **settings: Any) -> RedfishClient:
            server = await stack.enter_async_context(RedfishServer(*args, **settings))
            return await stack.enter_async_context(RedfishClient(server))

        yield begin


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
