"""What Redfish's `Status` and severities mean. Pure."""

from drivers.redfish.document import Document, dig, text
from protocol.shapes.management import ComponentHealth, Health

__all__ = ["component", "health_of", "is_absent", "severity_of", "worst"]

_HEALTH = {"ok": Health.OK, "warning": Health.WARNING, "critical": Health.CRITICAL}
_SEVERITY = {
    **_HEALTH,
    "informational": Health.OK,
    "information": Health.OK,
    "info": Health.OK,
    "minor": Health.WARNING,
    "caution": Health.WARNING,
    "error": Health.CRITICAL,
    "major": Health.CRITICAL,
    "fatal": Health.CRITICAL,
    "non-recoverable": Health.CRITICAL,
}
_ORDER = (Health.UNKNOWN, Health.OK, Health.WARNING, Health.CRITICAL)


def health_of(document: object, *, rollup: bool = False) -> Health:
    """The health that a resource's `Status` tells; UNKNOWN where it tells none. `rollup`: with what it contains."""
    words = [text(document, "Status", "Health")]
    if rollup:
        words.insert(0, text(document, "Status", "HealthRollup"))
    return next((_HEALTH[word.lower()] for word in words if word and word.lower() in _HEALTH), Health.UNKNOWN)


def severity_of(word: str | None) -> Health:
    """The severity of a log entry."""
    return _SEVERITY.get(word.lower(), Health.UNKNOWN) if word else Health.UNKNOWN


def is_absent(document: object) -> bool:
    """Whether the thing is not there at all: an empty bay or socket."""
    return (text(document, "Status", "State") or "").lower() == "absent"


def worst(found: list[Health]) -> Health:
    return max(found, key=_ORDER.index, default=Health.UNKNOWN)


def component(document: Document, kind: str, *, rollup: bool = False) -> ComponentHealth | None:
    """One component's line; None for an empty place and for what says nothing of its health."""
    health, state = health_of(document, rollup=rollup), text(document, "Status", "State")
    if is_absent(document) or (health is Health.UNKNOWN and state is None):
        return None
    name = text(document, "Name") or text(document, "FanName") or text(document, "MemberId") or text(document, "Id")
    if name is None and dig(document, "@odata.id"):
        name = str(document["@odata.id"]).rstrip("/").rpartition("/")[2]
    return ComponentHealth(name=name or kind, kind=kind, health=health, state=state)
