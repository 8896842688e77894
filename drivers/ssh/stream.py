"""A console over an SSH channel, for an event loop: paramiko's blocking calls run in two threads of its own.

One reads and one writes, so that a machine which takes no input still shows its output.
"""

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import paramiko
from paramiko.common import cMSG_CHANNEL_REQUEST

from drivers.console import ConsoleEnding, gone
from protocol.console_frames import EndReason

__all__ = ["SshStream"]

_CHUNK: Final = 32_768
_BREAK_MS: Final = 500
_FAREWELL_SECONDS: Final = 2.0


class SshStream:
    """A console over SSH (`drivers.console.ConsoleStream`). `leave`: the keys that end it at the BMC."""

    def __init__(self, transport: paramiko.Transport, channel: paramiko.Channel, endpoint: str) -> None:
        self.leave = b""
        self._transport = transport
        self._channel = channel
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._reader = ThreadPoolExecutor(1, "ssh console reader")
        self._writer = ThreadPoolExecutor(1, "ssh console writer")
        self._reading: asyncio.Future[bytes] | None = None
        self._first = b""
        self._ending: ConsoleEnding | None = None
        self._closed = False

    @property
    def ending(self) -> ConsoleEnding | None:
        return self._ending

    def put_back(self, data: bytes) -> None:
        """What was heard while the console was opened is read first."""
        self._first = data

    async def read(self) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        if self._ending is not None:
            return b""
        if self._reading is None:
            self._reading = self._loop.run_in_executor(self._reader, self._receive)
        # Shielded: whoever gives up waiting must not lose what comes meanwhile.
        data = await asyncio.shield(self._reading)
        self._reading = None
        if not data:
            self._end_as_found()
        return data

    async def write(self, data: bytes) -> None:
        if self._ending is not None:
            raise gone(self._ending)
        try:
            await self._loop.run_in_executor(self._writer, self._channel.sendall, data)
        except (OSError, EOFError, paramiko.SSHException):
            self._end_as_found()
            raise gone(self._ending) from None

    async def send_break(self) -> None:
        """As a request on the channel (RFC 4335); a server that does not know it ignores it."""
        if self._ending is not None:
            raise gone(self._ending)
        message = paramiko.Message()
        message.add_byte(cMSG_CHANNEL_REQUEST)
        message.add_int(self._channel.remote_chanid)
        message.add_string("break")
        message.add_boolean(False)
        message.add_int(_BREAK_MS)
        # paramiko has no public call for a channel request of another kind.
        send = self._transport._send_user_message  # type: ignore[attr-defined]
        await self._loop.run_in_executor(self._writer, send, message)

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._ending is None:
            self._ending = ConsoleEnding(EndReason.CLOSED, "it was closed")
            if self.leave:
                with contextlib.suppress(OSError, EOFError, TimeoutError, paramiko.SSHException):
                    async with asyncio.timeout(_FAREWELL_SECONDS):
                        await self._loop.run_in_executor(self._writer, self._channel.sendall, self.leave)
        # Closing wakes both threads; the socket is closed by the transport's own thread, which is not waited for.
        self._channel.close()
        self._transport.close()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)
        self._reader.shutdown(wait=False)
        self._writer.shutdown(wait=False)

    def _receive(self) -> bytes:
        try:
            return self._channel.recv(_CHUNK)
        except (OSError, EOFError, paramiko.SSHException):
            return b""

    def _end_as_found(self) -> None:
        """The channel has come to its end: by the BMC's word, or with the connection."""
        if self._ending is not None:
            return
        if self._transport.is_active():
            self._ending = ConsoleEnding(EndReason.ENDED, f"{self._endpoint} ended it")
        else:
            self._ending = ConsoleEnding(
                EndReason.LOST, f"the SSH connection to {self._endpoint} was cut: it may have restarted"
            )
