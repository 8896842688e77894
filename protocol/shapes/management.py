"""Management: what the BMC is, how its machine fares, and the BMC's own restart."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from protocol.shapes import Arguments, Result

__all__ = [
    "BmcInfo",
    "ComponentHealth",
    "EventLog",
    "EventLogCleared",
    "Fulfilment",
    "GetEventLog",
    "Health",
    "Indicator",
    "IndicatorReading",
    "LogRecord",
    "MachineHealth",
    "Need",
    "OperationSupport",
    "ProfileVerdict",
    "Qualification",
    "Requirement",
    "ResetBmc",
    "ResetBmcResult",
    "Sensor",
    "Sensors",
    "SetIndicator",
    "Support",
    "Thresholds",
]


class BmcInfo(Result, frozen=True, kw_only=True):
    vendor: str | None = None
    model: str | None = None
    serial: str | None = None
    """The machine's serial number as its maker's support asks for it (Dell: the service tag)."""
    uuid: str | None = None
    bmc_type: str | None = None
    """The controller's own model, such as iDRAC, iLO, XCC, OpenBMC."""
    bmc_version: str | None = None
    redfish_version: str | None = None
    ipmi_version: str | None = None


class Health(StrEnum):
    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"
    UNKNOWN = "unknown"


class ComponentHealth(Result, frozen=True, kw_only=True):
    name: str
    kind: str
    health: Health
    state: str | None = None


class MachineHealth(Result, frozen=True, kw_only=True):
    rollup: Health
    components: list[ComponentHealth] = []


class Thresholds(Result, frozen=True, kw_only=True):
    lower_critical: float | None = None
    lower_warning: float | None = None
    upper_warning: float | None = None
    upper_critical: float | None = None


class Sensor(Result, frozen=True, kw_only=True):
    name: str
    kind: str
    """temperature, fan, voltage, current, power, or the BMC's own word."""
    reading: float | None = None
    unit: str | None = None
    status: Health = Health.UNKNOWN
    thresholds: Thresholds | None = None


class Sensors(Result, frozen=True, kw_only=True):
    sensors: list[Sensor]


class GetEventLog(Arguments, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 100
    """The newest entries that are returned."""
    since: str | None = None
    """An RFC 3339 time: older entries are left out. Entries without a usable time are kept."""


class LogRecord(Result, frozen=True, kw_only=True):
    id: str
    time: str | None = None
    """RFC 3339; null where the BMC's clock gave none."""
    severity: Health = Health.UNKNOWN
    text: str
    source: str | None = None


class EventLog(Result, frozen=True, kw_only=True):
    entries: list[LogRecord]
    """Newest first."""


class EventLogCleared(Result, frozen=True, kw_only=True):
    cleared: bool = True
    remaining: int = 0
    """Entries read back after the clear: BMCs log the clear itself, so one is usual."""


class Indicator(StrEnum):
    ON = "on"
    OFF = "off"
    BLINK = "blink"


class SetIndicator(Arguments, frozen=True, kw_only=True):
    state: Indicator
    """What the light shall do."""


class IndicatorReading(Result, frozen=True, kw_only=True):
    state: Indicator | None
    """Null where the BMC cannot tell."""


class ResetBmc(Arguments, frozen=True, kw_only=True):
    force: bool = False
    """Restart it at once, without letting it end what it does."""


class ResetBmcResult(Result, frozen=True, kw_only=True):
    seconds_away: float
    version: str | None = None


class Support(StrEnum):
    SUPPORTED = "supported"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


class OperationSupport(Result, frozen=True, kw_only=True):
    operation: str
    support: Support
    evidence: str
    """What was read that says so: a resource, a property, a completion code."""


class Need(StrEnum):
    """How much a profile needs something."""

    MANDATORY = "mandatory"
    IF_PRESENT = "ifPresent"
    """Mandatory on a resource that is itself only recommended."""
    RECOMMENDED = "recommended"


class Fulfilment(StrEnum):
    MET = "met"
    NOT_MET = "notMet"
    UNKNOWN = "unknown"
    """Reading cannot tell, or the resource cannot be read now."""


class Requirement(Result, frozen=True, kw_only=True):
    resource: str
    item: str
    """The property or action, with the values that it must take."""
    needed_for: str
    need: Need
    verdict: Fulfilment
    evidence: str


class ProfileVerdict(Result, frozen=True, kw_only=True):
    """What a published interoperability profile wants, held against this BMC."""

    profile: str
    verdict: Fulfilment
    """Of the mandatory requirements together: not met where one is not, unknown where one cannot be told."""
    requirements: list[Requirement]


class Qualification(Result, frozen=True, kw_only=True):
    info: BmcInfo
    operations: list[OperationSupport]
    profile: ProfileVerdict | None = None
    """OpenStack Ironic's, for Redfish services."""
