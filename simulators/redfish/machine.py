"""The one simulated machine behind a service: what its concerns share."""

from collections.abc import Callable
from typing import Any

from simulators.redfish.behaviour import Behaviour
from simulators.redfish.documents import JsonObject
from simulators.redfish.history import MachineHistory
from simulators.redfish.options import ServiceOptions
from simulators.redfish.store import ResourceStore
from simulators.redfish.timeline import Timeline

EventSink = Callable[[str, str, str], None]
HostStart = Callable[[str], None]


class Machine:
    """Store, timeline, options and vendor behaviour of one machine, and the hooks between its concerns.

    `at_host_start` is called with a system's path each time its host starts (from off, or by a
    restart): boot overrides are used up then and pending BIOS settings take effect. `at_manager_restart`
    is what waits for the manager's own.
    """

    def __init__(
        self, store: ResourceStore, timeline: Timeline, options: ServiceOptions, behaviour: Behaviour
    ) -> None:
        self.store = store
        self.timeline = timeline
        self.options = options
        self.behaviour = behaviour
        self.history = MachineHistory()
        self.at_host_start: list[HostStart] = []
        self.at_manager_restart: list[Callable[[], None]] = []
        self.emit: EventSink = lambda _kind, _origin, _text: None

    def host_starts(self, system: str) -> None:
        for start in self.at_host_start:
            start(system)

    def systems(self) -> list[str]:
        """The paths of all computer systems that are members of the Systems collection."""
        systems = self.store.tree.root.get("Systems")
        return self.store.members(systems.get("@odata.id")) if isinstance(systems, dict) else []

    def property(self, path: str, *keys: str) -> Any:
        """A value inside a resource, or None."""
        value: Any = self.store.document(path)
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value


def merge_properties(document: JsonObject, changes: JsonObject) -> None:
    """Merges a PATCH body into a document as DSP0266 wants it, in place.

    Objects merge. In an array a null removes its element, an empty object leaves it unchanged, and
    the array ends where the request's does (DSP0266, PATCH on array properties).
    """
    for name, value in changes.items():
        present = document.get(name)
        if isinstance(value, dict) and isinstance(present, dict):
            merge_properties(present, value)
        elif isinstance(value, list):
            document[name] = merge_array(present if isinstance(present, list) else [], value)
        else:
            document[name] = value


def merge_array(present: list[Any], changes: list[Any]) -> list[Any]:
    merged: list[Any] = []
    for position, change in enumerate(changes):
        before = present[position] if position < len(present) else None
        if change is None:
            continue
        if change == {} and before is not None:
            merged.append(before)
        elif isinstance(change, dict) and isinstance(before, dict):
            element = dict(before)
            merge_properties(element, change)
            merged.append(element)
        else:
            merged.append(change)
    return merged
