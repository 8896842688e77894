"""What a machine is made of, from its resources to the one shape of an inventory. Pure.

NICs have a module of their own (`nics`): they are put together from several resources.
"""

import re

from drivers.redfish.document import Document, dig, link, number, text
from drivers.redfish.health import health_of, is_absent
from drivers.redfish.manners import Manners
from drivers.redfish.placeholders import real_text
from protocol.shapes.inspect import (
    ChassisIdentity,
    Drive,
    FirmwareVersion,
    MemoryModule,
    PciDevice,
    Processor,
    SystemIdentity,
    TrustedModule,
)
from protocol.shapes.management import Health

__all__ = [
    "chassis_identity",
    "controller_firmware",
    "drive",
    "memory_module",
    "pci_device",
    "pci_id",
    "place_of",
    "processor",
    "simple_drives",
    "system_identity",
    "trusted_modules",
    "whole",
    "world_wide_name",
]

_ARCHITECTURES = {"oem": "", "x86-64": "x86_64", "arm-a64": "aarch64", "arm-a32": "arm", "powerisa": "ppc64"}
_PARTS_OF_PROCESSORS = frozenset({"core", "thread"})
_VIRTUAL_MEDIA = re.compile(r"^virtual (cd-?rom|h?disk|floppy)", re.IGNORECASE)
_GENERIC_NAMES = frozenset({"pciedevice", "pciedevices", "adapter"})
_HEX = re.compile(r"[0-9a-f]+")


def system_identity(
    system: Document, manners: Manners, processors: list[Processor], memory: list[MemoryModule]
) -> SystemIdentity:
    """Who the machine is, and how much of it there is: as its summaries tell, else as its parts add up."""
    summary, cpus = dig(system, "ProcessorSummary"), [item for item in processors if item.kind == "cpu"]
    gib = number(system, "MemorySummary", "TotalSystemMemoryGiB")
    manufacturer = real_text(system, "Manufacturer")
    return SystemIdentity(
        vendor=manufacturer if manufacturer is None or "://" not in manufacturer else None,
        model=real_text(system, "Model"),
        serial=real_text(system, manners.serial_property) or real_text(system, "SerialNumber"),
        sku=real_text(system, "SKU"),
        uuid=real_text(system, "UUID"),
        part_number=real_text(system, "PartNumber"),
        asset_tag=real_text(system, "AssetTag"),
        host_name=real_text(system, "HostName"),
        memory_mib=(round(gib * 1024) if gib else None) or sum(item.size_mib or 0 for item in memory) or None,
        processor_count=whole(summary, "Count") or len(cpus) or None,
        core_count=whole(summary, "CoreCount") or sum(item.cores or 0 for item in cpus) or None,
        thread_count=whole(summary, "LogicalProcessorCount") or sum(item.threads or 0 for item in cpus) or None,
    )


def chassis_identity(chassis: Document) -> ChassisIdentity:
    return ChassisIdentity(
        name=text(chassis, "Id") or text(chassis, "Name") or "chassis",
        kind=text(chassis, "ChassisType"),
        vendor=real_text(chassis, "Manufacturer"),
        model=real_text(chassis, "Model"),
        serial=real_text(chassis, "SerialNumber"),
        part_number=real_text(chassis, "PartNumber"),
        asset_tag=real_text(chassis, "AssetTag"),
    )


def processor(document: Document) -> Processor | None:
    """One processor; None for an empty socket, and for a part of a processor that is listed beside it."""
    kind = (text(document, "ProcessorType") or "cpu").lower()
    if is_absent(document) or kind in _PARTS_OF_PROCESSORS:
        return None
    instructions = (text(document, "InstructionSet") or text(document, "ProcessorArchitecture") or "").lower()
    return Processor(
        socket=real_text(document, "Socket") or place_of(document) or _name(document),
        kind=kind,
        vendor=real_text(document, "Manufacturer"),
        model=real_text(document, "Model"),
        architecture=_ARCHITECTURES.get(instructions, instructions) or None,
        cores=whole(document, "TotalCores"),
        threads=whole(document, "TotalThreads"),
        max_mhz=whole(document, "MaxSpeedMHz"),
        serial=real_text(document, "SerialNumber"),
        health=_health(document),
    )


def memory_module(document: Document) -> MemoryModule | None:
    """One module; None for an empty slot."""
    size = whole(document, "CapacityMiB")
    if is_absent(document) or (size is None and number(document, "CapacityMiB") is not None):
        return None
    listed = dig(document, "AllowedSpeedsMHz")
    speeds = [number(item) for item in listed] if isinstance(listed, list) else []
    rated = [int(speed) for speed in speeds if speed is not None]
    return MemoryModule(
        slot=real_text(document, "DeviceLocator") or place_of(document) or _name(document),
        size_mib=size,
        kind=real_text(document, "MemoryDeviceType"),
        speed_mts=whole(document, "OperatingSpeedMhz") or max(rated, default=None),
        vendor=real_text(document, "Manufacturer"),
        part_number=real_text(document, "PartNumber"),
        serial=real_text(document, "SerialNumber"),
        health=_health(document),
    )


def drive(document: Document, path: str, controller: str | None) -> Drive | None:
    """One drive; None for an empty bay. `path`: where it was read, for one that has no name of its own."""
    if is_absent(document):
        return None
    protocol = real_text(document, "Protocol")
    media = (real_text(document, "MediaType") or ("ssd" if protocol == "NVMe" else "")).lower() or None
    spins = whole(document, "RotationSpeedRPM") is not None
    return Drive(
        name=real_text(document, "Id") or real_text(document, "Name") or path.rstrip("/").rpartition("/")[2],
        serial=real_text(document, "SerialNumber"),
        wwn=world_wide_name(document),
        vendor=real_text(document, "Manufacturer"),
        model=real_text(document, "Model"),
        size_bytes=whole(document, "CapacityBytes"),
        media=media,
        protocol=protocol,
        rotational=media in ("hdd", "smr") if media is not None else (True if spins else None),
        controller=controller,
        bay=place_of(document) or real_text(_first(document, "Location"), "Info"),
        firmware=real_text(document, "Revision") or real_text(document, "FirmwareVersion"),
        health=_health(document),
    )


def simple_drives(storage: Document) -> list[Drive]:
    """The drives that a SimpleStorage lists. Its backplanes, which have a null capacity (Dell), are none, and neither
    are the BMC's own virtual media (AMI)."""
    listed = dig(storage, "Devices")
    return [
        Drive(
            name=_name(item),
            vendor=real_text(item, "Manufacturer"),
            model=real_text(item, "Model"),
            size_bytes=whole(item, "CapacityBytes"),
            controller=text(storage, "Id"),
            health=_health(item),
        )
        for item in (listed if isinstance(listed, list) else [])
        if isinstance(item, dict) and not is_absent(item) and item.get("CapacityBytes", 0) is not None
        if not _VIRTUAL_MEDIA.search(text(item, "Model") or "")
    ]


def world_wide_name(document: Document) -> str | None:
    """The drive's NAA or EUI name, written as Linux does."""
    listed = dig(document, "Identifiers")
    for item in listed if isinstance(listed, list) else []:
        name, form = real_text(item, "DurableName"), (text(item, "DurableNameFormat") or "").upper()
        digits = (
            re.sub(r"[:\s-]", "", (name or "").lower()).removeprefix("0x").removeprefix("eui.").removeprefix("naa.")
        )
        if form in ("NAA", "EUI") and _HEX.fullmatch(digits):
            return f"0x{digits}" if form == "NAA" else f"eui.{digits}"
    return None


def pci_device(document: Document, function: Document | None, manners: Manners) -> PciDevice | None:
    """One device, with the ids of its first function where that was read; None for an empty slot."""
    if is_absent(document):
        return None
    name = real_text(document, "Name")
    said_nothing = name is None or name.lower().replace(" ", "") in _GENERIC_NAMES
    return PciDevice(
        name=(None if said_nothing else name) or real_text(document, "Model") or name or _name(document),
        vendor=real_text(document, "Manufacturer"),
        model=real_text(document, "Model"),
        serial=real_text(document, "SerialNumber"),
        firmware=real_text(document, "FirmwareVersion"),
        vendor_id=pci_id(function, "VendorId", manners),
        device_id=pci_id(function, "DeviceId", manners),
        device_class=real_text(function, "DeviceClass"),
        slot=place_of(dig(document, "Slot")) or place_of(document),
    )


def pci_id(function: Document | None, key: str, manners: Manners) -> str | None:
    """An id of four hexadecimal digits after `0x`; None for none and for the values that stand for none."""
    word = (text(function, key) or "").lower()
    try:
        value = int(word, 16) if word.startswith("0x") or not manners.decimal_pci_ids else int(word)
    except ValueError:
        return None
    return f"0x{value:04x}" if 0 < value < 0xFFFF else None


def trusted_modules(system: Document) -> list[TrustedModule]:
    """The machine's TPMs; an entry without an interface and one that is absent are none."""
    listed = dig(system, "TrustedModules")
    return [
        TrustedModule(
            kind=text(item, "InterfaceType"),
            firmware=real_text(item, "FirmwareVersion"),
            state=text(item, "Status", "State"),
        )
        for item in (listed if isinstance(listed, list) else [])
        if isinstance(item, dict) and text(item, "InterfaceType") and not is_absent(item)
    ]


def controller_firmware(storage: Document) -> list[FirmwareVersion]:
    """The versions of the controllers that a storage resource holds itself."""
    listed = dig(storage, "StorageControllers")
    return [
        FirmwareVersion(name=real_text(item, "Name") or real_text(item, "Model") or _name(storage), version=version)
        for item in (listed if isinstance(listed, list) else [])
        if (version := real_text(item, "FirmwareVersion")) is not None
    ]


def place_of(document: object) -> str | None:
    """Where a part sits, in the maker's own words: the label on the machine."""
    places = [dig(document, key) for key in ("PhysicalLocation", "Location")]
    oem = dig(document, "Oem")
    places += [dig(item, "Location") for item in oem.values()] if isinstance(oem, dict) else []
    for place in places:
        label = real_text(place, "PartLocation", "ServiceLabel") or real_text(place, "Info")
        if label is not None:
            return label
    return None


def whole(value: object, *keys: str) -> int | None:
    """A positive whole number; zero and less stand for "not known" wherever this is used."""
    exact = dig(value, *keys)
    if isinstance(exact, int) and not isinstance(exact, bool):
        # As it was sent: a capacity may have more digits than a float holds.
        return exact if 0 < exact < 1 << 63 else None
    found = number(value, *keys)
    return int(found) if found is not None and 1 <= found < 1 << 63 else None


def _name(document: Document) -> str:
    words = (real_text(document, key) for key in ("Id", "Name", "MemberId"))
    own = (link(document) or "").rstrip("/").rpartition("/")[2]
    return next((word for word in words if word is not None), own or "unnamed")


def _first(document: Document, key: str) -> object:
    listed = dig(document, key)
    return listed[0] if isinstance(listed, list) and listed else listed


def _health(document: Document) -> str | None:
    health = health_of(document)
    return None if health is Health.UNKNOWN else health.value
