"""Which machine this is, by firmware that often says nothing sensible."""

import struct
import uuid
from pathlib import Path

import pytest

from agent.machine_identity import machine_facts
from drivers.linux.network_ports import PortFacts
from protocol.machine_facts import marks_of
from tests.drivers.linux.machine import Machine

UUID = "4c4c4544-0042-3510-8056-b7c04f4d3232"


def tables(serial: str, identity: bytes) -> bytes:
    """SMBIOS type 1 alone, with the serial number as its only string."""
    fixed = struct.pack("<BBHBBBB16sBBB", 1, 27, 1, 0, 0, 0, 1, identity, 6, 0, 0)
    return fixed + serial.encode() + b"\0\0" + bytes([127, 4, 0, 0, 0, 0])


def port(machine: Machine, name: str, mac: str, **more: str) -> None:
    machine.write(f"devices/pci0000:00/0000:00:03.0/net/{name}/address", mac)
    machine.write(f"devices/pci0000:00/0000:00:03.0/net/{name}/type", "1")
    (machine.host.sys / "class" / "net").mkdir(parents=True, exist_ok=True)
    place = machine.host.sys / "devices" / "pci0000:00" / "0000:00:03.0" / "net" / name
    (place / "device").mkdir()
    for key, value in more.items():
        machine.write(f"devices/pci0000:00/0000:00:03.0/net/{name}/{key}", value)
    (machine.host.sys / "class" / "net" / name).symlink_to(place)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def test_uuid_serial_and_the_hardwares_own_addresses_are_told(machine: Machine) -> None:
    machine.write("firmware/dmi/tables/DMI", tables("BTY5280", uuid.UUID(UUID).bytes_le))
    port(machine, "eth0", "52:54:00:00:00:01")
    port(machine, "eth1", "52:54:00:00:00:01")
    facts = machine_facts(
        machine.host, lambda name: PortFacts(permanent_mac="52:54:00:00:00:02") if name == "eth1" else PortFacts()
    )
    assert (facts.uuid, facts.serial) == (UUID, "BTY5280")
    assert facts.macs == ["52:54:00:00:00:01", "52:54:00:00:00:02"]


@pytest.mark.parametrize("serial", ["To Be Filled By O.E.M.", "0123456789", "", "Default string", "................"])
@pytest.mark.parametrize("identity", [bytes(16), b"\xff" * 16])
def test_what_firmware_fills_in_for_nothing_is_left_out(machine: Machine, serial: str, identity: bytes) -> None:
    machine.write("firmware/dmi/tables/DMI", tables(serial, identity))
    facts = machine_facts(machine.host)
    assert marks_of(facts).is_empty


def test_a_machine_without_tables_is_known_by_what_the_kernel_has_of_them(machine: Machine) -> None:
    machine.write("class/dmi/id/product_uuid", UUID)
    machine.write("class/dmi/id/product_serial", "CZ123\n")
    facts = machine_facts(machine.host)
    assert (facts.uuid, facts.serial) == (UUID, "CZ123")


def test_a_board_without_smbios_is_known_by_its_device_tree(machine: Machine) -> None:
    machine.write("firmware/devicetree/base/serial-number", b"10000000abcdef01\0")
    assert machine_facts(machine.host).serial == "10000000abcdef01"


def test_damaged_tables_are_no_reason_to_fail(machine: Machine) -> None:
    machine.write("firmware/dmi/tables/DMI", b"\x01\xff\x00")
    assert machine_facts(machine.host).uuid is None
