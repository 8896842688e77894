"""What the service tells systemd (sd_notify(3)): ready, how it is, alive, stopping. Silent where nobody listens."""

import os
import socket

__all__ = ["notify", "watchdog_seconds"]


def notify(**state: str) -> bool:
    """Sends `NAME=value` lines to the manager's socket; False where there is none, or it does not listen."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        # An abstract socket: its name begins with a zero byte.
        address = "\0" + address[1:]
    message = "\n".join(f"{name.upper()}={value}" for name, value in state.items())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.connect(address)
            channel.sendall(message.encode())
    except OSError:
        return False
    return True


def watchdog_seconds() -> float | None:
    """How often to say WATCHDOG=1: half of what the unit's WatchdogSec allows; None where nobody watches."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    watched = os.environ.get("WATCHDOG_PID", str(os.getpid()))
    if not microseconds.isdigit() or int(microseconds) == 0 or watched != str(os.getpid()):
        return None
    return int(microseconds) / 2_000_000
