"""What a virtual machine is made of: plain data, from which QEMU's command line and the BMC's resources follow."""

import hashlib
import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from uuid import UUID

MANUFACTURER = "Rackwright"
PRODUCT = "Virtual Server"
_SERIAL = re.compile(r"[A-Za-z0-9._-]{1,16}")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_SMALLEST_MEMORY = 128
MOST_DISKS = MOST_NICS = 4


class SpecError(ValueError):
    """A machine that cannot be made: the message lists every fault."""


class Firmware(StrEnum):
    """The firmware that the machine starts with."""

    UEFI = "uefi"
    BIOS = "bios"


class DiskBus(StrEnum):
    """How the disks are attached."""

    VIRTIO = "virtio"
    SATA = "sata"
    NVME = "nvme"


class NicModel(StrEnum):
    """The network card."""

    VIRTIO = "virtio"
    E1000E = "e1000e"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the machine is: the same in SMBIOS, in Redfish, in IPMI, and in each run on one state folder."""

    uuid: UUID
    serial: str
    bmc_mac: str

    @classmethod
    def of(cls, machine: UUID) -> "Identity":
        """The identity that follows from a UUID."""
        return cls(machine, f"RWVM{machine.hex[:8].upper()}", mac_of(machine, "bmc", prefix="02:52:57"))

    def mac(self, port: int) -> str:
        """The MAC address of network port `port`, the first of which is 1."""
        return mac_of(self.uuid, f"port {port}", prefix="52:54:00")


def mac_of(machine: UUID, purpose: str, prefix: str) -> str:
    """A MAC address that depends on the machine and the purpose only, under a locally administered prefix."""
    tail = hashlib.sha256(machine.bytes + purpose.encode()).digest()[:3]
    return f"{prefix}:{tail.hex(':')}"


@dataclass(frozen=True, slots=True)
class Disk:
    """One disk. `size` in bytes; `image_format` is QEMU's word: raw or qcow2."""

    file: Path
    size: int
    serial: str
    image_format: str = "raw"


@dataclass(frozen=True, slots=True)
class Forward:
    """A TCP port of the host's loopback that reaches a port of the machine."""

    host_port: int
    machine_port: int


@dataclass(frozen=True, slots=True)
class Nic:
    """One network port, behind QEMU's own NAT: the machine reaches the host's loopback as 10.0.2.2.

    `boot_file` is what its DHCP server names (a file of `tftp`, or a URL for iPXE and for UEFI HTTP boot).
    """

    mac: str
    forwards: tuple[Forward, ...] = ()
    tftp: Path | None = None
    boot_file: str | None = None


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """One machine. Memory in MiB. Raises SpecError."""

    identity: Identity
    firmware: Firmware = Firmware.UEFI
    cpus: int = 1
    memory: int = 1536
    disks: tuple[Disk, ...] = ()
    disk_bus: DiskBus = DiskBus.VIRTIO
    nics: tuple[Nic, ...] = field(default=())
    nic_model: NicModel = NicModel.VIRTIO

    def __post_init__(self) -> None:
        faults = [*self._faults()]
        if faults:
            raise SpecError("; ".join(faults))

    def _faults(self) -> list[str]:
        faults = []
        if not 1 <= self.cpus <= 64:
            faults.append(f"{self.cpus} processors: give 1 to 64")
        if self.memory < _SMALLEST_MEMORY:
            faults.append(f"{self.memory} MiB of memory: give at least {_SMALLEST_MEMORY}")
        if len(self.disks) > MOST_DISKS:
            faults.append(f"{len(self.disks)} disks: give at most {MOST_DISKS}")
        if len(self.nics) > MOST_NICS:
            faults.append(f"{len(self.nics)} network ports: give at most {MOST_NICS}")
        if not _SERIAL.fullmatch(self.identity.serial):
            faults.append(f"serial number {self.identity.serial!r}: use 1 to 16 letters, digits, dots and hyphens")
        faults += [f"MAC address {nic.mac!r}: write it as 52:54:00:12:34:56" for nic in self._wrong_nics()]
        faults += [f"disk {disk.file} of {disk.size} bytes: whole sectors of 512" for disk in self._wrong_disks()]
        return faults

    def _wrong_nics(self) -> list[Nic]:
        return [nic for nic in self.nics if not _MAC.fullmatch(nic.mac)]

    def _wrong_disks(self) -> list[Disk]:
        return [disk for disk in self.disks if disk.size <= 0 or disk.size % 512]
