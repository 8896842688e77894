"""An origin of images that can be slow, break off, change its mind, and forget how ranges go."""

import asyncio
from dataclasses import dataclass, field

from aiohttp import web

__all__ = ["Origin"]


@dataclass
class Origin:
    """`async with` it; `url` is the image's."""

    content: bytes
    etag: str = '"v1"'
    asked: list[str | None] = field(default_factory=list)
    """The ranges, one for each request."""
    statuses: list[int] = field(default_factory=list)
    """What the next requests are answered with, in place of the image."""
    instead: list[bytes] = field(default_factory=list)
    """What the next answers give in place of the image, as if that were all of it."""
    breaks_at: list[int] = field(default_factory=list)
    """After so many bytes of the image the next answers end."""
    ranges: bool = True
    shifted: int = 0
    """By how much the parts are wrong that it sends."""
    says_length: bool = True
    leads_to: str = ""
    """Where every request is redirected to."""
    logins: list[str | None] = field(default_factory=list)
    """The headers Authorization, one for each request."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """While it is not set, nothing is sent beyond `before_gate` bytes."""
    before_gate: int = 0
    pause: float = 0.0
    """Seconds between two pieces of 64 KiB."""
    sent: int = 0

    async def __aenter__(self) -> "Origin":
        self.gate.set()
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None), shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/debian.raw"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        wanted = request.headers.get("Range")
        self.asked.append(wanted)
        self.logins.append(request.headers.get("Authorization"))
        if self.leads_to:
            return web.Response(status=302, headers={"Location": self.leads_to})
        if self.statuses:
            return web.Response(status=self.statuses.pop(0))
        content = self.instead.pop(0) if self.instead else self.content
        start = 0
        if wanted is not None and self.ranges and request.headers.get("If-Range", self.etag) == self.etag:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        size = len(content)
        if start >= size:
            return web.Response(status=416)
        response = web.StreamResponse(status=206 if start else 200, headers={"ETag": self.etag})
        if start:
            response.headers["Content-Range"] = f"bytes {start + self.shifted}-{size - 1}/{size}"
        if self.says_length:
            response.content_length = size - start
        await response.prepare(request)
        end = self.breaks_at.pop(0) if self.breaks_at else size
        position = start
        while position < min(end, size):
            if position >= self.before_gate:
                await self.gate.wait()
            piece = content[position : min(position + 65_536, end)]
            await response.write(piece)
            position += len(piece)
            self.sent += len(piece)
            await asyncio.sleep(self.pause)
        if end < size and request.transport is not None:
            request.transport.abort()
        return response
