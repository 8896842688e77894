"""The Redfish resources of a virtual machine: those of the simulated 1U server, with its own parts in place."""

from typing import Any

from simulators.machine.spec import (
    MANUFACTURER,
    PRODUCT,
    Disk,
    DiskBus,
    Firmware,
    MachineSpec,
    NicModel,
)
from simulators.redfish.documents import JsonObject, path_key
from simulators.redfish.tree import OWN_TREE, RecordedTree, Resource, content_etag

SYSTEM = "/redfish/v1/Systems/1"
CHASSIS = "/redfish/v1/Chassis/1"
MANAGER = "/redfish/v1/Managers/1"
CD = f"{MANAGER}/VirtualMedia/Cd"
EVENT_LOG = f"{SYSTEM}/LogServices/SEL/Entries"
FIRMWARE_INVENTORY = "/redfish/v1/UpdateService/FirmwareInventory"
# What the 1U server has and this machine has not, or has of its own.
_ABSENT = (
    f"{SYSTEM}/Bios",
    f"{SYSTEM}/SecureBoot",
    f"{SYSTEM}/BootOptions",
    f"{SYSTEM}/EthernetInterfaces",
    f"{SYSTEM}/Memory",
    f"{SYSTEM}/Processors",
    f"{SYSTEM}/Storage",
    f"{EVENT_LOG}/",
    f"{CHASSIS}/NetworkAdapters",
    f"{CHASSIS}/Sensors/CPU2Temp",
    f"{MANAGER}/VirtualMedia/USB",
    f"{FIRMWARE_INVENTORY}/NIC1",
    f"{FIRMWARE_INVENTORY}/RAID1",
    "/redfish/v1/Registries/BiosAttributeRegistryRW1U",
)
_HEALTHY = {"State": "Enabled", "Health": "OK"}
# Redfish has no word for virtio (Protocol.v1, Protocol).
_PROTOCOLS = {DiskBus.SATA: "SATA", DiskBus.NVME: "NVMe"}
_RESETS = [
    *("On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart", "PowerCycle", "PushPowerButton", "Nmi")
]
# The boot options of this machine, in the order that holds at first: reference, Redfish's word, name.
BOOT_OPTIONS = (
    ("Boot0001", "Hdd", "System disk"),
    ("Boot0002", "Cd", "Virtual CD"),
    ("Boot0003", "Pxe", "Network"),
)
TARGETS = {
    Firmware.UEFI: ["None", "Pxe", "Cd", "Hdd", "UefiHttp", "BiosSetup"],
    Firmware.BIOS: ["None", "Pxe", "Cd", "Hdd"],
}
MODES = {Firmware.UEFI: "UEFI", Firmware.BIOS: "Legacy"}


def machine_tree(spec: MachineSpec, firmware_version: str) -> RecordedTree:
    """The tree of one machine. What it says of parts is what the machine's own operating system finds."""
    resources = {
        key: resource for key, resource in RecordedTree.load(OWN_TREE).resources.items() if not is_absent(key)
    }

    def put(path: str, document: JsonObject) -> None:
        resources[path_key(path)] = Resource(path, document, content_etag(document))

    def change(path: str, **values: Any) -> None:
        document = {**(resources[path_key(path)].document or {}), **values}
        put(path, {name: value for name, value in document.items() if value is not None or name not in values})

    def collect(path: str, schema: str, members: list[JsonObject]) -> None:
        put(path, collection(path, schema, [member["@odata.id"] for member in members]))
        for member in members:
            put(member["@odata.id"], member)

    identity = spec.identity
    known = {"Manufacturer": MANUFACTURER, "Model": PRODUCT, "SerialNumber": identity.serial, "SKU": "RW-VM"}
    change("/redfish/v1", UUID=str(identity.uuid), Product=PRODUCT)
    change(SYSTEM, **known, **system_values(spec, firmware_version))
    change(CHASSIS, **known, PartNumber="RW-VM-CHASSIS", PowerState="Off", NetworkAdapters=None)
    change(MANAGER, ServiceEntryPointUUID=str(identity.uuid))
    change(f"{MANAGER}/EthernetInterfaces/1", **both_addresses(identity.bmc_mac))
    change(f"{FIRMWARE_INVENTORY}/BIOS", Version=firmware_version, Updateable=False)
    for path in (f"{CHASSIS}/Sensors", f"{MANAGER}/VirtualMedia", FIRMWARE_INVENTORY, "/redfish/v1/Registries"):
        document = resources[path_key(path)].document or {}
        links = [member["@odata.id"] for member in document["Members"] if not is_absent(member["@odata.id"])]
        change(path, **members(links))
    put(EVENT_LOG, collection(EVENT_LOG, "LogEntryCollection", []))
    collect(f"{SYSTEM}/BootOptions", "BootOptionCollection", boot_options())
    collect(f"{SYSTEM}/EthernetInterfaces", "EthernetInterfaceCollection", ports(spec))
    collect(f"{SYSTEM}/Processors", "ProcessorCollection", [processor(spec)])
    collect(f"{SYSTEM}/Memory", "MemoryCollection", [memory_module(spec)])
    drives = [drive(spec, number, disk) for number, disk in enumerate(spec.disks, 1)]
    collect(f"{SYSTEM}/Storage", "StorageCollection", [storage(drives)] if drives else [])
    for document in drives:
        put(document["@odata.id"], document)
    return RecordedTree("rackwright-vm", resources)


def is_absent(path: str) -> bool:
    key = path_key(path)
    return any(
        key.startswith(path_key(absent) + "/") or (key == path_key(absent) and not absent.endswith("/"))
        for absent in _ABSENT
    )


def members(links: list[str]) -> JsonObject:
    return {"Members@odata.count": len(links), "Members": [{"@odata.id": link} for link in links]}


def collection(path: str, schema: str, links: list[str]) -> JsonObject:
    return {
        "@odata.type": f"#{schema}.{schema}",
        "@odata.id": path,
        "Name": path.rpartition("/")[2],
        **members(links),
    }


def resource(path: str, schema: str, version: str, name: str) -> JsonObject:
    return {
        "@odata.type": f"#{schema}.{version}.{schema}",
        "@odata.id": path,
        "Id": path.rpartition("/")[2],
        "Name": name,
    }


def system_values(spec: MachineSpec, firmware_version: str) -> JsonObject:
    """The system's own values. It tells no boot progress: its BMC cannot see how far the machine is."""
    return {
        "UUID": str(spec.identity.uuid),
        "PartNumber": "RW-VM",
        "SystemType": "Virtual",
        "PowerState": "Off",
        "BiosVersion": firmware_version,
        "BootProgress": None,
        "Bios": None,
        "SecureBoot": None,
        "SerialConsole": {"MaxConcurrentSessions": 1, "IPMI": {"ServiceEnabled": True}},
        "ProcessorSummary": {"Count": 1, "CoreCount": spec.cpus, "LogicalProcessorCount": spec.cpus},
        "MemorySummary": {"TotalSystemMemoryGiB": round(spec.memory / 1024, 3)},
        "Boot": boot(spec.firmware),
        "Actions": {
            "#ComputerSystem.Reset": {
                "target": f"{SYSTEM}/Actions/ComputerSystem.Reset",
                "ResetType@Redfish.AllowableValues": _RESETS,
            }
        },
    }


def boot(firmware: Firmware) -> JsonObject:
    mode = MODES[firmware]
    values: JsonObject = {
        "BootSourceOverrideEnabled": "Disabled",
        "BootSourceOverrideEnabled@Redfish.AllowableValues": ["Disabled", "Once", "Continuous"],
        "BootSourceOverrideTarget": "None",
        "BootSourceOverrideTarget@Redfish.AllowableValues": TARGETS[firmware],
        "BootSourceOverrideMode": mode,
        "BootSourceOverrideMode@Redfish.AllowableValues": [mode],
        "BootOrder": [reference for reference, _, _ in BOOT_OPTIONS],
        "BootOptions": {"@odata.id": f"{SYSTEM}/BootOptions"},
    }
    if firmware is Firmware.UEFI:
        values["HttpBootUri"] = None
    return values


def boot_options() -> list[JsonObject]:
    return [
        {
            **resource(f"{SYSTEM}/BootOptions/{reference}", "BootOption", "v1_0_6", name),
            "BootOptionReference": reference,
            "DisplayName": name,
            "Alias": alias,
            "BootOptionEnabled": True,
        }
        for reference, alias, name in BOOT_OPTIONS
    ]


def both_addresses(mac: str) -> JsonObject:
    return {"MACAddress": mac.upper(), "PermanentMACAddress": mac.upper()}


def ports(spec: MachineSpec) -> list[JsonObject]:
    speed = {NicModel.VIRTIO: None, NicModel.E1000E: 1000}[spec.nic_model]
    return [
        {
            **resource(f"{SYSTEM}/EthernetInterfaces/{number}", "EthernetInterface", "v1_12_2", f"Port {number}"),
            **both_addresses(nic.mac),
            "SpeedMbps": speed,
            "LinkStatus": "LinkUp",
            "Status": _HEALTHY,
        }
        for number, nic in enumerate(spec.nics, 1)
    ]


def processor(spec: MachineSpec) -> JsonObject:
    return {
        **resource(f"{SYSTEM}/Processors/CPU1", "Processor", "v1_20_1", "Processor 1"),
        "Socket": "CPU 1",
        "ProcessorType": "CPU",
        "ProcessorArchitecture": "x86",
        "InstructionSet": "x86-64",
        "TotalCores": spec.cpus,
        "TotalThreads": spec.cpus,
        "Status": _HEALTHY,
    }


def memory_module(spec: MachineSpec) -> JsonObject:
    return {
        **resource(f"{SYSTEM}/Memory/DIMM1", "Memory", "v1_21_0", "Memory module 1"),
        "MemoryType": "DRAM",
        "CapacityMiB": spec.memory,
        "Status": _HEALTHY,
    }


def storage(drives: list[JsonObject]) -> JsonObject:
    return {
        **resource(f"{SYSTEM}/Storage/Disks", "Storage", "v1_17_1", "Disks"),
        "Drives": [{"@odata.id": document["@odata.id"]} for document in drives],
        "Drives@odata.count": len(drives),
        "Status": _HEALTHY,
    }


def drive(spec: MachineSpec, number: int, disk: Disk) -> JsonObject:
    values = {
        **resource(f"{SYSTEM}/Storage/Disks/Drives/Disk{number}", "Drive", "v1_20_1", f"Disk {number}"),
        "SerialNumber": disk.serial,
        "MediaType": "SSD",
        "CapacityBytes": disk.size,
        "BlockSizeBytes": 512,
        "Status": _HEALTHY,
    }
    protocol = _PROTOCOLS.get(spec.disk_bus)
    return {**values, "Protocol": protocol} if protocol else values
