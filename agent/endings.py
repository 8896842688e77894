"""The endings that the agent itself gives to a command, each saying what is known and what to do."""

from collections.abc import Iterable

import msgspec

from protocol.commands import Ending, Outcome
from protocol.errors import ErrorCode, Failure, Issue, OperationError
from protocol.frames import MAX_FRAME_BYTES, Finished, encode
from protocol.operations import Repeat

__all__ = [
    "agent_fault",
    "broken_off",
    "cancelled",
    "cannot_begin",
    "expired",
    "failed",
    "fitting",
    "interrupted",
    "no_room",
    "not_journalled",
    "outcome_unknown",
    "rejected",
]

_LONGEST_FACT = 1_000


def rejected(issues: Iterable[Issue]) -> Ending:
    listed = list(issues)
    return _ending(
        Outcome.REJECTED,
        ErrorCode.INVALID_ARGUMENT,
        "; ".join(str(issue) for issue in listed),
        {"issues": [msgspec.to_builtins(issue) for issue in listed]},
    )


def not_journalled(reason: str) -> Ending:
    return _ending(Outcome.REJECTED, ErrorCode.BUSY, f"{reason}. The command was not begun")


def no_room(limit: int) -> Ending:
    return _ending(
        Outcome.REJECTED,
        ErrorCode.BUSY,
        f"this agent holds {limit} commands already, its limit; the command was not taken in: ask again later",
    )


def cannot_begin(reason: str) -> Ending:
    return _ending(Outcome.FAILED, ErrorCode.INTERRUPTED, f"{reason}. The command was not begun")


def expired(late_by: float | None = None) -> Ending:
    how = "its time ran out while it waited for the machine" if late_by is None else "its time had run out"
    return _ending(Outcome.EXPIRED, ErrorCode.TIMEOUT, f"{how}; it was not begun")


def cancelled(reason: str, *, begun: bool, repeat: Repeat) -> Ending:
    because = f" ({reason})" if reason else ""
    if begun and repeat is not Repeat.READ:
        return _ending(
            Outcome.CANCELLED,
            ErrorCode.CANCELLED,
            f"cancelled{because} while it was under way: it may have happened, so read the machine's state",
            {"mayHaveHappened": True},
        )
    return _ending(
        Outcome.CANCELLED,
        ErrorCode.CANCELLED,
        f"cancelled{because}; nothing was changed",
        {"mayHaveHappened": False},
    )


def failed(error: OperationError) -> Ending:
    return Ending(Outcome.FAILED, error=error.as_failure())


def interrupted(what: str) -> Ending:
    return _ending(
        Outcome.FAILED,
        ErrorCode.INTERRUPTED,
        f"the agent stopped while {what} was under way and its time has run out since; asking again is harmless",
        {"mayHaveHappened": True},
    )


def broken_off(message: str, details: dict[str, object]) -> Ending:
    """What provably did not come to its end, and of which nothing goes on: asking again is safe."""
    return _ending(Outcome.FAILED, ErrorCode.INTERRUPTED, message, details)


def agent_fault(error: BaseException, *, begun: bool, repeat: Repeat) -> Ending:
    """A fault of this program, which the operator must see as one."""
    fault = f"the agent itself failed ({type(error).__name__}: {error})"
    if not begun:
        return _ending(Outcome.FAILED, ErrorCode.INTERRUPTED, f"{fault} before the command was begun; report this")
    if repeat is Repeat.READ:
        return _ending(Outcome.FAILED, ErrorCode.INTERRUPTED, f"{fault} while it read; nothing was changed")
    return outcome_unknown(f"{fault}: read the machine's state, and report this")


def outcome_unknown(message: str, details: dict[str, object] | None = None) -> Ending:
    return _ending(Outcome.FAILED, ErrorCode.OUTCOME_UNKNOWN, message, {"mayHaveHappened": True, **(details or {})})


def fitting(command_id: str, ending: Ending, repeat: Repeat) -> Ending:
    """The ending itself, or one that says so where its frame would be larger than a frame may be."""
    size = len(encode(Finished(id=command_id, ending=ending)))
    if size <= MAX_FRAME_BYTES:
        return ending
    if ending.outcome is Outcome.SUCCEEDED and repeat is not Repeat.READ:
        facts = {name: value for name, value in ending.observed.items() if len(value) <= _LONGEST_FACT}
        facts["resultOmitted"] = f"{size} bytes, more than a frame takes"
        return Ending(ending.outcome, result={}, observed=facts)
    code = ending.error.code if ending.error is not None else ErrorCode.BMC_ERROR.value
    text = ending.error.message[:2000] if ending.error is not None else "the read itself succeeded"
    return Ending(
        Outcome.FAILED if ending.outcome is Outcome.SUCCEEDED else ending.outcome,
        error=Failure(
            code,
            f"{text} (the answer is {size} bytes, more than the {MAX_FRAME_BYTES} of a frame: ask for less of it)",
        ),
    )


def _ending(outcome: Outcome, code: ErrorCode, message: str, details: dict[str, object] | None = None) -> Ending:
    return Ending(outcome, error=Failure(code.value, message, code.retryable, details=details or {}))
