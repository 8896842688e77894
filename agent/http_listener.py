"""Where this host listens for machines that fetch something, and under which address they reach it."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from protocol.errors import ErrorCode, OperationError

__all__ = ["HttpListener"]

_STOP_SECONDS = 2.0
_DEFAULT_ROUTE = "192.0.2.1"
"""An address of nobody (RFC 5737): the way to it is the way to everywhere."""


class HttpListener:
    """`listen`: `host:port`, or `:port` for all addresses of this host. `setting`: what the configuration calls it.

    `tls`: makes the context of a server that speaks https.
    """

    def __init__(
        self,
        listen: str,
        answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        setting: str,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        host, _, port = listen.rpartition(":")
        self._listen = listen
        self._host = host.strip("[]") or None
        self._port = int(port or 0)
        self._answer = answer
        self._setting = setting
        self._tls = tls
        self._runner: web.ServerRunner | None = None
        self._lock = asyncio.Lock()

    @property
    def is_up(self) -> bool:
        return self._runner is not None

    async def start(self) -> None:
        """Once it listens, nothing. Raises OperationError CONFLICT where it cannot."""
        async with self._lock:
            if self._runner is not None:
                return
            runner = web.ServerRunner(web.Server(self._answer, access_log=None), shutdown_timeout=_STOP_SECONDS)
            await runner.setup()
            try:
                context = self._tls() if self._tls is not None else None
                await web.TCPSite(
                    runner, self._host, self._port, reuse_address=True, backlog=512, ssl_context=context
                ).start()
            except OSError as error:
                await runner.cleanup()
                raise OperationError(
                    ErrorCode.CONFLICT,
                    f"nothing can be offered to machines: {self._listen} cannot be listened on "
                    f"({error.strerror or error}); set {self._setting}.listen in agent.toml to an address and port "
                    "that are free",
                ) from error
            self._runner = runner

    async def stop(self) -> None:
        """Transfers under way end within some seconds."""
        async with self._lock:
            if self._runner is not None:
                runner, self._runner = self._runner, None
                await runner.cleanup()

    async def address(self, reached_by: str = "") -> str:
        """`http://host:port` of this host, as the one that will fetch sees it; as everybody does where none is named.

        Only while it listens. Raises OperationError CONFLICT where there is no way.
        """
        host = self._host
        if host is None or host in ("0.0.0.0", "::"):  # noqa: S104
            host = await self._host_towards(reached_by or _DEFAULT_ROUTE)
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._bound_port()}"

    def _bound_port(self) -> int:
        addresses = self._runner.addresses if self._runner is not None else []
        return int(addresses[0][1]) if addresses else self._port

    async def _host_towards(self, host: str) -> str:
        """This host's own address on the way to another. Nothing is sent."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            for family, kind, protocol, _, address in await loop.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
                with socket.socket(family, kind, protocol) as probe, contextlib.suppress(OSError):
                    probe.connect(address)
                    return str(probe.getsockname()[0])
        raise OperationError(
            ErrorCode.CONFLICT,
            f"nothing can be offered: this host has no address on the way to {host}; set {self._setting}.url in "
            "agent.toml",
        )
