"""One command in the executor's memory: how far it is, its time, and the endings that follow from both."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto

from agent import endings
from agent.clock import Clock, Deadline, remaining_seconds
from protocol.commands import Ending, JournalState
from protocol.operations import Repeat

__all__ = ["CANCELLABLE", "LiveCommand", "Over", "Phase", "new_deadline"]

_LONGEST_MS = 10 * 365 * 86_400_000


class Phase(Enum):
    PARKED = auto()
    """Known from before this process: it waits for the control plane's word, and for how much time is left."""
    ADMITTING = auto()
    QUEUED = auto()
    """Its task has not had its first moment, so it cannot be interrupted yet."""
    WAITING = auto()
    STARTING = auto()
    RUNNING = auto()
    FINISHING = auto()
    ENDED = auto()


CANCELLABLE = frozenset({Phase.WAITING, Phase.RUNNING})
"""Phases whose task may be interrupted; in the others a write is under way, and the wish is looked at after it."""


class Over(Exception):
    """The command ends here, with this ending."""

    def __init__(self, ending: Ending) -> None:
        self.ending = ending


@dataclass(slots=True)
class LiveCommand:
    """A command that the control plane has not settled yet."""

    id: str
    kind: str
    payload: dict[str, object]
    repeat: Repeat
    deadline: Deadline
    phase: Phase
    journalled: bool
    begun: bool = False
    ending: Ending | None = None
    cancel_reason: str | None = None
    settled: bool = False
    """The control plane wants to hear no more of it."""
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def state(self) -> JournalState:
        if self.ending is not None and self.phase is Phase.ENDED:
            return JournalState.FINISHED
        return JournalState.STARTED if self.begun else JournalState.ACCEPTED

    def remaining(self, clock: Clock) -> float:
        """Seconds left. Raises Over when there are none."""
        remaining = remaining_seconds(clock, self.deadline)
        if remaining is None or remaining <= 0:
            raise Over(self.too_late())
        return remaining

    def remaining_or(self, clock: Clock, least: float) -> float:
        return max(least, remaining_seconds(clock, self.deadline) or 0.0)

    def check_cancelled(self) -> None:
        """Raises Over when a cancel was wished for."""
        if self.cancel_reason is not None:
            raise Over(self.cancelled())

    def too_late(self) -> Ending:
        return endings.interrupted(self.kind) if self.begun else endings.expired()

    def cancelled(self) -> Ending:
        return endings.cancelled(self.cancel_reason or "", begun=self.begun, repeat=self.repeat)


def new_deadline(clock: Clock, remaining_ms: int) -> Deadline:
    return Deadline(clock.boottime_ms() + min(remaining_ms, _LONGEST_MS), clock.boot_id)
