"""Inspect, on the machine itself: the same shape as a BMC tells, read from the kernel and the SMBIOS tables."""

import asyncio
import os
import platform
import re
import socket
from collections.abc import Sequence

import msgspec

from drivers.driver import Call
from drivers.linux.connection import LinuxConnection
from drivers.linux.devices import settled
from drivers.linux.disks import Disk, read_disks
from drivers.linux.drive_health import DriveFacts, ask_drive
from drivers.linux.host import Host
from drivers.linux.network_ports import Ask, ask_kernel, network_ports
from drivers.linux.pci import PciNames, functions, graphics, pci_devices
from drivers.linux.smbios import Tables, parse_tables
from drivers.linux.vendor_tools import Told, ask_tools
from protocol.shapes import Nothing
from protocol.shapes.inspect import (
    Drive,
    FirmwareVersion,
    Inventory,
    NetworkInterface,
    PciDevice,
    Processor,
    SystemIdentity,
    TrustedModule,
    Unread,
)

__all__ = ["LinuxInspect", "drive_of", "with_told_drives"]

_PROTOCOLS = {"nvme": "NVMe", "sata": "SATA", "sas": "SAS", "usb": "USB", "virtio": "virtio", "mmc": "MMC"}


class LinuxInspect:
    def __init__(self, connection: LinuxConnection, ask: Ask = ask_kernel) -> None:
        self._host = connection.host
        self._ask = ask

    async def get_inventory(self, arguments: Nothing, call: Call) -> Inventory:
        """The inventory. Makers' programs that are installed are asked as well. What the machine does not describe
        (no SMBIOS tables) is named in `incomplete` and `unread`; nothing of it raises."""
        await settled(self._host, call)
        call.progress("reading the machine's description", 0)
        data = await asyncio.to_thread(self._host.data, "firmware", "dmi", "tables", "DMI")
        tables = parse_tables(data or b"")
        names = await asyncio.to_thread(PciNames.installed)
        call.progress("reading drives", 20)
        disks = [disk for disk in await asyncio.to_thread(read_disks, self._host) if _is_drive(disk)]
        facts = await asyncio.gather(*(ask_drive(self._host, disk) for disk in disks))
        call.progress("asking makers' programs", 50)
        told = await ask_tools(self._host)
        call.progress("reading NICs and PCI devices", 80)
        nics, pci, computing = await asyncio.to_thread(self._buses, names)
        processors = [*(tables.processors(platform.machine()) or _processors(self._host)), *computing]
        memory = tables.memory()
        missing = [] if data else ["system", "chassis", "memory", "power_supplies"]
        return Inventory(
            system=_system(self._host, tables, processors),
            chassis=tables.chassis(),
            processors=processors,
            memory=memory,
            drives=with_told_drives([drive_of(d, f) for d, f in zip(disks, facts, strict=True)], told.drives),
            nics=nics,
            pci=pci,
            trusted_modules=tables.trusted_modules() or _trusted_modules(self._host),
            power_supplies=tables.power_supplies(),
            firmware=_firmware(tables, told, nics),
            incomplete=missing,
            unread=[]
            if data
            else [Unread(path="/sys/firmware/dmi/tables/DMI", reason="the firmware shows no tables")],
        )

    def _buses(self, names: PciNames) -> tuple[list[NetworkInterface], list[PciDevice], list[Processor]]:
        found = functions(self._host)
        return network_ports(self._host, names, self._ask), pci_devices(found, names), graphics(found, names)


def _is_drive(disk: Disk) -> bool:
    """Not what a BMC plugs in for a while, and nothing made of other drives."""
    return (
        bool(disk.size_bytes) and not disk.removable and not disk.boot_medium and disk.transport not in ("md", "loop")
    )


def drive_of(disk: Disk, facts: DriveFacts) -> Drive:
    """One drive by the kernel's word, and by its own where the kernel says nothing. Pure."""
    rotational = disk.rotational if disk.rotational is not None else facts.rotational
    protocol = _PROTOCOLS.get(disk.transport or "")
    return Drive(
        name=disk.name,
        serial=disk.serial or facts.serial,
        wwn=disk.wwn or facts.wwn,
        vendor=None if disk.vendor == "ATA" else disk.vendor,
        model=facts.model if facts.model and len(facts.model) > len(disk.model or "") else disk.model,
        size_bytes=disk.size_bytes,
        # A virtual disk rotates by default, whatever it lies on.
        media=None if rotational is None or disk.transport == "virtio" else ("hdd" if rotational else "ssd"),
        protocol=facts.protocol or protocol if protocol in (None, "SAS") else protocol,
        rotational=rotational,
        controller=disk.controller,
        bay=disk.bay,
        firmware=disk.firmware or facts.firmware,
        health=facts.health,
    )


def with_told_drives(drives: Sequence[Drive], told: Sequence[Drive]) -> list[Drive]:
    """What a maker's program says of a drive that the kernel shows is added to it (by serial number, else by name);
    drives that only it shows come after the others. One that lists the same drives without serial numbers adds none.
    Pure."""
    found = list(drives)
    for other in told:
        place = next((n for n, drive in enumerate(found) if _same(drive, other)), None)
        if place is not None:
            fresh = {
                name: value
                for name, value in msgspec.structs.asdict(other).items()
                if value is not None and getattr(found[place], name) is None
            }
            found[place] = msgspec.structs.replace(found[place], **fresh)
        elif other.serial is not None or not any(_alike(drive, other) for drive in drives):
            found.append(other)
    return found


def _same(drive: Drive, other: Drive) -> bool:
    if drive.serial is not None and other.serial is not None:
        return drive.serial.casefold() == other.serial.casefold()
    return drive.name == other.name


def _alike(drive: Drive, other: Drive) -> bool:
    """Whether it may be the same drive: on the same controller, and of the same model as far as that is told (SCSI
    tells 16 letters of it)."""
    one, two = _plain(drive.model), _plain(other.model)
    return drive.controller == other.controller and bool(one and two) and (one.startswith(two) or two.startswith(one))


def _plain(word: str | None) -> str:
    return re.sub(r"[\s_]+", " ", word or "").casefold()


def _system(host: Host, tables: Tables, processors: Sequence[Processor]) -> SystemIdentity:
    own = [processor for processor in processors if processor.kind == "cpu"]
    modules = [module.size_mib for module in tables.memory() if module.size_mib]
    return msgspec.structs.replace(
        tables.system(),
        host_name=socket.gethostname() or None,
        memory_mib=sum(modules) or _memory_mib(host),
        processor_count=len(own) or None,
        core_count=sum(processor.cores or 0 for processor in own) or None,
        thread_count=sum(processor.threads or 0 for processor in own) or os.cpu_count(),
    )


def _processors(host: Host) -> list[Processor]:
    """By the kernel, where the firmware describes none: one per package."""
    found: dict[str, dict[str, str]] = {}
    cores: dict[str, set[str]] = {}
    try:
        text = (host.proc / "cpuinfo").read_text(errors="replace")
    except OSError:
        return []
    for block in text.split("\n\n"):
        parts = (line.partition(":") for line in block.splitlines())
        facts = {key.strip(): value.strip() for key, separator, value in parts if separator}
        package = facts.get("physical id", "0")
        if "processor" in facts:
            found.setdefault(package, facts)
            cores.setdefault(package, set()).add(facts.get("core id", facts["processor"]))
    threads = text.count("\nprocessor") + text.startswith("processor")
    return [
        Processor(
            socket=f"CPU {package}",
            vendor=facts.get("vendor_id"),
            model=facts.get("model name"),
            architecture=platform.machine(),
            cores=len(cores[package]),
            threads=threads // len(found),
        )
        for package, facts in found.items()
    ]


def _memory_mib(host: Host) -> int | None:
    try:
        match = re.search(r"^MemTotal:\s+(\d+) kB", (host.proc / "meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if match is None else int(match[1]) // 1024


def _trusted_modules(host: Host) -> list[TrustedModule]:
    return [
        TrustedModule(
            kind={"2": "TPM2_0", "1": "TPM1_2"}.get(host.text("class", "tpm", name, "tpm_version_major") or "")
        )
        for name in host.names("class", "tpm")
    ]


def _firmware(tables: Tables, told: Told, nics: Sequence[NetworkInterface]) -> list[FirmwareVersion]:
    """Each name once: what the tables say comes before what programs say, and a card's ports share one firmware."""
    found = {version.name: version for version in (*tables.firmware(), *told.firmware)}
    for nic in nics:
        name = f"{nic.model or 'NIC'} {nic.adapter}" if nic.adapter else None
        if name is not None and nic.firmware is not None:
            found.setdefault(name, FirmwareVersion(name=name, version=nic.firmware))
    return list(found.values())
