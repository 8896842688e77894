"""How often each workflow event was made durable by this process: what `/metrics` shows of the engine."""

from collections import Counter
from collections.abc import Iterable, Mapping

__all__ = ["STEP_EVENTS", "TALLY", "WORKFLOW_EVENTS", "Tally"]

WORKFLOW_EVENTS = ("created", "started", "paused", "resumed", "retried", "succeeded", "failed", "cancelled")
STEP_EVENTS = ("started", "succeeded", "failed", "retrying", "skipped")


class Tally:
    """Counts by an event's type."""

    def __init__(self) -> None:
        self._counted: Counter[str] = Counter()

    def count(self, types: Iterable[str]) -> None:
        self._counted.update(types)

    def snapshot(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """(workflows, steps) as they are now."""
        return (
            {name: self._counted[f"workflow.{name}"] for name in WORKFLOW_EVENTS},
            {name: self._counted[f"workflow.step.{name}"] for name in STEP_EVENTS},
        )


TALLY = Tally()
"""The process's own."""
