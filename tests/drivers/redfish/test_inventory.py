"""The inventory out-of-band: NICs in boot order, and what is left when parts cannot be read."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.redfish.boot_choices import boot_choices
from drivers.redfish.inventory import (
    chassis_identity,
    controller_firmware,
    drive,
    memory_module,
    pci_device,
    pci_id,
    processor,
    simple_drives,
    system_identity,
    trusted_modules,
    whole,
    world_wide_name,
)
from drivers.redfish.mac_addresses import mac_of, macs_in
from drivers.redfish.manners import Manners
from drivers.redfish.nics import Card, Draft, drafts_of, put_together
from drivers.redfish.vendors import Facts, manners_of
from protocol.errors import ErrorCode
from simulators.redfish import Effect, FaultRule
from simulators.redfish.faults import Drop
from tests.drivers.redfish.harness import SYSTEM, Bench, bench, without_waiting

INTERFACES = f"{SYSTEM}/EthernetInterfaces"
MANAGER = "/redfish/v1/Managers/1"
ADAPTERS = "/redfish/v1/Chassis/1/NetworkAdapters"
FIRST, SECOND = "02:aa:00:00:00:01", "02:aa:00:00:00:02"


async def inventory(bmc: Bench, **options: Any) -> dict[str, Any]:
    return await bmc("inspect.getInventory", **options)


def macs(result: dict[str, Any]) -> list[str | None]:
    return [nic["mac"] for nic in result["nics"]]


def unread(result: dict[str, Any]) -> dict[str, str]:
    return {line["path"]: line["reason"] for line in result["unread"]}


def add_member(bmc: Bench, collection: str, document: dict[str, Any]) -> None:
    path = f"{collection}/{document['Id']}"
    bmc.bmc.state.put(path, {**document, "@odata.id": path})
    bmc.bmc.state.edit(collection, lambda body: body["Members"].append({"@odata.id": path}))


@without_waiting
async def test_a_whole_machine_is_told_in_one_shape() -> None:
    async with bench() as bmc:
        result = await inventory(bmc)
        assert result["system"]["serial"] == "RWSIM0000001"
        assert (result["system"]["coreCount"], result["system"]["memoryMib"]) == (64, 262_144)
        assert [cpu["socket"] for cpu in result["processors"]] == ["CPU 1", "CPU 2"]
        assert len(result["memory"]) == 8
        assert next((d["serial"], d["media"], d["bay"]) for d in result["drives"]) == ("RWSSD000001", "ssd", "Bay 1")
        assert macs(result) == [FIRST, SECOND]
        assert result["nics"][0]["model"] == "RW-NIC-25G"
        assert {line["name"]: line["version"] for line in result["firmware"]}["BMC"] == "2.13.0"
        assert (result["unread"], result["incomplete"]) == ([], [])


@without_waiting
async def test_no_change_is_sent_and_no_resource_is_read_twice() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        before = len(bmc.bmc.journal)
        await inventory(bmc)
        asked = list(bmc.bmc.journal)[before:]
        assert {entry.method for entry in asked} == {"GET"}
        assert len({entry.path for entry in asked}) == len(asked)
        # The system, its manager and chassis; six collections of the system and its card, the ports of the card, the
        # BMC's own interfaces; four drives.
        assert len(asked) == 15


@without_waiting
async def test_without_expand_each_member_is_read_by_itself_and_the_result_is_the_same() -> None:
    async with bench() as bmc:
        expected = await inventory(bmc)
    plain = FaultRule(method="GET", path="/redfish/v1", merge={"ProtocolFeaturesSupported": None})
    async with bench(faults=[plain]) as bmc:
        assert await inventory(bmc) == expected
        assert f"{SYSTEM}/Memory/DIMM8" in bmc.requests("GET")


@pytest.mark.parametrize("status", [400, 500, 501, 503])
@without_waiting
async def test_an_expand_that_is_offered_and_refused_costs_nothing_of_the_result(status: int) -> None:
    async with bench() as bmc:
        expected = await inventory(bmc)
        # The rule hits the first request for each collection only, which is the one with the query.
        for path in ("Memory", "Processors", "Storage", "EthernetInterfaces"):
            bmc.bmc.faults.add(FaultRule(method="GET", path=f"{SYSTEM}/{path}", status=status, count=1))
        assert await inventory(bmc) == expected


@without_waiting
async def test_a_bmc_whose_expanded_members_lack_fields_is_read_member_by_member() -> None:
    ami = FaultRule(method="GET", path="/redfish/v1", merge={"Vendor": "AMI"})
    async with bench(faults=[ami]) as bmc:
        await inventory(bmc)
        assert not [entry for entry in bmc.bmc.journal if "expand" in entry.query]


HALVES = {
    "processors": [f"{SYSTEM}/Processors*"],
    "memory": [f"{SYSTEM}/Memory*"],
    "drives": [f"{SYSTEM}/Storage*"],
    "nics": [INTERFACES, f"{SYSTEM}/BootOptions*", f"{MANAGER}/EthernetInterfaces*", f"{ADAPTERS}*"],
    "chassis": ["/redfish/v1/Chassis/1"],
    "firmware": [MANAGER],
}


@pytest.mark.case("B37")
@pytest.mark.parametrize("status", [404, 503])
@pytest.mark.parametrize("part", HALVES)
@without_waiting
async def test_b37_a_part_that_cannot_be_read_is_named_and_the_others_are_there(part: str, status: int) -> None:
    async with bench() as bmc:
        whole_machine = await inventory(bmc)
        for path in HALVES[part]:
            bmc.bmc.faults.add(FaultRule(method="GET", path=path, status=status))
        result = await inventory(bmc)
        assert part in result["incomplete"]
        assert all(line["reason"] for line in result["unread"])
        others = {"processors", "memory", "drives", "system"} - {part}
        assert {key: result[key] for key in others} == {key: whole_machine[key] for key in others}


@pytest.mark.case("B37")
@without_waiting
async def test_b37_half_of_all_resources_away_leaves_the_other_half() -> None:
    async with bench() as bmc:
        away = [f"{SYSTEM}/Memory/DIMM{n}" for n in (2, 4, 6, 8)] + [f"{SYSTEM}/Storage/RAID1/Drives/Disk2"]
        for number, path in enumerate(away):
            bmc.bmc.faults.add(FaultRule(method="GET", path=path, status=404 if number % 2 else 503))
            bmc.bmc.state.remove(path)
        result = await inventory(bmc)
        assert [module["slot"] for module in result["memory"]] == ["DIMM1", "DIMM3", "DIMM5", "DIMM7"]
        assert [item["name"] for item in result["drives"]] == ["Disk1", "Disk3", "Disk4"]
        assert set(unread(result)) == set(away)


@pytest.mark.case("B37")
@without_waiting
async def test_b37_a_member_that_answers_503_is_skipped_with_the_bmcs_own_words() -> None:
    async with bench() as bmc:
        path = f"{SYSTEM}/Storage/RAID1/Drives/Disk2"
        said = {"error": {"code": "SYS518", "message": "Data sources are unavailable."}}
        bmc.bmc.faults.add(FaultRule(method="GET", path=path, status=503, body=said))
        result = await inventory(bmc)
        assert [item["name"] for item in result["drives"]] == ["Disk1", "Disk3", "Disk4"]
        assert "Data sources are unavailable." in unread(result)[path]


@without_waiting
async def test_a_bmc_that_is_busy_for_a_moment_is_waited_for() -> None:
    async with bench() as bmc:
        expected = await inventory(bmc)
        bmc.bmc.faults.add(FaultRule(method="GET", path=f"{SYSTEM}/Processors", status=503, count=3))
        assert await inventory(bmc) == expected


@without_waiting
async def test_a_bmc_that_stays_busy_is_waited_for_once_and_not_for_every_resource() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        for path in ("Processors*", "Memory*", "Storage*", "EthernetInterfaces*", "BootOptions*"):
            bmc.bmc.faults.add(FaultRule(method="GET", path=f"{SYSTEM}/{path}", status=503))
        result = await inventory(bmc, timeout=60)
        assert result["firmware"]
        assert set(result["incomplete"]) == {"processors", "memory", "drives", "nics"}


@without_waiting
async def test_what_no_time_is_left_for_is_named() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        bmc.bmc.faults.add(FaultRule(method="GET", path=f"{SYSTEM}/Memory", latency=20))
        result = await inventory(bmc, timeout=20)
        assert len(result["processors"]) == 2
        assert result["drives"] == []
        assert "time was nearly over" in unread(result)[f"{SYSTEM}/Storage"]


@without_waiting
async def test_a_bmc_that_has_gone_is_an_error_and_no_empty_machine() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        bmc.bmc.faults.add(FaultRule(method="GET", path="/redfish/v1/*", after=2, drop=Drop.BEFORE))
        error = await bmc.fails("inspect.getInventory")
        assert error.code in (ErrorCode.UNREACHABLE, ErrorCode.TIMEOUT)


@without_waiting
async def test_a_refused_login_is_no_unread_resource() -> None:
    async with bench(password="wrong") as bmc:
        assert (await bmc.fails("inspect.getInventory")).code is ErrorCode.AUTH_FAILED


@pytest.mark.case("B37")
@pytest.mark.parametrize(
    "fault",
    [
        FaultRule(method="GET", path=INTERFACES, set={"/Members": None}),
        FaultRule(method="GET", path=f"{SYSTEM}/Memory", set={"/Members": [None, 7, {}, {"@odata.id": None}]}),
        FaultRule(method="GET", path=f"{SYSTEM}/Processors", set={"/Members": {"@odata.id": "/x"}}),
        FaultRule(method="GET", path="/redfish/v1/*", merge={"Members@odata.count": None}),
        FaultRule(method="GET", path="/redfish/v1/*", set={"/Name": None, "/Id": None}),
        FaultRule(method="GET", path=SYSTEM, merge={"UUID": "", "Links": {"Chassis": None}}),
        FaultRule(method="GET", path=SYSTEM, set={"/Boot": None, "/TrustedModules": {"a": 1}, "/MemorySummary": 3}),
        FaultRule(method="GET", path=f"{ADAPTERS}*", set={"/Controllers": "none", "/Ports": []}),
    ],
    ids=lambda fault: str(fault.set or fault.merge),
)
@without_waiting
async def test_b37_what_keeps_to_no_schema_is_passed_over(fault: FaultRule) -> None:
    async with bench(faults=[fault]) as bmc:
        result = await inventory(bmc)
        assert len(result["drives"]) == 4
        assert result["system"]["model"] == "RW-1U Simulated"


@pytest.mark.case("B37")
@without_waiting
async def test_b37_huawei_a_first_reading_without_managedby_still_finds_the_bmc() -> None:
    missing = FaultRule(
        method="GET", path=SYSTEM, sequence=(Effect(merge={"Links": {"ManagedBy": None}}), Effect()), count=1
    )
    async with bench(faults=[missing]) as bmc:
        assert {line["name"] for line in (await inventory(bmc))["firmware"]} >= {"BIOS", "BMC"}


@without_waiting
async def test_hpe_network_adapters_that_answer_400_leave_the_interfaces() -> None:
    async with bench() as bmc:
        bmc.bmc.faults.add(FaultRule(method="GET", path=ADAPTERS, status=400))
        result = await inventory(bmc)
        assert macs(result) == [FIRST, SECOND]
        assert ADAPTERS in unread(result)


@without_waiting
async def test_cisco_without_ethernet_interfaces_the_ports_of_the_cards_tell_the_addresses() -> None:
    async with bench() as bmc:
        bmc.bmc.state.edit(SYSTEM, lambda document: document.pop("EthernetInterfaces"))
        for port in (1, 2):
            own = {"Ethernet": {"AssociatedMACAddresses": [f"02-AA-00-00-00-0{port}"]}}
            bmc.bmc.state.patch(f"{ADAPTERS}/1/Ports/{port}", own)
        result = await inventory(bmc)
        assert macs(result) == [FIRST, SECOND]
        assert [nic["name"] for nic in result["nics"]] == ["1/1", "1/2"]
        assert result["nics"][0]["link"] == "up"


@without_waiting
async def test_the_bmcs_own_interfaces_are_not_the_hosts() -> None:
    async with bench() as bmc:
        own = {"Id": "bmc", "MACAddress": "02:AA:00:00:10:01"}
        to_bmc = {
            "Id": "usb0",
            "MACAddress": "02:AA:00:00:20:02",
            "Links": {"HostInterface": {"@odata.id": f"{MANAGER}/HostInterfaces/1"}},
        }
        add_member(bmc, INTERFACES, own)
        add_member(bmc, INTERFACES, to_bmc)
        assert macs(await inventory(bmc)) == [FIRST, SECOND]


@without_waiting
async def test_an_address_is_listed_once_and_a_vlan_is_not_its_port() -> None:
    async with bench() as bmc:
        add_member(
            bmc,
            INTERFACES,
            {"Id": "0vlan", "EthernetInterfaceType": "Virtual", "MACAddress": "02:AA:00:00:00:01"},
        )
        assert [nic["name"] for nic in (await inventory(bmc))["nics"]] == ["1", "2"]


@without_waiting
async def test_nics_come_in_the_firmwares_boot_order() -> None:
    async with bench() as bmc:
        network = {
            "Boot0007": "PciRoot(0x0)/Pci(0x1C,0x1)/MAC(02AA00000002,0x1)/IPv4(0.0.0.0)",
            "Boot0008": "PciRoot(0x0)/Pci(0x1C,0x0)/MAC(02AA00000001,0x1)/IPv4(0.0.0.0)",
        }
        for name, path in network.items():
            option = {"Id": name, "BootOptionReference": name, "UefiDevicePath": path}
            add_member(bmc, f"{SYSTEM}/BootOptions", option)
        bmc.bmc.state.edit(SYSTEM, lambda d: d["Boot"].update(BootOrder=["Boot0007: PXE", "Boot0001", "Boot0008"]))
        result = await inventory(bmc)
        assert [(nic["mac"], nic["bootPosition"]) for nic in result["nics"]] == [(SECOND, 1), (FIRST, 2)]


@without_waiting
async def test_simple_storage_tells_the_drives_where_storage_cannot() -> None:
    async with bench() as bmc:
        simple = f"{SYSTEM}/SimpleStorage"
        device = {"Name": "Bay 1", "Model": "RW-SSD-960", "CapacityBytes": 960197124096}
        backplane = {"Name": "Backplane", "CapacityBytes": None}
        bmc.bmc.state.put(simple, {"@odata.id": simple, "Members": [{"@odata.id": f"{simple}/1"}]})
        bmc.bmc.state.put(f"{simple}/1", {"@odata.id": f"{simple}/1", "Id": "1", "Devices": [device, backplane]})
        bmc.bmc.state.edit(SYSTEM, lambda document: document.update(SimpleStorage={"@odata.id": simple}))
        bmc.bmc.faults.add(FaultRule(method="GET", path=f"{SYSTEM}/Storage", status=404))
        result = await inventory(bmc)
        assert [(d["name"], d["sizeBytes"]) for d in result["drives"]] == [("Bay 1", 960197124096)]
        assert f"{SYSTEM}/Storage" in unread(result)


@without_waiting
async def test_a_page_that_is_refused_leaves_the_pages_before() -> None:
    async with bench() as bmc:
        more = f"{SYSTEM}/Memory?$skip=8"
        bmc.bmc.state.edit(f"{SYSTEM}/Memory", lambda document: document.update({"Members@odata.nextLink": more}))
        bmc.bmc.faults.add(FaultRule(method="GET", path=f"{SYSTEM}/Memory", after=1, status=501))
        result = await inventory(bmc)
        assert len(result["memory"]) == 8
        assert list(unread(result)) == [more]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("E6:C0:95:C8:E1:6C", "e6:c0:95:c8:e1:6c"),
        ("ca-2f-d0-cf-e1-10", "ca:2f:d0:cf:e1:10"),
        ("26206DF3A501", "26:20:6d:f3:a5:01"),
        ("2620.6df3.a501", "26:20:6d:f3:a5:01"),
        ("Not Available", None),
        ("", None),
        (None, None),
        ("00:00:00:00:00:00", None),
        ("ff:ff:ff:ff:ff:ff", None),
        ("01:00:5e:00:00:01", None),
        ("9e8d:cfff:ff03:f01e", None),
        ("e6:c0:95:c8:e1", None),
    ],
)
def test_mac_addresses_are_read_in_every_spelling(written: str | None, meant: str | None) -> None:
    assert mac_of(written) == meant


def test_the_addresses_in_a_boot_options_name_are_found() -> None:
    name = "(B26/D0/F0) UEFI PXE IPv4 Nvidia Network Adapter - E6:C0:95:C8:E1:6C - E6C095C8E16C"
    assert macs_in(name) == ["e6:c0:95:c8:e1:6c"]
    assert macs_in("UEFI PXEv4 (MAC:56C059286998)") == ["56:c0:59:28:69:98"]
    assert macs_in("Windows Boot Manager 20200101") == []


def option(reference: str, **more: object) -> dict[str, Any]:
    return {"BootOptionReference": reference, **more}


def test_boot_options_are_taken_in_order_by_reference_or_id_and_only_the_enabled() -> None:
    options = {
        "/o/1": option("Boot0001", DisplayName="a"),
        "/o/2": option("Boot0002", DisplayName="b", BootOptionEnabled=False),
        "/o/0003": {"DisplayName": "c"},
    }
    order = ["Boot0003", "Boot0002", "Boot0001: Ubuntu", "Boot0009", "Boot0003"]
    assert [choice.name for choice in boot_choices(order, options)] == ["c", "a"]


def test_a_card_that_only_the_boot_order_knows_is_a_nic_and_the_bmcs_usb_network_is_none() -> None:
    options = {
        "/o/1": option("Boot0001", UefiDevicePath="PciRoot(0x2)/Pci(0x0,0x0)/MAC(96F4DE1E48FC,0x1)/IPv4(0.0.0.0)"),
        "/o/2": option("Boot0002", UefiDevicePath="PciRoot(0x0)/Pci(0x14,0x0)/USB(0xA,0x0)/MAC(161C86268648,0x0)"),
        "/o/3": option("Boot0003", UefiDevicePath="MAC(56C059286998,0x1)/IPv4(0.0.0.0)"),
    }
    choices = boot_choices(["Boot0002", "Boot0003", "Boot0001"], options)
    (nic,) = put_together([], [], choices, frozenset(), Manners())
    assert (nic.mac, nic.boot_position, nic.pci) == ("96:f4:de:1e:48:fc", 1, "PciRoot(0x2)/Pci(0x0,0x0)")


def test_a_boot_option_is_tied_to_its_nic_by_path_by_link_or_by_the_makers_name() -> None:
    drafts = [
        Draft("NIC.Slot.5-1", mac="02:00:00:00:00:01"),
        Draft("NIC.Integrated.1-2-1", mac="02:00:00:00:00:02"),
        Draft("by path", mac="02:00:00:00:00:03", pci="PciRoot(0x1)/Pci(0x1,0x3)/Pci(0x0,0x0)"),
        Draft("by link", mac="02:00:00:00:00:04", function="/functions/4"),
    ]
    options = {
        "/o/1": option("B1", RelatedItem=[{"@odata.id": "/functions/4"}]),
        "/o/2": option("B2", UefiDevicePath="PciRoot(0x1)/Pci(0x1,0x3)/Pci(0x0,0x0)/IPv4(0.0.0.0)"),
        "/o/3": option("B3", DisplayName="Integrated NIC 1 Port 2 Partition 1"),
        "/o/4": option("B4", DisplayName="HTTP Device 1: NIC in Slot 5 Port 1"),
    }
    choices = boot_choices(["B1", "B2", "B3", "B4"], options)
    dell = manners_of(Facts(vendor="dell"))
    found = put_together(drafts, [], choices, frozenset(), dell)
    assert [nic.name for nic in found] == ["by link", "by path", "NIC.Integrated.1-2-1", "NIC.Slot.5-1"]


def test_nics_outside_the_boot_order_follow_with_2_before_10() -> None:
    drafts = [Draft(name, mac=f"02:00:00:00:00:{number:02x}") for number, name in enumerate(("10", "9", "2"), 1)]
    assert [nic.name for nic in put_together(drafts, [], [], frozenset(), Manners())] == ["2", "9", "10"]


def test_an_infiniband_function_without_a_mac_is_a_nic_of_its_card() -> None:
    card = Card("/a/NIC2", {"Id": "NIC2"}, functions=[("/a/NIC2/f/3", {"Id": "3", "NetDevFuncType": "InfiniBand"})])
    (nic,) = put_together([], [card], [], frozenset(), Manners())
    assert (nic.name, nic.mac, nic.technology, nic.adapter) == ("NIC2/3", None, "infiniband", "NIC2")


@pytest.mark.parametrize(
    ("word", "decimal", "meant"),
    [
        ("0x10DE", False, "0x10de"),
        ("0X102B", True, "0x102b"),
        ("4139", True, "0x102b"),
        ("8086", False, "0x8086"),
        ("0x0000", False, None),
        ("0xFFFF", False, None),
        ("nil", False, None),
        (None, False, None),
    ],
)
def test_pci_ids_have_one_form(word: str | None, decimal: bool, meant: str | None) -> None:
    assert pci_id({"VendorId": word}, "VendorId", Manners(decimal_pci_ids=decimal)) == meant


@pytest.mark.parametrize(
    ("name", "form", "meant"),
    [
        ("5000C500A1B2C3D4", "NAA", "0x5000c500a1b2c3d4"),
        ("0x5000C500A1B2C3D4", "NAA", "0x5000c500a1b2c3d4"),
        ("E3:64:00:97:4A:42:54:79", "EUI", "eui.e36400974a425479"),
        ("eui.0025385B71B0A1C2", "EUI", "eui.0025385b71b0a1c2"),
        (None, "NAA", None),
        ("b68645bf-e19e-3b01", "UUID", None),
    ],
)
def test_world_wide_names_are_written_as_linux_does(name: str | None, form: str, meant: str | None) -> None:
    assert world_wide_name({"Identifiers": [{"DurableName": name, "DurableNameFormat": form}]}) == meant


def test_empty_places_are_no_parts() -> None:
    absent = {"Id": "1", "Status": {"State": "Absent"}}
    assert processor(absent) is None
    assert memory_module(absent) is None
    assert memory_module({"Id": "2", "CapacityMiB": 0}) is None
    assert drive(absent, "/d/1", None) is None


def test_what_a_simple_storage_lists_beside_drives_is_left_out() -> None:
    devices = [
        {"Name": "NVMe 0", "CapacityBytes": 960},
        {"Name": "Backplane", "CapacityBytes": None},
        {"Name": "USB 1", "Model": "Virtual Cdrom Device", "CapacityBytes": 2048},
        {"Name": "Bay 3", "Status": {"State": "Absent"}},
        None,
    ]
    assert [item.name for item in simple_drives({"Devices": devices})] == ["NVMe 0"]


def test_a_large_capacity_keeps_every_digit() -> None:
    assert whole({"CapacityBytes": 20266198323167230}, "CapacityBytes") == 20266198323167230
    assert whole({"CapacityBytes": 1e300}, "CapacityBytes") is None
    assert whole({"CapacityBytes": True}, "CapacityBytes") is None


_KEYS = st.sampled_from(
    [
        *("@odata.id", "Id", "Name", "Links", "Status", "State", "Health", "Members", "Controllers", "Ports", "Boot"),
        *("Ethernet", "MACAddress", "NetDevFuncType", "NetworkDeviceFunction", "PhysicalPortAssignment", "Location"),
        *(
            "PartLocation",
            "ServiceLabel",
            "Info",
            "Oem",
            "Identifiers",
            "DurableName",
            "CapacityBytes",
            "CapacityMiB",
        ),
        *("AllowedSpeedsMHz", "TrustedModules", "InterfaceType", "Devices", "StorageControllers", "FirmwareVersion"),
        *("UefiDevicePath", "DisplayName", "BootOptionReference", "RelatedItem", "ControllerCapabilities", "Slot"),
        *("NetworkDeviceFunctionCount", "AssociatedMACAddresses", "CurrentSpeedGbps", "SpeedMbps", "VendorId"),
    ]
)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["NAA", "02:00:00:00:00:01", "PciRoot(0x0)/Pci(0x0,0x0)/MAC(020000000001,0x1)", "/a/b", "Boot0001"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=20,
)
_DOCUMENTS = st.dictionaries(_KEYS, _VALUES, max_size=8)


@given(_DOCUMENTS, _DOCUMENTS, _DOCUMENTS)
def test_no_document_whatever_breaks_the_parsing(
    one: dict[str, Any], two: dict[str, Any], three: dict[str, Any]
) -> None:
    manners = Manners()
    for parse in (processor, memory_module, simple_drives, chassis_identity, trusted_modules, controller_firmware):
        parse(one)
    drive(one, "/d", None)
    pci_device(one, two, manners)
    system_identity(one, manners, [], [])
    card = Card("/a", one, functions=[("/a/f/1", two)], ports=[("/a/p/1", three)])
    choices = boot_choices(["Boot0001"], {"/o/Boot0001": three})
    drafts = drafts_of([("/i/1", one), ("/i/2", two)])
    found = put_together(drafts, [card], choices, frozenset(), manners)
    named = [nic.mac for nic in found if nic.mac is not None]
    assert len(named) == len(set(named))
