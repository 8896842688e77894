"""What was last seen of each machine, and which of it the control plane has still to be told.

One state per machine, not one per look: a machine that changed three times while the link was down is told of once,
as it is now. After each watch list everything is told anew, so nothing that was lost on a connection stays unknown.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from drivers.signals import Glance
from protocol.errors import ErrorCode
from protocol.frames import NodeState, Observation
from protocol.shapes.management import Health
from protocol.shapes.power import PowerState

__all__ = ["Observations", "Seen", "Trouble"]

_NODES_IN_A_FRAME = 500
_LONGEST_TROUBLE = 500


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a machine cannot be asked; two troubles of one code are the same, whatever their words."""

    code: ErrorCode
    words: str


@dataclass(frozen=True, slots=True)
class Seen:
    """One machine at one moment. `at` is by the event loop's clock, in seconds; `how` as in `NodeState`."""

    power: PowerState
    health: Health
    raw: str | None
    trouble: Trouble | None
    how: str
    at: float

    @classmethod
    def of(cls, glance: Glance, how: str, at: float) -> "Seen":
        return cls(glance.power, glance.health, glance.raw, None, how, at)

    @classmethod
    def nothing(cls, trouble: Trouble, how: str, at: float) -> "Seen":
        """A machine that cannot be asked: its power is unknown, and never taken for off."""
        return cls(PowerState.UNKNOWN, Health.UNKNOWN, None, trouble, how, at)

    @property
    def _facts(self) -> tuple[object, ...]:
        return self.power, self.health, self.raw, self.trouble.code if self.trouble is not None else None

    def is_as(self, other: "Seen | None") -> bool:
        return other is not None and self._facts == other._facts


class Observations:
    """`wake` is called when there is something to take. Nothing is given out before this connection's watch list."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._seen: dict[str, Seen] = {}
        self._due: dict[str, None] = {}
        self._open = False

    def note(self, node_id: str, seen: Seen) -> bool:
        """Takes what was seen; whether it differs from what was seen before."""
        before = self._seen.get(node_id)
        self._seen[node_id] = seen
        if seen.is_as(before):
            return False
        # To the end of the queue: what changed last is told last.
        self._due.pop(node_id, None)
        self._due[node_id] = None
        if self._open:
            self._wake()
        return True

    def last(self, node_id: str) -> Seen | None:
        return self._seen.get(node_id)

    def keep(self, node_ids: Iterable[str]) -> None:
        """The machines of a new watch list: all others are forgotten, and all of these are told of."""
        kept = set(node_ids)
        self._seen = {node_id: seen for node_id, seen in self._seen.items() if node_id in kept}
        self._due = dict.fromkeys(self._seen)
        self._open = True
        if self._due:
            self._wake()

    def forget(self, node_id: str) -> None:
        self._seen.pop(node_id, None)
        self._due.pop(node_id, None)

    def close(self) -> None:
        """A new connection begins: its other end may know nothing of all this."""
        self._open = False

    def take(self) -> Observation | None:
        """What is due, in the order of its changes; some hundred machines at a time."""
        if not self._open or not self._due:
            return None
        now = asyncio.get_running_loop().time()
        states: list[NodeState] = []
        while self._due and len(states) < _NODES_IN_A_FRAME:
            node_id = next(iter(self._due))
            del self._due[node_id]
            states.append(_state(node_id, self._seen[node_id], now))
        return Observation(nodes=states)


def _state(node_id: str, seen: Seen, now: float) -> NodeState:
    trouble = None
    if seen.trouble is not None:
        trouble = f"{seen.trouble.code}: {seen.trouble.words}"[:_LONGEST_TROUBLE]
    return NodeState(
        node_id=node_id,
        power=seen.power.value,
        health=seen.health.value,
        raw=seen.raw,
        trouble=trouble,
        how=seen.how,
        age_ms=max(0, int((now - seen.at) * 1000)),
    )
