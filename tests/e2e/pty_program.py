"""A program on a pseudo-terminal of the test: what it shows is waited for, keys are pressed, settings looked at."""

import contextlib
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from typing import Any

__all__ = ["PtyProgram", "on_a_terminal"]

PATIENCE = 40.0


class PtyProgram:
    def __init__(self, words: tuple[str, ...], environment: dict[str, str]) -> None:
        self.shown = b""
        self._seen = 0
        self._ours, self._theirs = pty.openpty()
        self.before = termios.tcgetattr(self._theirs)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rackwright", *words],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={**os.environ, **environment},
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def expect(self, text: bytes, patience: float = PATIENCE) -> bytes:
        """Until this is shown behind what was expected before; everything that was shown up to it."""
        end = time.monotonic() + patience
        while (place := self.shown.find(text, self._seen)) < 0:
            remaining = end - time.monotonic()
            readable, _, _ = select.select([self._ours], [], [], max(0.0, remaining))
            assert readable, f"{text!r} was not shown within {patience:g} s, but: {self.shown[self._seen :]!r}"
            try:
                data = os.read(self._ours, 65_536)
            except OSError:
                data = b""
            assert data, f"{text!r} was never shown, but: {self.shown[self._seen :]!r}"
            self.shown += data
        shown = self.shown[self._seen : place]
        self._seen = place + len(text)
        return shown

    def wait(self) -> int:
        """The exit code; what is shown meanwhile is taken, so that nothing waits for a reader."""
        end = time.monotonic() + PATIENCE
        while self._process.poll() is None:
            assert time.monotonic() < end, f"it did not end: {self.shown[-500:]!r}"
            self._drain(0.05)
        self._drain(0)
        return self._process.returncode

    @property
    def mode(self) -> list[Any]:
        """The terminal's settings now."""
        return termios.tcgetattr(self._theirs)

    @property
    def is_raw(self) -> bool:
        return not self.mode[3] & (termios.ICANON | termios.ECHO | termios.ISIG)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for descriptor in (self._ours, self._theirs):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _drain(self, seconds: float) -> None:
        while select.select([self._ours], [], [], seconds)[0]:
            try:
                data = os.read(self._ours, 65_536)
            except OSError:
                return
            if not data:
                return
            self.shown += data
            seconds = 0


@contextlib.contextmanager
def on_a_terminal(*words: str, environment: dict[str, str] | None = None) -> Iterator[PtyProgram]:
    """`with on_a_terminal("console", "n1") as program:`"""
    program = PtyProgram(words, environment or {})
    try:
        yield program
    finally:
        program.close()
