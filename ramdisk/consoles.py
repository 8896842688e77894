"""Short messages for people, on every console of the machine: the screen and the serial port, whichever is looked at.

They go into the log as well. A console that does not take them (flow control, nobody there) is passed over.
"""

import contextlib
import os
from pathlib import Path

import structlog

from drivers.linux.host import Host

__all__ = ["Announcer"]

_log = structlog.get_logger("ramdisk")


class Announcer:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._said: dict[str, str] = {}

    def say(self, text: str, *, about: str = "") -> None:
        """`about`: a subject of which the same is not said twice in a row."""
        if about and self._said.get(about) == text:
            return
        self._said[about] = text
        _log.info("said", text=text)
        line = f"rackwright: {text}\n".encode()
        for console in self._consoles():
            with contextlib.suppress(OSError):
                _write(console, line)

    def _consoles(self) -> list[Path]:
        """Those that the kernel itself writes to; the one that it names /dev/console is the last of them."""
        names = (self._host.text("class", "tty", "console", "active") or "").split()
        return [self._host.dev / name for name in names]


def _write(console: Path, line: bytes) -> None:
    handle = os.open(console, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)
