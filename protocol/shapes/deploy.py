"""Deploy: what is done to the machine's own disks, by the agent that runs on it."""

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from protocol.shapes import Arguments, Result

__all__ = [
    "ConfigDriveResult",
    "DiskErased",
    "DiskErasure",
    "DiskImage",
    "DiskSkipped",
    "DiskStage",
    "DiskState",
    "Disks",
    "EraseDisks",
    "EraseDisksResult",
    "EraseMode",
    "Image",
    "ImageFormat",
    "RootDeviceHints",
    "SetBootEntry",
    "SetBootEntryResult",
    "WriteConfigDrive",
    "WriteImage",
    "WriteImageResult",
]


class EraseMode(StrEnum):
    METADATA = "metadata"
    FULL = "full"


class RootDeviceHints(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Which disk, by what it is; it must fit every hint that is given."""

    serial: str | None = None
    """Its serial number."""
    wwn: str | None = None
    """Its world wide name."""
    model: str | None = None
    """Its model, as deploy.getDisks shows it."""
    name: str | None = None
    """Its device, such as /dev/nvme0n1: names may change from one start to the next."""
    min_size_gib: Annotated[float, Meta(gt=0)] | None = msgspec.field(default=None, name="minSizeGiB")
    """The least size, in GiB."""
    max_size_gib: Annotated[float, Meta(gt=0)] | None = msgspec.field(default=None, name="maxSizeGiB")
    """The greatest size, in GiB."""
    rotational: bool | None = None
    """true: a hard disk; false: one without moving parts."""
    smallest: bool | None = None
    """true: the smallest of those that fit."""


class EraseDisks(Arguments, frozen=True, kw_only=True):
    mode: EraseMode
    """metadata: partition tables and signatures; full: everything."""
    disks: RootDeviceHints | None = None
    """Null erases every disk that is neither removable nor in use."""


class DiskErased(Result, frozen=True, kw_only=True):
    disk: str
    method: str
    seconds: float
    proof: str | None = None


class DiskSkipped(Result, frozen=True, kw_only=True):
    disk: str
    reason: str


class EraseDisksResult(Result, frozen=True, kw_only=True):
    disks: list[DiskErased]
    skipped: list[DiskSkipped] = []
    """Disks that were left alone because nothing named them and they may not be erased, with the reason."""


class ImageFormat(StrEnum):
    RAW = "raw"
    RAW_ZST = "raw.zst"
    RAW_GZ = "raw.gz"
    QCOW2 = "qcow2"


class Image(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    url: str
    """Where it is fetched from (http or https)."""
    sha256: Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")] | None = None
    """Its published checksum: 64 hexadecimal digits."""
    sha512: Annotated[str, Meta(pattern="^[0-9a-fA-F]{128}$")] | None = None
    """Its published checksum: 128 hexadecimal digits."""
    format: ImageFormat | None = None
    """Null takes it from the address's ending."""


class WriteImage(Arguments, frozen=True, kw_only=True):
    image: Image
    """What is written."""
    root_device: RootDeviceHints = RootDeviceHints(smallest=True)
    """Which disk it is written to."""
    grow_root: bool = True
    """The last partition, where it holds a Linux root, and its file system take the rest of the disk, but for the
    room of a configuration drive."""


class WriteImageResult(Result, frozen=True, kw_only=True):
    disk: str
    bytes: int
    seconds: float
    checksum: str
    partition: str | None = None
    """The root partition, where one was recognised."""
    proof: str | None = None
    """What was checked before the write was called done."""
    notes: list[str] = []
    """What was left undone and why, such as a file system that could not be grown: the image itself is whole."""


class WriteConfigDrive(Arguments, frozen=True, kw_only=True):
    user_data: str | None = None
    """cloud-init's user-data."""
    meta_data: str | None = None
    """cloud-init's meta-data."""
    network_data: str | None = None
    """cloud-init's network-config."""
    datasource: Literal["NoCloud"] = "NoCloud"
    """The form in which it is found by cloud-init."""
    root_device: RootDeviceHints | None = None
    """Null takes the disk to which an image was written since the agent's machine was started."""
    daemon: bool = False
    """Bring the installed system's agent its ticket too. The ramdisk's agent asks the control plane for it over its
    own link when it does this: the ticket is never in a command."""


class ConfigDriveResult(Result, frozen=True, kw_only=True):
    partition: str


class SetBootEntry(Arguments, frozen=True, kw_only=True):
    label: str = "Rackwright"
    """The entry's name in the firmware's menu."""
    loader: str | None = None
    """A path on the EFI system partition, such as `\\EFI\\debian\\shimx64.efi`; null takes what is found there."""
    root_device: RootDeviceHints | None = None
    """As in `WriteConfigDrive`."""


class SetBootEntryResult(Result, frozen=True, kw_only=True):
    entry: str
    order: list[str]


class DiskStage(StrEnum):
    """How far a change of a disk came that this boot of the machine has seen."""

    UNDER_WAY = "underWay"
    """Begun and not ended: with no such operation running, it was broken off."""
    DONE = "done"
    FAILED = "failed"


class DiskImage(Result, frozen=True, kw_only=True):
    """The last image that was written to a disk since the machine was started."""

    stage: DiskStage
    image: str
    """The address without its query."""
    expected: str | None = None
    """The published checksum, in lower case; `checksum` is what was computed."""
    checksum: str | None = None
    bytes: int | None = None
    seconds: float | None = None
    partition: str | None = None
    unchanged: bool | None = None
    """Whether the disk still begins as it did when the write was done."""


class DiskErasure(Result, frozen=True, kw_only=True):
    """The last erasure of a disk since the machine was started."""

    stage: DiskStage
    mode: EraseMode
    method: str | None = None
    seconds: float | None = None
    proof: str | None = None
    unchanged: bool | None = None
    """Whether both ends of the disk are still blank."""


class DiskState(Result, frozen=True, kw_only=True):
    name: str
    size_bytes: int
    serial: str | None = None
    wwn: str | None = None
    vendor: str | None = None
    model: str | None = None
    transport: str | None = None
    """nvme, sata, sas, usb, virtio, mmc, md."""
    rotational: bool | None = None
    unsuitable: str | None = None
    """Why no image may be written to it and why it may not be erased; null where it may."""
    contents: list[str] = []
    """What it is seen to hold: partition tables, file systems, members of arrays."""
    image: DiskImage | None = None
    erasure: DiskErasure | None = None


class Disks(Result, frozen=True, kw_only=True):
    disks: list[DiskState]
