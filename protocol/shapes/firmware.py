"""Firmware: what runs where, and how it is replaced."""

from enum import StrEnum

from protocol.shapes import Arguments, Result
from protocol.shapes.bios import ApplyTime

__all__ = ["FirmwareComponent", "FirmwareReading", "Transport", "UpdateFirmware", "UpdateFirmwareResult"]


class Transport(StrEnum):
    AUTO = "auto"
    SIMPLE = "simple"
    MULTIPART = "multipart"
    PUSH = "push"


class FirmwareComponent(Result, frozen=True, kw_only=True):
    name: str
    version: str | None = None
    updateable: bool | None = None
    id: str | None = None


class FirmwareReading(Result, frozen=True, kw_only=True):
    components: list[FirmwareComponent]


class UpdateFirmware(Arguments, frozen=True, kw_only=True):
    image: str
    """An address that the BMC can fetch, or a file on the site host."""
    targets: list[str] = []
    expect_version: str | None = None
    apply_time: ApplyTime = ApplyTime.IMMEDIATE
    transport: Transport = Transport.AUTO


class UpdateFirmwareResult(Result, frozen=True, kw_only=True):
    before: dict[str, str | None]
    after: dict[str, str | None]
    task: str | None = None
    reset_owed: bool = False
