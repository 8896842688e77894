"""What a result means for whoever asked: that nothing was done, that something is still owed. Text only."""

from collections.abc import Iterator, Mapping

from protocol.operations import OPERATIONS

__all__ = ["remarks"]

_RESTART = "power.setPower action=reset restarts it"


def remarks(operation: str, arguments: Mapping[str, object], result: Mapping[str, object]) -> list[str]:
    """In the order in which they matter; empty where the result says it all."""
    if arguments.get("dryRun") is True:
        return ["dry run: nothing was done"]
    return list(_remarks(operation, result))


def _remarks(operation: str, result: Mapping[str, object]) -> Iterator[str]:
    row = OPERATIONS.get(operation)
    if row is not None and row.changes and result.get("changed") is False:
        yield "it was so already: nothing was changed"
    pending = result.get("pending")
    if isinstance(pending, Mapping) and pending:
        verb = "waits" if len(pending) == 1 else "wait"
        yield f"{', '.join(map(str, pending))} {verb} for a restart of the machine: {_RESTART}"
    elif _differs_after_restart(pending, result.get("enabled")):
        yield f"it takes effect at the next restart of the machine: {_RESTART}"
    if result.get("resetOwed") is True:
        if operation == "config.replaceCertificate":
            yield "the BMC shows it once it is restarted: management.resetBmc does so"
        else:
            yield f"it is not in force before a restart of the machine: {_RESTART}"
    waiting = result.get("waiting")
    if isinstance(waiting, list) and waiting:
        yield "what is in `waiting` can only begin after that restart: ask again then"


def _differs_after_restart(pending: object, enabled: object) -> bool:
    """`pending` says whether something waits; beside an `enabled` it is that one's value after the restart."""
    return pending is not None and pending is not enabled if isinstance(enabled, bool) else pending is True
