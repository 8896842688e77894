"""RAID controllers, drives and volumes: of every recorded tree, and of documents that are half broken."""

import json
from pathlib import Path
from typing import Any

import pytest

from drivers.redfish.manners import Manners
from drivers.redfish.raid_reading import Shelf, controller_of, drive_of, level_of, levels_of, offers_volumes, shelf_of
from drivers.redfish.vendors import Facts, manners_of
from protocol.errors import ErrorCode
from protocol.shapes.raid import Media, RaidLevel, SpareKind
from simulators.redfish import FaultRule
from tests.drivers.redfish.harness import SYSTEM, Bench, bench, without_waiting
from tests.drivers.redfish.test_mockups import DELL, HPE, LENOVO, TREES

STORAGE = f"{SYSTEM}/Storage/RAID1"
TOWER, ILO6 = "dmtf-tower", "hpe-dl380a-ilo6"
LEVELS = {
    "None": "JBOD", "RAID0": "RAID0", "RAID1": "RAID1", "RAID5": "RAID5", "RAID6": "RAID6", "RAID10": "RAID10",
    "RAID50": "RAID50", "RAID60": "RAID60",
}  # fmt: skip


class Recording:
    """A tree's own files, read as simply as can be."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree

    def get(self, path: str | None) -> dict[str, Any]:
        """The document; paths of HPE differ from its folders in case and in the slash at their end."""
        folder = self.tree
        for part in (path or "-").strip("/").split("/"):
            found = [child for child in folder.iterdir() if child.name.lower() == part.lower()]
            if not found:
                return {}
            folder = found[0]
        file = folder / "index.json"
        return json.loads(file.read_text()) if file.is_file() else {}

    def hosts(self) -> list[dict[str, Any]]:
        """The systems, but for NVIDIA's GPU baseboards."""
        systems = self.members(self.get("/redfish/v1")["Systems"]["@odata.id"])
        return [system for system in systems if "HGX" not in str(system.get("@odata.id"))]

    def storages(self) -> list[dict[str, Any]]:
        """The storages of the host's system that link to volumes of their own."""
        hosts = [system for system in self.hosts() if "Storage" in system]
        found = []
        for member in self.get(hosts[0]["Storage"]["@odata.id"]).get("Members") or [] if hosts else []:
            storage = self.get(member["@odata.id"])
            if storage.get("Volumes", {}).get("@odata.id", "").startswith(member["@odata.id"].rstrip("/") + "/"):
                found.append(storage)
        return found

    def members(self, path: str | None) -> list[dict[str, Any]]:
        return [self.get(member["@odata.id"]) for member in self.get(path).get("Members") or []]

    def drives(self, storage: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """The drives that are there, by the id that they have or that their path gives them."""
        found = {}
        for item in storage.get("Drives") or []:
            drive = self.get(item["@odata.id"])
            if drive and drive.get("Status", {}).get("State") != "Absent":
                found[drive.get("Id") or item["@odata.id"].rpartition("/")[2]] = drive
        return found

    def controllers(self, storage: dict[str, Any]) -> list[dict[str, Any]]:
        return storage.get("StorageControllers") or self.members(storage.get("Controllers", {}).get("@odata.id"))


def without_expansion(bmc: Bench) -> None:
    """A service that does not send members with their collection: each costs a request, and each can fail."""
    bmc.bmc.state.edit("/redfish/v1", lambda root: root.pop("ProtocolFeaturesSupported", None))


def level_in_tree(volume: dict[str, Any]) -> str | None:
    if volume.get("VolumeType") == "RawDevice":
        return "JBOD"
    return LEVELS.get(volume.get("RAIDType") or "")


@pytest.mark.parametrize("tree", TREES)
@without_waiting
async def test_every_tree_shows_its_controllers_drives_and_volumes(tree: str, shared: Path) -> None:
    recording = Recording(shared / "mockups" / tree)
    async with bench(shared / "mockups" / tree) as bmc:
        storages = recording.storages()
        if not any(recording.get(system.get("Storage", {}).get("@odata.id")) for system in recording.hosts()):
            error = await bmc.fails("raid.getRaid")
            assert (error.code, "no storage controllers" in error.message) == (ErrorCode.UNSUPPORTED, True)
            return
        reading = await bmc("raid.getRaid")
        assert [c["id"] for c in reading["controllers"]] == [storage["Id"] for storage in storages]
        for shown, storage in zip(reading["controllers"], storages, strict=True):
            controllers = recording.controllers(storage)
            types = [word for one in controllers for word in one.get("SupportedRAIDTypes") or []]
            assert set(shown["levels"]) == {LEVELS[word] for word in types if word in LEVELS}
            assert shown["firmware"] == (next((one.get("FirmwareVersion") for one in controllers), None) or None)
            assert shown["health"] == ((storage["Status"].get("HealthRollup") or "").lower() or None)
            drives = recording.drives(storage)
            found = {drive["id"]: drive for drive in reading["drives"] if drive["controller"] == storage["Id"]}
            assert found.keys() == drives.keys()
            for name, drive in drives.items():
                assert found[name]["sizeBytes"] == drive["CapacityBytes"]
                assert found[name]["serial"] == drive.get("SerialNumber")
                assert found[name]["media"] == drive["MediaType"].lower()
                assert found[name]["spare"] is None
            volumes = recording.members(storage["Volumes"]["@odata.id"])
            seen = {volume["id"]: volume for volume in reading["volumes"] if volume["controller"] == storage["Id"]}
            assert seen.keys() == {volume["Id"] for volume in volumes}
            for volume in volumes:
                one = seen[volume["Id"]]
                assert one["sizeBytes"] == volume["CapacityBytes"]
                assert one["name"] in (volume.get("DisplayName"), volume["Name"])
                assert one["level"] == level_in_tree(volume)
                assert one["raw"] is (volume.get("VolumeType") == "RawDevice")
                members = [link["@odata.id"].rpartition("/")[2] for link in volume["Links"]["Drives"]]
                assert one["drives"] == members
                for member in members:
                    assert (volume["Id"] in found[member]["volumes"]) is not one["raw"]
        assert reading["foreign"] == []
        assert reading["unread"] == []
        assert {entry.method for entry in bmc.bmc.journal.entries()} <= {"GET", "POST"}


REQUESTS = {
    # Storage, its 3 members, and of the one with drives: Volumes, 2 volumes and 2 drives. It has no controllers.
    DELL: 1 + 3 + 1 + 2 + 2,
    # Storage, its 17 members, and of the one with Volumes: Controllers and the one, Volumes and the one, 2 drives.
    HPE: 1 + 17 + 2 + 2 + 2,
    # Storage, its 2 members, and of each: Volumes and 2 drives. The controllers are told inside.
    LENOVO: 1 + 2 + 2 * (1 + 2),
    # Storage and its one member, which has no Volumes.
    "supermicro-821ge": 1 + 1,
}


@pytest.mark.parametrize("tree", REQUESTS)
@without_waiting
async def test_what_has_no_volumes_costs_one_request_and_the_rest_the_fewest(tree: str, shared: Path) -> None:
    async with bench(shared / "mockups" / tree) as bmc:
        without_expansion(bmc)
        await bmc("power.getPower")
        before = len(bmc.bmc.journal)
        await bmc("raid.getRaid")
        assert len(bmc.bmc.journal) - before == REQUESTS[tree] + 1, "and the system itself"


@pytest.mark.case("B43")
@without_waiting
async def test_b43_seventeen_storages_of_which_one_has_volumes(shared: Path) -> None:
    async with bench(shared / "mockups" / HPE) as bmc:
        reading = await bmc("raid.getRaid")
        (controller,) = reading["controllers"]
        assert (controller["id"], controller["unsuitable"]) == ("DE081000", None)
        assert controller["levels"] == ["RAID0", "RAID1", "RAID5", "RAID6", "RAID10", "RAID50", "RAID60"]
        assert not [path for path in bmc.requests("GET") if "/DA0000" in path and path.count("/") > 6]


@without_waiting
async def test_drives_without_a_controller_make_no_volumes(shared: Path) -> None:
    async with bench(shared / "mockups" / DELL) as bmc:
        controllers = {one["id"]: one for one in (await bmc("raid.getRaid"))["controllers"]}
        assert "attached directly" in controllers["CPU.1"]["unsuitable"]
        assert "no RAID level" in controllers["AHCI.Embedded.1-1"]["unsuitable"]


@without_waiting
async def test_volumes_of_another_storage_are_not_told_twice(shared: Path) -> None:
    async with bench(shared / "mockups" / TOWER) as bmc:
        reading = await bmc("raid.getRaid")
        assert "HAFiberChannel" not in [one["id"] for one in reading["controllers"]]
        assert len({volume["id"] for volume in reading["volumes"]}) == len(reading["volumes"])


@pytest.mark.parametrize(
    ("path", "status", "lost"),
    [
        (f"{STORAGE}/Drives/Disk3", 503, "Disk3"),
        (f"{STORAGE}/Drives/Disk3", 500, "Disk3"),
        (f"{STORAGE}/Volumes/1", 500, "1"),
        (f"{STORAGE}/Volumes", 500, "1"),
    ],
)
@without_waiting
async def test_what_cannot_be_read_is_named_and_the_rest_is_there(path: str, status: int, lost: str) -> None:
    async with bench(faults=[FaultRule(method="GET", path=path, status=status)]) as bmc:
        without_expansion(bmc)
        reading = await bmc("raid.getRaid")
        assert len(reading["unread"]) == 1
        assert path in reading["unread"][0]
        ids = [one["id"] for one in (*reading["drives"], *reading["volumes"])]
        assert lost not in ids
        assert {"Disk1", "Disk2", "Disk4"} <= set(ids)


@without_waiting
async def test_a_link_that_leads_nowhere_names_nothing() -> None:
    async with bench(faults=[FaultRule(method="GET", path=f"{STORAGE}/Drives/Disk3", status=404)]) as bmc:
        reading = await bmc("raid.getRaid")
        assert ([one["id"] for one in reading["drives"]], reading["unread"]) == (["Disk1", "Disk2", "Disk4"], [])


@without_waiting
async def test_levels_are_told_by_the_capabilities_where_the_controller_does_not() -> None:
    async with bench() as bmc:
        capabilities = f"{STORAGE}/Volumes/Capabilities"
        bmc.bmc.state.edit(f"{STORAGE}/Controllers/1", lambda document: document.pop("SupportedRAIDTypes"))
        bmc.bmc.state.put(
            capabilities,
            {"@odata.id": capabilities, "@odata.type": "#Volume.v1_10_0.Volume", "Id": "Capabilities", "Name": "C",
             "RAIDType@Redfish.AllowableValues": ["RAID0", "RAID1", "RAID1Triple"]},
        )  # fmt: skip
        case = {"CapabilitiesObject": {"@odata.id": capabilities}, "UseCase": "VolumeCreation"}
        bmc.bmc.state.patch(f"{STORAGE}/Volumes", {"@Redfish.CollectionCapabilities": {"Capabilities": [case]}})
        assert (await bmc("raid.getRaid"))["controllers"][0]["levels"] == ["RAID0", "RAID1"]


@without_waiting
async def test_only_simple_storage_is_no_raid(shared: Path) -> None:
    async with bench(shared / "mockups" / "dmtf-rackmount1") as bmc:
        error = await bmc.fails("raid.getRaid")
        assert "only SimpleStorage, which has no volumes" in error.message


# Documents


def test_levels_are_those_that_are_known() -> None:
    assert levels_of(["RAID1Triple", "raid5", "None", "RAID1"]) == [RaidLevel.RAID1, RaidLevel.RAID5, RaidLevel.JBOD]


@pytest.mark.parametrize(
    ("volume", "level"),
    [
        ({"RAIDType": "RAID10", "VolumeType": "Mirrored"}, RaidLevel.RAID10),
        ({"RAIDType": "RAID1Triple"}, None),
        ({"RAIDType": None, "VolumeType": "SpannedMirrors"}, RaidLevel.RAID10),
        ({"VolumeType": "RawDevice"}, RaidLevel.JBOD),
        ({"RAIDType": 5}, None),
        ({}, None),
    ],
)
def test_an_older_service_tells_the_level_by_the_volume_type(volume: dict[str, Any], level: RaidLevel | None) -> None:
    assert level_of(volume) is level


def controller(storage: dict[str, Any], controllers: list[dict[str, Any]] | None, **more: Any) -> Any:
    settings = {"types": None, "has_volumes": False, "manners": Manners(), **more}
    return controller_of("/redfish/v1/Systems/1/Storage/X", storage, controllers, **settings)


def dell(mode: str) -> dict[str, Any]:
    return {"Id": "RAID.1", "Oem": {"Dell": {"DellController": {"CurrentControllerMode": mode}}}}


@pytest.mark.case("B43")
def test_b43_a_controller_in_hba_mode_says_how_it_makes_volumes() -> None:
    manners = manners_of(Facts(vendor="dell"))
    shown = controller(dell("HBA"), [{"SupportedRAIDTypes": []}], manners=manners)
    assert shown.mode == "HBA"
    assert shown.unsuitable == (
        "it is in HBA mode and shows its drives as they are: set ControllerMode to RAID in the settings of its "
        "StorageController (iDRAC: Storage, Controllers, Edit), restart the server, and ask again"
    )
    assert controller(dell("RAID"), [{"SupportedRAIDTypes": ["RAID1"]}]).unsuitable is None
    assert controller(dell("EnhancedHBA"), [{"SupportedRAIDTypes": ["RAID1"]}]).unsuitable is None
    assert controller(dell("NotSupported"), [{"SupportedRAIDTypes": ["RAID1"]}]).mode is None


def test_a_controller_that_says_nothing_may_be_tried() -> None:
    assert controller({"Id": "X"}, [{"Name": "C"}]).unsuitable is None
    assert controller({"Id": "X"}, None).unsuitable is None
    assert controller({"Id": "X"}, [], has_volumes=True).unsuitable is None
    assert controller({}, [{"Model": "M", "SupportedRAIDTypes": None}]).id == "X"


@pytest.mark.parametrize("broken", [None, 1, "x", [], {}, [None, 1, {}]])
def test_half_broken_documents_are_read_as_far_as_they_go(broken: Any) -> None:
    storage = {"Id": broken, "Oem": broken, "Links": broken, "Status": broken, "Volumes": {"@odata.id": "/v"}}
    shown = controller(storage, [{"SupportedRAIDTypes": broken, "Oem": broken}])
    drive = {"Id": "1", "Links": broken, "Oem": {"X": broken}, "MediaType": broken, "CapacityBytes": broken}
    volume = {"Id": "1", "Links": {"Drives": broken}, "RAIDType": broken, "CapacityBytes": broken, "Status": broken}
    shelf = shelf_of("/s/1", storage, shown, [("/d/1", drive)], [("/v/1", volume)])
    assert (len(shelf.drives), len(shelf.volumes)) == (1, 1)


def shelf(
    drives: list[dict[str, Any]], volumes: list[dict[str, Any]], storage: dict[str, Any] | None = None
) -> Shelf:
    storage = storage or {"Id": "C"}
    at_drives = [(one.get("at", f"/d/{one['Id']}"), one) for one in drives]
    return shelf_of("/s/C", storage, controller(storage, None), at_drives, [(f"/v/{v['Id']}", v) for v in volumes])


def labelled(words: str) -> dict[str, Any]:
    return {"PhysicalLocation": {"PartLocation": {"ServiceLabel": words}}}


def on(*names: str) -> dict[str, Any]:
    return {"Drives": [{"@odata.id": f"/d/{name}"} for name in names]}


def test_a_drive_belongs_to_the_volumes_that_name_it_and_to_those_that_it_names() -> None:
    drives: list[dict[str, Any]] = [
        {"Id": "1"},
        {"Id": "2", "Links": {"Volumes": [{"@odata.id": "/v/A"}, {"@odata.id": "/v/Gone"}]}},
    ]
    found = shelf(drives, [{"Id": "A", "RAIDType": "RAID1", "Links": on("1")}])
    assert [drive.volumes for drive in found.drives] == [["A"], ["A", "Gone"]]
    assert [drive.state for drive in found.drives] == ["online", "online"]


@pytest.mark.parametrize(
    ("drive", "state", "spare"),
    [
        ({"HotspareType": "Global"}, "spare", SpareKind.GLOBAL),
        ({"HotspareType": "Dedicated"}, "spare", SpareKind.DEDICATED),
        ({"HotspareType": "None"}, "ready", None),
        ({"Status": {"Health": "Critical"}}, "failed", None),
        ({"Status": {"State": "StandbyOffline"}}, "ready", None),
        ({"Oem": {"Dell": {"DellPhysicalDisk": {"RaidStatus": "Foreign"}}}}, "foreign", None),
        ({"Oem": {"Lenovo": {"DriveStatus": "Unconfigured good (Foreign)"}}}, "foreign", None),
    ],
)
def test_a_drive_says_what_it_may_be_used_for(drive: dict[str, Any], state: str, spare: SpareKind | None) -> None:
    (found,) = shelf([{"Id": "1", **drive}], []).drives
    assert (found.state, found.spare) == (state, spare)


def test_what_the_machine_boots_from_is_known_from_the_controller_the_volume_or_the_boot_option() -> None:
    volumes = [{"Id": "A", "RAIDType": "RAID1", "Links": on("1")}]
    by_dell = {"Id": "C", "Oem": {"Dell": {"DellController": {"BootVirtualDiskFQDD": "A"}}}}
    assert shelf([{"Id": "1"}, {"Id": "2"}], volumes, by_dell).drives[0].boot
    by_use = [{**volumes[0], "VolumeUsage": "SystemData"}]
    assert [drive.boot for drive in shelf([{"Id": "1"}, {"Id": "2"}], by_use).drives] == [True, False]
    storage = {"Id": "C"}
    by_option = shelf_of("/s/C", storage, controller(storage, None), [("/d/1", {"Id": "1"})], [], ["/d/1"])
    assert by_option.drives[0].boot


def test_bays_of_two_enclosures_with_one_number_get_names_of_their_own() -> None:
    drives = [{"Id": "0", "at": "/Chassis/E1/Drives/0"}, {"Id": "0", "at": "/Chassis/E2/Drives/0"}, {"Id": "1"}]
    found = shelf(drives, [])
    assert [drive.id for drive in found.drives] == ["E1/0", "E2/0", "1"]
    assert found.drive_paths["E2/0"] == "/Chassis/E2/Drives/0"


@pytest.mark.parametrize(
    ("drive", "storage", "enclosure"),
    [
        ({"Links": {"Chassis": {"@odata.id": "/redfish/v1/Chassis/Internal.0-1"}}}, {}, "Internal.0-1"),
        (labelled("Slot=2:Port=1I:Box=3:Bay=1"), {}, "Slot=2:Port=1I:Box=3"),
        ({}, {"Links": {"Enclosures": [{"@odata.id": "/redfish/v1/Chassis/1"}]}}, "1"),
        (labelled("Bay 4"), {}, None),
        ({}, {}, None),
    ],
)
def test_the_enclosure_is_the_drive_s_chassis_or_its_place(
    drive: dict[str, Any], storage: dict[str, Any], enclosure: str | None
) -> None:
    found = drive_of("/d/1", {"Id": "1", **drive}, "C", storage)
    assert found is not None
    assert found.enclosure == enclosure


def test_media_is_told_by_the_protocol_or_the_speed_where_nothing_else_tells_it() -> None:
    for document, media in (
        ({"MediaType": "SMR"}, Media.HDD),
        ({"Protocol": "NVMe"}, Media.SSD),
        ({"RotationSpeedRPM": 7200}, Media.HDD),
        ({"RotationSpeedRPM": 0}, None),
    ):
        found = drive_of("/d/1", document, "C", {})
        assert found is not None
        assert (found.id, found.media) == ("1", media)


def test_a_storage_whose_volumes_lie_elsewhere_has_none_of_its_own() -> None:
    own = {"Volumes": {"@odata.id": "/redfish/v1/systems/1/storage/a/volumes/"}}
    paths = ["/redfish/v1/Systems/1/Storage/A", "/redfish/v1/Systems/1/Storage/AB"]
    assert offers_volumes(paths[0], own, paths)
    assert not offers_volumes(paths[1], own, paths)
    assert not offers_volumes(paths[0], {}, paths)
