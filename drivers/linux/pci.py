"""PCI devices as the kernel shows them; named by the list of PCI ids where that is installed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from drivers.linux.host import Host
from protocol.shapes.inspect import PciDevice, Processor

__all__ = ["PciFunction", "PciNames", "functions", "graphics", "pci_devices"]

_LISTS = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids")
_UNINTERESTING = {0x05, 0x06, 0x08, 0x11, 0x13, 0x0B}
"""Classes of what belongs to the board: memory and bus controllers, bridges, timers, sensors, the CPUs' own."""
_CLASSES = {
    0x01: "MassStorageController",
    0x02: "NetworkController",
    0x03: "DisplayController",
    0x04: "MultimediaController",
    0x07: "CommunicationController",
    0x09: "InputDeviceController",
    0x0C: "SerialBusController",
    0x0D: "WirelessController",
    0x10: "EncryptionController",
    0x12: "ProcessingAccelerators",
}
_BMC_DISPLAYS = {0x1A03, 0x102B, 0x1013}
"""ASPEED, Matrox and Cirrus: the display of a BMC or of a virtual machine, which computes nothing."""


@dataclass(frozen=True, slots=True)
class PciNames:
    """Vendor id → name, (vendor, device) → name."""

    vendors: Mapping[int, str] = field(default_factory=dict)
    devices: Mapping[tuple[int, int], str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "PciNames":
        """The format of pci.ids; subsystems and classes are passed over."""
        vendors: dict[int, str] = {}
        devices: dict[tuple[int, int], str] = {}
        vendor = None
        for line in text.splitlines():
            if line.startswith("C "):
                break
            if line.startswith(("#", "\t\t")) or not line.strip():
                continue
            word, _, name = line.strip().partition("  ")
            try:
                number = int(word, 16)
            except ValueError:
                continue
            if line.startswith("\t"):
                if vendor is not None:
                    devices[vendor, number] = name
            else:
                vendor = number
                vendors[number] = name
        return cls(vendors, devices)

    @classmethod
    def installed(cls) -> "PciNames":
        """Empty where there is no such list. Blocking."""
        for place in _LISTS:
            try:
                return cls.parse(Path(place).read_text(encoding="utf-8", errors="replace"))
            except OSError:
                continue
        return cls()


@dataclass(frozen=True, slots=True)
class PciFunction:
    address: str
    vendor: int
    device: int
    kind: int
    """The class code's upper two bytes."""


def functions(host: Host) -> list[PciFunction]:
    """Every function, in the order of the addresses."""
    found = []
    for address in host.names("bus", "pci", "devices"):
        base = ("bus", "pci", "devices", address)
        vendor, device, kind = (host.number(*base, name) for name in ("vendor", "device", "class"))
        if vendor is not None and device is not None and kind is not None:
            found.append(PciFunction(address, vendor, device, kind >> 8))
    return found


def pci_devices(found: list[PciFunction], names: PciNames) -> list[PciDevice]:
    """What was put into the machine: one entry per device, not per function. Pure."""
    listed: dict[str, PciDevice] = {}
    for one in found:
        place = one.address.rpartition(".")[0]
        if one.kind >> 8 in _UNINTERESTING or place in listed:
            continue
        model = names.devices.get((one.vendor, one.device))
        listed[place] = PciDevice(
            name=model or f"{one.vendor:04x}:{one.device:04x}",
            vendor=names.vendors.get(one.vendor),
            model=model,
            vendor_id=f"0x{one.vendor:04x}",
            device_id=f"0x{one.device:04x}",
            device_class=_CLASSES.get(one.kind >> 8),
            slot=one.address,
        )
    return list(listed.values())


def graphics(found: list[PciFunction], names: PciNames) -> list[Processor]:
    """Graphics processors and accelerators that were put into the machine; the display of a BMC, and the graphics of
    a CPU (on the root bus), are none. Pure."""
    return [
        Processor(
            socket=one.address,
            kind="gpu" if one.kind >> 8 == 0x03 else "accelerator",
            vendor=names.vendors.get(one.vendor),
            model=names.devices.get((one.vendor, one.device), f"{one.vendor:04x}:{one.device:04x}"),
        )
        for one in found
        if one.kind >> 8 in (0x03, 0x12)
        and one.vendor not in _BMC_DISPLAYS
        and not one.address.startswith("0000:00:")
    ]
