"""Dell's server configuration profile: exported and imported as tasks (Server Configuration Profile guide)."""

import json
from typing import Any

from simulators.redfish.documents import Answer, JsonObject, linked_path
from simulators.redfish.errors import Message, RedfishError, action_parameter_missing
from simulators.redfish.machine import Machine
from simulators.redfish.routes import Call, Routes
from simulators.redfish.tasks import TaskEngine, TaskFailed, TaskStaged

_VERSIONS = ("", "OemManager.v1_4_0.OemManager#")
MANAGER_ATTRIBUTES = ("Links", "Oem", "Dell", "DellAttributes")


class ServerProfile:
    """The manager's own attributes stand for the whole machine here.

    The document of an export takes the place of its task once that has ended, as on iDRAC 9.
    """

    def __init__(self, machine: Machine, tasks: TaskEngine) -> None:
        self.machine = machine
        self.tasks = tasks
        self.imported: list[JsonObject] = []

    def register(self, routes: Routes) -> None:
        for version in _VERSIONS:
            routes.actions[f"{version}OemManager.ExportSystemConfiguration"] = self.export
            routes.actions[f"{version}OemManager.ImportSystemConfiguration"] = self.import_

    def export(self, call: Call) -> Answer:
        attributes = self._attributes(call)
        listed = [
            {"Name": name, "Value": str(value), "Set On Import": "True", "Comment": "Read and Write"}
            for name, value in sorted((self.machine.property(attributes, "Attributes") or {}).items())
        ]
        profile: JsonObject = {
            "SystemConfiguration": {
                "Model": "simulated",
                "Components": [{"FQDD": "iDRAC.Embedded.1", "Attributes": listed}],
            }
        }
        answer = self.tasks.start("Export Configuration", lambda: None)
        path = str(json.loads(answer.body)["@odata.id"])
        self.machine.timeline.after(self.machine.options.task_seconds, lambda: self._deliver(path, profile))
        return answer

    def import_(self, call: Call) -> Answer:
        """The attributes of the manager apply at once; with NoReboot those of the BIOS wait for the next start."""
        buffer = call.body.get("ImportBuffer")
        if not isinstance(buffer, str) or not buffer:
            raise action_parameter_missing(call.action, "ImportBuffer")
        attributes = self._attributes(call)

        def work() -> None:
            try:
                profile: Any = json.loads(buffer)
                components = profile["SystemConfiguration"]["Components"]
                found = {part["FQDD"]: {a["Name"]: a["Value"] for a in part["Attributes"]} for part in components}
            except (ValueError, KeyError, TypeError) as fault:
                raise TaskFailed("The configuration profile is not valid.") from fault
            self.imported.append(profile)
            changes = found.get("iDRAC.Embedded.1", {})
            self.machine.store.edit(attributes, lambda document: document["Attributes"].update(changes))
            if "BIOS.Setup.1-1" in found and call.body.get("ShutdownType") == "NoReboot":
                raise TaskStaged("The BIOS attributes wait for a restart of the host.", lambda: None)

        return self.tasks.start("Import Configuration", work)

    def _deliver(self, path: str, profile: JsonObject) -> None:
        self.machine.store.put(path, profile)

    def _attributes(self, call: Call) -> str:
        value: Any = call.document
        for key in MANAGER_ATTRIBUTES:
            value = value.get(key) if isinstance(value, dict) else None
        path = linked_path(value[0]) if isinstance(value, list) and value else None
        if path is None or self.machine.store.find(path) is None:
            raise RedfishError(500, Message("InternalError", "The manager has no attributes.", "Critical"))
        return path
