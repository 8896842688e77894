"""Power: the state of the host, and the acts that change it."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from protocol.shapes import Arguments, Result

__all__ = ["PowerAction", "PowerReading", "PowerState", "SetPower", "SetPowerResult"]


class PowerState(StrEnum):
    ON = "on"
    OFF = "off"
    POWERING_ON = "poweringOn"
    POWERING_OFF = "poweringOff"
    UNKNOWN = "unknown"
    """The BMC gives no clear answer (null, "Reset", "Unknown"): never taken for off."""


class PowerAction(StrEnum):
    ON = "on"
    OFF = "off"
    SOFT_OFF = "softOff"
    RESET = "reset"
    CYCLE = "cycle"
    NMI = "nmi"


class PowerReading(Result, frozen=True, kw_only=True):
    state: PowerState
    raw: str | None = None
    """The BMC's own word."""


class SetPower(Arguments, frozen=True, kw_only=True):
    action: PowerAction
    """What is asked for: on and off are states, softOff asks the operating system first, the others are acts."""
    wait: bool = True
    """Return only once the BMC reports the wanted state (for reset, cycle and nmi: once it took the order)."""
    soft_timeout: Annotated[float, Meta(gt=0, le=3600)] = 180.0
    """Seconds that softOff waits for the operating system before it forces the power off."""


class SetPowerResult(Result, frozen=True, kw_only=True):
    state: PowerState
    changed: bool
    """False when the machine was already as asked and nothing was sent."""
    verb_used: str | None = None
    """The reset type or chassis control that the BMC was sent last."""
    forced: bool = False
    """softOff ran out of time and the power was cut."""
