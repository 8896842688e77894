"""The manager itself: its reset, with the outage that follows, and the logs it keeps."""

from simulators.redfish.accounts import SessionBook
from simulators.redfish.documents import Answer, JsonObject, linked_path, path_key
from simulators.redfish.errors import RedfishError, action_parameter_not_in_list, action_parameter_unknown
from simulators.redfish.history import Reset
from simulators.redfish.machine import Machine, merge_properties
from simulators.redfish.power import allowed_resets
from simulators.redfish.properties import annotated, split_patch
from simulators.redfish.routes import Call, Routes
from simulators.redfish.store import set_members

DEFAULT_RESETS = ("ForceRestart", "GracefulRestart")


class ManagerReset:
    """Restarts the service and clears logs. The host does not notice a restart of its manager."""

    def __init__(self, machine: Machine, sessions: SessionBook) -> None:
        self.machine = machine
        self.sessions = sessions
        self._down_until = 0.0

    def register(self, routes: Routes) -> None:
        routes.actions["Manager.Reset"] = self.reset
        routes.actions["LogService.ClearLog"] = self.clear_log
        routes.patches["ManagerNetworkProtocol"] = self.change_network
        routes.patches["EthernetInterface"] = self.change_network

    @property
    def down_for(self) -> float:
        """Seconds until the service is back; zero where it is up."""
        if not self._down_until:
            return 0.0
        return max(0.0, self._down_until - self.machine.timeline.clock())

    def reset(self, call: Call) -> None:
        """Manager.Reset: all sessions end, and the service is away for `manager_reset_seconds`."""
        unknown = [name for name in call.body if name != "ResetType" and not name.startswith("@")]
        if unknown:
            raise RedfishError(400, [action_parameter_unknown(call.action, name) for name in unknown])
        allowed = allowed_resets(self.machine, call) or list(DEFAULT_RESETS)
        reset_type = call.body.get("ResetType", allowed[0])
        if reset_type not in allowed:
            raise action_parameter_not_in_list(call.action, "ResetType", reset_type, allowed)
        timeline = self.machine.timeline
        self.machine.history.manager_resets.append(Reset(call.path, str(reset_type), "On", timeline.clock()))
        # The answer still leaves; what follows it finds no session and no service.
        self.go_down(self.machine.options.manager_reset_seconds)

    def go_down(self, seconds: float) -> None:
        """All sessions end, the service is away for so long, and what waited for its restart is in force then."""
        self.sessions.end_all()
        self._down_until = self.machine.timeline.clock() + seconds
        for start in self.machine.at_manager_restart:
            start()

    def change_network(self, call: Call) -> Answer:
        """A PATCH as any other. The manager has one name, wherever it is written and shown."""
        accepted, messages = split_patch(call.document, call.body, call.resource.schema)
        changed = self.machine.store.edit(call.path, lambda document: merge_properties(document, accepted))
        if "HostName" in accepted:
            before = call.document.get("HostName")
            for path in self._beside(call.path):
                if self.machine.property(path, "HostName") == before:
                    self.machine.store.edit(path, lambda document: document.update(HostName=accepted["HostName"]))
        return Answer.of(200, annotated(changed, messages))

    def _beside(self, path: str) -> list[str]:
        """The other resources that show the name of the manager to which `path` belongs; none for a host's own."""
        for manager in self.machine.store.of_schema("Manager"):
            network = linked_path(manager.document, "NetworkProtocol")
            ports = self.machine.store.members(linked_path(manager.document, "EthernetInterfaces"))
            places = [place for place in (network, *ports) if place and self.machine.store.find(place)]
            if any(path_key(place) == path_key(path) for place in places):
                return [place for place in places if path_key(place) != path_key(path)]
        return []

    def clear_log(self, call: Call) -> Answer | None:
        entries = linked_path(call.document, "Entries")
        if entries is None or self.machine.store.find(entries) is None:
            return None
        for path in self.machine.store.members(entries):
            self.machine.store.remove(path)

        def empty(document: JsonObject) -> None:
            set_members(document, [])
            document.pop("Members@odata.nextLink", None)

        self.machine.store.edit(entries, empty)
        return None
