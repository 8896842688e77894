"""What is seen of a machine at a look, and what its BMC tells unasked."""

from dataclasses import dataclass
from enum import StrEnum

from protocol.shapes.management import Health
from protocol.shapes.power import PowerState

__all__ = ["BmcEvent", "EventKind", "EventOffer", "Glance", "Listener", "Signal"]


@dataclass(frozen=True, slots=True)
class Glance:
    """What one look told. Between two states, or where the BMC says nothing, the power is UNKNOWN or on its way."""

    power: PowerState
    health: Health = Health.UNKNOWN
    raw: str | None = None
    """The BMC's own word for the power."""


class EventKind(StrEnum):
    POWER = "power"
    """The power has changed, is changing, or the host was reset."""
    HEALTH = "health"
    """A part is worse or better than it was."""
    LOG = "log"
    """Something was written into a log."""
    OTHER = "other"
    """Logins, tasks, settings, tests: nothing that a look would show."""


@dataclass(frozen=True, slots=True)
class BmcEvent:
    """One thing that a BMC told unasked. `at` is RFC 3339 by the BMC's clock, which may be wrong."""

    kind: EventKind
    message_id: str = ""
    text: str = ""
    severity: Health = Health.UNKNOWN
    origin: str | None = None
    """The path of the resource that it is about."""
    at: str | None = None


@dataclass(frozen=True, slots=True)
class Signal:
    """What came together on a stream: the events, the id to go on from, whether some before it were missed, and the
    seconds that the BMC wants between two connections."""

    events: tuple[BmcEvent, ...]
    last_id: str | None = None
    gap: bool = False
    retry: float | None = None


@dataclass(frozen=True, slots=True)
class EventOffer:
    """How a BMC can be heard: by a stream that is kept open, by a push to a listener, or both."""

    stream: str | None = None
    """Where the stream is asked for."""
    subscriptions: str | None = None
    """The collection that takes a listener's address."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a BMC shall send its events: an address that nobody else knows, and the word that it sends with them."""

    url: str
    context: str
