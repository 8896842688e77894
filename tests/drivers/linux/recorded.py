"""Recorded machines as a folder that looks like their /sys: built from what lshw and dmidecode wrote down of them."""

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drivers.linux.host import Ran
from drivers.linux.network_ports import PortFacts
from drivers.linux.pci import PciNames
from tests.drivers.linux.machine import Machine

__all__ = ["Recorded", "nodes", "smbios"]

Node = Mapping[str, Any]
_KINDS = {"network": 0x020000, "storage": 0x010000, "display": 0x030000}


def nodes(tree: Any) -> Iterator[Node]:
    """Every node of what lshw wrote."""
    for node in tree if isinstance(tree, list) else [tree]:
        yield node
        yield from nodes(node.get("children", []))


class Recorded:
    """One machine. `names`: the PCI names that its /sys goes with; `ports`: what the kernel tells of its NICs."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        self.machine = machine
        self.listed = list(nodes(json.loads((folder / "lshw.json").read_text())))
        self.ports: dict[str, PortFacts] = {}
        self._vendors: dict[str, int] = {}
        self._devices: dict[tuple[int, str], int] = {}
        for node in self.listed:
            if str(node.get("businfo", "")).startswith("pci@") and node["class"] in _KINDS:
                self._add_pci(node)
            if node["class"] == "network" and node.get("logicalname"):
                self._add_port(node)
            if (
                node["class"] == "disk"
                and node["id"] != "medium"
                and str(node.get("logicalname")).startswith("/dev/sd")
            ):
                self._add_scsi(node)
        for controller in self.listed:
            for child in controller.get("children", []):
                if str(child.get("businfo", "")).startswith("nvme@"):
                    self._add_nvme(controller, child)
        text = "".join(file.read_text() for file in sorted(folder.glob("dmidecode*.txt")))
        machine.write("firmware/dmi/tables/DMI", smbios(text))

    @property
    def names(self) -> PciNames:
        return PciNames(
            {number: name for name, number in self._vendors.items()},
            {(vendor, number): name for (vendor, name), number in self._devices.items()},
        )

    def answer(self, program: str, **answers: str) -> None:
        """What a program writes, by the last of its words; nothing for other words."""

        def run(words: tuple[str, ...]) -> Ran:
            key = Path(words[-1]).name.lstrip("-")
            return Ran(0, answers.get(key, answers.get("any", "")), "")

        self.machine.host.programs[program] = run

    def _add_pci(self, node: Node) -> None:
        address = node["businfo"].removeprefix("pci@")
        vendor, product = str(node.get("vendor", "?")), str(node.get("product", "?"))
        number = 0x1A03 if "ASPEED" in vendor else self._vendors.setdefault(vendor, 0x2000 + len(self._vendors))
        self._vendors[vendor] = number
        device = self._devices.setdefault((number, product), 0x100 + len(self._devices))
        base = f"devices/pci0000:00/{address}"
        for name, value in (("vendor", number), ("device", device), ("class", _KINDS[node["class"]])):
            self.machine.write(f"{base}/{name}", hex(value))
        self._link(f"bus/pci/devices/{address}", base)
        self._driver(base, node)

    def _add_port(self, node: Node) -> None:
        name, address = node["logicalname"], str(node.get("businfo", ""))
        base = f"devices/virtual/net/{name}"
        if address:
            place = address.replace("pci@", "devices/pci0000:00/").replace("usb@", "devices/pci0000:00/usb1/")
            base = f"{place}/net/{name}"
        settings = node.get("configuration", {})
        self.machine.write(f"{base}/address", node["serial"])
        self.machine.write(f"{base}/type", "1")
        self.machine.write(f"{base}/carrier", "1" if settings.get("link") == "yes" else "0")
        if node.get("size"):
            self.machine.write(f"{base}/speed", str(node["size"] // 10**6))
        if address:
            self._link(f"{base}/device", place)
            self._driver(place, node)
        self._link(f"class/net/{name}", base)
        self.ports[name] = PortFacts(firmware=settings.get("firmware"))

    def _add_scsi(self, node: Node) -> None:
        name = node["logicalname"].removeprefix("/dev/")
        by_usb = "Virtual" in str(node.get("product"))
        place = f"pci0000:00/usb1/{name}" if by_usb else f"pci0000:00/{self._controller(node)}/host0/{name}"
        size = node.get("size", 0)
        self.machine.add_disk(
            name,
            size,
            device=place,
            removable="1" if by_usb else "0",
            device__model=str(node.get("product", ""))[:16],
            device__vendor="ATA" if not by_usb else str(node.get("vendor")),
            device__rev=str(node.get("version", "")),
            device__vpd_pg80=b"\0\x80" + len(serial := str(node.get("serial", "")).encode()).to_bytes(2) + serial,
        )

    def _controller(self, disk: Node) -> str:
        owner = next((node for node in self.listed if disk in node.get("children", [])), {})
        bus = str(owner.get("businfo", ""))
        return bus.removeprefix("pci@") if bus.startswith("pci@") else "ata1"

    def _add_nvme(self, controller: Node, node: Node) -> None:
        name = node["logicalname"].removeprefix("/dev/")
        address = controller["businfo"].removeprefix("pci@")
        self.machine.add_disk(
            name,
            node["size"],
            device=f"pci0000:00/{address}/nvme/{name[:5]}",
            device__model=controller["product"],
            device__serial=controller["serial"],
            device__firmware_rev=controller["version"],
        )

    def _driver(self, place: str, node: Node) -> None:
        driver = node.get("configuration", {}).get("driver")
        link = self.machine.host.sys / place / "driver"
        if driver and not link.is_symlink():
            (self.machine.host.sys / "drivers" / driver).mkdir(parents=True, exist_ok=True)
            link.symlink_to(self.machine.host.sys / "drivers" / driver)

    def _link(self, place: str, target: str) -> None:
        link = self.machine.host.sys / place
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(self.machine.host.sys / target)


def smbios(text: str) -> bytes:
    """The tables that dmidecode described: the fields that an inventory reads."""
    result = bytearray()
    for block in re.split(r"\n\s*\n", text):
        match = re.search(r"Handle (0x[0-9A-F]+), DMI type (\d+), (\d+) bytes", block)
        if match is not None and int(match[2]) in _FIELDS:
            facts = {
                key.strip(): value.strip(" \t")
                for key, _, value in (line.partition(":") for line in block.splitlines())
            }
            result += _structure(int(match[2]), int(match[1], 16), int(match[3]), facts)
    return bytes(result + b"\x7f\x04\x00\xff\0\0")


_FIELDS: dict[int, dict[int, str]] = {
    0: {4: "Vendor", 5: "Version", 8: "Release Date"},
    1: {4: "Manufacturer", 5: "Product Name", 6: "Version", 7: "Serial Number", 0x19: "SKU Number", 0x1A: "Family"},
    2: {4: "Manufacturer", 5: "Product Name", 6: "Version", 7: "Serial Number", 8: "Asset Tag"},
    3: {4: "Manufacturer", 6: "Version", 7: "Serial Number", 8: "Asset Tag"},
    4: {4: "Socket Designation", 7: "Manufacturer", 0x10: "Version", 0x20: "Serial Number"},
    17: {0x10: "Locator", 0x11: "Bank Locator", 0x17: "Manufacturer", 0x18: "Serial Number", 0x1A: "Part Number"},
    39: {
        5: "Location",
        6: "Name",
        7: "Manufacturer",
        8: "Serial Number",
        0x0A: "Model Part Number",
        0x0B: "Revision",
    },
    43: {0x12: "Description"},
}
"""Where each text's number stands (DSP0134)."""


def _structure(kind: int, handle: int, length: int, facts: Mapping[str, str]) -> bytes:
    data = bytearray(max(length, 4))
    data[0], data[1], data[2:4] = kind, len(data), handle.to_bytes(2, "little")
    strings: list[str] = []
    for place, name in _FIELDS[kind].items():
        # "Not Specified" is how dmidecode writes that there is no string.
        if facts.get(name) not in (None, "Not Specified") and place < len(data):
            # A string of blanks; an empty one would end the structure.
            strings.append(facts[name] or " ")
            data[place] = len(strings)

    def number(place: int, size: int, value: int) -> None:
        data[place : place + size] = value.to_bytes(size, "little")

    def first(name: str, default: int = 0) -> int:
        match = re.search(r"\d+", facts.get(name, ""))
        return int(match[0]) if match else default

    if kind == 1:
        data[8:24] = uuid.UUID(facts["UUID"]).bytes_le
    elif kind == 3:
        data[5] = 17
    elif kind == 4:
        data[5], data[0x18] = 3, 0x41
        number(0x14, 2, first("Max Speed"))
        data[0x23], data[0x25] = first("Core Count"), first("Thread Count")
    elif kind == 17:
        number(0x0C, 2, first("Size"))
        data[0x12] = 0x1A if facts.get("Type") == "DDR4" else 2
        number(0x15, 2, first("Speed"))
        number(0x20, 2, first("Configured Memory Speed"))
    elif kind == 39:
        number(0x0C, 2, first("Max Power Capacity", 0x8000))
        number(0x0E, 2, 2 if facts["Status"].startswith("Present") else 0)
    elif kind == 43:
        data[8], data[9] = (int(part) for part in facts["Specification Version"].split("."))
        major, minor = (int(part) for part in facts["Firmware Revision"].split("."))
        number(0x0A, 4, major << 16 | minor)
    return bytes(data) + b"".join(word.encode() + b"\0" for word in strings) + (b"\0" if strings else b"\0\0")
