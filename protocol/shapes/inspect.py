"""Inspect: one shape of inventory, whether the BMC tells it or the machine itself."""

from protocol.shapes import Result

__all__ = [
    "ChassisIdentity",
    "Drive",
    "FirmwareVersion",
    "Inventory",
    "MemoryModule",
    "NetworkInterface",
    "PciDevice",
    "PowerSupply",
    "Processor",
    "SystemIdentity",
    "TrustedModule",
    "Unread",
]


class SystemIdentity(Result, frozen=True, kw_only=True):
    vendor: str | None = None
    model: str | None = None
    serial: str | None = None
    sku: str | None = None
    uuid: str | None = None
    part_number: str | None = None
    asset_tag: str | None = None
    host_name: str | None = None
    memory_mib: int | None = None
    processor_count: int | None = None
    core_count: int | None = None
    thread_count: int | None = None


class ChassisIdentity(Result, frozen=True, kw_only=True):
    name: str
    kind: str | None = None
    """The BMC's own word, such as RackMount or Blade."""
    vendor: str | None = None
    model: str | None = None
    serial: str | None = None
    part_number: str | None = None
    asset_tag: str | None = None


class Processor(Result, frozen=True, kw_only=True):
    socket: str
    kind: str = "cpu"
    """cpu, gpu, fpga, dsp, accelerator, or the BMC's own word in lower case."""
    vendor: str | None = None
    model: str | None = None
    architecture: str | None = None
    cores: int | None = None
    threads: int | None = None
    max_mhz: int | None = None
    serial: str | None = None
    health: str | None = None


class MemoryModule(Result, frozen=True, kw_only=True):
    slot: str
    size_mib: int | None = None
    kind: str | None = None
    speed_mts: int | None = None
    vendor: str | None = None
    part_number: str | None = None
    serial: str | None = None
    health: str | None = None


class Drive(Result, frozen=True, kw_only=True):
    name: str
    serial: str | None = None
    wwn: str | None = None
    """As Linux writes it: `0x5000c500a1b2c3d4` for an NAA name, `eui.0025385b71b0a1c2` for an EUI."""
    vendor: str | None = None
    model: str | None = None
    size_bytes: int | None = None
    media: str | None = None
    """hdd, ssd or smr."""
    protocol: str | None = None
    """The interface in its own spelling: NVMe, SATA, SAS."""
    rotational: bool | None = None
    controller: str | None = None
    bay: str | None = None
    """Where it sits, in the maker's own words."""
    firmware: str | None = None
    health: str | None = None


class NetworkInterface(Result, frozen=True, kw_only=True):
    name: str
    mac: str | None = None
    """Lower case with colons."""
    permanent_mac: str | None = None
    """The burned-in address, where it is told and is another one."""
    boot_position: int | None = None
    """Its place among the NICs that the firmware's boot order names, from 1; null for one that is not in it."""
    link: str | None = None
    """up or down."""
    speed_mbps: int | None = None
    technology: str | None = None
    """ethernet, infiniband, or the BMC's own word in lower case."""
    vendor: str | None = None
    model: str | None = None
    adapter: str | None = None
    """The card that it is on; several NICs may share one."""
    slot: str | None = None
    port: str | None = None
    firmware: str | None = None
    pci: str | None = None
    """Its PCI address, or its UEFI device path where only that is told."""


class PciDevice(Result, frozen=True, kw_only=True):
    name: str
    vendor: str | None = None
    model: str | None = None
    serial: str | None = None
    firmware: str | None = None
    vendor_id: str | None = None
    """Such as 0x8086; `device_id` likewise."""
    device_id: str | None = None
    device_class: str | None = None
    slot: str | None = None


class FirmwareVersion(Result, frozen=True, kw_only=True):
    name: str
    version: str | None = None
    updateable: bool | None = None


class TrustedModule(Result, frozen=True, kw_only=True):
    """A TPM or a module of its kind."""

    kind: str | None = None
    """The BMC's own word, such as TPM2_0."""
    firmware: str | None = None
    state: str | None = None


class PowerSupply(Result, frozen=True, kw_only=True):
    name: str
    vendor: str | None = None
    model: str | None = None
    serial: str | None = None
    part_number: str | None = None
    firmware: str | None = None
    watts: int | None = None


class Unread(Result, frozen=True, kw_only=True):
    """A resource that is there by what others say, and could not be read."""

    path: str
    reason: str


class Inventory(Result, frozen=True, kw_only=True):
    system: SystemIdentity
    chassis: list[ChassisIdentity] = []
    processors: list[Processor] = []
    memory: list[MemoryModule] = []
    drives: list[Drive] = []
    nics: list[NetworkInterface] = []
    """The host's own, never the BMC's. In boot order where the source tells one, then in the order of their names."""
    pci: list[PciDevice] = []
    trusted_modules: list[TrustedModule] = []
    power_supplies: list[PowerSupply] = []
    firmware: list[FirmwareVersion] = []
    """What is told in passing; `firmware.getFirmware` reads all of it."""
    incomplete: list[str] = []
    """Which of the lists above, or `system`, may lack something: because a resource could not be read, or because the
    way it was read does not tell it (IPMI)."""
    unread: list[Unread] = []
    """The resources that could not be read, with the reason: the rest is still usable."""
