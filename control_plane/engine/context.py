"""What a control-plane step's code is given, and what it may raise to say how it stands."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar, TypeVarTuple

import msgspec

from control_plane.engine.states import RunsOn
from control_plane.store import Transaction

__all__ = ["DriverError", "StepContext", "StepFailed", "StepNotReady"]


class StepNotReady(Exception):
    """The step is to be run again later: after `ms`, or after the engine's default when that is None."""

    def __init__(self, ms: int | None = None) -> None:
        super().__init__("the step is not ready")
        self.ms = ms


class StepFailed(Exception):
    """The attempt failed, for this reason; `code` is kept as the step's error code."""

    def __init__(self, message: str, *, code: str = "STEP_FAILED") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class DriverError(StepFailed):
    """A command that the step sent did not succeed. `cause`: the agent's own error code, where it gave one."""

    def __init__(self, message: str, cause: str = "") -> None:
        super().__init__(message, code="DRIVER_ERROR")
        self.cause = cause


ArgsT = TypeVarTuple("ArgsT")
ResultT = TypeVar("ResultT")


class AwaitCommand(Protocol):
    def __call__(
        self,
        *,
        node_id: str,
        kind: str,
        payload: dict[str, object],
        key: str | None,
        timeout_ms: int | None,
        place: RunsOn | None,
    ) -> Awaitable[dict[str, object]]: ...


class Read(Protocol):
    def __call__(self, fn: Callable[[Transaction, *ArgsT], ResultT], *args: *ArgsT) -> Awaitable[ResultT]: ...


class StepContext(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of a step's code."""

    tenant_id: str
    workflow_id: str
    step_id: str
    action: str
    attempt: int
    node_id: str | None
    started_ms: int
    """When this attempt began, by the store's clock."""
    deadline_ms: int
    """Milliseconds since 1970 by the store's clock at which the step times out."""
    key: str
    """The same for every execution of this attempt: an idempotency key for whatever is asked of the outside."""
    send: AwaitCommand
    read: Read
    """Runs a function of a transaction that changes nothing: `await context.read(function, *arguments)`."""
    progress: Callable[[str], None]
    """Says how far the step is, for whoever watches; never stored."""

    async def await_command(
        self,
        *,
        node_id: str | None = None,
        kind: str,
        payload: dict[str, object],
        key: str | None = None,
        timeout_ms: int | None = None,
        place: RunsOn | None = None,
    ) -> dict[str, object]:
        """The result of a command that is sent once per attempt of this step.

        The first execution sends it; every later one finds it again, by its key. While it has not ended this raises
        StepNotReady, and the step's code is run again: it must reach this place again without doing anything twice.
        `key` tells several commands of one step apart. `timeout_ms` is never beyond the step's own deadline. `place`:
        whose agent it is for, where its kind and driver do not say so. Raises DriverError with the command's reason
        when it failed, was rejected, expired or was cancelled.
        """
        return await self.send(
            node_id=node_id or self.node_id or "",
            kind=kind,
            payload=payload,
            key=key,
            timeout_ms=timeout_ms,
            place=place,
        )

    def not_ready(self, ms: int | None = None) -> StepNotReady:
        """To be raised: have the step run again after `ms`."""
        return StepNotReady(ms)
