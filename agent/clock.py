"""Time that no wall clock can spoil: milliseconds since the kernel started, and which start that was."""

import time
from pathlib import Path
from typing import Protocol

import msgspec

__all__ = ["Clock", "Deadline", "KernelClock", "remaining_seconds"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Deadline(msgspec.Struct, frozen=True):
    """A moment on CLOCK_BOOTTIME, which goes on while the machine sleeps; it means nothing after another boot."""

    at_ms: int
    boot_id: str


class Clock(Protocol):
    @property
    def boot_id(self) -> str: ...

    def boottime_ms(self) -> int: ...


class KernelClock:
    """The kernel's own clock and boot id (proc(5), random/boot_id; clock_gettime(2), CLOCK_BOOTTIME)."""

    def __init__(self) -> None:
        self.boot_id = _BOOT_ID.read_text().strip()

    def boottime_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def remaining_seconds(clock: Clock, deadline: Deadline) -> float | None:
    """Seconds left, negative when it has passed; None when it was set under another boot of the kernel."""
    if deadline.boot_id != clock.boot_id:
        return None
    return (deadline.at_ms - clock.boottime_ms()) / 1000
