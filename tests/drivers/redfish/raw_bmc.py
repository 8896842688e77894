"""A BMC of raw bytes: what no HTTP library would send, a test can."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from drivers import Drivers, Target
from protocol.errors import OperationError

PASSWORD = 'Planted "Pa55" wörd&'
SESSIONS = "/redfish/v1/SessionService/Sessions"
SYSTEM = "/redfish/v1/Systems/1"
RESET = f"{SYSTEM}/Actions/ComputerSystem.Reset"
ROOT = {"@odata.id": "/redfish/v1/", "Systems": {"@odata.id": "/redfish/v1/Systems"}}
COLLECTION = {"@odata.id": "/redfish/v1/Systems", "Members": [{"@odata.id": SYSTEM}]}
HOST = {
    "@odata.id": SYSTEM,
    "PowerState": "On",
    "Actions": {"#ComputerSystem.Reset": {"target": RESET, "ResetType@Redfish.AllowableValues": ["ForceRestart"]}},
}


@dataclass
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def http(
    body: object = b"", status: str = "200 OK", headers: str = "", *, version: str = "HTTP/1.1", length: bool = True
) -> bytes:
    """An answer in bytes; `headers` are whole lines."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{version} {status}\r\n{headers}" + (f"Content-Length: {len(content)}\r\n" if length else "")
    return f"{head}Connection: close\r\n\r\n".encode() + content


@dataclass
class RawBmc:
    """Answers by `special` first (a path, or `METHOD path`), else as a plain BMC with one system would."""

    special: dict[str, bytes | Callable[[Asked], bytes]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    port: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    drip: float = 0.0
    """Seconds between single bytes of a special answer."""

    def paths(self, method: str) -> list[str]:
        return [one.path for one in self.asked if one.method == method]

    def answer(self, asked: Asked) -> tuple[bytes, bool]:
        special = self.special.get(f"{asked.method} {asked.path}", self.special.get(asked.path))
        if special is not None:
            return (special if isinstance(special, bytes) else special(asked)), True
        if asked.method == "POST" and asked.path == SESSIONS:
            return http(
                {}, "201 Created", f"X-Auth-Token: T0ken-of-this-session\r\nLocation: {SESSIONS}/7\r\n"
            ), False
        if asked.method in ("POST", "DELETE", "PATCH"):
            return http(status="204 No Content"), False
        known: dict[str, object] = {"/redfish/v1/": ROOT, "/redfish/v1/Systems": COLLECTION, SYSTEM: HOST}
        found = known.get(asked.path)
        return (http({}, "404 Not Found") if found is None else http(found)), False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ", 2)
            pairs = [line.split(":", 1) for line in head[1:] if ":" in line]
            headers = {name.strip().lower(): value.strip() for name, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            one = Asked(method, path, headers, body)
            self.asked.append(one)
            content, special = self.answer(one)
            if special and self.drip:
                for byte in content:
                    writer.write(bytes((byte,)))
                    await writer.drain()
                    await asyncio.sleep(self.drip)
            else:
                writer.write(content)
                await writer.drain()
        writer.close()


@dataclass
class RawBench:
    """The raw BMC and the driver before it."""

    bmc: RawBmc
    drivers: Drivers
    target: Target

    async def __call__(self, operation: str, timeout: float = 60, **arguments: object) -> dict[str, Any]:
        return await self.drivers.invoke(self.target, operation, arguments, timeout=timeout)

    async def fails(self, operation: str, timeout: float = 60, **arguments: object) -> OperationError:
        try:
            result = await self(operation, timeout, **arguments)
        except OperationError as error:
            return error
        raise AssertionError(f"{operation} succeeded: {result}")


@contextlib.asynccontextmanager
async def raw_bench(
    special: dict[str, bytes | Callable[[Asked], bytes]] | None = None, *, drip: float = 0.0
) -> AsyncIterator[RawBench]:
    bmc = RawBmc(special or {}, drip=drip)
    server = await asyncio.start_server(bmc.serve, "127.0.0.1", 0)
    bmc.port = server.sockets[0].getsockname()[1]
    target = Target(address=f"http://127.0.0.1:{bmc.port}", username="admin", password=PASSWORD)
    async with server, Drivers() as drivers:
        yield RawBench(bmc, drivers, target)
    for writer in bmc.writers:
        writer.transport.abort()
    # The transports end in the loop's next turn.
    await asyncio.sleep(0.01)
