"""The processes that the demo starts: each with a log, all ended and waited for, none forgotten."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from workspace import DemoFailure

__all__ = ["RACKWRIGHT", "Child", "Children"]

RACKWRIGHT = (sys.executable, "-m", "rackwright")
_MARK = "RACKWRIGHT_DEMO_RUN"
_START_SECONDS = 30.0
_STOP_SECONDS = 12.0
_LEFTOVER_SECONDS = 2.0
FoundT = TypeVar("FoundT")


class Child:
    """One process, alone in its process group."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_until(self, what: str, ready: Callable[[], FoundT | None]) -> FoundT:
        """Polls until `ready()` finds something. Raises DemoFailure with the end of the log when that never comes."""
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if (found := ready()) is not None:
                    return found
            if self._process.poll() is not None:
                raise DemoFailure(f"{self.name} ended with code {self._process.returncode}:\n{self._last_words()}")
            time.sleep(0.05)
        raise DemoFailure(f"{self.name}: {what}: not within {_START_SECONDS:g} s\n{self._last_words()}")

    def end(self, deadline: float) -> None:
        """SIGTERM to its whole group, SIGKILL to what is left at the deadline; then it is waited for."""
        self._send(signal.SIGTERM)
        try:
            self._process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._send(signal.SIGKILL)
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _last_words(self) -> str:
        return "\n".join(self.said().splitlines()[-10:])


class Children:
    """Starts processes and commands. All of them carry a mark in their environment, by which leftovers are found."""

    def __init__(self, logs: Path, temporary: Path) -> None:
        self._logs = logs
        self._children: list[Child] = []
        self._mark = uuid.uuid4().hex
        # In the demo's own environment, so that whatever else it starts carries the mark too.
        os.environ[_MARK] = self._mark
        kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        self._environment = {
            **kept,
            "TMPDIR": str(temporary),
            "XDG_CONFIG_HOME": str(temporary),
            "PYTHONUNBUFFERED": "1",
        }
        # Even kill -9 of the demo leaves nothing behind, where util-linux is there.
        setpriv = shutil.which("setpriv")
        self._prefix = [setpriv, "--pdeathsig", "TERM"] if setpriv else []

    @property
    def count(self) -> int:
        return len(self._children)

    def start(
        self,
        name: str,
        words: Sequence[str],
        *,
        open_stdin: bool = False,
    ) -> Child:
        """A process in the background. `open_stdin`: its standard input stays open and silent."""
        log = self._logs / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*self._prefix, *words],
                stdin=subprocess.PIPE if open_stdin else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def command(self, *words: str, stdin: str = "") -> str:
        """Runs a command to its end; what it printed. Raises DemoFailure with its standard error."""
        try:
            done = subprocess.run(
                words, input=stdin, capture_output=True, text=True, timeout=30, check=False, env=self._environment
            )
        except subprocess.TimeoutExpired as error:
            raise DemoFailure(f"{_shown(words)}: did not end within {error.timeout:g} s") from error
        if done.returncode:
            raise DemoFailure(f"{_shown(words)} ended with code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def end(self) -> None:
        """Ends all, the youngest first, so that the agent can still say goodbye to the others."""
        deadline = time.monotonic() + _STOP_SECONDS
        for child in reversed(self._children):
            child.end(deadline)

    def end_leftovers(self) -> list[str]:
        """Ends every process of this run that is still there, also one whose parent is gone; those that stay."""
        end = time.monotonic() + _LEFTOVER_SECONDS
        while (left := self._marked()) and time.monotonic() < end:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        return [f"{pid} ({name})" for pid, name in left.items()]

    def _marked(self) -> dict[int, str]:
        """The ids of the living processes with this run's mark, and their names."""
        mark = f"{_MARK}={self._mark}".encode()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "comm").read_text().strip()
        return found


def _shown(words: Sequence[str]) -> str:
    return " ".join(word for word in words[:6] if word != "-m").replace(sys.executable, "", 1).strip()
