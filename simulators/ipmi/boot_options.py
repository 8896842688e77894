"""The system boot options: parameters 0, 3 to 6, and the 60 seconds of the valid bit (IPMI 2.0, 28.12 to 28.14)."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from simulators.ipmi.constants import BootDevice, BootFlag

BOOT_VALID_SECONDS: Final = 60.0
SET_IN_PROGRESS: Final = 0
VALID_BIT_CLEARING: Final = 3
BOOT_INFO_ACKNOWLEDGE: Final = 4
BOOT_FLAGS: Final = 5
BOOT_INITIATOR_INFO: Final = 6
# The data bytes that a write of each parameter carries.
PARAMETER_LENGTHS: Final = {
    SET_IN_PROGRESS: 1,
    VALID_BIT_CLEARING: 1,
    BOOT_INFO_ACKNOWLEDGE: 2,
    BOOT_FLAGS: 5,
    BOOT_INITIATOR_INFO: 9,
}
_KEEP_ON_BUTTON: Final = 0x01
_KEEP_AFTER_60_SECONDS: Final = 0x08
_INVALID: Final = 0x80
_DEVICES: Final = {int(device): device for device in BootDevice}


class UnsupportedParameter(LookupError):
    """The parameter does not exist on this BMC (completion code 0x80)."""


class SetInProgress(RuntimeError):
    """Somebody else's set is in progress (completion code 0x81)."""


@dataclass(frozen=True, slots=True)
class BootOverride:
    """What the boot flags ask of the next boot."""

    device: BootDevice
    uefi: bool
    persistent: bool


class BootOptions:
    """The store of boot option parameters. Times are seconds of the caller's monotonic clock."""

    def __init__(self, unsupported: Collection[int] = ()) -> None:
        self._unsupported = frozenset(unsupported)
        self._values: dict[int, bytes] = {
            number: bytes(length) for number, length in PARAMETER_LENGTHS.items() if number not in self._unsupported
        }
        self._locked: set[int] = set()
        self._countdown_from = 0.0

    def write(self, parameter: int, data: bytes, now: float) -> None:
        """Set one parameter. Raises UnsupportedParameter, SetInProgress, or ValueError for a wrong length."""
        if parameter not in self._values:
            raise UnsupportedParameter(f"boot option parameter {parameter}")
        if len(data) != PARAMETER_LENGTHS[parameter]:
            raise ValueError(f"boot option parameter {parameter} takes {PARAMETER_LENGTHS[parameter]} bytes")
        if parameter == SET_IN_PROGRESS:
            self._write_set_in_progress(data[0] & 0x3)
        elif parameter == BOOT_INFO_ACKNOWLEDGE:
            mask, wanted = data
            present = self._values[parameter][1]
            self._values[parameter] = bytes((0, present & ~mask & 0xFF | wanted & mask))
        else:
            self._values[parameter] = data
        if parameter == BOOT_FLAGS:
            self._countdown_from = now

    def _write_set_in_progress(self, wanted: int) -> None:
        if wanted == 1 and self._values[SET_IN_PROGRESS][0] == 1:
            raise SetInProgress("set in progress already")
        self._values[SET_IN_PROGRESS] = bytes((0 if wanted == 2 else wanted,))

    def mark(self, parameter: int, *, invalid: bool) -> None:
        """Mark a parameter invalid, or valid again."""
        if parameter not in self._values:
            raise UnsupportedParameter(f"boot option parameter {parameter}")
        (self._locked.add if invalid else self._locked.discard)(parameter)

    def read(self, parameter: int, now: float) -> bytes:
        """Parameter number with its invalid bit, then the data, as the answer carries them."""
        if parameter not in self._values:
            raise UnsupportedParameter(f"boot option parameter {parameter}")
        self._expire(now)
        invalid = _INVALID if parameter in self._locked else 0
        return bytes((invalid | parameter,)) + self._values[parameter]

    def chassis_control_received(self, now: float) -> None:
        """Start the 60 seconds of the valid bit anew, as any Chassis Control command does."""
        self._expire(now)
        self._countdown_from = now

    def override(self, now: float) -> BootOverride | None:
        """What the flags ask of the next boot, or None where they are not valid."""
        self._expire(now)
        flags = self._values.get(BOOT_FLAGS, bytes(5))
        if not flags[0] & BootFlag.VALID:
            return None
        selector = flags[1] >> 2 & 0xF
        device = _DEVICES.get(selector, BootDevice.NONE)
        return BootOverride(device, bool(flags[0] & BootFlag.UEFI), bool(flags[0] & BootFlag.PERSISTENT))

    def take(self, now: float) -> BootOverride | None:
        """The firmware boots: read the override, and clear it unless it is persistent."""
        override = self.override(now)
        if override is not None and not override.persistent:
            self._clear_valid_bit()
        return override

    def button_pressed(self) -> None:
        """A start by the power button clears the flags, unless parameter 3 says otherwise."""
        if not self._clearing_mask() & _KEEP_ON_BUTTON:
            self._clear_valid_bit()

    def _clearing_mask(self) -> int:
        return self._values.get(VALID_BIT_CLEARING, b"\x00")[0]

    def _expire(self, now: float) -> None:
        kept = self._clearing_mask() & _KEEP_AFTER_60_SECONDS
        if not kept and now - self._countdown_from >= BOOT_VALID_SECONDS:
            self._clear_valid_bit()

    def _clear_valid_bit(self) -> None:
        flags = self._values.get(BOOT_FLAGS)
        if flags is not None and flags[0] & BootFlag.VALID:
            self._values[BOOT_FLAGS] = bytes((flags[0] & ~BootFlag.VALID & 0xFF,)) + flags[1:]
