"""QEMU's command line for one start of a machine: a plain function of what the machine is and what it boots from.

Nothing secret is on it, since every user of the host can read it: images are attached over the monitor.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulators.machine.boot_plan import BootPlan, Device
from simulators.machine.spec import MANUFACTURER, PRODUCT, Disk, DiskBus, Firmware, MachineSpec, Nic, NicModel

QEMU = "qemu-system-x86_64"
CD_DRIVE = "cd"
HOST_FOR_GUEST = "10.0.2.2"
# Places on the root bus, so that names inside the machine are the same whatever else it has.
_FIRST_NIC, _FIRST_DISK = 0x2, 0x8
_NIC_DEVICES = {NicModel.VIRTIO: "virtio-net-pci", NicModel.E1000E: "e1000e"}


@dataclass(frozen=True, slots=True)
class FirmwareFiles:
    """The firmware's program and the file of its variables; both None for SeaBIOS, which QEMU finds itself."""

    program: Path | None = None
    variables: Path | None = None


@dataclass(frozen=True, slots=True)
class Wires:
    """The file descriptors that QEMU inherits: its monitor and the serial port."""

    monitor: int
    serial: int


def qemu_command(spec: MachineSpec, plan: BootPlan, firmware: FirmwareFiles, wires: Wires) -> list[str]:
    """The whole command. The machine waits for `cont`; it pauses where a real one would restart or be off.

    A reset of the guest ends this QEMU and starts the next one, so that each start reads the boot override anew,
    whoever asked for it (`-action reboot=shutdown`).
    """
    machine = "q35,graphics=off"
    parts: list[str] = []
    if firmware.program is not None and firmware.variables is not None:
        machine += ",pflash0=firmware,pflash1=variables"
        parts += blockdev({"node-name": "firmware", **file_node(firmware.program), "read-only": True})
        parts += blockdev({"node-name": "variables", **file_node(firmware.variables)})
    return [
        QEMU,
        *("-name", f"{PRODUCT} {spec.identity.serial}"),
        *("-no-user-config", "-nodefaults", "-display", "none", "-S"),
        *("-accel", "tcg", "-cpu", "max", "-smp", str(spec.cpus), "-m", str(spec.memory)),
        *("-machine", machine),
        *("-action", "reboot=shutdown,shutdown=pause"),
        *("-boot", "strict=on"),
        *("-rtc", "base=utc"),
        *smbios(spec),
        *("-chardev", f"socket,id=monitor,fd={wires.monitor}", "-mon", "chardev=monitor,mode=control"),
        *("-chardev", f"socket,id=serial,fd={wires.serial}", "-device", "isa-serial,chardev=serial"),
        *("-device", "virtio-rng-pci,addr=0x1"),
        *parts,
        *cd_drive(plan),
        *(part for number, disk in enumerate(spec.disks) for part in disk_device(spec, plan, number, disk)),
        *(part for number, nic in enumerate(spec.nics) for part in nic_device(spec, plan, number, nic)),
    ]


def smbios(spec: MachineSpec) -> list[str]:
    """The tables in which the machine says who it is."""
    identity = spec.identity
    maker = f"manufacturer={MANUFACTURER},product={PRODUCT}"
    return [
        *("-uuid", str(identity.uuid)),
        *("-smbios", f"type=1,{maker},version=1.0,serial={identity.serial},uuid={identity.uuid},sku=RW-VM"),
        *("-smbios", f"type=2,{maker},serial={identity.serial}"),
        *("-smbios", f"type=3,manufacturer={MANUFACTURER},serial={identity.serial}"),
    ]


def cd_drive(plan: BootPlan) -> list[str]:
    """The drive of the virtual medium, empty: an image is put in over the monitor."""
    return device(driver="ide-cd", id=CD_DRIVE, bus="ide.0", bootindex=plan.index_of(Device.CD))


def disk_device(spec: MachineSpec, plan: BootPlan, number: int, disk: Disk) -> list[str]:
    name = f"disk{number}"
    node = {"node-name": name, "driver": disk.image_format, "discard": "unmap", "file": file_node(disk.file)}
    wanted: dict[str, Any] = {
        "id": f"drive{number}",
        "drive": name,
        "serial": disk.serial,
        "bootindex": plan.index_of(Device.DISK, number),
    }
    match spec.disk_bus:
        case DiskBus.VIRTIO:
            wanted |= {"driver": "virtio-blk-pci", "addr": hex(_FIRST_DISK + number)}
        case DiskBus.NVME:
            wanted |= {"driver": "nvme", "addr": hex(_FIRST_DISK + number)}
        case DiskBus.SATA:
            wanted |= {"driver": "ide-hd", "bus": f"ide.{number + 1}", "rotation_rate": 1}
    return [*blockdev(node), *device(**wanted)]


def nic_device(spec: MachineSpec, plan: BootPlan, number: int, nic: Nic) -> list[str]:
    network = f"user,id=net{number},ipv6=off"
    for forward in nic.forwards:
        network += f",hostfwd=tcp:127.0.0.1:{forward.host_port}-:{forward.machine_port}"
    if nic.tftp is not None:
        network += f",tftp={escaped(nic.tftp)}"
    if nic.boot_file is not None:
        network += f",bootfile={escaped(nic.boot_file)}"
    wanted: dict[str, Any] = {
        "driver": _NIC_DEVICES[spec.nic_model],
        "id": f"nic{number}",
        "netdev": f"net{number}",
        "mac": nic.mac,
        "addr": hex(_FIRST_NIC + number),
        "bootindex": plan.index_of(Device.NETWORK, number),
    }
    if spec.firmware is Firmware.UEFI and spec.nic_model is NicModel.VIRTIO:
        # OVMF drives this card itself; with iPXE's option ROM in between, PXE and HTTP boot would be iPXE's.
        wanted["romfile"] = ""
    return ["-netdev", network, *device(**wanted)]


def device(**wanted: Any) -> list[str]:
    """A device in QEMU's short form; hyphens and underscores are as QEMU spells them."""
    driver = wanted.pop("driver")
    return ["-device", ",".join([driver, *(f"{name}={escaped(value)}" for name, value in wanted.items())])]


def blockdev(node: dict[str, Any]) -> list[str]:
    """A block node, as JSON: no file name needs escaping there."""
    return ["-blockdev", json.dumps(node)]


def file_node(file: Path) -> dict[str, Any]:
    return {"driver": "file", "filename": str(file)}


def escaped(value: object) -> str:
    """A value inside a comma-separated option: QEMU reads a doubled comma as one."""
    return str(value).replace(",", ",,")
