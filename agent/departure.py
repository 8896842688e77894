"""Leaving a boot: a reboot, a power-off, or the jump into another kernel, which end the agent with everything else.

    intended (durable, by the boot's id) ──► the result told and settled ──► the agent stopped ──► the machine gone

The result is told first, since afterwards nobody is there to tell it; when the control plane cannot be reached, that
is not waited for long. An agent that dies on the way finds the record at its next start: in the same boot the machine
has not gone, and what was asked goes on; in another boot it has. So nothing is done twice, whatever dies.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from enum import StrEnum
from pathlib import Path

import msgspec
import structlog

from agent.clock import Clock
from agent.endings import broken_off
from agent.errors import AgentError
from agent.files import write_durably
from protocol.commands import Ending, Outcome
from protocol.errors import ErrorCode, Failure, OperationError

__all__ = ["Departure", "Departures", "Means", "Way"]

_log = structlog.get_logger("agent.departure")
_TOLD_SECONDS = 10.0
_MOST_ATTEMPTS = 2


class Means(StrEnum):
    REBOOT = "reboot"
    POWER_OFF = "poweroff"
    KEXEC = "kexec"


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """One record. `until_ms` is on CLOCK_BOOTTIME of that boot."""

    command: str
    boot_id: str
    means: Means
    until_ms: int
    result: dict[str, object]
    force: bool = False
    attempts: int = 0
    trouble: str | None = None
    """Why the machine is still there."""


Way = Callable[[Departure], Awaitable[None]]
"""Leaves. Returns, or raises OperationError or OSError, only when the machine is still there."""


class Departures:
    """`told`: waits until a command's ending is settled, for so many seconds at most. `stop`: ends the agent's parts
    in good order, after which `go` is called."""

    def __init__(
        self,
        file: Path,
        clock: Clock,
        *,
        told: Callable[[str, float], Awaitable[bool]],
        stop: Callable[[], None],
    ) -> None:
        self._file = file
        self._clock = clock
        self._told = told
        self._stop = stop
        self._record = _read(file)
        self._lane = AsyncExitStack()
        self._task: asyncio.Task[None] | None = None
        self._due = False
        self.ways: dict[Means, Way] = {}

    @property
    def boot_id(self) -> str:
        return self._clock.boot_id

    @property
    def is_leaving(self) -> bool:
        return self._task is not None or self._due

    async def intend(
        self,
        command: str,
        means: Means,
        *,
        timeout: float,
        result: dict[str, object],
        lane: AsyncExitStack | None = None,
        force: bool = False,
    ) -> None:
        """From here on the machine goes, as soon as the command's result is told; `lane` is held until then, so that
        nothing else is begun on it. Raises OperationError NOT_APPLIED: it stays."""
        if means not in self.ways:
            raise OperationError(ErrorCode.UNSUPPORTED, f"this agent knows no way to {means}")
        record = Departure(
            command=command,
            boot_id=self.boot_id,
            means=means,
            until_ms=self._clock.boottime_ms() + int(timeout * 1000),
            result=result,
            force=force,
        )
        try:
            await asyncio.to_thread(self._write, record)
        except OSError as error:
            raise OperationError(
                ErrorCode.NOT_APPLIED,
                f"{self._file} cannot be written ({error.strerror}), so a crash on the way would leave doubt; "
                "nothing was done",
            ) from error
        if lane is not None:
            self._lane = lane.pop_all()
        self._begin()

    def resume(self) -> None:
        """At the start: goes on with what an earlier process of this boot intended."""
        record = self._record
        if record is None or record.boot_id != self.boot_id or record.trouble is not None:
            return
        if self._clock.boottime_ms() >= record.until_ms:
            self._give_up(record, "its time ran out before the agent could do it")
        elif record.attempts >= _MOST_ATTEMPTS:
            self._give_up(record, f"the machine was still there after {record.attempts} attempts")
        else:
            _log.warning("departure_resumed", command=record.command, means=record.means)
            self._begin()

    def is_by(self, command: str) -> bool:
        """Whether the last intention to leave was this command's."""
        return self._record is not None and self._record.command == command

    def ending_of(self, command: str) -> Ending:
        """How a command to leave has ended, whose process died: said by the boot's id alone."""
        record = self._record
        if record is None or record.command != command:
            return broken_off(
                "the agent stopped before the machine was told to go, so it did not go by this command; asking again "
                "is safe",
                {"bootId": self.boot_id},
            )
        if record.boot_id != self.boot_id:
            return Ending(Outcome.SUCCEEDED, result=record.result, observed={"bootId": self.boot_id})
        if record.trouble is not None:
            code = ErrorCode.NOT_APPLIED
            return Ending(Outcome.FAILED, error=Failure(code.value, record.trouble, code.retryable))
        return Ending(Outcome.SUCCEEDED, result=record.result)

    async def go(self) -> None:
        """The very last thing: leaves, where that is due. Raises AgentError when the machine is still there."""
        record = self._record
        if not self._due or record is None:
            return
        record = msgspec.structs.replace(record, attempts=record.attempts + 1)
        try:
            self._write(record)
        except OSError as error:
            # The intent itself is durable; only one more attempt might be made after a failure.
            _log.warning("departure_not_counted", reason=str(error))
        _log.warning("leaving", means=record.means, command=record.command)
        try:
            await self.ways[record.means](record)
        except (OperationError, OSError) as error:
            trouble = error.message if isinstance(error, OperationError) else str(error)
        else:
            trouble = f"{record.means} came back, and the machine is still there"
        self._give_up(record, trouble)
        raise AgentError(f"the machine did not go: {trouble}")

    async def aclose(self) -> None:
        """Forgets, in this process, what was not begun; the record stays."""
        if self._task is not None and not self._due:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._lane.aclose()

    def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._leave_when_told())

    async def _leave_when_told(self) -> None:
        record = self._record
        if record is not None and not await self._told(record.command, _TOLD_SECONDS):
            _log.warning("result_not_told", command=record.command, hint="the machine goes all the same")
        self._due = True
        self._stop()

    def _give_up(self, record: Departure, trouble: str) -> None:
        _log.error("departure_failed", command=record.command, means=record.means, reason=trouble)
        try:
            self._write(msgspec.structs.replace(record, trouble=trouble))
        except OSError as error:
            _log.error("departure_not_recorded", reason=str(error))

    def _write(self, record: Departure) -> None:
        write_durably(self._file, msgspec.json.encode(record))
        self._record = record


def _read(file: Path) -> Departure | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Departure)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        _log.error("departure_not_readable", file=str(file), reason=str(error))
        return None
