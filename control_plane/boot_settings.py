"""How a machine's ramdisk reaches the network: what an operator says of each port, on one line.

    b8:2a:72:dd:a0:01 vlan=7 address=192.0.2.5/24 gateway=192.0.2.1 dns=192.0.2.53

`address` and `dns` may be said several times. A port without an address asks by DHCP; without any line every port
that has a link does.
"""

import ipaddress
import re

import msgspec

from control_plane.store import Transaction, json_text
from protocol.boot_ticket import TicketInterface, TicketNetwork

__all__ = ["BootSettings", "boot_settings", "parse_port", "set_boot_settings", "text_of_port"]

_MAC = re.compile(r"(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}")
_FORM = "write it as: b8:2a:72:dd:a0:01 vlan=7 address=192.0.2.5/24 gateway=192.0.2.1 dns=192.0.2.53"


class BootSettings(msgspec.Struct, frozen=True):
    """What a machine's tickets say beyond who it is."""

    network: TicketNetwork = TicketNetwork()
    serial_console: str = "ttyS0,115200"


def boot_settings(tx: Transaction, node_id: str) -> BootSettings:
    row = tx.one("SELECT network, serial_console FROM node_boot WHERE node_id = :node", {"node": node_id})
    if row is None:
        return BootSettings()
    return BootSettings(msgspec.json.decode(row[0], type=TicketNetwork), str(row[1]))


def set_boot_settings(tx: Transaction, node_id: str, settings: BootSettings) -> None:
    """The caller holds the node's row. They count from the machine's next ticket on."""
    tx.run(
        "INSERT INTO node_boot (node_id, network, serial_console) VALUES (:node, :network, :console) "
        "ON CONFLICT (node_id) DO UPDATE SET network = excluded.network, serial_console = excluded.serial_console",
        {"node": node_id, "network": json_text(settings.network), "console": settings.serial_console},
    )


def parse_port(line: str) -> TicketInterface:
    """Raises ValueError with what is wrong and the form."""
    mac, *words = line.split() or [""]
    if not _MAC.fullmatch(mac):
        raise ValueError(f"{mac!r} is no MAC address of a port: {_FORM}")
    values: dict[str, list[str]] = {"vlan": [], "address": [], "gateway": [], "dns": []}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or name not in values:
            raise ValueError(f"{word!r} is none of vlan=, address=, gateway= and dns=: {_FORM}")
        values[name].append(value)
    for name in ("vlan", "gateway"):
        if len(values[name]) > 1:
            raise ValueError(f"{name} is said more than once")
    return TicketInterface(
        mac=mac.lower(),
        vlan=_vlan(values["vlan"][0]) if values["vlan"] else None,
        addresses=[_address(text) for text in values["address"]],
        gateway=_host(values["gateway"][0]) if values["gateway"] else None,
        dns=[_host(text) for text in values["dns"]],
    )


def text_of_port(port: TicketInterface) -> str:
    """The line that `parse_port` reads."""
    words = [port.mac]
    words += [f"vlan={port.vlan}"] if port.vlan is not None else []
    words += [f"address={address}" for address in port.addresses]
    words += [f"gateway={port.gateway}"] if port.gateway is not None else []
    words += [f"dns={host}" for host in port.dns]
    return " ".join(words)


def _vlan(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= 4094:
        raise ValueError(f"{text!r} is no VLAN: it is a number from 1 to 4094")
    return int(text)


def _address(text: str) -> str:
    try:
        interface = ipaddress.ip_interface(text)
    except ValueError:
        interface = None
    if interface is None or "/" not in text:
        raise ValueError(f"{text!r} is no address with its prefix: write 192.0.2.5/24 or 2001:db8::5/64")
    return str(interface)


def _host(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError(f"{text!r} is no IP address") from None
