"""RAID: controllers, drives, volumes, and the plan that turns what is into what is asked."""

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from protocol.shapes import Arguments, Result

__all__ = [
    "ApplyRaid",
    "ApplyRaidResult",
    "ClearRaid",
    "CreateVolume",
    "DeleteVolume",
    "DriveSelector",
    "Media",
    "PlanStep",
    "RaidController",
    "RaidDrive",
    "RaidLevel",
    "RaidReading",
    "RaidTask",
    "RaidVolume",
    "VolumeSpec",
    "VolumeTask",
]


class RaidLevel(StrEnum):
    RAID0 = "RAID0"
    RAID1 = "RAID1"
    RAID5 = "RAID5"
    RAID6 = "RAID6"
    RAID10 = "RAID10"
    RAID50 = "RAID50"
    RAID60 = "RAID60"
    JBOD = "JBOD"


class Media(StrEnum):
    SSD = "ssd"
    HDD = "hdd"


class RaidController(Result, frozen=True, kw_only=True):
    id: str
    name: str | None = None
    model: str | None = None
    mode: str | None = None
    levels: list[RaidLevel] = []
    firmware: str | None = None


class RaidDrive(Result, frozen=True, kw_only=True):
    id: str
    controller: str
    name: str | None = None
    serial: str | None = None
    media: Media | None = None
    size_bytes: int | None = None
    enclosure: str | None = None
    state: str | None = None
    volumes: list[str] = []


class RaidVolume(Result, frozen=True, kw_only=True):
    id: str
    controller: str
    name: str | None = None
    level: RaidLevel | None = None
    size_bytes: int | None = None
    drives: list[str] = []
    state: str | None = None


class RaidReading(Result, frozen=True, kw_only=True):
    controllers: list[RaidController]
    drives: list[RaidDrive] = []
    volumes: list[RaidVolume] = []
    foreign: list[str] = []
    """Drives that hold another controller's configuration."""


class DriveSelector(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1)]
    media: Media | None = None
    min_size_gib: Annotated[float, Meta(gt=0)] | None = msgspec.field(default=None, name="minSizeGiB")
    max_size_gib: Annotated[float, Meta(gt=0)] | None = msgspec.field(default=None, name="maxSizeGiB")
    enclosure: str | None = None
    not_boot_drive: bool = True


class VolumeSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    level: RaidLevel
    name: str | None = None
    size_gib: Annotated[float, Meta(gt=0)] | Literal["max"] = msgspec.field(default="max", name="sizeGiB")
    drives: list[str] | DriveSelector


class ApplyRaid(Arguments, frozen=True, kw_only=True):
    controller: str = "any"
    volumes: list[VolumeSpec]
    delete_others: bool = False
    dry_run: bool = False


class PlanStep(Result, frozen=True, kw_only=True):
    act: Literal["keep", "delete", "create"]
    volume: str
    detail: str


class ApplyRaidResult(Result, frozen=True, kw_only=True):
    plan: list[PlanStep]
    made: list[RaidVolume] = []
    kept: list[RaidVolume] = []
    tasks: list[str] = []


class CreateVolume(Arguments, frozen=True, kw_only=True):
    controller: str
    level: RaidLevel
    name: str | None = None
    size_gib: Annotated[float, Meta(gt=0)] | Literal["max"] = msgspec.field(default="max", name="sizeGiB")
    drives: list[str]


class VolumeTask(Result, frozen=True, kw_only=True):
    volume: str | None
    task: str | None = None


class DeleteVolume(Arguments, frozen=True, kw_only=True):
    controller: str
    volume: str


class ClearRaid(Arguments, frozen=True, kw_only=True):
    controller: str


class RaidTask(Result, frozen=True, kw_only=True):
    task: str | None = None
