"""Inspect: one shape of inventory, whether the BMC tells it or the machine itself."""

from protocol.shapes import Result

__all__ = [
    "Drive",
    "FirmwareVersion",
    "Inventory",
    "MemoryModule",
    "NetworkInterface",
    "PciDevice",
    "Processor",
    "SystemIdentity",
]


class SystemIdentity(Result, frozen=True, kw_only=True):
    vendor: str | None = None
    model: str | None = None
    serial: str | None = None
    sku: str | None = None
    uuid: str | None = None
    asset_tag: str | None = None
    memory_mib: int | None = None
    processor_count: int | None = None


class Processor(Result, frozen=True, kw_only=True):
    socket: str
    vendor: str | None = None
    model: str | None = None
    architecture: str | None = None
    cores: int | None = None
    threads: int | None = None
    max_mhz: int | None = None


class MemoryModule(Result, frozen=True, kw_only=True):
    slot: str
    size_mib: int | None = None
    kind: str | None = None
    speed_mts: int | None = None
    vendor: str | None = None
    part_number: str | None = None
    serial: str | None = None


class Drive(Result, frozen=True, kw_only=True):
    name: str
    serial: str | None = None
    wwn: str | None = None
    vendor: str | None = None
    model: str | None = None
    size_bytes: int | None = None
    media: str | None = None
    """hdd, ssd or smr."""
    protocol: str | None = None
    rotational: bool | None = None
    controller: str | None = None
    health: str | None = None


class NetworkInterface(Result, frozen=True, kw_only=True):
    name: str
    mac: str | None = None
    """Lower case with colons."""
    link: str | None = None
    speed_mbps: int | None = None
    vendor: str | None = None
    model: str | None = None
    pci: str | None = None


class PciDevice(Result, frozen=True, kw_only=True):
    name: str
    vendor_id: str | None = None
    device_id: str | None = None
    device_class: str | None = None
    slot: str | None = None


class FirmwareVersion(Result, frozen=True, kw_only=True):
    name: str
    version: str | None = None
    updateable: bool | None = None


class Inventory(Result, frozen=True, kw_only=True):
    system: SystemIdentity
    processors: list[Processor] = []
    memory: list[MemoryModule] = []
    drives: list[Drive] = []
    nics: list[NetworkInterface] = []
    """In boot order where the source tells one."""
    pci: list[PciDevice] = []
    firmware: list[FirmwareVersion] = []
    incomplete: list[str] = []
    """Resources that could not be read, with the reason: the rest is still usable."""
