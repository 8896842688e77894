"""The aiohttp clients that all connections of an event loop share: one that keeps connections, one that never does.

Requests that change something go out on a connection of their own, so that a kept connection that the BMC has closed
in the meantime cannot leave the outcome open.
"""

import asyncio
from dataclasses import dataclass, field

import aiohttp

__all__ = ["Clients"]

_KEPT_SECONDS = 60.0
_NOT_ADDED = ("User-Agent", "Accept", "Accept-Encoding")


@dataclass(slots=True)
class Clients:
    """The pair of clients of one event loop. Each user takes a share and gives it back; the last one closes them."""

    kept: aiohttp.ClientSession
    fresh: aiohttp.ClientSession
    shares: int = field(default=0)

    @classmethod
    def share(cls) -> "Clients":
        """The running loop's clients, made when first asked for."""
        loop = asyncio.get_running_loop()
        clients = _of_loop.get(loop)
        if clients is None or clients.kept.closed:
            clients = _of_loop[loop] = cls(_client(keeps=True), _client(keeps=False))
        clients.shares += 1
        return clients

    async def give_back(self) -> None:
        self.shares -= 1
        if self.shares <= 0:
            loop = asyncio.get_running_loop()
            if _of_loop.get(loop) is self:
                del _of_loop[loop]
            await self.kept.close()
            await self.fresh.close()


_of_loop: dict[asyncio.AbstractEventLoop, Clients] = {}


def _client(*, keeps: bool) -> aiohttp.ClientSession:
    connector = (
        aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_SECONDS, ttl_dns_cache=30)
        if keeps
        else aiohttp.TCPConnector(limit=0, force_close=True, ttl_dns_cache=30)
    )
    client = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=_NOT_ADDED,
        trust_env=False,
        timeout=aiohttp.ClientTimeout(total=None),
    )
    # aiohttp sends GET, PUT and DELETE a second time by itself after a disconnect, and offers no option against it.
    # A test proves that nothing is sent twice, whatever aiohttp's next version calls this.
    client._retry_connection = False
    return client
