"""Which handler answers which write: by action name, and by the schema of the resource written to."""

from collections.abc import Callable
from dataclasses import dataclass, field

from simulators.redfish.accounts import Principal
from simulators.redfish.documents import Answer, JsonObject, Request
from simulators.redfish.tree import Resource


@dataclass(slots=True)
class Call:
    """One write that passed authentication: what is asked, of which resource, by whom."""

    request: Request
    principal: Principal
    resource: Resource
    body: JsonObject
    action: str = ""

    @property
    def path(self) -> str:
        return self.resource.path

    @property
    def document(self) -> JsonObject:
        return self.resource.document or {}


Handler = Callable[[Call], Answer | None]


@dataclass(slots=True)
class Routes:
    """The handlers of all concerns. A handler that returns None is answered 204 (or the changed resource).

    `actions` by name (`ComputerSystem.Reset`); `patches` and `deletions` by the schema of the
    resource; `creations` by the schema of the collection; `pushes` by path key, for raw uploads.
    """

    actions: dict[str, Handler] = field(default_factory=dict)
    patches: dict[str, Handler] = field(default_factory=dict)
    creations: dict[str, Handler] = field(default_factory=dict)
    deletions: dict[str, Handler] = field(default_factory=dict)
    pushes: dict[str, Handler] = field(default_factory=dict)
