"""The `node.reboot` command, and how a machine is made to go: first in good order, then with less and less of it."""

import asyncio
import contextlib
import ctypes
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from agent.departure import Departure, Means
from agent.handlers import CURRENT_COMMAND, Answer
from agent.own_machine import OwnMachine
from drivers.driver import ProgressListener
from drivers.linux.host import Host
from protocol.commands import Ending
from protocol.errors import ErrorCode, Issue, OperationError
from protocol.operations import Repeat
from protocol.shapes.machine import NodeReboot
from protocol.validation import check

__all__ = ["Kernel", "Reboot", "Rung", "has_systemd", "ladder", "leave"]

_log = structlog.get_logger("agent.reboot")
_SYNC_SECONDS = 60.0
_ORDERLY_SECONDS = 300.0
"""systemd gives each service 90 s to end (DefaultTimeoutStopSec), and stops many at a time."""
_FORCED_SECONDS = 60.0
_RUN_SECONDS = 30.0
_SYSTEMD = Path("/run/systemd/system")


class Kernel:
    """What ends a boot without asking anybody (reboot(2); Documentation/admin-guide/sysrq.rst)."""

    _COMMANDS: Mapping[Means, int] = {
        Means.REBOOT: 0x01234567,
        Means.POWER_OFF: 0x4321FEDC,
        Means.KEXEC: 0x45584543,
    }
    _LETTERS: Mapping[Means, str] = {Means.REBOOT: "b", Means.POWER_OFF: "o"}

    def __init__(self, host: Host) -> None:
        self._host = host

    def sync(self) -> None:
        os.sync()

    def leave(self, means: Means) -> None:
        """Raises OSError; does not return otherwise."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.reboot(self._COMMANDS[means]) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def break_off(self, means: Means) -> None:
        """The key that is read when nothing else is. Raises OSError."""
        (self._host.proc / "sysrq-trigger").write_text(self._LETTERS[means])


@dataclass(frozen=True, slots=True)
class Rung:
    """One attempt. `words`: a program; empty where the kernel itself is told. `patience`: seconds until the next."""

    how: Literal["program", "kernel", "sysrq"]
    words: tuple[str, ...] = ()
    patience: float = _FORCED_SECONDS


def ladder(means: Means, *, systemd: bool, force: bool) -> list[Rung]:
    """What is tried, one after another, until the machine is gone. Pure."""
    verb = "reboot" if means is Means.REBOOT else "poweroff"
    rungs = []
    if systemd and not force:
        rungs.append(Rung("program", ("systemctl", "--no-block", verb), _ORDERLY_SECONDS))
    if systemd:
        rungs.append(Rung("program", ("systemctl", "--force", verb)))
    return [*rungs, Rung("kernel"), Rung("sysrq")]


def has_systemd() -> bool:
    """Whether systemd is the first process here (sd_booted(3))."""
    return _SYSTEMD.is_dir()


async def leave(departure: Departure, host: Host, *, systemd: bool, kernel: Kernel | None = None) -> None:
    """Climbs the ladder. At its end it raises OperationError NOT_APPLIED with the words of every attempt."""
    kernel = kernel or Kernel(host)
    notes = []
    for rung in ladder(departure.means, systemd=systemd, force=departure.force):
        try:
            await _try(rung, departure.means, host, kernel)
        except (OSError, OperationError) as error:
            notes.append(f"{' '.join(rung.words) or rung.how}: {error}")
        else:
            # The machine goes now. It takes this program with it while it waits.
            await asyncio.sleep(rung.patience)
            notes.append(f"{' '.join(rung.words) or rung.how}: still here after {rung.patience:.0f} s")
        _log.error("still_here", means=departure.means, tried=notes[-1])
    raise OperationError(ErrorCode.NOT_APPLIED, f"the machine does not {departure.means}: {'; '.join(notes)}")


async def _try(rung: Rung, means: Means, host: Host, kernel: Kernel) -> None:
    if rung.how == "program":
        ran = await host.run(*rung.words, timeout=_RUN_SECONDS)
        if ran.code:
            raise OperationError(ErrorCode.NOT_APPLIED, ran.words)
        return
    with contextlib.suppress(TimeoutError):
        # A disk that does not answer any more must not keep the machine from being restarted.
        await asyncio.wait_for(asyncio.to_thread(kernel.sync), _SYNC_SECONDS)
    if rung.how == "kernel":
        kernel.leave(means)
    else:
        kernel.break_off(means)


class Reboot:
    """Handles `node.reboot`."""

    def __init__(self, machine: OwnMachine) -> None:
        self._machine = machine

    def faults(self, payload: Mapping[str, object]) -> list[Issue]:
        return check(NodeReboot, payload, "payload")[1]

    def repeat(self, payload: Mapping[str, object]) -> Repeat:
        return Repeat.ONCE

    @contextlib.asynccontextmanager
    async def turn(self, payload: Mapping[str, object]) -> AsyncIterator["_Going"]:
        """Waits for what is under way on the machine, unless forced."""
        asked = msgspec.convert(payload, NodeReboot)
        async with AsyncExitStack() as stack:
            lane = None if asked.force else await stack.enter_async_context(self._machine.lane("node.reboot"))
            yield _Going(self._machine, asked, lane)


class _Going:
    def __init__(self, machine: OwnMachine, asked: NodeReboot, lane: AsyncExitStack | None) -> None:
        self._machine = machine
        self._asked = asked
        self._lane = lane

    async def run(self, timeout: float, progress: ProgressListener) -> Answer:
        departures = self._machine.departures
        result: dict[str, object] = {"bootId": departures.boot_id, "means": Means.REBOOT.value}
        await departures.intend(
            CURRENT_COMMAND.get(),
            Means.REBOOT,
            timeout=timeout,
            result=result,
            lane=self._lane,
            force=self._asked.force,
        )
        return Answer(result)

    async def observe(self, timeout: float) -> Ending:
        return self._machine.departures.ending_of(CURRENT_COMMAND.get())
