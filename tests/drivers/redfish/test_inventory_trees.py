"""The inventory of every recorded tree, held against the tree's own files; and its requests, against the least.

The expected values are read here, by following links, with nothing of the driver.
"""

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.drivers.redfish.harness import bench, without_waiting
from tests.drivers.redfish.test_mockups import TREES

HOSTS = {
    "nvidia-dgx-h100-ami": "/redfish/v1/Systems/DGX",
    "nvidia-gh200-openbmc": "/redfish/v1/Systems/System_0",
}
"""The host where a tree has several systems."""

PLACEHOLDERS = re.compile(
    r"(to be filled.*|free form asset tag|not available|unknown|n/a|nil|(0123456789)+ab|[0-]*|\.*)", re.IGNORECASE
)

LEAST = {
    # With a session open and the system's address known: one request for the system, its manager, its chassis; for
    # each collection where $expand is sound ("1"), else for it and its members ("1 + n"); for each drive; for the
    # functions of each card unless the interfaces name them all, for its ports where a link's state or speed is told
    # nowhere else; and for one function of each PCI device, which has its ids.
    "cray-ex235a": (
        1  # the system
        + (1 + 9)  # processors; this service has no $expand
        + (1 + 8)  # memory
        + (1 + 3)  # no ManagedBy: the managers, of which one is the BMC
        + (1 + 4)  # no Links.Chassis: all chassis
        + (1 + 5)  # interfaces
        + 4 * 1  # the adapters of four chassis
        + 4 * (1 + 1 + 1)  # four cards, each with functions and ports (which answer 404)
        + (1 + 11)  # boot options
    ),
    "dell-r750-idrac9-6.00": (
        5  # system, manager, chassis, processors, memory
        + (1 + 3)  # storage and its drives
        + 1  # interfaces
        + (1 + 4 + 2)  # cards, the functions of four, the ports of two (slot 5 and InfiniBand tell no link)
        + 1  # boot options
        + 1  # the BMC's own interfaces
        + (1 + 13)  # PCI devices, one function of each
    ),
    "dell-r750-idrac9-7.10": 5 + (1 + 2) + 1 + (1 + 3 + 2) + 1 + 1 + (1 + 10),
    "dmtf-catfish": 3,  # system, manager, chassis
    "dmtf-rackmount1": 5 + 1 + 1 + 1,  # SimpleStorage, interfaces, the BMC's own; no cards, boot options or PCI
    "dmtf-tower": 5 + (1 + 18) + 1 + (1 + 1 + 1) + 1 + 1,  # no boot options; PCI devices without functions
    "gigabyte-h262-megarac": (
        3  # system, manager, chassis
        + (1 + 2)  # processors; AMI's $expand is not used
        + (1 + 16)  # memory
        + (1 + 1 + 1)  # storage and its drive
        + (1 + 3)  # interfaces
        + 1  # no cards
        + (1 + 7)  # boot options
        + (1 + 2)  # the BMC's own interfaces
        + (1 + 1)  # the one PCI device that the system lists, and its function
    ),
    "hpe-dl380a-ilo6": 5 + (1 + 8) + 1 + (1 + 1 + 1) + 1 + 1 + (1 + 6),
    "hpe-dl385-ilo5": 5 + (1 + 18) + 1 + (1 + 3 + 3) + 1 + 1 + (1 + 6),
    "intel-s2600bpb": 3 + (1 + 2) + (1 + 6) + (1 + 1 + 1) + 1,  # 32 links to one drive; no interfaces
    "lenovo-sr670v2-xcc": 5 + (1 + 4) + 1 + (1 + 2 + 1) + 1 + 1 + (1 + 16),  # slot 27: all links are down
    "nvidia-bluefield3": 5 + 1 + 1 + (1 + 1) + 1 + 1 + 1,  # links and their speeds are told by the interfaces
    "nvidia-dgx-h100-ami": (
        3
        + (1 + 2)  # processors; AMI's $expand is not used
        + (1 + 32)  # memory
        + 1  # storage, which is empty
        + (1 + 11)  # SimpleStorage
        + (1 + 5)  # interfaces
        + (1 + 12)  # cards
        + (8 * (1 + 1) + (1 + 2))  # functions of the nine cards that the interfaces do not name in full
        + (8 * (1 + 1) + (1 + 2) + (1 + 1))  # ports of those, and of the one whose link is up with no speed told
        + (1 + 21)  # boot options
        + (1 + 2)  # the BMC's own interfaces
        + (2 + 134)  # PCI devices, in two pages; too many to ask each for its ids
    ),
    "nvidia-gh200-openbmc": 5 + 1 + 1 + 1 + 1,  # storage, boot options, the BMC's own interfaces, PCI devices
    "openbmc-stock": 5 + 1 + 1,  # storage, PCI devices; all collections are empty
    "supermicro-821ge": 5
    + (1 + 8)
    + 1
    + 1
    + 1
    + 1
    + (1 + 26),  # the interfaces name all functions, all links are down
    "supermicro-x10": 3 + (1 + 1) + (1 + 4) + 2 + (1 + 4) + (1 + 1),  # storage answers 404, SimpleStorage is empty
}

UNREAD = {
    "cray-ex235a": 10,  # the adapters of two mezzanines; functions and ports of four cards
    "intel-s2600bpb": 2,  # the chassis, and the drive that 32 links lead to
    "nvidia-dgx-h100-ami": 2,  # the second page of the PCI devices; and their ids, which are too many
    "supermicro-x10": 1,  # storage
}

BOOT_ORDER = {
    # The NICs in the order of BootOrder, by the MACs in the options' paths or names.
    "cray-ex235a": [
        "ba:b2:92:3d:c0:c2",
        "4a:a9:4c:fa:f2:e8",
        "36:01:02:fb:28:1d",
        "52:bb:72:53:71:2c",
        "8a:20:e0:63:b9:06",
    ],
    "dell-r750-idrac9-6.00": ["0e:29:1d:2b:f4:58"],
    "dell-r750-idrac9-7.10": ["f6:5e:90:8a:18:5c"],
    "gigabyte-h262-megarac": ["86:e7:92:32:17:fa", "c6:cf:94:54:be:a0"],
    "hpe-dl380a-ilo6": ["66:8c:fd:b5:94:23"],
    "hpe-dl385-ilo5": ["ce:01:9b:b1:bb:97", "62:0b:13:00:00:b8", "9e:8d:cf:03:f0:1e", "f2:1e:1e:78:16:06"],
    "nvidia-bluefield3": ["c2:a5:93:4d:6b:50", "b2:93:38:bb:d4:75", "b2:57:38:5a:bb:89"],
    "nvidia-dgx-h100-ami": [
        "be:a5:b8:61:b8:cd",
        "42:7c:14:1f:a2:c3",
        "f2:2e:e3:c7:ad:f5",
        "12:fb:7d:e2:fe:9e",
        "5a:fc:73:8e:20:74",
        "d6:25:f4:12:0d:dc",
    ],
    "nvidia-gh200-openbmc": [
        "96:f4:de:1e:48:fc",
        "e2:24:0f:f7:eb:0a",
        "8a:83:aa:c2:60:5c",
        "e2:8a:94:0b:46:f1",
        "c6:27:f3:33:ad:93",
        "c2:8f:04:c9:13:c8",
    ],
    "supermicro-821ge": [
        "e6:c0:95:c8:e1:6c",
        "e2:f9:3b:e2:42:92",
        "d2:33:d3:8a:59:79",
        "3e:50:c9:89:b9:5c",
    ],
}
"""The beginning of it at least."""


class Tree:
    """A recorded tree's files, found by path whatever its case."""

    def __init__(self, folder: Path) -> None:
        self._files = {f"/{file.parent.relative_to(folder)}".lower(): file for file in folder.rglob("index.json")}

    def get(self, path: str | None) -> dict[str, Any]:
        """The resource; an empty one where the tree has none, or an error in its place."""
        file = self._files.get((path or "").partition("#")[0].rstrip("/").lower())
        document = json.loads(file.read_text()) if file is not None else {}
        return {} if "error" in document else document

    def link(self, holder: Any, *keys: str) -> str | None:
        for key in keys:
            holder = holder.get(key) if isinstance(holder, dict) else None
        return holder.get("@odata.id") if isinstance(holder, dict) else None

    def members(self, path: str | None) -> list[dict[str, Any]]:
        return [self.get(item["@odata.id"]) for item in self.get(path).get("Members") or []]

    def all(self, links: Any) -> list[dict[str, Any]]:
        paths = {item["@odata.id"].rstrip("/").lower() for item in links or []}
        return [self.get(path) for path in sorted(paths)]


class Host:
    """The host of a tree, by its links."""

    def __init__(self, folder: Path) -> None:
        self.tree = tree = Tree(folder)
        self.root = tree.get("/redfish/v1")
        first = tree.get(tree.link(self.root, "Systems"))["Members"][0]["@odata.id"]
        self.system = tree.get(HOSTS.get(folder.name, first))
        links = self.system.get("Links") or {}
        self.managers = tree.all(links.get("ManagedBy")) or tree.members(tree.link(self.root, "Managers"))
        self.chassis = tree.all(links.get("Chassis")) or tree.members(tree.link(self.root, "Chassis"))

    def collection(self, key: str) -> list[dict[str, Any]]:
        found = self.tree.members(self.tree.link(self.system, key))
        return [item for item in found if item and (item.get("Status") or {}).get("State") != "Absent"]

    def of_chassis(self, key: str) -> list[dict[str, Any]]:
        return [item for chassis in self.chassis for item in self.tree.members(self.tree.link(chassis, key))]


def told(document: dict[str, Any], key: str) -> Any:
    """The value where it says something."""
    value = document.get(key)
    if isinstance(value, str):
        value = value.strip()
        return None if PLACEHOLDERS.fullmatch(value) else value
    return value


def lower(mac: Any) -> str | None:
    digits = re.sub("[^0-9a-f]", "", str(mac).lower())
    return ":".join(re.findall("..", digits)) if len(digits) == 12 else None


@pytest.fixture(params=TREES)
def folder(request: pytest.FixtureRequest, shared: Path) -> Path:
    return shared / "mockups" / str(request.param)


async def inventory(folder: Path) -> dict[str, Any]:
    async with bench(folder) as bmc:
        return await bmc("inspect.getInventory")


@without_waiting
async def test_the_identity_is_the_systems(folder: Path) -> None:
    host, found = Host(folder), (await inventory(folder))["system"]
    dell = "dell" in folder.name
    for name, key in (("model", "Model"), ("sku", "SKU"), ("uuid", "UUID"), ("partNumber", "PartNumber")):
        assert found[name] == told(host.system, key), key
    assert found["serial"] == told(host.system, "SKU" if dell else "SerialNumber")
    assert found["assetTag"] == told(host.system, "AssetTag")
    gib = (host.system.get("MemorySummary") or {}).get("TotalSystemMemoryGiB")
    assert found["memoryMib"] == (gib * 1024 if gib else None)
    assert found["processorCount"] == ((host.system.get("ProcessorSummary") or {}).get("Count") or None)


@without_waiting
async def test_processors_are_those_of_the_host(folder: Path) -> None:
    wanted = Counter(
        (cpu.get("TotalCores") or None, cpu.get("TotalThreads") or None, told(cpu, "Model"))
        for cpu in Host(folder).collection("Processors")
    )
    found = (await inventory(folder))["processors"]
    assert Counter((cpu["cores"], cpu["threads"], cpu["model"]) for cpu in found) == wanted


@without_waiting
async def test_memory_modules_are_those_of_the_host(folder: Path) -> None:
    modules = [module for module in Host(folder).collection("Memory") if module.get("CapacityMiB") != 0]
    wanted = Counter(
        (module["CapacityMiB"], told(module, "SerialNumber"), told(module, "PartNumber")) for module in modules
    )
    found = (await inventory(folder))["memory"]
    assert Counter((module["sizeMib"], module["serial"], module["partNumber"]) for module in found) == wanted


@without_waiting
async def test_drives_are_those_of_the_storage_or_of_simple_storage(folder: Path) -> None:
    host = Host(folder)
    linked = [link for storage in host.collection("Storage") for link in storage.get("Drives") or []]
    drives = [item for item in host.tree.all(linked) if item and (item.get("Status") or {}).get("State") != "Absent"]
    if not drives:
        drives = [
            device
            for storage in host.collection("SimpleStorage")
            for device in storage["Devices"]
            if (device.get("Status") or {}).get("State") != "Absent" and "Virtual" not in (device.get("Model") or "")
        ]
    found = (await inventory(folder))["drives"]
    keys = (("serial", "SerialNumber"), ("model", "Model"), ("sizeBytes", "CapacityBytes"), ("protocol", "Protocol"))
    wanted = Counter(tuple(told(item, key) for _, key in keys) for item in drives)
    assert Counter(tuple(item[name] for name, _ in keys) for item in found) == wanted
    assert Counter(item["media"] for item in found if item["media"]) == Counter(
        item["MediaType"].lower() for item in drives if item.get("MediaType")
    )
    durable = [name for item in drives for name in item.get("Identifiers") or [] if name.get("DurableName")]
    names = {
        re.sub("[^0-9a-f]", "", name["DurableName"].lower())
        for name in durable
        if name["DurableNameFormat"] in ("EUI", "NAA")
    }
    assert {item["wwn"].removeprefix("eui.").removeprefix("0x") for item in found if item["wwn"]} == names


@without_waiting
async def test_nics_are_the_hosts_each_once_and_none_is_the_bmcs(folder: Path) -> None:
    host, tree = Host(folder), Host(folder).tree
    interfaces = host.collection("EthernetInterfaces")
    own = {lower(item.get("MACAddress")) for item in interfaces if not tree.link(item, "Links", "HostInterface")}
    functions = [
        function
        for card in host.of_chassis("NetworkAdapters")
        for function in tree.members(tree.link(card, "NetworkDeviceFunctions"))
    ]
    own |= {lower((function.get("Ethernet") or {}).get("MACAddress")) for function in functions}
    bmc = {
        lower(item.get("MACAddress"))
        for manager in host.managers
        for item in tree.members(tree.link(manager, "EthernetInterfaces"))
    }
    to_bmc = {lower(item.get("MACAddress")) for item in interfaces if tree.link(item, "Links", "HostInterface")}
    paths = " ".join(
        str(option.get("UefiDevicePath"))
        for option in tree.members(tree.link(host.system, "Boot", "BootOptions"))
        if "USB(" not in str(option.get("UefiDevicePath"))
    )
    found = [nic["mac"] for nic in (await inventory(folder))["nics"] if nic["mac"]]
    assert len(found) == len(set(found))
    assert set(found) >= own - {None}
    assert not set(found) & (bmc | to_bmc)
    only_booted = set(found) - own
    assert all(f"MAC({mac.replace(':', '').upper()}" in paths for mac in only_booted)


@pytest.mark.parametrize("tree", BOOT_ORDER)
@without_waiting
async def test_nics_come_in_boot_order(tree: str, shared: Path) -> None:
    found = (await inventory(shared / "mockups" / tree))["nics"]
    ordered = [nic["mac"] for nic in found if nic["bootPosition"]]
    assert ordered[: len(BOOT_ORDER[tree])] == BOOT_ORDER[tree]
    assert [nic["bootPosition"] for nic in found if nic["bootPosition"]] == list(range(1, len(ordered) + 1))
    assert found[: len(ordered)] == [nic for nic in found if nic["bootPosition"]]


@without_waiting
async def test_links_and_speeds_are_those_of_the_interfaces(folder: Path) -> None:
    by_mac = {lower(item.get("MACAddress")): item for item in Host(folder).collection("EthernetInterfaces")}
    for nic in (await inventory(folder))["nics"]:
        source = by_mac.get(nic["mac"], {})
        if source.get("LinkStatus"):
            assert nic["link"] == {"LinkUp": "up", "LinkDown": "down", "NoLink": "down"}[source["LinkStatus"]]
        if source.get("SpeedMbps"):
            assert nic["speedMbps"] == source["SpeedMbps"]


@without_waiting
async def test_pci_devices_have_the_ids_of_their_functions(folder: Path) -> None:
    host, tree = Host(folder), Host(folder).tree
    devices = host.of_chassis("PCIeDevices") or tree.all(host.system.get("PCIeDevices"))
    devices = [item for item in devices if item and (item.get("Status") or {}).get("State") != "Absent"]
    found = (await inventory(folder))["pci"]
    assert len(found) == len(devices)
    assert Counter(item["serial"] for item in found) == Counter(told(item, "SerialNumber") for item in devices)
    if len(devices) > 64:
        return
    base = 10 if folder.name == "hpe-dl385-ilo5" else 16
    wanted: Counter[str] = Counter()
    for device in devices:
        held = device.get("PCIeFunctions") or (device.get("Links") or {}).get("PCIeFunctions")
        functions = tree.all(held) if isinstance(held, list) else tree.members(tree.link({"held": held}, "held"))
        ids = {str(function.get("VendorId") or "0") for function in functions} or {"0"}
        value = int(max(ids), base)
        wanted[f"0x{value:04x}" if value else "none"] += 1
    assert Counter(item["vendorId"] or "none" for item in found) == wanted


@without_waiting
async def test_chassis_trusted_modules_and_firmware_are_those_of_the_host(folder: Path) -> None:
    host, found = Host(folder), await inventory(folder)
    chassis = [item for item in host.chassis if item]
    assert Counter(item["serial"] for item in found["chassis"]) == Counter(
        told(item, "SerialNumber") for item in chassis
    )
    modules = [item["InterfaceType"] for item in host.system.get("TrustedModules") or []]
    assert [item["kind"] for item in found["trustedModules"]] == modules
    versions = {item["name"]: item["version"] for item in found["firmware"]}
    assert versions.get("BIOS") == told(host.system, "BiosVersion")
    assert versions.get("BMC") in {manager.get("FirmwareVersion") for manager in host.managers}


@without_waiting
async def test_what_a_tree_lacks_is_named_and_nothing_else(folder: Path) -> None:
    found = await inventory(folder)
    assert len(found["unread"]) == UNREAD.get(folder.name, 0), found["unread"]
    assert bool(found["unread"]) == bool(found["incomplete"])


@without_waiting
async def test_it_takes_at_most_a_fifth_more_requests_than_the_least_there_can_be(folder: Path) -> None:
    async with bench(folder) as bmc:
        await bmc("power.getPower")
        before = len(bmc.bmc.journal)
        await bmc("inspect.getInventory")
        taken = len(bmc.bmc.journal) - before
    assert taken <= math.floor(1.2 * LEAST[folder.name]), f"{taken} requests, {LEAST[folder.name]} are the least"
    assert taken >= LEAST[folder.name], "fewer than the least: the count in this test is wrong"
