"""Dell's server configuration profile: exported and imported as tasks (Server Configuration Profile guide)."""

import json
from typing import Any

from simulators.redfish.documents import Answer, JsonObject, linked_path
from simulators.redfish.errors import Message, RedfishError, action_parameter_missing, action_parameter_not_in_list
from simulators.redfish.machine import Machine
from simulators.redfish.routes import Call, Routes
from simulators.redfish.tasks import TaskEngine, TaskFailed, TaskStaged

_VERSIONS = ("", "OemManager.v1_4_0.OemManager#")
MANAGER_ATTRIBUTES = ("Links", "Oem", "Dell", "DellAttributes")
BIOS = "BIOS.Setup.1-1"
# The components that an export's Target stands for, by the first word of their FQDD.
PARTS = {"IDRAC": "iDRAC", "BIOS": "BIOS", "System": "System", "LifecycleController": "LifecycleController"}


class ServerProfile:
    """Components are the manager's lists of attributes and the BIOS; a target of another kind exports none.

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
        share = call.body.get("ShareParameters")
        target = share.get("Target", "ALL") if isinstance(share, dict) else "ALL"
        self._check_target(call, target)
        profile: JsonObject = {
            "SystemConfiguration": {
                "Model": "simulated",
                "Components": [
                    {"FQDD": name, "Attributes": self._listed(path)}
                    for name, path in self._components(call).items()
                    if target == "ALL" or name.startswith(f"{PARTS.get(target)}.")
                ],
            }
        }
        answer = self.tasks.start("Export Configuration", lambda: None)
        path = str(json.loads(answer.body)["@odata.id"])
        self.machine.timeline.after(self.machine.options.task_seconds, lambda: self._deliver(path, profile))
        return answer

    def import_(self, call: Call) -> Answer:
        """Attributes of the manager apply at once. Changes of the BIOS' need a start of the host: with NoReboot they
        wait for one."""
        buffer = call.body.get("ImportBuffer")
        if not isinstance(buffer, str) or not buffer:
            raise action_parameter_missing(call.action, "ImportBuffer")
        components = self._components(call)

        def work() -> None:
            try:
                profile: Any = json.loads(buffer)
                parts = profile["SystemConfiguration"]["Components"]
                found = {part["FQDD"]: {a["Name"]: a["Value"] for a in part["Attributes"]} for part in parts}
            except (ValueError, KeyError, TypeError) as fault:
                raise TaskFailed("The configuration profile is not valid.") from fault
            self.imported.append(profile)
            bios = components.get(BIOS, "")
            waiting = self._changed(bios, found.get(BIOS, {}))
            for name, path in components.items():
                if name != BIOS:
                    self._apply(path, self._changed(path, found.get(name, {})))
            if waiting and call.body.get("ShutdownType") == "NoReboot":
                raise TaskStaged(
                    "The BIOS attributes wait for a restart of the host.", lambda: self._apply(bios, waiting)
                )
            self._apply(bios, waiting)

        return self.tasks.start("Import Configuration", work)

    def _deliver(self, path: str, profile: JsonObject) -> None:
        self.machine.store.put(path, profile)

    def _check_target(self, call: Call, target: object) -> None:
        offered = (call.document.get("Actions") or {}).get("Oem") or {}
        share = next(
            (found.get("ShareParameters") for name, found in offered.items() if name.endswith(call.action)), None
        )
        allowed = (share or {}).get("Target@Redfish.AllowableValues") or []
        if allowed and target not in allowed:
            raise action_parameter_not_in_list(call.action, "Target", target, allowed)

    def _components(self, call: Call) -> dict[str, str]:
        """The resources with the attributes, by FQDD."""
        value: Any = call.document
        for key in MANAGER_ATTRIBUTES:
            value = value.get(key) if isinstance(value, dict) else None
        paths = [linked_path(item) for item in value] if isinstance(value, list) else []
        found = {path.rpartition("/")[2]: path for path in paths if path and self.machine.store.find(path)}
        if not found:
            raise RedfishError(500, Message("InternalError", "The manager has no attributes.", "Critical"))
        for system in self.machine.systems():
            bios = linked_path(self.machine.store.document(system), "Bios")
            if bios and self.machine.store.find(bios):
                found[BIOS] = bios
        return found

    def _attributes(self, path: str) -> JsonObject:
        return self.machine.property(path, "Attributes") or {}

    def _listed(self, path: str) -> list[JsonObject]:
        return [
            {"Name": name, "Value": written(value), "Set On Import": "True", "Comment": "Read and Write"}
            for name, value in sorted(self._attributes(path).items())
        ]

    def _changed(self, path: str, wanted: JsonObject) -> JsonObject:
        """Those that have another value now."""
        now = self._attributes(path)
        return {name: value for name, value in wanted.items() if written(now.get(name)) != value}

    def _apply(self, path: str, values: JsonObject) -> None:
        if values:
            self.machine.store.edit(path, lambda document: document["Attributes"].update(values))


def written(value: object) -> str:
    """A value as the profile writes it."""
    return "" if value is None else str(value)
