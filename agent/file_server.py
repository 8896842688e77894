"""Files for machines that fetch them by themselves: HTTP, each under a path that nobody can guess, for a while.

It listens only while something is offered. A BMC may ask for parts, first for the head, and several times over.
"""

import asyncio
import contextlib
import os
import re
import secrets
import socket
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import structlog
from aiohttp import web

from protocol.errors import ErrorCode, OperationError

__all__ = ["FileServer", "asked_part"]

_log = structlog.get_logger("agent.file_server")
_CHUNK = 256 * 1024
_STOP_SECONDS = 2.0
_RANGE = re.compile(r"bytes=(\d*)-(\d*)$")


@dataclass(slots=True)
class _Offer:
    """A file that may be fetched. Its handle is its own, so that nothing that happens to the path matters."""

    handle: int
    name: str
    size: int
    changed_at: float
    ends: asyncio.TimerHandle | None = None


class FileServer:
    """`listen`: `host:port`, or `:port` for all addresses of this host. `url`: how machines reach it, where that is
    not this host's address and the port (behind a proxy, or with a name)."""

    def __init__(self, listen: str, url: str = "") -> None:
        host, _, port = listen.rpartition(":")
        self._listen = listen
        self._host = host.strip("[]") or None
        self._port = int(port)
        self._url = url.rstrip("/")
        self._offers: dict[str, _Offer] = {}
        self._runner: web.ServerRunner | None = None
        self._lock = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def is_up(self) -> bool:
        return self._runner is not None

    async def offer(self, file: Path | BinaryIO, name: str, lifetime: float, *, reached_by: str = "") -> str:
        """An address whose last part is `name`, good for `lifetime` seconds, or until it is withdrawn.

        An open file is taken over as it is and may be closed afterwards. `reached_by`: the host that will fetch it,
        so that an address of ours is given that it can reach. Raises OperationError CONFLICT where nothing can
        listen, OSError for a path that cannot be opened.
        """
        taken = _taken(file, _safe(name))
        try:
            return await self._offered(taken, lifetime, reached_by)
        except BaseException:
            os.close(taken.handle)
            raise

    async def _offered(self, offer: _Offer, lifetime: float, reached_by: str) -> str:
        async with self._lock:
            base = await self._base(reached_by)
            await self._start()
            token = secrets.token_urlsafe(24)
            self._offers[token] = offer
            offer.ends = asyncio.get_running_loop().call_later(lifetime, self._expire, token)
            url = f"{self._url or f'{base}:{self._bound_port()}'}/files/{token}/{offer.name}"
        _log.info("file_offered", name=offer.name, bytes=offer.size, seconds=round(lifetime))
        return url

    async def withdraw(self, url: str) -> None:
        """Ends an offer; transfers under way end too once it was the last one. Safe to call twice."""
        await self._end(url.rpartition("/")[0].rpartition("/")[2])

    async def aclose(self) -> None:
        """Ends every offer."""
        for token in list(self._offers):
            await self._end(token)
        await asyncio.gather(*self._ending)

    async def _end(self, token: str) -> None:
        offer = self._offers.pop(token, None)
        if offer is None:
            return
        if offer.ends is not None:
            offer.ends.cancel()
        os.close(offer.handle)
        async with self._lock:
            if not self._offers and self._runner is not None:
                runner, self._runner = self._runner, None
                await runner.cleanup()

    def _expire(self, token: str) -> None:
        task = asyncio.get_running_loop().create_task(self._end(token))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _start(self) -> None:
        if self._runner is not None:
            return
        runner = web.ServerRunner(web.Server(self._answer, access_log=None), shutdown_timeout=_STOP_SECONDS)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port, reuse_address=True).start()
        except OSError as error:
            await runner.cleanup()
            raise OperationError(
                ErrorCode.CONFLICT,
                f"no file can be offered: {self._listen} cannot be listened on ({error.strerror}); "
                "set files.listen in agent.toml to an address and port that are free",
            ) from error
        self._runner = runner

    def _bound_port(self) -> int:
        addresses = self._runner.addresses if self._runner is not None else []
        return int(addresses[0][1]) if addresses else self._port

    async def _base(self, reached_by: str) -> str:
        """`http://host` of this host, as the one that will fetch sees it; empty where the address was configured."""
        if self._url:
            return ""
        host = self._host
        if host is None or host in ("0.0.0.0", "::"):  # noqa: S104
            host = await _address_towards(reached_by or "192.0.2.1")
        return f"http://[{host}]" if ":" in host else f"http://{host}"

    # One request

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        _, _, rest = request.path.partition("/files/")
        token, _, name = rest.partition("/")
        offer = self._offers.get(token)
        if offer is None or name != offer.name:
            return web.Response(status=404)
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={"Allow": "GET, HEAD"})
        headers = {
            "Accept-Ranges": "bytes",
            "Cache-Control": "no-store",
            "Content-Type": "application/octet-stream",
            "ETag": f'"{offer.size:x}-{int(offer.changed_at * 1000):x}"',
            "Last-Modified": formatdate(offer.changed_at, usegmt=True),
        }
        wanted = request.headers.get("Range")
        if request.headers.get("If-Range", headers["ETag"]) not in (headers["ETag"], headers["Last-Modified"]):
            wanted = None
        part = asked_part(wanted, offer.size)
        if part is None:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{offer.size}"})
        start, end = part
        response = web.StreamResponse(
            status=200 if wanted is None or part == (0, offer.size) else 206, headers=headers
        )
        if response.status == 206:
            response.headers["Content-Range"] = f"bytes {start}-{end - 1}/{offer.size}"
        response.content_length = end - start
        # A handle of its own: the offer may end while this goes on.
        handle = os.dup(offer.handle)
        try:
            await response.prepare(request)
            if request.method == "GET":
                await _send(response, handle, start, end)
        finally:
            os.close(handle)
        _log.info("file_fetched", name=offer.name, by=request.remote, method=request.method, bytes=end - start)
        return response


def asked_part(header: str | None, size: int) -> tuple[int, int] | None:
    """The bytes that a Range header asks for, as [start, end); all of them where it asks for several parts or for
    something else than bytes, which may be ignored (RFC 9110, 14.2). None where there are none of these bytes."""
    match = _RANGE.match(header.strip()) if header is not None else None
    if match is None or not any(match.groups()):
        return 0, size
    first, last = match.groups()
    if not first:
        return (max(0, size - int(last)), size) if int(last) else None
    start, end = int(first), min(int(last) + 1, size) if last else size
    if last and int(last) < start:
        return 0, size
    return (start, end) if start < size else None


async def _send(response: web.StreamResponse, handle: int, start: int, end: int) -> None:
    while start < end:
        chunk = await asyncio.to_thread(os.pread, handle, min(_CHUNK, end - start), start)
        if not chunk:
            # The file became shorter: an answer that ends early must not look whole.
            raise ConnectionResetError("the file became shorter while it was sent")
        await response.write(chunk)
        start += len(chunk)


async def _address_towards(host: str) -> str:
    """This host's own address on the way to another. Nothing is sent."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, address in await loop.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, protocol) as probe, contextlib.suppress(OSError):
                probe.connect(address)
                return str(probe.getsockname()[0])
    raise OperationError(
        ErrorCode.CONFLICT,
        f"no file can be offered: this host has no address on the way to {host}; set files.url in agent.toml",
    )


def _taken(file: Path | BinaryIO, name: str) -> _Offer:
    if isinstance(file, Path):
        with file.open("rb") as opened:
            return _taken(opened, name)
    handle = os.dup(file.fileno())
    status = os.fstat(handle)
    return _Offer(handle, name, status.st_size, status.st_mtime)


def _safe(name: str) -> str:
    """A name without anything that a BMC's parser may stumble over (Supermicro X12 refuses `?` and `=`); its end, by
    which many know the kind of image, stays."""
    return re.sub(r"%", "_", quote(Path(name).name, safe="+-._()~")) or "file.bin"
