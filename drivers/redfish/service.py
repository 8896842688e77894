"""Finding one's way in a Redfish service: its root, the host's system, the managers and chassis that belong to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish.document import Document, action, dig, link, links, members, same_path, text
from drivers.redfish.failures import Refused
from drivers.redfish.manners import Manners
from drivers.redfish.registries import KeptRegistry
from drivers.redfish.vendors import Facts, facts_of, manners_of
from protocol.errors import ErrorCode, OperationError

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["Service", "choose_system", "is_surely_host", "managers_for"]

_MEMBER_SECONDS = 15.0
"""How long a busy BMC is asked for one of several systems."""
_STARTING_PAUSES = (2.0, 4.0, 8.0, 8.0)


class Service:
    """The way through one BMC's service, found once and kept; only paths are kept, states are always read."""

    def __init__(self, connection: RedfishConnection) -> None:
        self._connection = connection
        self.system_path: str | None = None
        self._manager_paths: list[str] | None = None
        self._chassis_paths: list[str] = []
        self.boot_settings_path: str | None = None
        """Where the BMC itself said that boot settings go; no link leads there."""
        self.bios_path: str | None = None
        self.bios_registry: KeptRegistry | None = None
        self.facts = Facts()
        self.manners = Manners()

    async def system(self, call: Call) -> Document:
        """The host's system as it is now. Raises OperationError UNSUPPORTED where the service shows none."""
        if self.system_path is not None:
            try:
                return await self._known(await self._connection.get(self.system_path, call), call)
            except Refused as refused:
                if refused.status not in (404, 410):
                    raise
                self.forget()
        path, document = await self._find_system(call)
        self.system_path = path
        return await self._known(document, call)

    async def managers(self, call: Call, system: Document | None = None) -> list[str]:
        """The paths of the managers that manage the host, the nearest first; maybe empty."""
        if not self._manager_paths:
            self._manager_paths = await self._find_managers(system or await self.system(call), call)
        return self._manager_paths

    async def manager(self, call: Call, system: Document | None = None) -> Document | None:
        """The BMC's own resource as it is now; None where the service shows none."""
        for path in await self.managers(call, system):
            document = await self._connection.find(path, call)
            if document is not None:
                return document
        return None

    async def chassis(self, call: Call, system: Document | None = None) -> list[str]:
        """The paths of the host's chassis; of all chassis where the system names none. Without the system at hand, as
        it was when they were looked for last."""
        if system is not None or not self._chassis_paths:
            document = system or await self.system(call)
            self._chassis_paths = links(document, "Links", "Chassis") or await self.all_chassis(call)
        return self._chassis_paths

    async def all_chassis(self, call: Call) -> list[str]:
        return members(await self._connection.find(link(await self._connection.root(call), "Chassis"), call))

    async def manners_so_far(self, call: Call) -> Manners:
        """What is known of this maker's ways by what was read already: the service root alone, before the system."""
        if self.system_path is not None:
            return self.manners
        return manners_of(facts_of(await self._connection.root(call), {}))

    def forget(self) -> None:
        """Drops what was found, so that it is looked for again: after a BMC restart, or when a path is gone."""
        self._connection.forget_root()
        self.system_path = None
        self._manager_paths = None
        self._chassis_paths = []
        self.boot_settings_path = None
        self.bios_path = None
        self.bios_registry = None

    async def _known(self, system: Document, call: Call) -> Document:
        self.facts = facts_of(await self._connection.root(call), system)
        self.manners = manners_of(self.facts)
        return system

    async def _find_system(self, call: Call) -> tuple[str, Document]:
        connection = self._connection
        collection = await connection.get(link(await connection.root(call), "Systems") or "/redfish/v1/Systems", call)
        paths = members(collection)
        if not paths:
            raise OperationError(
                ErrorCode.UNSUPPORTED,
                f"{connection.endpoint} shows no computer system: it is no server's, or its host is not known yet",
            )
        if len(paths) == 1:
            return paths[0], await self._listed(paths[0], call)
        found: dict[str, Document] = {}
        unread: OperationError | None = None
        for path in paths:
            try:
                found[path] = await connection.get(path, call, patience=_MEMBER_SECONDS)
            except Refused as refused:
                unread = unread or refused
        if not found:
            return paths[0], await self._listed(paths[0], call)
        chosen = choose_system(found)
        if unread is not None and not is_surely_host(chosen, found[chosen]):
            # The one that cannot be read may be the host, and an order must not go to another machine's board.
            raise unread
        return chosen, found[chosen]

    async def _listed(self, path: str, call: Call) -> Document:
        """A system that its collection lists; one that is missing all the same is waited for a while: a BMC that
        starts serves its lists before its resources. Raises OperationError BUSY where it does not come."""
        pauses = iter(_STARTING_PAUSES)
        while True:
            try:
                return await self._connection.get(path, call)
            except Refused as refused:
                if refused.status not in (404, 410):
                    raise
                pause = next(pauses, None)
                if pause is None or pause >= call.remaining:
                    raise OperationError(
                        ErrorCode.BUSY,
                        f"{self._connection.endpoint} lists its system at {path} and does not serve it now "
                        f"(HTTP {refused.status}): it may still be starting",
                        bmc=refused.bmc,
                        details=refused.details,
                    ) from refused
            await call.sleep(pause, "the BMC did not serve its system yet")

    async def _find_managers(self, system: Document, call: Call) -> list[str]:
        listed = links(system, "Links", "ManagedBy")
        if not listed:
            # Huawei 1288H leaves ManagedBy out now and then (sushy's retry-on-missing-managedby).
            listed = links(await self.system(call), "Links", "ManagedBy")
        if listed:
            return listed
        root = await self._connection.root(call)
        collection = await self._connection.find_patiently(link(root, "Managers") or "/redfish/v1/Managers", call)
        found = {
            path: document
            for path in members(collection)
            if (document := await self._connection.find(path, call)) is not None
        }
        return managers_for(self.system_path or "", found)


def choose_system(systems: dict[str, Document]) -> str:
    """Which of several systems is the host, and not an accelerator board or a DPU: the one that can be switched,
    booted and set up. (NVIDIA DGX and GH200 show their GPU baseboard as a second system.)"""

    return max(systems, key=lambda path: _weight(path, systems[path]))


def is_surely_host(path: str, system: Document) -> bool:
    """Whether it can be switched and booted, so that no other system is likelier to be the host."""
    return all(_weight(path, system)[:3])


def _weight(path: str, system: Document) -> tuple[bool, bool, bool, bool]:
    boot = dig(system, "Boot")
    return (
        action(system, "ComputerSystem.Reset") is not None,
        "hgx" not in path.lower(),
        isinstance(boot, dict) and bool(boot.keys() & {"BootOrder", "BootSourceOverrideTarget"}),
        link(system, "Bios") is not None,
    )


def managers_for(system_path: str, managers: dict[str, Document]) -> list[str]:
    """The managers that name the system as theirs; else those that are BMCs; else all."""
    naming = [
        path
        for path, document in managers.items()
        if any(same_path(listed, system_path) for listed in links(document, "Links", "ManagerForServers"))
    ]
    if naming:
        return naming
    bmcs = [path for path, document in managers.items() if text(document, "ManagerType") == "BMC"]
    return bmcs or list(managers)
