"""Deploy: what is done to the machine's own disks, by the agent that runs on it."""

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from protocol.shapes import Arguments, Result

__all__ = [
    "ConfigDriveResult",
    "DiskErased",
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
    serial: str | None = None
    wwn: str | None = None
    model: str | None = None
    name: str | None = None
    min_size_gib: Annotated[float, Meta(gt=0)] | None = msgspec.field(default=None, name="minSizeGiB")
    max_size_gib: Annotated[float, Meta(gt=0)] | None = msgspec.field(default=None, name="maxSizeGiB")
    rotational: bool | None = None
    smallest: bool | None = None


class EraseDisks(Arguments, frozen=True, kw_only=True):
    mode: EraseMode
    disks: RootDeviceHints | None = None
    """Null erases every disk that is neither removable nor in use."""


class DiskErased(Result, frozen=True, kw_only=True):
    disk: str
    method: str
    seconds: float
    proof: str | None = None


class EraseDisksResult(Result, frozen=True, kw_only=True):
    disks: list[DiskErased]


class ImageFormat(StrEnum):
    RAW = "raw"
    RAW_ZST = "raw.zst"
    RAW_GZ = "raw.gz"
    QCOW2 = "qcow2"


class Image(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    url: str
    sha256: Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")] | None = None
    sha512: Annotated[str, Meta(pattern="^[0-9a-fA-F]{128}$")] | None = None
    format: ImageFormat | None = None
    """Null takes it from the address's ending."""


class WriteImage(Arguments, frozen=True, kw_only=True):
    image: Image
    root_device: RootDeviceHints = RootDeviceHints(smallest=True)


class WriteImageResult(Result, frozen=True, kw_only=True):
    disk: str
    bytes: int
    seconds: float
    checksum: str


class WriteConfigDrive(Arguments, frozen=True, kw_only=True):
    user_data: str | None = None
    meta_data: str | None = None
    network_data: str | None = None
    datasource: Literal["NoCloud"] = "NoCloud"


class ConfigDriveResult(Result, frozen=True, kw_only=True):
    partition: str


class SetBootEntry(Arguments, frozen=True, kw_only=True):
    label: str = "Rackwright"
    loader: str | None = None


class SetBootEntryResult(Result, frozen=True, kw_only=True):
    entry: str
    order: list[str]
