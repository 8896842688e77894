"""Boot: the one-time or lasting override, the order, Secure Boot."""

from enum import StrEnum

from protocol.shapes import Arguments, Result

__all__ = [
    "BootDevice",
    "BootMode",
    "BootReading",
    "Override",
    "SecureBootReading",
    "SetBootDevice",
    "SetBootDeviceResult",
    "SetBootOrder",
    "SetBootOrderResult",
    "SetSecureBoot",
]


class BootDevice(StrEnum):
    PXE = "pxe"
    DISK = "disk"
    CD = "cd"
    USB = "usb"
    BIOS = "bios"
    UEFI_HTTP = "uefiHttp"
    NONE = "none"
    """No override: the firmware's own order."""


class BootMode(StrEnum):
    UEFI = "uefi"
    BIOS = "bios"


class Override(StrEnum):
    DISABLED = "disabled"
    ONCE = "once"
    CONTINUOUS = "continuous"


class BootReading(Result, frozen=True, kw_only=True):
    target: BootDevice | None
    """Null where the BMC names a target that no `BootDevice` stands for; see `rawTarget`."""
    raw_target: str | None = None
    enabled: Override
    mode: BootMode | None = None
    http_boot_uri: str | None = None
    order: list[str] = []
    allowed_targets: list[str] = []
    """The BMC's own words, from wherever it lists them."""
    allowed_modes: list[str] = []


class SetBootDevice(Arguments, frozen=True, kw_only=True):
    device: BootDevice
    """What the machine starts from, before its own order."""
    persistent: bool = False
    """At every start, and not at the next one alone."""
    mode: BootMode | None = None
    """Null keeps the machine's present mode."""
    http_boot_uri: str | None = None
    """With uefiHttp: the address that the firmware starts from."""


class SetBootDeviceResult(Result, frozen=True, kw_only=True):
    target: BootDevice | None
    raw_target: str | None = None
    enabled: Override
    mode: BootMode | None = None
    http_boot_uri: str | None = None
    persistent_supported: bool | None = None
    """Null where nothing read or tried can tell."""


class SetBootOrder(Arguments, frozen=True, kw_only=True):
    order: list[str]
    """The BMC's own names, as boot.getBoot lists them, the first one first."""


class SetBootOrderResult(Result, frozen=True, kw_only=True):
    order: list[str]
    pending: bool = False
    """The new order waits for a reset."""


class SecureBootReading(Result, frozen=True, kw_only=True):
    enabled: bool | None
    pending: bool | None = None


class SetSecureBoot(Arguments, frozen=True, kw_only=True):
    enabled: bool
    """Whether the firmware starts signed programs only, from the next start on."""
