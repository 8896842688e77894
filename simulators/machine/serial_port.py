"""The serial port of the machine: into a log file, to whoever listens, and what somebody types into the machine."""

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

_KEPT = 1 << 20
_PART = 1 << 16
_LAST_WORDS_SECONDS = 1.0


class SerialPort:
    """One port, over all starts of the machine. `listeners` get the bytes as they come.

    `text` is the end of what the machine has ever sent in this run, for programs that wait for a line of it.
    """

    def __init__(self, log_file: Path) -> None:
        self._file = log_file.open("ab", buffering=0)
        self.log_file = log_file
        self.listeners: list[Callable[[bytes], None]] = []
        self._text = bytearray()
        self._dropped = 0
        self._grown = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._pump: asyncio.Task[None] | None = None

    @property
    def text(self) -> str:
        return self._text.decode("utf-8", "replace")

    @property
    def position(self) -> int:
        """How many bytes have come so far: where `seen` may begin to look."""
        return self._dropped + len(self._text)

    async def connect(self, wire: socket.socket) -> None:
        """Follows the machine that has just been started, and no other any more."""
        await self.disconnect()
        reader, self._writer = await asyncio.open_connection(sock=wire)
        self._pump = asyncio.get_running_loop().create_task(self._follow(reader, self._writer))

    async def disconnect(self) -> None:
        """Lets go of a machine that has ended; what it sent last is taken first. Idempotent."""
        if self._pump is None:
            return
        await asyncio.wait({self._pump}, timeout=_LAST_WORDS_SECONDS)
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        self._writer = self._pump = None

    def type(self, text: bytes) -> None:
        """Types into the machine; into the void where it is off."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(text)

    async def seen(self, pattern: str, *, after: int = 0, timeout: float = 60.0) -> re.Match[str]:
        """Waits until what came after a position matches a regular expression.

        Raises TimeoutError with the end of what came.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._grown.clear()
                    text = self._text[max(0, after - self._dropped) :].decode("utf-8", "replace")
                    found = re.search(pattern, text)
                    if found is not None:
                        return found
                    await self._grown.wait()
        except TimeoutError as error:
            raise TimeoutError(f"the serial port never showed {pattern!r}; its end: {self.text[-500:]!r}") from error

    async def close(self) -> None:
        await self.disconnect()
        self._file.close()

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                while part := await reader.read(_PART):
                    self._take(part)
        finally:
            writer.close()

    def _take(self, part: bytes) -> None:
        try:
            self._file.write(part)
        except OSError as error:
            log.warning("%s cannot be written: %s", self.log_file, error.strerror)
        self._text += part
        over = len(self._text) - _KEPT
        if over > 0:
            del self._text[:over]
            self._dropped += over
        self._grown.set()
        for listener in self.listeners:
            listener(part)
