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


class BiosAttribute(Result, frozen=True, kw_only=True):
    name: str
    value: BiosValue
    kind: str | None = None
    """enumeration, integer, string, boolean or password, from the registry."""
    minimum: int | None = None
    maximum: int | None = None
    choices: list[str] = []
    read_only: bool = False
    pending: BiosValue = None


class BiosReading(Result, frozen=True, kw_only=True):
    attributes: list[BiosAttribute]
    registry: str | None = None


class SetBios(Arguments, frozen=True, kw_only=True):
    attributes: dict[str, BiosValue]
    apply_time: ApplyTime = ApplyTime.ON_RESET


class SetBiosResult(Result, frozen=True, kw_only=True):
    changed: dict[str, BiosValue]
    pending: dict[str, BiosValue] = {}
    """Waits for a reset."""
    task: str | None = None


class ResetBiosResult(Result, frozen=True, kw_only=True):
    task: str | None = None
    pending: bool = True
