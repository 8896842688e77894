"""The machine that the driver runs on: where its kernel shows things, and the programs that it has."""

import asyncio
import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import ErrorCode, OperationError

__all__ = ["Host", "Ran", "first_line"]

_ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_KILL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended. Its words are decoded whatever bytes they hold."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """The line that tells most about a failure."""
        return first_line(self.err) or first_line(self.out) or f"exit code {self.code}"


@dataclass(frozen=True)
class Host:
    """Where the kernel's trees lie. `state`: what was done to the disks since the machine was started; it must not
    outlive a boot, so it lies in memory. `loop_devices`: whether these count as disks (a ramdisk never does so).
    `devices_settling`: a file that is there while a machine that was just started still looks for its devices."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    state: Path = Path("/run/rackwright/disks")
    loop_devices: bool = False
    devices_settling: Path = Path("/run/rackwright/devices-settling")

    def text(self, *parts: str) -> str | None:
        """One attribute below /sys, without its white space; None where it is absent, empty or unreadable."""
        data = self.data(*parts)
        return None if data is None else (data.decode(errors="replace").strip("\0 \t\n") or None)

    def data(self, *parts: str) -> bytes | None:
        """The same as bytes."""
        try:
            return self.sys.joinpath(*parts).read_bytes()
        except OSError:
            return None

    def number(self, *parts: str) -> int | None:
        """The same as a whole number."""
        word = self.text(*parts)
        try:
            return None if word is None else int(word, 0)
        except ValueError:
            return None

    def names(self, *parts: str) -> list[str]:
        """What a folder below /sys holds, sorted; nothing where it is absent."""
        try:
            return sorted(os.listdir(self.sys.joinpath(*parts)))
        except OSError:
            return []

    def has(self, program: str) -> bool:
        return shutil.which(program, path=_ENVIRONMENT["PATH"]) is not None

    def need(self, program: str, what_for: str) -> None:
        """Raises OperationError UNSUPPORTED where the program is not installed."""
        if not self.has(program):
            raise OperationError(ErrorCode.UNSUPPORTED, f"{program} is not installed here, and {what_for} needs it")

    async def run(self, *words: str, timeout: float, given: bytes | None = None) -> Ran:
        """Runs a program to its end, with plain English output and nothing of our environment.

        Raises OperationError TIMEOUT, after the program was ended, or UNSUPPORTED where it is not installed.
        A cancelled caller leaves no program behind.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL if given is None else asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=_ENVIRONMENT,
            )
        except FileNotFoundError:
            raise OperationError(ErrorCode.UNSUPPORTED, f"{words[0]} is not installed here") from None
        try:
            async with asyncio.timeout(timeout):
                out, err = await process.communicate(given)
        except TimeoutError:
            raise OperationError(
                ErrorCode.TIMEOUT, f"{words[0]} did not end within {timeout:.0f} s and was stopped"
            ) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(process.wait()), _KILL_SECONDS)
        return Ran(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))


def first_line(words: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in words.splitlines() if line.strip()), "")
