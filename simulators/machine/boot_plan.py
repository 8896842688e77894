"""What one start of the machine boots from: plain values, worked out before QEMU is started."""

from dataclasses import dataclass
from enum import StrEnum

from simulators.machine.spec import MOST_DISKS, MOST_NICS


class Device(StrEnum):
    """Kinds of devices that firmware boots from."""

    DISK = "disk"
    CD = "cd"
    NETWORK = "network"


class BootTarget(StrEnum):
    """What a boot override asks for."""

    NONE = "none"
    DISK = "disk"
    CD = "cd"
    NETWORK = "network"
    HTTP = "http"
    SETUP = "setup"


DEFAULT_ORDER = (Device.DISK, Device.CD, Device.NETWORK)
_MOST_OF_A_KIND = max(MOST_DISKS, MOST_NICS)


@dataclass(frozen=True, slots=True)
class BootPlan:
    """The override of one start, over the order that holds without one. `uri` is for HTTP only.

    Where the first device does not boot, the firmware goes on with the next, as servers do.
    """

    target: BootTarget = BootTarget.NONE
    order: tuple[Device, ...] = DEFAULT_ORDER
    uri: str | None = None

    @property
    def devices(self) -> tuple[Device, ...]:
        """All kinds of devices, the first to be tried first."""
        wanted = [device for device in Device if device.value == self.target.value]
        return tuple(dict.fromkeys([*wanted, *self.order, *DEFAULT_ORDER]))

    def index_of(self, device: Device, number: int = 0) -> int:
        """QEMU's `bootindex` of a device: lower is earlier, and no two are the same."""
        return self.devices.index(device) * _MOST_OF_A_KIND + number
