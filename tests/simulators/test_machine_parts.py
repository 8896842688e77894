"""The plain functions of the virtual machine: what it is made of, QEMU's command line, the order of booting."""

import uuid
from itertools import pairwise
from pathlib import Path

import pytest

from simulators.machine.boot_override import SharedBootOptions, boot_of_flags, flags_of_boot, guest_address, plan_of
from simulators.machine.boot_plan import BootPlan, BootTarget, Device
from simulators.machine.command_line import FirmwareFiles, Wires, qemu_command
from simulators.machine.spec import (
    Disk,
    DiskBus,
    Firmware,
    Forward,
    Identity,
    MachineSpec,
    Nic,
    NicModel,
    SpecError,
)
from simulators.machine.tree import SYSTEM, machine_tree
from simulators.redfish import RedfishServerThread
from tests.simulators.test_redfish_conformance import faults_of_tree

MACHINE = uuid.UUID("7c9e6679-7425-40de-944b-e07fc1f90ae7")
IDENTITY = Identity.of(MACHINE)
DISK = Disk(Path("/images/one,two.raw"), 1 << 30, "RWVM7C9E6679D1")


def spec(**parts: object) -> MachineSpec:
    wanted: dict[str, object] = {"disks": (DISK,), "nics": (Nic(IDENTITY.mac(1)),), **parts}
    return MachineSpec(IDENTITY, **wanted)  # type: ignore[arg-type]


def command(machine: MachineSpec, plan: BootPlan | None = None, files: FirmwareFiles | None = None) -> list[str]:
    return qemu_command(machine, plan or BootPlan(), files or FirmwareFiles(), Wires(5, 6))


def devices(line: list[str]) -> dict[str, str]:
    """The devices of a command line by their id."""
    options = [value for name, value in pairwise(line) if name == "-device"]
    return {part.removeprefix("id="): text for text in options for part in text.split(",") if part.startswith("id=")}


def boot_index(text: str) -> int:
    return int(next(part for part in text.split(",") if part.startswith("bootindex=")).partition("=")[2])


def first_device(line: list[str]) -> str:
    found = {name: boot_index(text) for name, text in devices(line).items() if "bootindex=" in text}
    return min(found, key=lambda name: found[name])


def test_an_identity_follows_from_the_uuid_alone() -> None:
    assert Identity.of(MACHINE) == IDENTITY
    assert IDENTITY.serial == "RWVM7C9E6679"
    addresses = [IDENTITY.mac(1), IDENTITY.mac(2), IDENTITY.bmc_mac]
    assert len(set(addresses)) == 3
    assert all(int(address[:2], 16) & 0b11 == 0b10 for address in addresses), "locally administered, for one station"


def test_a_machine_that_cannot_be_made_is_refused_with_every_fault_at_once() -> None:
    with pytest.raises(SpecError) as refused:
        spec(cpus=0, memory=64, nics=(Nic("52-54"),), disks=(Disk(Path("d"), 100, "S"),))

    for fault in ("0 processors", "64 MiB", "MAC address '52-54'", "disk d of 100 bytes"):
        assert fault in str(refused.value)


def test_smbios_and_the_network_card_say_who_the_machine_is() -> None:
    line = command(spec())

    text = " ".join(line)
    assert f"-uuid {MACHINE}" in text
    assert f"serial={IDENTITY.serial},uuid={MACHINE}" in text
    assert f"mac={IDENTITY.mac(1)}" in devices(line)["nic0"]
    assert "-accel tcg" in text


def test_a_file_name_with_a_comma_stays_one_name() -> None:
    line = command(spec(nics=(Nic(IDENTITY.mac(1), tftp=Path("/srv/a,b"), boot_file="http://10.0.2.2/x,y"),)))

    assert any('"filename": "/images/one,two.raw"' in part for part in line)
    network = line[line.index("-netdev") + 1]
    assert "tftp=/srv/a,,b" in network
    assert "bootfile=http://10.0.2.2/x,,y" in network


@pytest.mark.parametrize(
    ("target", "first"),
    [
        (BootTarget.NONE, "drive0"),
        (BootTarget.DISK, "drive0"),
        (BootTarget.CD, "cd"),
        (BootTarget.NETWORK, "nic0"),
        (BootTarget.SETUP, "drive0"),
    ],
)
def test_the_override_decides_which_device_is_tried_first(target: BootTarget, first: str) -> None:
    assert first_device(command(spec(), BootPlan(target))) == first


def test_every_bootable_device_has_an_index_of_its_own() -> None:
    disks = tuple(Disk(Path(f"/d{number}"), 512, f"S{number}") for number in range(4))
    nics = tuple(Nic(IDENTITY.mac(number)) for number in range(4))
    found = devices(command(spec(disks=disks, nics=nics), BootPlan(BootTarget.NETWORK)))

    indexes = [boot_index(text) for text in found.values() if "bootindex=" in text]
    assert len(indexes) == len(set(indexes)) == 9


@pytest.mark.parametrize(
    ("bus", "driver"), [(DiskBus.VIRTIO, "virtio-blk-pci"), (DiskBus.NVME, "nvme"), (DiskBus.SATA, "ide-hd")]
)
def test_disks_are_on_the_bus_that_was_asked_for_and_show_their_serial_number(bus: DiskBus, driver: str) -> None:
    text = devices(command(spec(disk_bus=bus)))["drive0"]

    assert text.startswith(f"{driver},")
    assert "serial=RWVM7C9E6679D1" in text


def test_ports_of_the_host_reach_the_machine_on_loopback_only() -> None:
    line = command(spec(nics=(Nic(IDENTITY.mac(1), forwards=(Forward(2222, 22),)),), nic_model=NicModel.E1000E))

    assert "hostfwd=tcp:127.0.0.1:2222-:22" in line[line.index("-netdev") + 1]
    assert devices(line)["nic0"].startswith("e1000e,")


def test_uefi_has_its_program_read_only_and_variables_of_its_own() -> None:
    line = command(spec(), files=FirmwareFiles(Path("/fw/code.fd"), Path("/state/nvram.fd")))

    nodes = [part for part in line if part.startswith("{")]
    assert any("/fw/code.fd" in node and '"read-only": true' in node for node in nodes)
    assert any("/state/nvram.fd" in node and "read-only" not in node for node in nodes)


def test_the_boot_order_of_redfish_is_the_order_of_the_devices() -> None:
    plan = plan_of({"BootOrder": ["Boot0003", "Boot0001", "Boot0002"], "BootSourceOverrideEnabled": "Disabled"})

    assert plan.devices == (Device.NETWORK, Device.DISK, Device.CD)
    assert plan.target is BootTarget.NONE


def test_an_http_address_on_loopback_is_the_one_by_which_the_machine_reaches_its_host() -> None:
    boot = {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "UefiHttp"}

    assert plan_of({**boot, "HttpBootUri": "http://127.0.0.1:8080/a%20b.iso"}).uri == "http://10.0.2.2:8080/a%20b.iso"
    assert plan_of(boot).target is BootTarget.NETWORK
    assert guest_address("https://images.example/x") == "https://images.example/x"


@pytest.mark.parametrize("word", ["Pxe", "Hdd", "Cd", "BiosSetup"])
@pytest.mark.parametrize("enabled", ["Once", "Continuous"])
def test_boot_flags_and_redfish_say_the_same(word: str, enabled: str) -> None:
    options = SharedBootOptions()
    options.show({"BootSourceOverrideEnabled": enabled, "BootSourceOverrideTarget": word})

    assert boot_of_flags(options.override(1e9)) == {
        "BootSourceOverrideEnabled": enabled,
        "BootSourceOverrideTarget": word,
    }


def test_an_override_that_ipmi_has_no_word_for_leaves_its_flags_invalid() -> None:
    assert flags_of_boot({"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "UefiHttp"}) == bytes(5)


@pytest.mark.parametrize("firmware", [*Firmware])
def test_redfish_shows_the_parts_of_this_machine_and_no_others(firmware: Firmware) -> None:
    tree = machine_tree(spec(firmware=firmware, memory=2048, cpus=2), "1.0")

    system = tree.document(SYSTEM)
    assert (system["UUID"], system["SerialNumber"]) == (str(MACHINE), IDENTITY.serial)
    assert system["MemorySummary"]["TotalSystemMemoryGiB"] == 2
    assert tree.document(f"{SYSTEM}/EthernetInterfaces/1")["MACAddress"] == IDENTITY.mac(1).upper()
    assert tree.document(f"{SYSTEM}/Storage/Disks/Drives/Disk1")["SerialNumber"] == DISK.serial
    assert ("HttpBootUri" in system["Boot"]) is (firmware is Firmware.UEFI)
    assert "BootProgress" not in system
    assert not [resource.path for resource in tree if "RAID1" in resource.path or "DIMM2" in resource.path]


def test_no_link_of_the_tree_leads_nowhere() -> None:
    tree = machine_tree(spec(), "1.0")
    links = {target for resource in tree if resource.document for target in targets(resource.document)}

    assert {target for target in links if "#" not in target and tree.find(target) is None} == set()


@pytest.mark.e2e
@pytest.mark.timeout(180)
@pytest.mark.parametrize("firmware", [*Firmware])
def test_the_service_validator_finds_the_tree_true_to_the_schemas(
    firmware: Firmware, tmp_path: Path, shared: Path
) -> None:
    with RedfishServerThread(machine_tree(spec(firmware=firmware), "1.0"), tls=True) as bmc:
        assert faults_of_tree(bmc, tmp_path, shared) == []


def targets(value: object) -> set[str]:
    if isinstance(value, dict):
        own = {value["@odata.id"]} if isinstance(value.get("@odata.id"), str) else set()
        return own.union(*(targets(inner) for inner in value.values()))
    if isinstance(value, list):
        return set().union(*(targets(inner) for inner in value))
    return set()
