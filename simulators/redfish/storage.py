"""Volumes on drives: create, initialise and delete, at once or as a task."""

from typing import Any

from simulators.redfish.documents import Answer, JsonObject, linked_path, parent_path, path_key
from simulators.redfish.errors import (
    RedfishError,
    action_parameter_not_in_list,
    property_missing,
    property_unknown,
    property_value_error,
    property_value_not_in_list,
    resource_in_use,
)
from simulators.redfish.machine import Machine, merge_properties
from simulators.redfish.routes import Call, Routes
from simulators.redfish.tasks import TaskEngine

# RAID types with the least number of drives and how many drives' worth of space they leave of n.
RAID_TYPES: dict[str, int] = {
    "None": 1,
    "RAID0": 1,
    "RAID1": 2,
    "RAID5": 3,
    "RAID6": 4,
    "RAID10": 4,
    "RAID50": 6,
    "RAID60": 8,
}
SETTABLE = frozenset(
    {
        "Name",
        "DisplayName",
        "RAIDType",
        "VolumeType",
        "CapacityBytes",
        "Links",
        "Drives",
        "Encrypted",
        "StripSizeBytes",
    }
    | {
        "ReadCachePolicy",
        "WriteCachePolicy",
        "ReadPolicy",
        "WritePolicy",
        "InitializeMethod",
        "AccessCapabilities",
        "Oem",
    }
)


class Storage:
    """Volumes of the storage controllers that the tree has."""

    def __init__(self, machine: Machine, tasks: TaskEngine) -> None:
        self.machine = machine
        self.tasks = tasks

    def register(self, routes: Routes) -> None:
        routes.creations["VolumeCollection"] = self.create
        routes.deletions["Volume"] = self.delete
        routes.actions["Volume.Initialize"] = self.initialize

    def create(self, call: Call) -> Answer:
        """POST to a Volumes collection: 201, or 202 where the body asks for another apply time than at once."""
        body = {name: value for name, value in call.body.items() if not name.startswith("@")}
        drives = self._requested_drives(body)
        raid = body.get("RAIDType", "None" if len(drives) == 1 else "RAID0")
        faults = [property_unknown(name) for name in body if name not in SETTABLE]
        if not drives:
            faults.append(property_missing("Links/Drives"))
        if not isinstance(raid, str) or raid not in RAID_TYPES:
            faults.append(property_value_not_in_list("RAIDType", raid, RAID_TYPES))
        elif len(drives) < RAID_TYPES[raid]:
            faults.append(property_value_error("Links/Drives", f"{raid} needs {RAID_TYPES[raid]} drives or more"))
        faults += [
            property_value_error("Links/Drives", f"there is no drive {path}")
            for path in drives
            if not self.machine.store.find(path)
        ]
        if faults:
            raise RedfishError(400, faults)
        taken = [path for path in drives if (self.machine.property(path, "Links", "Volumes") or [])]
        if taken:
            raise resource_in_use(f"Drive {taken[0]}")
        room = usable_bytes(raid, [int(self.machine.property(path, "CapacityBytes") or 0) for path in drives])
        capacity = body.get("CapacityBytes") or room
        if not isinstance(capacity, int) or (room and capacity > room):
            raise RedfishError(400, property_value_error("CapacityBytes", f"at most {room} bytes are there"))
        collection = call.path.rstrip("/")
        identifier = self.machine.store.free_id(collection)
        path = f"{collection}/{identifier}"
        document: JsonObject = {
            "@odata.type": "#Volume.v1_10_0.Volume",
            "@odata.id": path,
            "Id": identifier,
            "Name": body.get("Name") or f"Volume {identifier}",
            "DisplayName": body.get("DisplayName") or body.get("Name"),
            "RAIDType": raid,
            "CapacityBytes": capacity,
            "Encrypted": bool(body.get("Encrypted", False)),
            "Status": {"State": "Enabled", "Health": "OK"},
            "Identifiers": [],
            "Actions": {"#Volume.Initialize": {"target": f"{path}/Actions/Volume.Initialize"}},
            "Links": {"Drives": [{"@odata.id": drive} for drive in drives]},
        }

        def make() -> None:
            self.machine.store.add_member(collection, document)
            for drive in drives:
                self._link(drive, path, present=True)

        if is_deferred(call.body):
            return self.tasks.start(f"Create volume {identifier}", make)
        make()
        created = self.machine.store.find(path)
        return Answer.of(201, document, {"Location": path, "ETag": created.etag if created else ""})

    def delete(self, call: Call) -> Answer:
        drives = call.document.get("Links", {}).get("Drives") if isinstance(call.document.get("Links"), dict) else []
        self.machine.store.remove_member(parent_path(call.path), call.path)
        for link in drives or []:
            if drive := linked_path(link):
                self._link(drive, call.path, present=False)
        return Answer(204)

    def initialize(self, call: Call) -> Answer:
        kind = call.body.get("InitializeType", call.body.get("InitializeMethod", "Fast"))
        if kind not in ("Fast", "Slow", "Skip", "Background", "Foreground"):
            raise action_parameter_not_in_list(call.action, "InitializeType", kind, ("Fast", "Slow"))
        return self.tasks.start(f"Initialise volume {call.document.get('Id')}", lambda: None)

    def _requested_drives(self, body: JsonObject) -> list[str]:
        """The drives that a body names: in Links (as of Volume 1.6), or at its top as older services have it."""
        holder = body["Links"] if isinstance(body.get("Links"), dict) else body
        links: Any = holder.get("Drives")
        return [path for link in links if (path := linked_path(link))] if isinstance(links, list) else []

    def _link(self, drive: str, volume: str, *, present: bool) -> None:
        if self.machine.store.find(drive) is None:
            return

        def change(document: JsonObject) -> None:
            links = document.setdefault("Links", {})
            volumes = [
                link for link in links.get("Volumes") or [] if path_key(linked_path(link) or "") != path_key(volume)
            ]
            if present:
                volumes.append({"@odata.id": volume})
            merge_properties(links, {"Volumes": volumes})
            if "Volumes@odata.count" in links:
                links["Volumes@odata.count"] = len(volumes)

        self.machine.store.edit(drive, change)


def usable_bytes(raid: str, sizes: list[int]) -> int:
    """Space of an array: that of the smallest drive, times the drives that hold data."""
    smallest, number = min(sizes, default=0), len(sizes)
    data_drives = {
        "RAID1": 1,
        "RAID5": number - 1,
        "RAID6": number - 2,
        "RAID10": number // 2,
        "RAID50": number - 2,
        "RAID60": number - 4,
    }.get(raid, number)
    return smallest * data_drives


def is_deferred(body: JsonObject) -> bool:
    """Whether a body asks for a later time than at once."""
    return str(body.get("@Redfish.OperationApplyTime", "Immediate")) != "Immediate"
