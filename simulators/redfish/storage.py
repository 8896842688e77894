"""Volumes on drives: made, deleted and reset, at once, by a task, or with the next start of the host."""

from functools import partial
from itertools import count
from typing import Any

from simulators.redfish.documents import Answer, JsonObject, linked_path, parent_path, path_key
from simulators.redfish.errors import (
    Message,
    RedfishError,
    action_parameter_missing,
    action_parameter_not_in_list,
    property_missing,
    property_unknown,
    property_value_error,
    property_value_not_in_list,
    resource_in_use,
)
from simulators.redfish.machine import Machine, merge_properties
from simulators.redfish.properties import annotated, split_patch
from simulators.redfish.routes import Call, Routes
from simulators.redfish.storage_jobs import APPLY_TIME, AT_ONCE, StorageJobs
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
# What the deprecated VolumeType stands for where no RAIDType is given (Volume 1.3.1).
VOLUME_TYPES = {
    "NonRedundant": "RAID0",
    "Mirrored": "RAID1",
    "StripedWithParity": "RAID5",
    "SpannedMirrors": "RAID10",
    "SpannedStripesWithParity": "RAID50",
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
        "MediaSpanCount",
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
        self.jobs = StorageJobs(machine, tasks)
        self._promised: dict[str, str] = {}
        """Drives of volumes that are still to be made."""

    def register(self, routes: Routes) -> None:
        routes.creations["VolumeCollection"] = self.create
        routes.deletions["Volume"] = self.delete
        routes.patches["Volume"] = self.patch
        routes.actions["Volume.Initialize"] = self.initialize
        routes.actions["Storage.ResetToDefaults"] = self.reset_to_defaults
        routes.actions["DellRaidService.ResetConfig"] = self.reset_config
        routes.actions["DellRaidService.ClearForeignConfig"] = self.clear_foreign

    def create(self, call: Call) -> Answer:
        """POST to a Volumes collection: 201, or 202 where it is made by a task or with the next start."""
        collection = call.path.rstrip("/")
        storage = parent_path(collection)
        self.jobs.check_free(storage)
        time = self.jobs.time_of(call.body, call.document)
        body = {name: value for name, value in call.body.items() if not name.startswith("@")}
        drives = self._requested_drives(body)
        raid = self._raid_type(body, drives)
        faults = self._faults(call.document, body, raid, drives)
        if faults:
            raise RedfishError(400, faults)
        taken = [path for path in drives if self._is_taken(path)]
        if taken:
            raise resource_in_use(f"Drive {taken[0]}")
        room = usable_bytes(raid, [int(self.machine.property(path, "CapacityBytes") or 0) for path in drives])
        capacity = body.get("CapacityBytes") or room
        if not isinstance(capacity, int) or (room and capacity > room):
            raise RedfishError(400, property_value_error("CapacityBytes", f"at most {room} bytes are there"))
        identifier = self._free_id(collection)
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
                self._promised.pop(path_key(drive), None)
                self._link(drive, path, present=True)

        self._promised |= {path_key(drive): path for drive in drives}
        answer = self.jobs.do(call, storage, f"Create volume {identifier}", time, make)
        if answer is not None:
            return answer
        created = self.machine.store.find(path)
        return Answer.of(201, document, {"Location": path, "ETag": created.etag if created else ""})

    def delete(self, call: Call) -> Answer:
        """DELETE of a volume: 204, or 202 where a task does it. A drive that is shown as it is cannot be deleted."""
        collection = parent_path(call.path)
        storage = parent_path(collection)
        if call.document.get("VolumeType") == "RawDevice":
            raise RedfishError(400, Message("OperationNotAllowed", "This is a drive and no volume that was made."))
        self.jobs.check_free(storage)
        asked = call.request.json_object() or {}
        if APPLY_TIME in asked and self.machine.behaviour.volume_deletion_refuses_apply_time:
            raise RedfishError(400, property_unknown(APPLY_TIME))
        time = self.jobs.time_of(asked, self.machine.store.document(collection) or {})
        work = partial(self._remove, call.path)
        return self.jobs.do(call, storage, f"Delete volume {call.document.get('Id')}", time, work) or Answer(204)

    def patch(self, call: Call) -> Answer:
        """PATCH of a volume; dedicated spares are drives that are free."""
        links = call.body.get("Links")
        spares = links.get("DedicatedSpareDrives") if isinstance(links, dict) else None
        if not isinstance(spares, list) or len(call.body) > 1:
            accepted, messages = split_patch(call.document, call.body, "Volume")
            changed = self.machine.store.edit(call.path, lambda document: merge_properties(document, accepted))
            return Answer.of(200, annotated(changed, messages))
        drives = [path for link in spares if (path := linked_path(link))]
        for drive in drives:
            if self.machine.store.find(drive) is None or self._is_taken(drive):
                raise RedfishError(400, property_value_error("Links/DedicatedSpareDrives", f"{drive} is not free"))
        for drive in drives:
            self.machine.store.edit(drive, lambda document: document.update(HotspareType="Dedicated"))
        changed = self.machine.store.edit(
            call.path,
            lambda document: document.setdefault("Links", {}).update(
                {"DedicatedSpareDrives": [{"@odata.id": drive} for drive in drives]}
            ),
        )
        return Answer.of(200, changed)

    def reset_to_defaults(self, call: Call) -> Answer | None:
        """Storage.ResetToDefaults: ResetAll deletes the volumes, PreserveVolumes keeps them (Storage 1.11)."""
        kind = call.body.get("ResetType")
        if kind is None:
            raise action_parameter_missing(call.action, "ResetType")
        if kind not in ("ResetAll", "PreserveVolumes"):
            raise action_parameter_not_in_list(call.action, "ResetType", kind, ("ResetAll", "PreserveVolumes"))
        work = partial(self._reset, call.path) if kind == "ResetAll" else nothing
        return self.jobs.do(call, call.path, f"Reset {call.document.get('Id')}", AT_ONCE, work)

    def reset_config(self, call: Call) -> Answer | None:
        """DellRaidService.ResetConfig: the volumes of the controller that TargetFQDD names are deleted."""
        storage = self._target(call)
        self.jobs.check_free(storage)
        name = f"Configure: {call.body['TargetFQDD']}"
        return self.jobs.do(call, storage, name, AT_ONCE, partial(self._reset, storage))

    def clear_foreign(self, call: Call) -> Answer | None:
        """DellRaidService.ClearForeignConfig: drives of another controller become ready."""
        storage = self._target(call)
        self.jobs.check_free(storage)

        def clear() -> None:
            for drive in self._drives_of(storage):
                self.machine.store.edit(drive, own_drive)

        return self.jobs.do(call, storage, f"Configure: {call.body['TargetFQDD']}", AT_ONCE, clear)

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

    def _raid_type(self, body: JsonObject, drives: list[str]) -> Any:
        """The RAIDType of a request, or what its VolumeType stands for."""
        by_type = VOLUME_TYPES.get(str(body.get("VolumeType")))
        return body.get("RAIDType", by_type or ("None" if len(drives) == 1 else "RAID0"))

    def _faults(self, collection: JsonObject, body: JsonObject, raid: Any, drives: list[str]) -> list[Message]:
        options = self.machine.options
        refused = self.machine.behaviour.volume_properties_refused | set(options.volume_properties_refused)
        known = SETTABLE - refused
        capabilities = self._capabilities(collection)
        if capabilities:
            known &= {name.partition("@")[0] for name in capabilities} | {"Links", "Drives", "VolumeType"}
        faults = [property_unknown(name) for name in body if name not in known]
        faults += [property_missing(name) for name in options.volume_properties_required if name not in body]
        if not drives:
            faults.append(property_missing("Links/Drives"))
        if not isinstance(raid, str) or raid not in RAID_TYPES:
            faults.append(property_value_not_in_list("RAIDType", raid, RAID_TYPES))
        elif len(drives) < RAID_TYPES[raid]:
            faults.append(property_value_error("Links/Drives", f"{raid} needs {RAID_TYPES[raid]} drives or more"))
        return faults + [
            property_value_error("Links/Drives", f"there is no drive {path}")
            for path in drives
            if not self.machine.store.find(path)
        ]

    def _capabilities(self, collection: JsonObject) -> JsonObject:
        """What the collection says that a request may hold; empty where it says nothing."""
        listed = (collection.get("@Redfish.CollectionCapabilities") or {}).get("Capabilities") or []
        paths = [path for item in listed if (path := linked_path(item, "CapabilitiesObject"))]
        return (self.machine.store.document(paths[0]) or {}) if paths else {}

    def _free_id(self, collection: str) -> str:
        promised = set(self._promised.values())
        free = (str(number) for number in count(1) if f"{collection}/{number}" not in promised)
        return next(number for number in free if self.machine.store.find(f"{collection}/{number}") is None)

    def _is_taken(self, drive: str) -> bool:
        """Whether a volume that was made, or is to be made, holds the drive, or it stands by for one."""
        volumes = self.machine.property(drive, "Links", "Volumes")
        made = [path for link in volumes or [] if (path := linked_path(link)) and not self._is_raw(path)]
        spare = self.machine.property(drive, "HotspareType")
        return bool(made) or path_key(drive) in self._promised or spare not in (None, "None")

    def _is_raw(self, volume: str) -> bool:
        return bool(self.machine.property(volume, "VolumeType") == "RawDevice")

    def _target(self, call: Call) -> str:
        """The storage that a Dell action is about."""
        wanted = call.body.get("TargetFQDD")
        if wanted is None:
            raise action_parameter_missing(call.action, "TargetFQDD")
        for resource in self.machine.store.of_schema("Storage"):
            if (resource.document or {}).get("Id") == wanted:
                return resource.path
        raise RedfishError(400, property_value_error("TargetFQDD", f"there is no controller {wanted}"))

    def _drives_of(self, storage: str) -> list[str]:
        return [path for link in self.machine.property(storage, "Drives") or [] if (path := linked_path(link))]

    def _reset(self, storage: str) -> None:
        """Deletes what was made, and frees the spares."""
        collection = linked_path(self.machine.store.document(storage), "Volumes")
        for volume in self.machine.store.members(collection):
            if not self._is_raw(volume):
                self._remove(volume)
        for drive in self._drives_of(storage):
            self.machine.store.edit(drive, free_spare)

    def _remove(self, volume: str) -> None:
        links = self.machine.property(volume, "Links") or {}
        self.machine.store.remove_member(parent_path(volume), volume)
        for link in links.get("Drives") or []:
            if drive := linked_path(link):
                self._link(drive, volume, present=False)
        for link in links.get("DedicatedSpareDrives") or []:
            if (drive := linked_path(link)) and self.machine.store.find(drive):
                self.machine.store.edit(drive, free_spare)

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


def free_spare(drive: JsonObject) -> None:
    if "HotspareType" in drive:
        drive["HotspareType"] = "None"


def own_drive(drive: JsonObject) -> None:
    """No part of `Oem` says any more that the drive is another controller's."""
    for section in (drive.get("Oem") or {}).values():
        for part in (section or {}).values() if isinstance(section, dict) else ():
            if isinstance(part, dict) and part.get("RaidStatus") == "Foreign":
                part["RaidStatus"] = "Ready"


def nothing() -> None:
    """A change that changes nothing here."""
