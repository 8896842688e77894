"""What a simulated machine remembers, and what a boot does to it. Plain functions; no clock but for the log's times.

Only what differs from a fresh machine takes room, so that thousands of machines are cheap.
"""

import copy
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from protocol.shapes.bios import BiosValue
from protocol.shapes.boot import BootDevice, BootMode, Override
from protocol.shapes.config import EventDestination, NetworkProtocolConfig
from protocol.shapes.management import Health, Indicator, LogRecord
from protocol.shapes.power import PowerState
from protocol.shapes.raid import RaidVolume

__all__ = [
    "BOOT_ENTRIES",
    "SLOTS",
    "BootState",
    "ConfigState",
    "MachineState",
    "MediumState",
    "boot",
    "copy_of",
    "cut_power",
    "note",
]

_LOG_ENTRIES = 50
BOOT_ENTRIES = ("Boot0000", "Boot0001", "Boot0002", "Boot0003")
"""Disk, network, CD and USB, in the order of a fresh machine."""
SLOTS = {"cd": ("Cd.1", ["CD", "DVD"]), "usb": ("Usb.1", ["USBStick"]), "floppy": ("Floppy.1", ["Floppy"])}
"""Virtual media: the device, and the slot that takes it with the BMC's own words for its media."""

_DEVICE_OF_ENTRY = {"Boot0000": "disk", "Boot0001": "pxe", "Boot0002": "cd", "Boot0003": "usb"}


class _State(msgspec.Struct, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    pass


StateT = TypeVar("StateT", bound=_State)


class BootState(_State, kw_only=True):
    target: BootDevice = BootDevice.NONE
    enabled: Override = Override.DISABLED
    mode: BootMode = BootMode.UEFI
    http_boot_uri: str | None = None
    entries: dict[str, str] = {}
    """Entries that were made beyond the fresh machine's, each with its label."""
    order: list[str] = []
    """Empty: the fresh machine's own order."""
    pending_order: list[str] | None = None


class MediumState(_State, kw_only=True):
    image: str
    write_protected: bool = True


class ConfigState(_State, kw_only=True):
    host_name: str | None = None
    ntp_enabled: bool = False
    ntp_servers: list[str] = []
    time: str | None = None
    time_offset: str | None = None
    protocols: dict[str, NetworkProtocolConfig] = {}
    event_destinations: list[EventDestination] = []
    credentials: dict[str, str] = {}
    """Accounts whose password was changed, each with the reference of its new credential."""
    certificate: str | None = None
    """In PEM, once one was given to it."""


class MachineState(_State, kw_only=True):
    """The whole of it; as JSON also the form of `Script.state`."""

    power: PowerState = PowerState.ON
    os_responds: bool = True
    """False: the operating system ignores softOff."""
    boots: int = 0
    booted_from: str = "disk"
    boot: BootState = msgspec.field(default_factory=BootState)
    secure_boot: bool = False
    secure_boot_pending: bool | None = None
    indicator: Indicator = Indicator.OFF
    media: dict[str, MediumState] = {}
    bios: dict[str, BiosValue] = {}
    """Attributes that differ from their default."""
    bios_pending: dict[str, BiosValue] = {}
    bios_reset_pending: bool = False
    volumes: list[RaidVolume] = []
    hot_spares: list[str] = []
    firmware: dict[str, str] = {}
    firmware_pending: dict[str, str] = {}
    config: ConfigState = msgspec.field(default_factory=ConfigState)
    console: str | None = None
    """The stream that is open."""
    disk: str | None = None
    """Where the last image was written."""
    log: list[LogRecord] = []
    log_count: int = 0

    @property
    def boot_order(self) -> list[str]:
        return self.boot.order or [*BOOT_ENTRIES, *self.boot.entries]


def copy_of(state: StateT) -> StateT:
    """A copy whose containers can be changed; what is in them is replaced, never changed."""
    copied = copy.copy(state)
    for name in state.__struct_fields__:
        value = getattr(state, name)
        if isinstance(value, list | dict):
            setattr(copied, name, value.copy())
        elif isinstance(value, _State):
            setattr(copied, name, copy_of(value))
    return copied


def note(state: MachineState, text: str, severity: Health = Health.OK, source: str = "BMC") -> None:
    """Adds a line to the machine's event log; the oldest lines fall out."""
    state.log_count += 1
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    state.log.append(LogRecord(id=str(state.log_count), time=now, severity=severity, text=text, source=source))
    del state.log[:-_LOG_ENTRIES]


def boot(state: MachineState) -> None:
    """The host starts: what waited for it applies, a one-time boot override is used up."""
    state.power = PowerState.ON
    state.boots += 1
    if state.bios_reset_pending:
        state.bios = {}
        state.bios_reset_pending = False
    state.bios.update(state.bios_pending)
    state.bios_pending = {}
    state.firmware.update(state.firmware_pending)
    state.firmware_pending = {}
    if state.secure_boot_pending is not None:
        state.secure_boot, state.secure_boot_pending = state.secure_boot_pending, None
    if state.boot.pending_order is not None:
        state.boot.order, state.boot.pending_order = state.boot.pending_order, None
    override = state.boot
    if override.enabled is Override.DISABLED:
        state.booted_from = _DEVICE_OF_ENTRY.get(state.boot_order[0], "disk")
    else:
        state.booted_from = override.target.value
    if override.enabled is Override.ONCE:
        override.target, override.enabled, override.http_boot_uri = BootDevice.NONE, Override.DISABLED, None
    note(state, f"the host started from {state.booted_from}", source="host")


def cut_power(state: MachineState) -> None:
    state.power = PowerState.OFF
    note(state, "the host is off", source="host")
