"""The boot override in Redfish's words and in IPMI's: one setting of the BMC, seen from two sides."""

from collections.abc import Callable
from typing import Any

from yarl import URL

from simulators.ipmi.boot_options import BOOT_FLAGS, BootOptions, BootOverride
from simulators.ipmi.constants import BootDevice, BootFlag
from simulators.machine.boot_plan import DEFAULT_ORDER, BootPlan, BootTarget, Device
from simulators.machine.command_line import HOST_FOR_GUEST
from simulators.machine.tree import BOOT_OPTIONS

_TARGETS = {
    "Hdd": BootTarget.DISK,
    "Cd": BootTarget.CD,
    "Pxe": BootTarget.NETWORK,
    "UefiHttp": BootTarget.HTTP,
    "BiosSetup": BootTarget.SETUP,
}
_DEVICES = {"Hdd": Device.DISK, "Cd": Device.CD, "Pxe": Device.NETWORK}
_REFERENCES = {reference: _DEVICES[alias] for reference, alias, _ in BOOT_OPTIONS}
# Redfish's word of each selector of the boot flags that this machine can follow, and the selector of each word.
_WORDS = {
    BootDevice.PXE: "Pxe",
    BootDevice.DISK: "Hdd",
    BootDevice.CDROM: "Cd",
    BootDevice.REMOTE_CDROM: "Cd",
    BootDevice.BIOS_SETUP: "BiosSetup",
}
_SELECTORS = {
    "Pxe": BootDevice.PXE,
    "Hdd": BootDevice.DISK,
    "Cd": BootDevice.CDROM,
    "BiosSetup": BootDevice.BIOS_SETUP,
}
_HOST_NAMES = frozenset({"127.0.0.1", "localhost"})


def plan_of(boot: dict[str, Any]) -> BootPlan:
    """What a start does with the `Boot` object of a system.

    UefiHttp without an address is the firmware's own way over the network. An address on the host's loopback is given
    to the machine as it reaches the host.
    """
    order = tuple(_REFERENCES[name] for name in boot.get("BootOrder") or [] if name in _REFERENCES) or DEFAULT_ORDER
    if boot.get("BootSourceOverrideEnabled") not in ("Once", "Continuous"):
        return BootPlan(order=order)
    target = _TARGETS.get(str(boot.get("BootSourceOverrideTarget")), BootTarget.NONE)
    if target is not BootTarget.HTTP:
        return BootPlan(target, order)
    uri = boot.get("HttpBootUri")
    return BootPlan(target, order, guest_address(str(uri))) if uri else BootPlan(BootTarget.NETWORK, order)


def guest_address(uri: str) -> str:
    """A URL as the machine reaches it: the host's loopback is 10.0.2.2 there."""
    url = URL(uri, encoded=True)
    return str(url.with_host(HOST_FOR_GUEST)) if url.host in _HOST_NAMES else uri


def boot_of_flags(override: BootOverride | None) -> dict[str, str]:
    """The values of `Boot` that say what boot flags ask for; no override where there is none, or none to follow."""
    word = _WORDS.get(override.device) if override is not None else None
    if override is None or word is None:
        return {"BootSourceOverrideEnabled": "Disabled", "BootSourceOverrideTarget": "None"}
    enabled = "Continuous" if override.persistent else "Once"
    return {"BootSourceOverrideEnabled": enabled, "BootSourceOverrideTarget": word}


def flags_of_boot(boot: dict[str, Any]) -> bytes:
    """The boot flags that say what `Boot` asks for; without the valid bit where IPMI has no word for it."""
    enabled, word = boot.get("BootSourceOverrideEnabled"), str(boot.get("BootSourceOverrideTarget"))
    if enabled not in ("Once", "Continuous") or word not in _SELECTORS:
        return bytes(5)
    first = BootFlag.VALID | (BootFlag.PERSISTENT if enabled == "Continuous" else 0)
    if boot.get("BootSourceOverrideMode") == "UEFI":
        first |= BootFlag.UEFI
    return bytes((first, _SELECTORS[word] << 2, 0, 0, 0))


class SharedBootOptions(BootOptions):
    """Boot options whose flags are those of the whole BMC. `on_flags` hears what IPMI makes of them.

    Flags that came by Redfish do not run out after 60 seconds: that rule is IPMI's (IPMI 2.0, 28.12).
    """

    def __init__(self) -> None:
        super().__init__()
        self.on_flags: Callable[[BootOverride | None], None] = lambda _override: None
        self._from_redfish = False

    def write(self, parameter: int, data: bytes, now: float) -> None:
        super().write(parameter, data, now)
        if parameter == BOOT_FLAGS:
            self._from_redfish = False
            self.on_flags(self.override(now))

    def show(self, boot: dict[str, Any]) -> None:
        """Takes over what Redfish has set."""
        self._from_redfish = True
        self._values[BOOT_FLAGS] = flags_of_boot(boot)

    def _expire(self, now: float) -> None:
        if not self._from_redfish:
            super()._expire(now)

    def _clear_valid_bit(self) -> None:
        was_valid = self._values[BOOT_FLAGS][0] & BootFlag.VALID
        super()._clear_valid_bit()
        if was_valid:
            self.on_flags(None)
