"""The acts of simulated machines: what each one really did, kept in memory or in a folder.

In a folder (`RACKWRIGHT_SIMULATED_STATE`) each machine has the file `<name>.acts`: one JSON line per executed
changing operation, with the machine's state after it, on the disk before the operation answers. So state and count
cannot disagree, also when the process is killed at any point, and several processes see the same machine.
`<name>.faults` counts the calls that met the script's faults. Writing waits for the disk: for tests, not for load.
"""

import contextlib
import fcntl
import os
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from drivers.simulated.state import MachineState
from protocol.errors import ErrorCode, OperationError

__all__ = ["Act", "ActStore", "FileStore", "MemoryStore"]

_TAIL_BYTES = 1 << 16
_REMEMBERED = 1000


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """One executed changing operation."""

    operation: str
    args: dict[str, object]
    """As called; texts that may hold secrets only by their length."""
    changed: bool
    """False when the machine was already as asked."""
    pid: int
    state: MachineState
    """What the machine was afterwards; in memory only the newest state is kept, for all acts."""


class ActStore(Protocol):
    """One machine's memory."""

    def changing(self) -> contextlib.AbstractContextManager[None]:
        """Holds the machine against other processes while it acts."""

    def state(self) -> MachineState | None:
        """What it is now, for the caller to change; None before its first act."""

    def keep(self, act: Act) -> None:
        """After this the act has happened."""

    def acts(self) -> list[Act]:
        """Oldest first."""

    def counts(self) -> dict[str, int]:
        """Executions by operation, all of them."""

    def fault_counts(self, script: str, faults: int) -> list[int]:
        """How many calls each fault of this script has seen."""

    def keep_fault_counts(self, script: str, counts: list[int]) -> None: ...


class MemoryStore:
    """For machines that end with the process. Remembers the last 1000 acts whole, and counts all."""

    def __init__(self) -> None:
        self._acts: deque[tuple[str, dict[str, object], bool]] = deque(maxlen=_REMEMBERED)
        self._counts: Counter[str] = Counter()
        self._state: MachineState | None = None
        self._faults: tuple[str, list[int]] = ("", [])

    def changing(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def state(self) -> MachineState | None:
        return self._state

    def keep(self, act: Act) -> None:
        self._state = act.state
        self._acts.append((act.operation, act.args, act.changed))
        self._counts[act.operation] += 1

    def acts(self) -> list[Act]:
        state = self._state or MachineState()
        return [
            Act(operation=operation, args=args, changed=changed, pid=os.getpid(), state=state)
            for operation, args, changed in self._acts
        ]

    def counts(self) -> dict[str, int]:
        return dict(self._counts)

    def fault_counts(self, script: str, faults: int) -> list[int]:
        if self._faults[0] != script:
            self._faults = (script, [0] * faults)
        return self._faults[1]

    def keep_fault_counts(self, script: str, counts: list[int]) -> None:
        self._faults = (script, counts)


class _FaultCounts(msgspec.Struct):
    script: str
    counts: list[int]


class FileStore:
    """For machines that outlive the process, and are looked at by others."""

    def __init__(self, folder: Path, name: str) -> None:
        self._acts_file = folder / f"{name}.acts"
        self._faults_file = folder / f"{name}.faults"

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        with self._telling():
            self._acts_file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._acts_file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def state(self) -> MachineState | None:
        lines = self._lines(_TAIL_BYTES) or self._lines(None)
        return msgspec.json.decode(lines[-1], type=Act).state if lines else None

    def keep(self, act: Act) -> None:
        line = msgspec.json.encode(act) + b"\n"
        with self._telling(), self._acts_file.open("r+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            whole = self._whole_bytes(end)
            if whole != end:
                file.truncate(whole)
                file.seek(whole)
            file.write(line)
            os.fsync(file.fileno())

    def acts(self) -> list[Act]:
        return [msgspec.json.decode(line, type=Act) for line in self._lines(None)]

    def counts(self) -> dict[str, int]:
        return dict(Counter(act.operation for act in self.acts()))

    def fault_counts(self, script: str, faults: int) -> list[int]:
        try:
            kept = msgspec.json.decode(self._faults_file.read_bytes(), type=_FaultCounts)
        except (OSError, msgspec.DecodeError):
            return [0] * faults
        return kept.counts if kept.script == script and len(kept.counts) == faults else [0] * faults

    def keep_fault_counts(self, script: str, counts: list[int]) -> None:
        with self._telling():
            self._faults_file.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._faults_file.with_suffix(".faults.new")
            fresh.write_bytes(msgspec.json.encode(_FaultCounts(script, counts)))
            fresh.replace(self._faults_file)

    def _lines(self, tail: int | None) -> list[bytes]:
        """The whole lines at the file's end; with a tail too short for one, none."""
        try:
            with self._acts_file.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = 0 if tail is None else max(0, size - tail)
                file.seek(start)
                lines = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        return lines if start == 0 else lines[1:]

    def _whole_bytes(self, size: int) -> int:
        """Where the last whole line ends: a line without its end was cut off by a crash before it counted."""
        with self._acts_file.open("rb") as file:
            if size:
                file.seek(size - 1)
            if not size or file.read(1) == b"\n":
                return size
            file.seek(0)
            return file.read().rfind(b"\n") + 1

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OperationError(
                ErrorCode.BMC_ERROR,
                f"the simulated machine's memory {self._acts_file} cannot be written: {error.strerror}",
            ) from error
