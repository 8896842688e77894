"""What a boot override is made of, and to which resource each part of it goes. Pure.

Some services keep the override on the system, some on its settings object, and some show a settings object that has
nothing to do with it. Recorded trees tell them apart by one thing: whether the settings object's `Boot` holds
`BootSourceOverrideTarget` (NVIDIA DGX, GH200, BlueField-3: yes; Dell iDRAC 9 7.10, Lenovo XCC: no).
"""

from dataclasses import dataclass

from drivers.redfish.document import Document, allowed_values, dig, text
from drivers.redfish.manners import Manners
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.boot import BootDevice, BootMode, BootReading, Override, SetBootDevice

__all__ = [
    "BootView",
    "Wanted",
    "as_written",
    "device_of",
    "has_lost_uefi",
    "mode_of",
    "override_of",
    "targets_for",
    "wanted_override",
    "word_of",
]

ENABLED = "BootSourceOverrideEnabled"
TARGET = "BootSourceOverrideTarget"
MODE = "BootSourceOverrideMode"
HTTP_URI = "HttpBootUri"
ORDER = "BootOrder"

_WORDS: dict[BootDevice, tuple[str, ...]] = {
    BootDevice.PXE: ("Pxe",),
    BootDevice.DISK: ("Hdd", "UefiHdd"),
    BootDevice.USB: ("Usb", "UsbHdd", "UsbKey", "UefiUsbHdd", "UefiUsbKey"),
    BootDevice.BIOS: ("BiosSetup",),
    BootDevice.UEFI_HTTP: ("UefiHttp",),
    BootDevice.NONE: ("None",),
}
_CD_WORDS = ("Cd", "UsbCd", "CD/DVD", "UefiCd", "UefiUsbCd", "RemoteDrive")
_DEVICES = {
    **{word.lower(): device for device, words in _WORDS.items() for word in words},
    **{word.lower(): BootDevice.CD for word in _CD_WORDS},
}
_OVERRIDES = {"once": Override.ONCE, "continuous": Override.CONTINUOUS, "disabled": Override.DISABLED}
_MODES = {"uefi": BootMode.UEFI, "legacy": BootMode.BIOS, "bios": BootMode.BIOS}
_MODE_WORDS = {BootMode.UEFI: "UEFI", BootMode.BIOS: "Legacy"}


@dataclass(frozen=True, slots=True)
class BootView:
    """A system's `Boot`, and that of its settings object where there is one."""

    system: Document
    settings: Document
    has_settings: bool = False

    @classmethod
    def of(cls, system: Document, settings: Document | None) -> "BootView":
        own, pending = dig(system, "Boot"), dig(settings, "Boot")
        return cls(
            own if isinstance(own, dict) else {},
            pending if isinstance(pending, dict) else {},
            isinstance(pending, dict),
        )

    @property
    def settings_own_override(self) -> bool:
        return TARGET in self.settings

    @property
    def settings_own_order(self) -> bool:
        return ORDER in self.settings

    @property
    def has_override(self) -> bool:
        """Whether any resource shows or lists an override at all."""
        return any(key in boot for boot in (self.system, self.settings) for key in (TARGET, ENABLED)) or bool(
            self.allowed(TARGET)
        )

    def goes_to_settings(self, key: str) -> bool:
        """Where a part of the override is written: with the target, unless the settings object lacks that part."""
        return self.settings_own_override and key in self.settings

    def value(self, key: str) -> str | None:
        """What holds for the next start: the owner's value, else what the other resource says."""
        first, second = (self.settings, self.system) if self.goes_to_settings(key) else (self.system, self.settings)
        own = text(first, key)
        return own if own is not None else text(second, key)

    def allowed(self, key: str) -> list[str]:
        """The values that either resource lists (Dell iDRAC 10 lists them on its settings object only)."""
        first, second = (self.settings, self.system) if self.settings_own_override else (self.system, self.settings)
        return list(dict.fromkeys([*allowed_values(first, key), *allowed_values(second, key)]))

    @property
    def http_uri(self) -> str | None:
        """Services write "no address" as null, or as the word None (OpenStack's sushy-tools)."""
        word = self.value(HTTP_URI)
        return None if word is not None and word.lower() in ("none", "null") else word

    @property
    def order(self) -> list[str]:
        return _order(self.system) or _order(self.settings)

    @property
    def pending_order(self) -> list[str]:
        return _order(self.settings)

    def reading(self) -> BootReading:
        target = self.value(TARGET)
        return BootReading(
            target=device_of(target),
            raw_target=target,
            enabled=override_of(self.value(ENABLED)),
            mode=mode_of(self.value(MODE)),
            http_boot_uri=self.http_uri,
            order=self.order,
            allowed_targets=self.allowed(TARGET),
            allowed_modes=self.allowed(MODE),
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """One override as it is to be written and read back."""

    target: str
    enabled: str
    mode: str | None = None
    """Null: it is left alone."""
    http_uri: str | None = None
    persistent_supported: bool | None = None

    def is_in(self, view: BootView, mode_asked: bool) -> bool:
        """Whether the BMC shows it. A BMC that shows Once as Continuous, or the other way, is believed."""
        enabled = override_of(view.value(ENABLED))
        if self.enabled == "Disabled":
            return enabled is Override.DISABLED or device_of(view.value(TARGET)) is BootDevice.NONE
        return (
            enabled is not Override.DISABLED
            and (view.value(TARGET) or "").lower() == self.target.lower()
            and (not mode_asked or self.mode is None or mode_of(view.value(MODE)) is mode_of(self.mode))
            and (self.http_uri is None or view.value(HTTP_URI) == self.http_uri)
        )


def device_of(word: str | None) -> BootDevice | None:
    return _DEVICES.get(word.lower()) if word else None


def override_of(word: str | None) -> Override:
    return _OVERRIDES.get(word.lower(), Override.DISABLED) if word else Override.DISABLED


def mode_of(word: str | None) -> BootMode | None:
    return _MODES.get(word.lower()) if word else None


def targets_for(device: BootDevice, mode: BootMode | None, view: BootView, manners: Manners) -> list[str]:
    """The BMC's own words for a device, best first. Raises OperationError UNSUPPORTED that lists what it has."""
    if not view.has_override:
        raise OperationError(ErrorCode.UNSUPPORTED, "this BMC shows no boot override: set the boot order instead")
    words = manners.cd_targets if device is BootDevice.CD else _WORDS[device]
    listed = view.allowed(TARGET)
    if device is BootDevice.NONE or not listed:
        plain = [word for word in words if not word.startswith("Uefi") or device is BootDevice.UEFI_HTTP]
        return plain[:2] if device is BootDevice.CD else plain[:1]
    by_lower = {word.lower(): word for word in listed}
    found = [by_lower[word.lower()] for word in words if word.lower() in by_lower]
    if mode is not None and _modeless(view):
        # Supermicro X10 has no mode and says it in the target: UefiCd, UefiHdd, … Where no target says it, there is
        # one mode only (NVIDIA GH200), and the null mode that is read back tells that none was set.
        found = [word for word in found if word.startswith("Uefi") is (mode is BootMode.UEFI)] or found
    if not found:
        raise OperationError(
            ErrorCode.UNSUPPORTED,
            f"this BMC cannot boot from {device}"
            + (f" in {mode} mode" if mode else "")
            + f"; it lists {', '.join(listed)}",
            details={"allowed": list(listed)},
        )
    return found


def wanted_override(arguments: SetBootDevice, target: str, view: BootView, manners: Manners) -> Wanted:
    """The override to write for one of the BMC's words. Raises OperationError UNSUPPORTED for a mode it lacks."""
    if arguments.device is BootDevice.NONE:
        return Wanted(target="None", enabled="Disabled", mode=_mode_to_send(None, view, manners))
    listed = view.allowed(ENABLED)
    supported = "Continuous" in listed if listed else None
    enabled = "Continuous" if arguments.persistent and supported is not False else "Once"
    mode = _mode_to_send(arguments.mode, view, manners)
    return Wanted(target, enabled, mode, arguments.http_boot_uri, supported)


def as_written(wanted: Wanted, view: BootView) -> tuple[Document, Document]:
    """The `Boot` objects to write to the system and to its settings object; empty where there is nothing to write."""
    parts = {ENABLED: wanted.enabled, TARGET: wanted.target}
    if wanted.mode is not None:
        parts[MODE] = wanted.mode
    if wanted.http_uri is not None:
        parts[HTTP_URI] = wanted.http_uri
    if not view.settings_own_override:
        return parts, {}
    to_settings = {key: value for key, value in parts.items() if view.goes_to_settings(key)}
    to_system = {key: value for key, value in parts.items() if key not in to_settings and key in view.system}
    # A part that neither shows goes with the rest of the override.
    to_settings |= {key: value for key, value in parts.items() if key not in to_settings and key not in to_system}
    return to_system, to_settings


def has_lost_uefi(wanted: Wanted, before: BootView, mode: BootMode | None) -> bool:
    """Whether an override without a mode has turned UEFI boot into legacy boot (OpenStack story 2008252)."""
    return (
        wanted.mode is None
        and wanted.enabled != "Disabled"
        and mode is BootMode.BIOS
        and mode_of(before.value(MODE)) is BootMode.UEFI
    )


def word_of(mode: BootMode, view: BootView) -> str:
    """The BMC's own word for a mode."""
    return next((word for word in view.allowed(MODE) if mode_of(word) is mode), _MODE_WORDS[mode])


def full(wanted: Wanted, view: BootView) -> Wanted:
    """The same with a mode, for BMCs that refuse a part of the override; null is never sent."""
    mode = wanted.mode or view.value(MODE) or next(iter(view.allowed(MODE)), None) or "UEFI"
    return Wanted(wanted.target, wanted.enabled, mode, wanted.http_uri, wanted.persistent_supported)


def _mode_to_send(asked: BootMode | None, view: BootView, manners: Manners) -> str | None:
    now = view.value(MODE)
    if asked is None:
        if manners.full_override:
            return now or next(iter(view.allowed(MODE)), None) or "UEFI"
        return now if manners.resend_mode else None
    if _modeless(view):
        return None
    listed = view.allowed(MODE)
    word = word_of(asked, view)
    if listed and word not in listed:
        raise OperationError(
            ErrorCode.UNSUPPORTED, f"this BMC cannot set the boot mode {asked}; it lists {', '.join(listed)}"
        )
    if mode_of(now) is asked and not (manners.resend_mode or manners.full_override):
        return None
    return word


def _modeless(view: BootView) -> bool:
    return MODE not in view.system and MODE not in view.settings and not view.allowed(MODE)


def _order(boot: Document) -> list[str]:
    listed = boot.get(ORDER)
    return [item for item in listed if isinstance(item, str)] if isinstance(listed, list) else []
