"""The machine's network ports as the kernel shows them, in the order in which the firmware would boot from them."""

import array
import fcntl
import os
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from drivers.linux.efi_variables import EfiVariables
from drivers.linux.host import Host
from drivers.linux.pci import PciNames
from protocol.shapes.inspect import NetworkInterface

__all__ = ["Ask", "PortFacts", "ask_kernel", "boot_macs", "macs_of_path", "network_ports"]

_ETHTOOL = 0x8946
_DRIVER_INFO, _PERMANENT_ADDRESS = 0x03, 0x20
_TECHNOLOGIES = {1: "ethernet", 32: "infiniband"}
_BMC_DRIVERS = {"cdc_ether", "cdc_ncm", "rndis_host", "cdc_subset"}
"""Network over USB is the BMC's host interface (Redfish DSP0270), not a port of the machine."""
_MAC_NODE = (3, 11)
_BOOTIF = re.compile(r"\bBOOTIF=(?:01-)?([0-9a-fA-F]{2}(?:[-:][0-9a-fA-F]{2}){5})")


@dataclass(frozen=True, slots=True)
class PortFacts:
    """What only a call of the kernel tells."""

    firmware: str | None = None
    permanent_mac: str | None = None


Ask = Callable[[str], PortFacts]


def ask_kernel(name: str) -> PortFacts:
    """By ethtool's call; nothing where the driver does not answer it."""
    info = _ethtool(name, struct.pack("<I", _DRIVER_INFO).ljust(196, b"\0"))
    firmware = info[68:100].partition(b"\0")[0].decode(errors="replace").strip() if info else ""
    answer = _ethtool(name, struct.pack("<II", _PERMANENT_ADDRESS, 32).ljust(40, b"\0"))
    size = int.from_bytes(answer[4:8], "little") if answer else 0
    mac = answer[8:14] if answer is not None and size == 6 else b""
    return PortFacts(
        firmware=None if firmware in ("", "N/A") else firmware,
        permanent_mac=mac.hex(":") if any(mac) else None,
    )


def _ethtool(name: str, request: bytes) -> bytes | None:
    memory = array.array("B", request)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
            fcntl.ioctl(handle, _ETHTOOL, struct.pack("16sP", name.encode()[:15], memory.buffer_info()[0]))
    except OSError:
        return None
    return memory.tobytes()


def network_ports(host: Host, names: PciNames, ask: Ask = ask_kernel) -> list[NetworkInterface]:
    """Ports with hardware behind them; bridges, VLANs and the BMC's own are none. Blocking."""
    order = boot_macs(host)
    found = [_port(host, name, names, ask, order) for name in host.names("class", "net") if _is_port(host, name)]
    return sorted(found, key=lambda nic: (nic.boot_position or len(order) + 1, _natural(nic.name)))


def _is_port(host: Host, name: str) -> bool:
    device = host.sys / "class" / "net" / name / "device"
    if not device.exists():
        return False
    driver = Path(os.path.realpath(device / "driver")).name
    # A virtual function belongs to a port that is listed itself.
    return driver not in _BMC_DRIVERS and not (device / "physfn").exists()


def _port(host: Host, name: str, names: PciNames, ask: Ask, order: list[str]) -> NetworkInterface:
    base = ("class", "net", name)
    facts = ask(name)
    own = host.text(*base, "address")
    kind = host.number(*base, "type")
    mac = own.lower() if own and kind == 1 and own.strip("0:") else None
    slave = host.text(*base, "bonding_slave", "perm_hwaddr")
    permanent = facts.permanent_mac or (slave.lower() if slave else None)
    vendor, device = (host.number(*base, "device", part) for part in ("vendor", "device"))
    address = _pci_address(host, name)
    speed, carrier = host.number(*base, "speed"), host.number(*base, "carrier")
    port = host.text(*base, "phys_port_name")
    identity = permanent or mac
    return NetworkInterface(
        name=name,
        mac=mac,
        permanent_mac=permanent if permanent != mac else None,
        boot_position=order.index(identity) + 1 if identity in order else None,
        link={1: "up", 0: "down"}.get(carrier if carrier is not None else -1),
        speed_mbps=speed if speed is not None and 0 < speed < 1 << 31 else None,
        technology=_TECHNOLOGIES.get(kind or 0),
        vendor=names.vendors.get(vendor or 0) or (f"0x{vendor:04x}" if vendor else None),
        model=names.devices.get((vendor or 0, device or 0)) or (f"0x{device:04x}" if device else None),
        adapter=None if address is None else address.rpartition(".")[0],
        port=port or host.text(*base, "dev_port"),
        firmware=facts.firmware,
        pci=address,
    )


def _pci_address(host: Host, name: str) -> str | None:
    parts = Path(os.path.realpath(host.sys / "class" / "net" / name / "device")).parts
    found = [part for part in parts if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", part)]
    return found[-1] if found else None


def boot_macs(host: Host) -> list[str]:
    """The ports' addresses in the firmware's boot order; where it has none (BIOS), the port that PXE came by."""
    variables = EfiVariables(host.sys / "firmware" / "efi" / "efivars")
    found: list[str] = []
    try:
        entries = {entry.number: entry for entry in variables.entries()}
        for number in variables.order():
            found += macs_of_path(entries[number].path) if number in entries else []
    except OSError:
        found = []
    if not found:
        try:
            words = (host.proc / "cmdline").read_text(errors="replace")
        except OSError:
            words = ""
        match = _BOOTIF.search(words)
        found = [match[1].lower().replace("-", ":")] if match else []
    return list(dict.fromkeys(found))


def macs_of_path(path: bytes) -> list[str]:
    """The MAC addresses that a device path names (UEFI 2.10, 10.3.4.11). Pure."""
    found, place = [], 0
    while place + 4 <= len(path):
        length = int.from_bytes(path[place + 2 : place + 4], "little")
        if length < 4:
            break
        if (path[place], path[place + 1]) == _MAC_NODE and length >= 37:
            found.append(path[place + 4 : place + 10].hex(":"))
        place += length
    return found


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]
