"""Which machine this is, in its own words: for the control plane to compare with what it knows of the node."""

from drivers.linux.host import Host
from drivers.linux.network_ports import Ask, ask_kernel, network_ports
from drivers.linux.pci import PciNames
from drivers.linux.smbios import parse_tables
from drivers.linux.words import real
from protocol.machine_facts import MachineFacts

__all__ = ["machine_facts"]


def machine_facts(host: Host, ask: Ask = ask_kernel) -> MachineFacts:
    """Blocking. What firmware says nothing sensible of is left out, as told by DMI first, then by the device tree.

    The MAC addresses are those of the hardware, also where a bond has given its ports another one.
    """
    system = parse_tables(host.data("firmware", "dmi", "tables", "DMI") or b"").system()
    return MachineFacts(
        uuid=system.uuid or host.text("class", "dmi", "id", "product_uuid"),
        serial=system.serial or real(host.text("class", "dmi", "id", "product_serial")) or _device_tree_serial(host),
        macs=[mac for port in network_ports(host, PciNames(), ask) if (mac := port.permanent_mac or port.mac)],
    )


def _device_tree_serial(host: Host) -> str | None:
    """Machines without SMBIOS, such as many arm64 boards."""
    raw = host.data("firmware", "devicetree", "base", "serial-number")
    return None if raw is None else real(raw.rstrip(b"\0").decode(errors="replace"))
