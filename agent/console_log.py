"""What machines wrote on their consoles, in one file per node: each line with its time, rotated by size, for the
agent's user alone.

Writing is done by a thread, in batches: a disk that stalls holds up no console and no link.
"""

import asyncio
import contextlib
import hashlib
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import structlog

from agent.files import give_to_owner_of, make_private_folder

__all__ = ["ConsoleLogs", "LogFile"]

_log = structlog.get_logger("agent.console_log")
_BATCH_SECONDS = 0.5
_MOST_WAITING = 1 << 20
"""Per node, while the disk is busy; what is beyond is left out of the log, and said so there."""
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class LogFile:
    """One node's log. `size` bytes per file, `count` files: `name.log` is the newest, `name.log.1` the one before."""

    def __init__(self, path: Path, size: int, count: int, now: Callable[[], datetime]) -> None:
        self.path = path
        self._size = size
        self._count = count
        self._now = now
        self._begins_line = True

    def write(self, data: bytes) -> None:
        """Raises OSError."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            give_to_owner_of(self.path.parent, descriptor)
            written = memoryview(self._with_times(data))
            while written:
                written = written[os.write(descriptor, written) :]
            full = os.fstat(descriptor).st_size >= self._size
        finally:
            os.close(descriptor)
        if full:
            self._rotate()

    def _with_times(self, data: bytes) -> bytes:
        """The data with the time before each line that begins in it."""
        stamp = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ ").encode()
        lines = []
        for line in data.splitlines(keepends=True) if b"\n" in data else [data]:
            lines.append(stamp + line if self._begins_line else line)
            self._begins_line = line.endswith(b"\n")
        return b"".join(lines)

    def _rotate(self) -> None:
        for number in range(self._count - 1, 0, -1):
            older = self._numbered(number)
            with contextlib.suppress(FileNotFoundError):
                self._numbered(number - 1).replace(older)
        if self._count == 1:
            self.path.unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return self.path if not number else self.path.with_name(f"{self.path.name}.{number}")


class ConsoleLogs:
    """The logs of every node, in one folder."""

    def __init__(
        self, folder: Path, size: int, count: int, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._folder = folder
        self._size = size
        self._count = count
        self._now = now
        self._files: dict[str, LogFile] = {}
        self._waiting: dict[str, bytearray] = {}
        self._left_out: dict[str, int] = {}
        self._thread = ThreadPoolExecutor(1, "console log")
        self._writing: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._failing = False

    def write(self, node_id: str, data: bytes) -> None:
        """Puts it behind what waits; it is on its way to the disk soon."""
        if not self._count:
            return
        waiting = self._waiting.setdefault(node_id, bytearray())
        if len(waiting) + len(data) > _MOST_WAITING:
            self._left_out[node_id] = self._left_out.get(node_id, 0) + len(data)
        else:
            waiting += data
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_soon())

    async def aclose(self) -> None:
        """Writes what is left."""
        self._hurry.set()
        if self._writing is not None:
            await self._writing
        self._thread.shutdown()

    def path_of(self, node_id: str) -> Path:
        name = node_id if _SAFE_NAME.fullmatch(node_id) else hashlib.sha256(node_id.encode()).hexdigest()[:32]
        return self._folder / f"{name}.log"

    async def _write_soon(self) -> None:
        while self._waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_BATCH_SECONDS):
                    await self._hurry.wait()
            await self._write_all()

    async def _write_all(self) -> None:
        batch, self._waiting = self._waiting, {}
        left_out, self._left_out = self._left_out, {}
        for node_id, waiting in batch.items():
            count = left_out.get(node_id)
            note = (
                b"\r\n[rackwright: %d bytes are left out here: the disk was too slow]\r\n" % count if count else b""
            )
            try:
                await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._put, node_id, bytes(waiting) + note
                )
            except OSError as error:
                if not self._failing:
                    _log.error("console_log_not_written", node=node_id, reason=str(error))
                self._failing = True
            else:
                self._failing = False

    def _put(self, node_id: str, data: bytes) -> None:
        file = self._files.get(node_id)
        if file is None:
            make_private_folder(self._folder)
            file = self._files[node_id] = LogFile(self.path_of(node_id), self._size, self._count, self._now)
        file.write(data)
