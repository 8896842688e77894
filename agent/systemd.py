"""Talks to systemd over $NOTIFY_SOCKET: ready, status, watchdog, stopping (sd_notify(3)). Does nothing elsewhere."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable

__all__ = ["keep_status", "notify", "notify_reloading", "watch"]

_STATUS_SPACING = 2.0


def notify(*words: str) -> bool:
    """Sends assignments such as `READY=1` and `STATUS=…`; False where nobody listens.

    A name that begins with @ is in Linux' abstract namespace (unix(7)).
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address or address[0] not in "/@":
        return False
    name = f"\0{address[1:]}" if address[0] == "@" else address
    message = "\n".join(word.replace("\n", " ") for word in words)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.connect(name)
            sender.sendall(message.encode())
    except OSError:
        return False
    return True


def notify_reloading() -> None:
    """A reload begins; READY=1 ends it (systemd wants the monotonic time beside, Type=notify-reload)."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")


async def keep_status(words: Callable[[], str]) -> None:
    """Keeps `systemctl status` true, within some seconds of what `words` says."""
    told = ""
    while True:
        now = words()
        if now != told:
            notify(f"STATUS={now}")
            told = now
        await asyncio.sleep(_STATUS_SPACING)


async def watch() -> None:
    """Feeds the watchdog from the event loop, so that a hanging loop is restarted; returns where there is none."""
    with contextlib.suppress(ValueError):
        microseconds = int(os.environ.get("WATCHDOG_USEC", "0"))
        wanted = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        while microseconds > 0 and wanted:
            notify("WATCHDOG=1")
            await asyncio.sleep(microseconds / 1_000_000 / 3)
