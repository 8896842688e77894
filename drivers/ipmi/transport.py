"""One connected UDP socket to one BMC, in the event loop.

A socket per session, not one shared by all: the kernel then drops other senders' datagrams, and reports a refused
port (ICMP) to the one session that it concerns. A shared socket saves a descriptor per BMC and no measurable time.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from protocol.errors import ErrorCode, OperationError

__all__ = ["Datagrams", "within"]

T = TypeVar("T")
_NAME_LOOKUP_SECONDS = 10.0


class Datagrams(asyncio.DatagramProtocol):
    """Sends a datagram and waits for the one that answers it; everything else that comes goes to `on_other`."""

    def __init__(self, endpoint: str) -> None:
        self.on_other: Callable[[bytes], None] = _ignore
        self.heard_at = 0.0
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.DatagramTransport | None = None
        self._match: Callable[[bytes], object | None] | None = None
        self._waiter: asyncio.Future[object] | None = None

    @classmethod
    async def open(cls, host: str, port: int) -> "Datagrams":
        """Raises OperationError UNREACHABLE when the name cannot be resolved or the network has no way there."""
        endpoint = f"{host}:{port}"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_NAME_LOOKUP_SECONDS):
                _, protocol = await loop.create_datagram_endpoint(lambda: cls(endpoint), remote_addr=(host, port))
        except socket.gaierror as error:
            raise _unreachable(f"the name {host} cannot be resolved: {error.strerror or error}") from error
        except TimeoutError as error:
            raise _unreachable(f"the name {host} was not resolved in {_NAME_LOOKUP_SECONDS:g} s") from error
        except OSError as error:
            raise _unreachable(f"there is no way to {endpoint}: {error.strerror or error}") from error
        return protocol

    def send(self, datagram: bytes) -> None:
        """Raises ConnectionError when the socket is closed."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("the socket is closed")
        self._transport.sendto(datagram)

    async def exchange(
        self, datagram: Callable[[], bytes], match: Callable[[bytes], T | None], seconds: Sequence[float]
    ) -> T:
        """Sends once per entry of `seconds`, waits that long each time, and gives what `match` first takes.

        Raises TimeoutError when nothing came, OSError when the BMC's host refuses the port or cannot be reached.
        """
        self._match = match
        try:
            for wait in seconds:
                waiter = self._waiter = self._loop.create_future()
                timer = self._loop.call_later(wait, _give_up, waiter)
                self.send(datagram())
                try:
                    answer = await waiter
                finally:
                    timer.cancel()
                if answer is not None:
                    return cast(T, answer)
        finally:
            self._match = self._waiter = None
        raise TimeoutError

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of their own class, so no isinstance here.
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, _address: object) -> None:
        match, waiter = self._match, self._waiter
        if match is None or waiter is None or waiter.done():
            self.on_other(data)
            return
        answer = match(data)
        if answer is not None:
            self.heard_at = self._loop.time()
            waiter.set_result(answer)

    def error_received(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def connection_lost(self, error: Exception | None) -> None:
        self.error_received(error or ConnectionError("the socket was closed"))


def within(seconds: Sequence[float], remaining: float) -> list[float]:
    """The waits, cut so that they end with a deadline in `remaining` seconds; one short wait at least."""
    kept: list[float] = []
    for wait in seconds:
        if remaining <= 0 and kept:
            break
        kept.append(max(0.05, min(wait, remaining)))
        remaining -= wait
    return kept


def _give_up(waiter: asyncio.Future[object]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _ignore(_datagram: bytes) -> None:
    """A datagram that nobody waits for."""


def _unreachable(message: str) -> OperationError:
    return OperationError(ErrorCode.UNREACHABLE, message)
