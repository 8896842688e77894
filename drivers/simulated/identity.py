"""What a simulated machine is made of: derived from its name alone, so that it is the same in every process."""

import hashlib
import uuid
from functools import lru_cache

import msgspec

from protocol.shapes.inspect import Drive, MemoryModule, NetworkInterface, PciDevice, Processor
from protocol.shapes.raid import Media, RaidController, RaidDrive, RaidLevel

__all__ = ["CONTROLLER", "Identity", "identity_of", "raid_controller"]

_NAMESPACE = uuid.UUID("5f0f7a55-2d2b-4d1a-9c5e-0d6c0c7a3b11")
_GIB = 1 << 30
CONTROLLER = "RAID.1"


class Identity(msgspec.Struct, frozen=True):
    """The parts that never change."""

    name: str
    vendor: str
    model: str
    serial: str
    uuid: str
    warmth: float
    """Degrees that this machine is warmer than the coolest one: sensors differ, but not from call to call."""
    processors: list[Processor]
    memory: list[MemoryModule]
    drives: list[Drive]
    nics: list[NetworkInterface]
    pci: list[PciDevice]
    raid_drives: list[RaidDrive]

    @property
    def memory_mib(self) -> int:
        return sum(module.size_mib or 0 for module in self.memory)


@lru_cache(maxsize=256)
def identity_of(name: str) -> Identity:
    """Two names never share a serial number, UUID or MAC address in practice: they come from SHA-256."""
    digest = hashlib.sha256(name.encode()).digest()
    serial = f"SIM{digest[:5].hex().upper()}"
    raid_drives = [_raid_drive(slot, serial) for slot in range(8)]
    boot_drives = [
        Drive(
            name=f"nvme{index}n1",
            serial=f"{serial}N{index}",
            wwn=f"eui.{digest[6:13].hex()}{index:02x}",
            vendor="Simulated",
            model="SIM-NVME-480",
            size_bytes=480_000_000_000,
            media="ssd",
            protocol="NVMe",
            rotational=False,
            health="ok",
        )
        for index in range(2)
    ]
    return Identity(
        name=name,
        vendor="Simulated",
        model="SIM-2000",
        serial=serial,
        uuid=str(uuid.uuid5(_NAMESPACE, name)),
        warmth=digest[5] % 8,
        processors=[
            Processor(
                socket=f"CPU.{number}",
                vendor="Simulated",
                model="SIM 16-Core Processor",
                architecture="x86_64",
                cores=16,
                threads=32,
                max_mhz=3600,
            )
            for number in (1, 2)
        ],
        memory=[
            MemoryModule(
                slot=f"DIMM.{number}",
                size_mib=32_768,
                kind="DDR5",
                speed_mts=4800,
                vendor="Simulated",
                part_number="SIM-DDR5-32",
                serial=f"{serial}M{number}",
            )
            for number in range(1, 9)
        ],
        drives=boot_drives + [_inventory_drive(drive) for drive in raid_drives],
        nics=[
            NetworkInterface(
                name=f"NIC.{number}",
                mac=":".join(f"{byte:02x}" for byte in (0x02, *digest[14:18], digest[18] & 0xF0 | number)),
                link="up" if number == 1 else "down",
                speed_mbps=25_000 if number == 1 else None,
                vendor="Simulated",
                model="SIM-25G",
                pci=f"0000:17:00.{number - 1}",
            )
            for number in (1, 2)
        ],
        pci=[
            PciDevice(
                name="SIM-25G", vendor_id="0x1af4", device_id="0x1041", device_class="Network controller", slot="1"
            ),
            PciDevice(
                name="SIM-RAID", vendor_id="0x1af4", device_id="0x1048", device_class="RAID controller", slot="2"
            ),
        ],
        raid_drives=raid_drives,
    )


def raid_controller(firmware: str | None) -> RaidController:
    return RaidController(
        id=CONTROLLER, name="SIM-RAID", model="SIM-RAID-8i", mode="RAID", levels=list(RaidLevel), firmware=firmware
    )


def _raid_drive(slot: int, serial: str) -> RaidDrive:
    """Two SSDs of 960 GB, then six hard disks of 4 TB."""
    fast = slot < 2
    return RaidDrive(
        id=f"Disk.{slot}",
        controller=CONTROLLER,
        name=f"Disk {slot} in backplane 1",
        serial=f"{serial}D{slot}",
        media=Media.SSD if fast else Media.HDD,
        size_bytes=894 * _GIB if fast else 3725 * _GIB,
        enclosure="1",
        state="ready",
    )


def _inventory_drive(drive: RaidDrive) -> Drive:
    return Drive(
        name=drive.id,
        serial=drive.serial,
        wwn=None,
        vendor="Simulated",
        model="SIM-SSD-960" if drive.media is Media.SSD else "SIM-HDD-4T",
        size_bytes=drive.size_bytes,
        media=drive.media.value if drive.media else None,
        protocol="SAS",
        rotational=drive.media is Media.HDD,
        controller=drive.controller,
        health="ok",
    )
