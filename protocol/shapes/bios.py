"""BIOS attributes: what they are, what they may be, and what waits for a reset."""

from enum import StrEnum

from protocol.shapes import Arguments, Result

__all__ = [
    "ApplyTime",
    "BiosAttribute",
    "BiosReading",
    "BiosValue",
    "GetBios",
    "ResetBiosResult",
    "SetBios",
    "SetBiosResult",
]

BiosValue = str | int | bool | float | None


class ApplyTime(StrEnum):
    ON_RESET = "onReset"
    IMMEDIATE = "immediate"


class GetBios(Arguments, frozen=True, kw_only=True):
    pending: bool = False
    """Only the attributes that wait for a reset."""


class BiosAttribute(Result, frozen=True, kw_only=True):
    name: str
    value: BiosValue
    """As it is in force; null for passwords, which are never shown."""
    display_name: str | None = None
    help: str | None = None
    kind: str | None = None
    """enumeration, integer, string, boolean or password, from the registry."""
    minimum: int | None = None
    maximum: int | None = None
    step: int | None = None
    """Of an integer: only every so many-th number from the minimum on is taken."""
    min_length: int | None = None
    max_length: int | None = None
    choices: list[str] = []
    default: BiosValue = None
    read_only: bool = False
    hidden: bool = False
    """The firmware's own menus do not show it now."""
    note: str | None = None
    """Why it is read-only or hidden now: the value of another attribute."""
    pending: BiosValue = None


class BiosReading(Result, frozen=True, kw_only=True):
    attributes: list[BiosAttribute]
    registry: str | None = None
    """The name of the registry that the BIOS follows; its attributes have no kind where it could not be read."""
    defaults_pending: bool | None = None
    """The next start sets everything to its default; null where the BMC does not say."""


class SetBios(Arguments, frozen=True, kw_only=True):
    attributes: dict[str, BiosValue]
    """The new values by the attributes' names, as bios.getBios lists them; the others stay as they are."""
    apply_time: ApplyTime = ApplyTime.ON_RESET
    """When they take effect; a machine that takes them at a restart only waits for one all the same."""


class SetBiosResult(Result, frozen=True, kw_only=True):
    changed: dict[str, BiosValue]
    """What was sent: attributes that had the value, or waited for it, are not among them."""
    pending: dict[str, BiosValue] = {}
    """Waits for a reset, also what waited before."""
    task: str | None = None


class ResetBiosResult(Result, frozen=True, kw_only=True):
    task: str | None = None
    pending: bool = True
