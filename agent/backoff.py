"""How long to wait before the next attempt to connect: spread over thousands of agents, never in step."""

import random
from dataclasses import dataclass

__all__ = ["Backoff"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Full jitter: anything from nothing to a bound that doubles with each failure.

    (M. Brooker, "Exponential Backoff And Jitter": of the kinds compared there, full jitter makes the least load.)
    """

    base: float = 1.0
    """Seconds: the bound of the first delay."""
    cap: float = 60.0
    healthy_after: float = 30.0
    """A welcome that lasted this long proves the control plane well; a shorter one does not reset the count, else a
    server that accepts and drops would be hammered."""

    def bound(self, failures: int) -> float:
        """The longest delay after so many failures in a row; the first has `failures` 1."""
        return min(self.cap, self.base * float(2 ** min(max(failures - 1, 0), 30)))

    def delay(self, failures: int, chance: random.Random) -> float:
        return chance.uniform(0.0, self.bound(failures))

    def after_session(self, spread_ms: int, chance: random.Random) -> float:
        """The first delay after a connection that was welcomed: all agents lost it at once, and the control plane
        said how widely they should come back."""
        return chance.uniform(0.0, min(max(spread_ms, 0) / 1000, 300.0))

    def slow(self, chance: random.Random, seconds: float = 300.0) -> float:
        """For what only a person can mend: seldom, and spread."""
        return seconds * chance.uniform(0.8, 1.2)
