"""How often each workflow event was made durable by this process: what `/metrics` shows of the engine."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

__all__ = ["STEP_EVENTS", "TALLY", "WORKFLOW_EVENTS", "Tally"]

WORKFLOW_EVENTS = ("created", "started", "paused", "resumed", "retried", "succeeded", "failed", "cancelled")
STEP_EVENTS = ("started", "succeeded", "failed", "retrying", "skipped")


class Tally:
    """Counts by event. `workflow` and `step` give what a transaction calls once it is durable, made beforehand: the
    engine does so thousands of times a second."""

    def __init__(self) -> None:
        self.workflows: Counter[str] = Counter(dict.fromkeys(WORKFLOW_EVENTS, 0))
        self.steps: Counter[str] = Counter(dict.fromkeys(STEP_EVENTS, 0))
        self._workflow = {name: partial(self._count, self.workflows, name) for name in WORKFLOW_EVENTS}
        self._step = {name: partial(self._count, self.steps, name) for name in STEP_EVENTS}

    def workflow(self, name: str) -> Callable[[], None]:
        return self._workflow[name]

    def step(self, name: str) -> Callable[[], None]:
        return self._step[name]

    @staticmethod
    def _count(counter: Counter[str], name: str) -> None:
        counter[name] += 1

    def snapshot(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """(workflows, steps) as they are now."""
        return dict(self.workflows), dict(self.steps)


TALLY = Tally()
"""The process's own."""
