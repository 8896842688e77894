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
    "SpareKind",
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


class SpareKind(StrEnum):
    GLOBAL = "global"
    """For any volume of the controller."""
    DEDICATED = "dedicated"


class RaidController(Result, frozen=True, kw_only=True):
    id: str
    name: str | None = None
    model: str | None = None
    mode: str | None = None
    levels: list[RaidLevel] = []
    """What it offers; empty where it does not say, or where `unsuitable` tells why it offers none."""
    firmware: str | None = None
    health: str | None = None
    unsuitable: str | None = None
    """Why no volume can be made on it, and what to do about that; None where volumes can be made."""


class RaidDrive(Result, frozen=True, kw_only=True):
    id: str
    controller: str
    name: str | None = None
    serial: str | None = None
    media: Media | None = None
    size_bytes: int | None = None
    enclosure: str | None = None
    state: str | None = None
    """ready, online (in a volume), spare, foreign, failed."""
    volumes: list[str] = []
    """Those that were made on it; the drive itself, where a controller shows it as a volume, is not among them."""
    spare: SpareKind | None = None
    boot: bool = False
    """Known to hold what the machine boots from."""
    health: str | None = None


class RaidVolume(Result, frozen=True, kw_only=True):
    id: str
    controller: str
    name: str | None = None
    level: RaidLevel | None = None
    size_bytes: int | None = None
    drives: list[str] = []
    state: str | None = None
    health: str | None = None
    spares: list[str] = []
    """Drives that stand by for this volume alone."""
    raw: bool = False
    """A drive that the controller shows as it is: nobody made it, it takes no drive up, and it cannot be deleted."""


class RaidReading(Result, frozen=True, kw_only=True):
    controllers: list[RaidController]
    drives: list[RaidDrive] = []
    volumes: list[RaidVolume] = []
    foreign: list[str] = []
    """Drives that hold another controller's configuration."""
    unread: list[str] = []
    """What could not be read, with the reason: what is missing above may be there."""


class DriveSelector(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Which drives, by what they are."""

    count: Annotated[int, Meta(ge=1)]
    """How many."""
    media: Media | None = None
    """Of either kind where it is left out, and never mixed."""
    min_size_gib: Annotated[float, Meta(gt=0)] | None = msgspec.field(default=None, name="minSizeGiB")
    """The least size of each, in GiB."""
    max_size_gib: Annotated[float, Meta(gt=0)] | None = msgspec.field(default=None, name="maxSizeGiB")
    """The greatest size of each, in GiB."""
    enclosure: str | None = None
    """Only drives in this enclosure, by the name that raid.getRaid shows."""
    not_boot_drive: bool = True
    """Leave the drive out that the machine is known to start from."""


class VolumeSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    level: RaidLevel
    """The RAID level; JBOD hands the drives through as they are."""
    name: str | None = None
    """Its name; a volume of this name, level, size and these drives is kept."""
    size_gib: Annotated[float, Meta(gt=0)] | Literal["max"] = msgspec.field(default="max", name="sizeGiB")
    """In GiB, or max: all that its drives hold."""
    drives: list[str] | DriveSelector
    """By id or serial number, or how to choose them."""
    spans: Annotated[int, Meta(ge=2)] | None = None
    """How many RAID 1, 5 or 6 groups a RAID 10, 50 or 60 is made of; the controller decides where it is left out."""
    spares: list[str] | DriveSelector | None = None
    """Hot spares for this volume alone."""


class ApplyRaid(Arguments, frozen=True, kw_only=True):
    controller: str = "any"
    """The controller's id. With `any`, each volume goes to the first controller that has room for it."""
    volumes: list[VolumeSpec]
    """What shall be there in the end."""
    delete_others: bool = False
    """Other volumes are deleted: of the named controller, or with `any` of those that get or keep a wanted one."""
    dry_run: bool = False
    """Only say what would be done."""
    hot_spares: list[str] | DriveSelector | None = None
    """Hot spares for all volumes of a controller."""


class PlanStep(Result, frozen=True, kw_only=True):
    act: Literal["keep", "delete", "create", "spare"]
    volume: str
    detail: str
    controller: str | None = None


class ApplyRaidResult(Result, frozen=True, kw_only=True):
    plan: list[PlanStep]
    made: list[RaidVolume] = []
    kept: list[RaidVolume] = []
    tasks: list[str] = []
    deleted: list[str] = []
    reset_owed: bool = False
    """A controller does its part at the next reset of the machine; ask again after it for what is in `waiting`."""
    waiting: list[PlanStep] = []
    """Steps that can only begin after that reset."""


class CreateVolume(Arguments, frozen=True, kw_only=True):
    controller: str
    """Its id, as raid.getRaid shows it."""
    level: RaidLevel
    """The RAID level."""
    name: str | None = None
    """Its name; the controller makes one up where it is left out."""
    size_gib: Annotated[float, Meta(gt=0)] | Literal["max"] = msgspec.field(default="max", name="sizeGiB")
    """In GiB, or max: all that its drives hold."""
    drives: list[str]
    """By id or serial number."""
    spans: Annotated[int, Meta(ge=2)] | None = None
    """How many RAID 1, 5 or 6 groups a RAID 10, 50 or 60 is made of."""


class VolumeTask(Result, frozen=True, kw_only=True):
    volume: str | None
    """None while the volume waits for a reset."""
    task: str | None = None
    reset_owed: bool = False
    size_bytes: int | None = None
    drives: list[str] = []


class DeleteVolume(Arguments, frozen=True, kw_only=True):
    controller: str
    """Its id, as raid.getRaid shows it."""
    volume: str
    """The volume's id; what is on it is lost."""


class ClearRaid(Arguments, frozen=True, kw_only=True):
    controller: str
    """Its id, as raid.getRaid shows it; what is on its volumes is lost."""


class RaidTask(Result, frozen=True, kw_only=True):
    task: str | None = None
    reset_owed: bool = False
    deleted: list[str] = []
    """The volumes that were there and are gone, or go with the reset that is owed."""
    waiting: list[str] = []
    """Volumes that can only be deleted after that reset: ask again then."""
