"""One running QEMU: started, spoken to over its monitor, and seen when it ends."""

import asyncio
import contextlib
import logging
import shutil
import socket
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from simulators.machine.command_line import QEMU, Wires
from simulators.machine.qmp import Qmp, QmpClosed, QmpError

log = logging.getLogger(__name__)

QUIT_SECONDS = 5.0
_MONITOR_LINE = 1 << 20
_CAUSE_LENGTH = 600
# Without it, a QEMU whose simulator was killed would go on writing to the disk of the next one.
_DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")
PACKAGES = {QEMU: "qemu-system-x86", "setpriv": "util-linux"}


class MachineFault(RuntimeError):
    """The machine cannot do what it was told; the text has the cause in QEMU's own words."""


class Ending(StrEnum):
    """Why a QEMU stands still or has ended."""

    GUEST_OFF = "guest-shutdown"
    GUEST_RESET = "guest-reset"
    CRASHED = "crashed"


# The reasons of the SHUTDOWN event after which the machine stands still (QEMU's qapi/run-state.json, ShutdownCause).
_REASONS = {
    "guest-shutdown": Ending.GUEST_OFF,
    "guest-reset": Ending.GUEST_RESET,
    "subsystem-reset": Ending.GUEST_RESET,
    "guest-panic": Ending.GUEST_OFF,
}
EndListener = Callable[[Ending, str], None]
EventListener = Callable[[str, dict[str, Any]], None]


class Running(Protocol):
    """What the host asks of its machine while it runs; tests put a fake in its place."""

    @property
    def pid(self) -> int: ...
    async def execute(self, command: str, **arguments: Any) -> Any: ...
    async def end(self) -> None: ...


class Started(Running, Protocol):
    """A machine that has just been started, with its serial port."""

    serial: socket.socket
    on_event: EventListener


class QemuProcess:
    """A QEMU with its monitor and its serial port on inherited sockets: no path, no port, nobody else can connect.

    `serial` is the other end of its serial port, and belongs to whoever started it.
    `on_end` is called once: when the guest is off or wants a reset, or when QEMU is gone without having been told.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, serial: socket.socket, log_file: Path, on_end: EndListener
    ) -> None:
        self.serial = serial
        self._process = process
        self._log_file = log_file
        self._on_end: EndListener | None = on_end
        self._qmp: Qmp | None = None
        self._watch: asyncio.Task[None] | None = None
        self.on_event: EventListener = lambda _name, _data: None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def execute(self, command: str, **arguments: Any) -> Any:
        """A monitor command. Raises MachineFault with QEMU's words where it is refused or QEMU is gone."""
        if self._qmp is None:
            raise MachineFault(f"QEMU has no monitor to take {command}")
        try:
            return await self._qmp.execute(command, **arguments)
        except TimeoutError as error:
            raise MachineFault(f"QEMU did not answer to {command}") from error
        except (QmpError, QmpClosed) as error:
            raise MachineFault(f"QEMU did not carry out {command}: {error}") from error

    async def open(self, monitor: socket.socket) -> None:
        """Opens the monitor. Raises MachineFault with QEMU's last words where it ended instead."""
        qmp: Qmp | None = None
        try:
            reader, writer = await asyncio.open_connection(sock=monitor, limit=_MONITOR_LINE)
            qmp = Qmp(reader, writer, self._event)
            await qmp.open()
        except BaseException as error:
            if qmp is not None:
                await qmp.close()
            await self._kill()
            self.serial.close()
            if not isinstance(error, (QmpClosed, QmpError, ConnectionError, TimeoutError)):
                raise
            raise MachineFault(f"QEMU did not start: {last_words(self._log_file) or error}") from error
        self._qmp = qmp
        self._watch = asyncio.get_running_loop().create_task(self._wait())

    async def end(self) -> None:
        """Cuts the power: QEMU writes out what it has taken from the guest, and is gone. Idempotent."""
        self._on_end = None
        if self._qmp is not None and self._process.returncode is None:
            with contextlib.suppress(TimeoutError, QmpError, QmpClosed):
                async with asyncio.timeout(QUIT_SECONDS):
                    await self._qmp.execute("quit")
                    await self._process.wait()
        await self._kill()
        if self._watch is not None:
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._qmp is not None:
            await self._qmp.close()

    def crash(self) -> None:
        """Kills QEMU as a broken power supply would, and lets it be noticed as nobody's order."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def _wait(self) -> None:
        code = await self._process.wait()
        words = last_words(self._log_file)
        what = f"signal {-code}" if code < 0 else f"exit status {code}"
        self._ended(Ending.CRASHED, f"QEMU ended by itself ({what}){': ' + words if words else ''}")

    def _event(self, name: str, data: dict[str, Any]) -> None:
        ending = _REASONS.get(str(data.get("reason"))) if name == "SHUTDOWN" else None
        if ending is not None:
            self._ended(ending, ending.value)
        else:
            self.on_event(name, data)

    def _ended(self, ending: Ending, text: str) -> None:
        listener, self._on_end = self._on_end, None
        if listener is not None:
            listener(ending, text)


async def start_qemu(
    command: Callable[[Wires], Sequence[str]],
    folder: Path,
    log_file: Path,
    on_end: EndListener,
    *,
    keep_open: Sequence[int] = (),
) -> QemuProcess:
    """Starts a QEMU that waits for `cont`. It dies with this process, and holds `keep_open` till then.

    Raises MachineFault with the cause.
    """
    find_programs()
    monitor, its_monitor = socket.socketpair()
    serial, its_serial = socket.socketpair()
    theirs = (its_monitor, its_serial)
    try:
        with log_file.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *_DIE_WITH_PARENT,
                *command(Wires(its_monitor.fileno(), its_serial.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=[*(end.fileno() for end in theirs), *keep_open],
                cwd=folder,
                start_new_session=True,  # Ctrl-C is the simulator's: it stops its machine in order
            )
    except BaseException:
        for end in (monitor, serial):
            end.close()
        raise
    finally:
        for end in theirs:
            end.close()
    serial.setblocking(False)
    qemu = QemuProcess(process, serial, log_file, on_end)
    await qemu.open(monitor)
    return qemu


class StartQemu(Protocol):
    """The signature of `start_qemu`, in whose place tests put a fake."""

    async def __call__(
        self,
        command: Callable[[Wires], Sequence[str]],
        folder: Path,
        log_file: Path,
        on_end: EndListener,
        *,
        keep_open: Sequence[int] = (),
    ) -> "Started": ...


def find_programs() -> None:
    """Raises MachineFault that names the packages of all programs which are missing on this host."""
    missing = [name for name in PACKAGES if shutil.which(name) is None]
    if missing:
        raise MachineFault(
            "; ".join(f"{name} is not installed: install the package {PACKAGES[name]}" for name in missing)
        )


def last_words(log_file: Path) -> str:
    """The end of what QEMU wrote about itself, on one line."""
    try:
        text = log_file.read_bytes()[-_CAUSE_LENGTH:].decode("utf-8", "replace")
    except OSError:
        return ""
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())
