"""The operator's terminal while a console is on it: raw, and always put back as it was.

What is read and written goes through threads, so that a terminal or pipe that stalls never stops the event loop.
"""

import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import AsyncIterator, Iterator
from typing import Final

__all__ = ["Keyboard", "Screen", "ended_by_signals", "raw"]

_CHUNK: Final = 4096


@contextlib.contextmanager
def raw(descriptor: int) -> Iterator[bool]:
    """The terminal in raw mode; put back at the end, however it comes. False where it is no terminal."""
    if not os.isatty(descriptor):
        yield False
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)
        yield True
    finally:
        # Keys that were pressed for the machine must not be obeyed by the shell.
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)


@contextlib.contextmanager
def ended_by_signals(task: "asyncio.Task[object]") -> Iterator[list[int]]:
    """SIGINT, SIGTERM and SIGHUP cancel the task, so that everything is put back; the signals that came."""
    loop = asyncio.get_running_loop()
    came: list[int] = []

    def end(number: int) -> None:
        came.append(number)
        task.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, end, number)
    try:
        yield came
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


class Keyboard:
    """Standard input as it is typed. One thread reads ahead by one piece, and no further."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(1)
        # Blocked in a read it cannot be stopped: the end of the process ends it.
        self._thread = threading.Thread(target=self._read, name="keyboard", daemon=True)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Until the end of the input."""
        self._thread.start()
        while piece := await self._queue.get():
            yield piece

    def _read(self) -> None:
        piece = b"x"
        while piece:
            try:
                piece = os.read(self._descriptor, _CHUNK)
            except OSError:
                # The terminal is gone.
                piece = b""
            try:
                asyncio.run_coroutine_threadsafe(self._queue.put(piece), self._loop).result()
            except (RuntimeError, asyncio.CancelledError):
                return


class Screen:
    """Standard output for the machine's bytes, standard error for this program's words."""

    def __init__(self, descriptor: int, *, is_raw: bool) -> None:
        self._descriptor = descriptor
        self._is_raw = is_raw

    async def show(self, data: bytes) -> None:
        """Raises BrokenPipeError when nobody reads any more."""
        await asyncio.to_thread(self._write, data)

    def say(self, text: str) -> None:
        """A line of ours, apart from the machine's."""
        end = "\r\n" if self._is_raw else "\n"
        with contextlib.suppress(OSError):
            sys.stderr.write(end + text.replace("\n", end) + end)
            sys.stderr.flush()

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
