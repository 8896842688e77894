"""The `boot.kexec` command: the installed kernel is found as the boot loader would, loaded, and jumped into.

The order holds after a crash: the kernel is loaded, the disk becomes the firmware's first choice, the intent to jump
is durable with the boot's id, the result is told, and only then does the machine jump. Whether the installed system
comes up is for nobody here to say: its agent does, with another boot id.
"""

import asyncio
import contextlib
import os
import platform
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from agent.departure import Departure, Means
from agent.files import make_private_folder
from agent.handlers import CURRENT_COMMAND, Answer
from agent.own_machine import OwnMachine
from agent.reboot import Kernel
from drivers.driver import Call, ProgressListener
from drivers.linux.host import Host
from protocol.commands import Ending
from protocol.errors import ErrorCode, Issue, OperationError
from protocol.operations import Repeat
from protocol.shapes.machine import BootKexec, BootKexecResult
from protocol.validation import check
from ramdisk.kexec_support import KexecSupport, is_loaded, kexec_support

if TYPE_CHECKING:
    from drivers.linux.disks import Disk
    from ramdisk.boot_choice import BootChoice

__all__ = ["Kexec", "LoadedFiles", "copy_files", "jump"]

_LOAD_SECONDS = 120.0
_JUMP_SECONDS = 120.0
_SYNC_SECONDS = 60.0
_PIECE = 1 << 20
Method = Literal["kexec_file_load", "kexec_load"]


class Kexec:
    """Handles `boot.kexec`. The files are copied into memory first: the disk is let go of before the jump."""

    def __init__(self, machine: OwnMachine) -> None:
        self._machine = machine
        machine.departures.ways[Means.KEXEC] = lambda departure: jump(departure, machine.host)

    def faults(self, payload: Mapping[str, object]) -> list[Issue]:
        return check(BootKexec, payload, "payload")[1]

    def repeat(self, payload: Mapping[str, object]) -> Repeat:
        return Repeat.ONCE

    @contextlib.asynccontextmanager
    async def turn(self, payload: Mapping[str, object]) -> AsyncIterator["_Jump"]:
        async with self._machine.lane("boot.kexec") as lane:
            yield _Jump(self._machine, msgspec.convert(payload, BootKexec), lane)


class _Jump:
    def __init__(self, machine: OwnMachine, asked: BootKexec, lane: AsyncExitStack) -> None:
        self._machine = machine
        self._host = machine.host
        self._asked = asked
        self._lane = lane

    async def run(self, timeout: float, progress: ProgressListener) -> Answer:
        """Raises OperationError: UNSUPPORTED (this kernel may not), CONFLICT (no disk, or no kernel on it),
        NOT_APPLIED (the kernel was not taken). The machine goes on as before then."""
        # What reads boot loaders is loaded now, and not before the machine's agent has connected.
        from drivers.linux.config_drive import written_disk
        from drivers.linux.devices import settled
        from ramdisk.boot_choice import NoChoice
        from ramdisk.disk_boot import is_uefi, loader_default
        from ramdisk.installed_disk import mounted_volumes
        from ramdisk.installed_kernel import installed_kernel

        host, asked = self._host, self._asked
        support = kexec_support(host)
        await settled(host, Call("boot.kexec", asyncio.get_running_loop().time() + timeout, progress))
        disk = await asyncio.to_thread(written_disk, host, asked.root_device, "boot.kexec")
        progress(f"looking for the kernel on {disk.known_as()}", None)
        folder = self._machine.state / "kexec"
        try:
            async with mounted_volumes(host, disk) as volumes:
                try:
                    choice = await asyncio.to_thread(
                        installed_kernel,
                        volumes,
                        uefi=is_uefi(host),
                        architecture=platform.machine(),
                        wanted=asked.entry,
                        efi_default=loader_default(host),
                    )
                    files = await asyncio.to_thread(copy_files, choice, folder)
                except (NoChoice, OSError, ValueError) as error:
                    raise OperationError(
                        ErrorCode.CONFLICT, f"{disk.name} has no kernel that could be started: {error}"
                    ) from error
            progress(f"loading {choice.kernel.path}", None)
            command_line = " ".join(filter(None, (files.command_line, asked.append)))
            method = await _load(host, support, files, command_line)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, True)
        entry, notes = await self._prefer(disk)
        result = BootKexecResult(
            disk=disk.name,
            loader=choice.loader,
            title=choice.title,
            kernel=str(choice.kernel),
            initrds=[str(initrd) for initrd in choice.initrds],
            command_line=command_line,
            method=method,
            boot_entry=entry,
            notes=notes,
        )
        return await self._go(msgspec.to_builtins(result), timeout)

    async def observe(self, timeout: float) -> Ending:
        return self._machine.departures.ending_of(CURRENT_COMMAND.get())

    async def _prefer(self, disk: "Disk") -> tuple[str | None, list[str]]:
        """A firmware that does not keep its order is told of, and does not keep the system from being started now."""
        from ramdisk.disk_boot import prefer_disk

        try:
            return await prefer_disk(self._host, disk, self._asked.root_device), []
        except OperationError as error:
            return None, [f"the firmware's boot order was not changed: {error.message}"]

    async def _go(self, result: dict[str, object], timeout: float) -> Answer:
        try:
            await self._machine.departures.intend(
                CURRENT_COMMAND.get(), Means.KEXEC, timeout=timeout, result=result, lane=self._lane
            )
        except OperationError:
            await _unload(self._host)
            raise
        return Answer(result)


@dataclass(frozen=True, slots=True)
class LoadedFiles:
    """Copies in memory. `initrd` None: the kernel needs none."""

    kernel: Path
    initrd: Path | None
    command_line: str


def copy_files(choice: "BootChoice", folder: Path) -> LoadedFiles:
    """The kernel, and its initrds as one, each padded as an archive in a row must be. Raises OSError or ValueError.

    (Linux: Documentation/driver-api/early-userspace/buffer-format.rst.) Blocking.
    """
    from ramdisk.unified_image import copy_section, read_section

    make_private_folder(folder)
    kernel, initrd = folder / "kernel", folder / "initrd"
    source = _file(choice.kernel.file, str(choice.kernel))
    if not choice.unified:
        shutil.copyfile(source, kernel)
        with initrd.open("wb") as target:
            for place in choice.initrds:
                with _file(place.file, str(place)).open("rb") as piece:
                    shutil.copyfileobj(piece, target, _PIECE)
                target.write(bytes(-target.tell() % 4))
        return LoadedFiles(kernel, initrd if choice.initrds else None, choice.command_line)
    if not copy_section(source, ".linux", kernel):
        raise ValueError(f"{choice.kernel} holds no kernel")
    has_initrd = copy_section(source, ".initrd", initrd)
    built_in = read_section(source, ".cmdline")
    words = choice.command_line or (built_in or b"").rstrip(b"\0").decode(errors="replace").strip()
    return LoadedFiles(kernel, initrd if has_initrd else None, words)


def _file(found: Path | None, name: str) -> Path:
    if found is None:
        raise FileNotFoundError(f"{name} is not there")
    return found


async def _load(host: Host, support: KexecSupport, files: LoadedFiles, command_line: str) -> Method:
    """By files first, so that the kernel itself checks signatures; then, where it may be, the older way."""
    words = ["-l", str(files.kernel), f"--command-line={command_line}"]
    if files.initrd is not None:
        words.append(f"--initrd={files.initrd}")
    ways: list[tuple[Method, str]] = [("kexec_file_load", "-s")]
    if support.classic:
        ways.append(("kexec_load", "-c"))
    notes = []
    for method, option in ways:
        ran = await host.run("kexec", option, *words, timeout=_LOAD_SECONDS)
        if not ran.code and is_loaded(host):
            return method
        notes.append(f"{method}: {ran.words if ran.code else 'it says nothing, and no kernel is loaded'}")
    because = (
        " This machine only takes signed kernels (lockdown, Secure Boot): restart it by its firmware instead"
        if support.lockdown
        else ""
    )
    raise OperationError(ErrorCode.NOT_APPLIED, f"the installed kernel was not taken ({'; '.join(notes)}).{because}")


async def jump(departure: Departure, host: Host) -> None:
    """Leaves this kernel for the loaded one. Raises OperationError NOT_APPLIED or OSError when it is still there."""
    if not is_loaded(host):
        raise OperationError(ErrorCode.NOT_APPLIED, "no kernel is loaded any more, so there is none to jump into")
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.to_thread(os.sync), _SYNC_SECONDS)
    try:
        ran = await host.run("kexec", "-e", timeout=_JUMP_SECONDS)
        said = ran.words
    except OperationError as error:
        said = error.message
    try:
        Kernel(host).leave(Means.KEXEC)
    except OSError as error:
        await _unload(host)
        raise OperationError(
            ErrorCode.NOT_APPLIED, f"the kernel did not jump (kexec -e: {said}; reboot(2): {error})"
        ) from error


async def _unload(host: Host) -> None:
    with contextlib.suppress(OperationError):
        await host.run("kexec", "-u", timeout=_LOAD_SECONDS)
