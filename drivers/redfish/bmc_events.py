"""What a BMC's events mean: Redfish's `Event` payload, in the forms that vendors send it, into one typed shape. Pure.

An event says that something has happened, and seldom how things are now; so its kind is what matters here.
"""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from drivers.redfish.document import Document, dig, link, path_of, text
from drivers.redfish.health import severity_of
from drivers.signals import BmcEvent, EventKind
from protocol.shapes.management import Health

__all__ = ["events_in", "events_of", "kind_of", "moment_of"]

_MOST = 256
"""Events of one payload that are looked at."""
_POWER_KEYS = frozenset(
    {
        # DMTF, ResourceEvent registry 1.1 and later.
        "ResourcePoweredOn",
        "ResourcePoweredOff",
        "ResourcePoweringOn",
        "ResourcePoweringOff",
        "ResourcePaused",
        # HPE, iLOEvents registry (recorded tree hpe-dl380a-ilo6).
        "ServerPoweredOn",
        "ServerPoweredOff",
        "ServerResetDetected",
        # AMI, EventLog registry (recorded tree nvidia-dgx-h100-ami).
        "PowerStatusChange",
        # HPE Cray (recorded tree cray-ex235a).
        "ResourcePowerStateChanged",
        # OpenBMC, OpenBMC registry.
        "DCPowerOn",
        "DCPowerOff",
        # Dell iDRAC, Lifecycle log: turning on, turning off, power cycle, CPU reset.
        "SYS1000",
        "SYS1001",
        "SYS1002",
        "SYS1003",
    }
)
_HEALTH_KEYS = re.compile(
    r"^Resource(StatusChanged|Errors|Warning|ErrorThreshold|WarningThreshold|SelfTest)|Health|Predictive|Degraded|"
    r"Redundancy|Threshold",
    re.IGNORECASE,
)
_POWER_WORDS = re.compile(
    r"power(ed)? (state|is now|on|off|up|down|cycle)|turn(ed|ing) (on|off)|shut(ting)? ?down|"
    r"(host|system|server) .{0,20}(reset|restart)",
    re.IGNORECASE,
)
_OWN_DOINGS = re.compile(
    r"/(sessionservice|accountservice|eventservice|taskservice|telemetryservice|updateservice|jobservice)(/|$)",
    re.IGNORECASE,
)
_OWN_KEYS = re.compile(r"^(TestMessage|Task|Job|Session|.*Log(in|out|on|off)|USR\d+)", re.IGNORECASE)
_SYSTEM = re.compile(r"/systems/[^/]+/?$", re.IGNORECASE)
_LOG = re.compile(r"/logservices/", re.IGNORECASE)


def events_in(data: bytes | str) -> tuple[BmcEvent, ...]:
    """The events of a payload as it came; none for what is no JSON, or another report (telemetry)."""
    try:
        payload = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            payload = json.loads(
                data.decode("utf-8-sig", "replace") if isinstance(data, bytes) else data, strict=False
            )
        except (ValueError, RecursionError):
            return ()
    except RecursionError:
        return ()
    return events_of(payload)


def events_of(payload: object) -> tuple[BmcEvent, ...]:
    """The events of a decoded payload: `{"Events": […]}`, a list of such, or one record by itself."""
    found: list[BmcEvent] = []
    for record in _records(payload, 0):
        found.append(_event(record))
        if len(found) >= _MOST:
            break
    return tuple(found)


def kind_of(message_id: str, words: str, severity: Health, origin: str | None, event_type: str | None) -> EventKind:
    """What an event is about: by its message first, else by what it is of, else by its words.

    Logins, tasks and tests are nobody's health, and a look that logs in must not be the cause of the next look.
    """
    key = message_id.rpartition(".")[2]
    if key in _POWER_KEYS:
        return EventKind.POWER
    if _OWN_KEYS.match(key) or (origin is not None and _OWN_DOINGS.search(origin)):
        return EventKind.OTHER
    if _HEALTH_KEYS.search(key) or (event_type or "").lower() == "statuschange":
        return EventKind.HEALTH
    if _POWER_WORDS.search(words):
        return EventKind.POWER
    if severity in (Health.WARNING, Health.CRITICAL) or (origin is not None and _SYSTEM.search(origin)):
        return EventKind.HEALTH
    if (origin is not None and _LOG.search(origin)) or (event_type or "").lower() == "alert":
        return EventKind.LOG
    return EventKind.OTHER


def moment_of(word: str | None) -> str | None:
    """RFC 3339 for what BMCs write: offsets as `-0600` (Dell), a blank for the T, no offset at all (taken for UTC).

    None where it is no time, or one before BMCs had clocks.
    """
    if word is None or len(word) > 64:
        return None
    try:
        moment = datetime.fromisoformat(word.strip())
    except ValueError:
        return None
    if moment.year < 1990:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).isoformat()


def _records(payload: object, depth: int) -> Iterator[Document]:
    if isinstance(payload, list):
        for item in payload[:_MOST] if depth < 2 else ():
            yield from _records(item, depth + 1)
        return
    if not isinstance(payload, dict):
        return
    listed = payload.get("Events")
    if isinstance(listed, dict):
        listed = [listed]
    if isinstance(listed, list):
        yield from (item for item in listed if isinstance(item, dict))
    elif text(payload, "MessageId") or text(payload, "MessageID"):
        yield payload


def _event(record: Document) -> BmcEvent:
    message_id = (text(record, "MessageId") or text(record, "MessageID") or "")[:200]
    words = (text(record, "Message") or "")[:500]
    severity = severity_of(text(record, "MessageSeverity") or text(record, "Severity"))
    origin = _origin(record)
    return BmcEvent(
        kind=kind_of(message_id, words, severity, origin, text(record, "EventType")),
        message_id=message_id,
        text=words,
        severity=severity,
        origin=origin,
        at=moment_of(text(record, "EventTimestamp")),
    )


def _origin(record: Document) -> str | None:
    """The resource that it is about: a link, or bare text (Supermicro, older iLO)."""
    found = dig(record, "OriginOfCondition")
    if isinstance(found, str):
        return path_of(found)[:500] if found.strip() else None
    path = link(record, "OriginOfCondition") or link(record, "Links", "OriginOfCondition")
    return path[:500] if path is not None else None
