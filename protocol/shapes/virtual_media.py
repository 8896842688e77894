"""Virtual media: images that the BMC shows its host as drives."""

from enum import StrEnum

from protocol.shapes import Arguments, Result

__all__ = [
    "EjectMedia",
    "EjectMediaResult",
    "InsertMedia",
    "InsertMediaResult",
    "InsertMethod",
    "MediaDevice",
    "MediaSlot",
    "MediaSlots",
]


class MediaDevice(StrEnum):
    CD = "cd"
    USB = "usb"
    FLOPPY = "floppy"


class InsertMethod(StrEnum):
    ACTION = "action"
    PATCH = "patch"
    UPLOAD = "upload"
    NONE = "none"
    UNKNOWN = "unknown"


class MediaSlot(Result, frozen=True, kw_only=True):
    id: str
    media_types: list[str]
    """The BMC's own words; empty where it does not say."""
    image: str | None = None
    inserted: bool = False
    insert_method: InsertMethod = InsertMethod.UNKNOWN
    write_protected: bool | None = None
    location: str | None = None
    """The resource, or another way to tell two slots of one name apart."""


class MediaSlots(Result, frozen=True, kw_only=True):
    slots: list[MediaSlot]


class InsertMedia(Arguments, frozen=True, kw_only=True):
    image: str
    """An http, https, nfs or smb address that the BMC itself can reach."""
    device: MediaDevice = MediaDevice.CD
    """As what the machine sees it."""
    write_protected: bool = True
    """The machine may not write to it."""


class InsertMediaResult(Result, frozen=True, kw_only=True):
    slot: str
    image: str
    """As read back from the BMC."""
    changed: bool = True


class EjectMedia(Arguments, frozen=True, kw_only=True):
    device: MediaDevice | None = None
    """Null ejects every slot."""


class EjectMediaResult(Result, frozen=True, kw_only=True):
    ejected: list[str]
    """Slots that held something and are empty now."""
