"""What the executor can do, one handler per kind of command. Another kind is rejected before it is taken in."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from drivers.driver import ProgressListener
from protocol.commands import Ending
from protocol.errors import Issue
from protocol.operations import Repeat

__all__ = ["CURRENT_COMMAND", "Answer", "Handler", "Work"]

CURRENT_COMMAND: ContextVar[str] = ContextVar("current_command", default="")
"""The id of the command whose turn it is, for what a handler keeps of it beyond its own process."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A result as JSON values, and what was seen on the way (`Ending.observed`)."""

    result: dict[str, object]
    observed: dict[str, str] = field(default_factory=dict)


class Work(Protocol):
    """One command whose turn has come: nothing that it excludes runs beside it while its context is open."""

    async def run(self, timeout: float, progress: ProgressListener) -> Answer:
        """Does it within `timeout` seconds. Raises OperationError; when cancelled it stops as soon as it can."""

    async def observe(self, timeout: float) -> Ending:
        """After a crash: says from the machine's state how a command that was begun has ended. Changes nothing."""


class Handler(Protocol):
    """One kind of command."""

    def faults(self, payload: Mapping[str, object]) -> list[Issue]:
        """Every reason to refuse it, beyond those of `protocol.commands.payload_faults`."""

    def repeat(self, payload: Mapping[str, object]) -> Repeat:
        """What doing it twice would mean."""

    def turn(self, payload: Mapping[str, object]) -> AbstractAsyncContextManager[Work]:
        """Waits for the machine's lane and holds it. Raises OperationError when the command cannot be begun."""
