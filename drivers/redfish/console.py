"""Console: what the BMC says of its consoles. Redfish itself carries no serial bytes."""

from collections.abc import Iterator
from typing import Final

from drivers.driver import Call
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.document import Document, boolean, dig, number, text
from drivers.redfish.manners import Manners
from protocol.shapes import Nothing
from protocol.shapes.console import ConsoleKind, ConsoleOptions, ConsolePurpose, ConsoleService

__all__ = ["RedfishConsole", "kinds_of", "services_of"]

_OTHER_DRIVER: Final = (
    "Redfish carries no serial bytes: bind the node's console to another driver, such as "
    "`rackwright nodes update NODE --driver-of console=ipmi` (or ssh); console.getConsole tells which the BMC offers"
)
_PURPOSES: Final = {
    "SerialConsole": ConsolePurpose.SERIAL,
    "GraphicalConsole": ConsolePurpose.GRAPHICAL,
    "CommandShell": ConsolePurpose.SHELL,
}
_PROTOCOLS: Final = ("SSH", "IPMI", "Telnet", "WebSocket")
_KINDS: Final = {"IPMI": ConsoleKind.SOL, "SSH": ConsoleKind.SSH}


class RedfishConsole:
    INSTEAD: Final = {"openConsole": _OTHER_DRIVER, "closeConsole": _OTHER_DRIVER}

    def __init__(self, connection: RedfishConnection) -> None:
        self._connection = connection

    async def get_console(self, arguments: Nothing, call: Call) -> ConsoleOptions:
        system = await self._connection.service.system(call)
        manager = await self._connection.service.manager(call, system)
        services = services_of(system, manager or {})
        return ConsoleOptions(kinds=kinds_of(services, self._connection.service.manners), services=services)


def services_of(system: Document, manager: Document) -> list[ConsoleService]:
    """The consoles that the system tells of (ComputerSystem 1.13 and later, protocol by protocol), then those of the
    manager that the system does not tell of (deprecated there since, and often all there is)."""
    found = [*_of_system(system)]
    told = {(service.purpose, service.protocol.lower()) for service in found}
    for service in _of_manager(manager):
        if (service.purpose, service.protocol.lower()) not in told:
            found.append(service)
            told.add((service.purpose, service.protocol.lower()))
    return found


def kinds_of(services: list[ConsoleService], manners: Manners) -> list[ConsoleKind]:
    """What can be opened: the serial consoles that are not switched off, sol first."""
    purposes = {ConsolePurpose.SERIAL, ConsolePurpose.SHELL} if manners.console_in_shell else {ConsolePurpose.SERIAL}
    offered = {
        _KINDS[service.protocol.upper()]
        for service in services
        if service.purpose in purposes and service.enabled is not False and service.protocol.upper() in _KINDS
    }
    return [kind for kind in ConsoleKind if kind in offered]


def _of_system(system: Document) -> Iterator[ConsoleService]:
    serial = dig(system, "SerialConsole")
    for protocol in _PROTOCOLS:
        described = dig(serial, protocol)
        if isinstance(described, dict):
            yield ConsoleService(
                purpose=ConsolePurpose.SERIAL,
                protocol=protocol,
                enabled=boolean(described, "ServiceEnabled"),
                port=_whole(described, "Port"),
                max_sessions=_whole(serial, "MaxConcurrentSessions"),
                entry_command=text(described, "ConsoleEntryCommand"),
                leave_keys=text(described, "HotKeySequenceDisplay"),
            )
    yield from _listed(system, "GraphicalConsole")


def _of_manager(manager: Document) -> Iterator[ConsoleService]:
    for name in _PURPOSES:
        yield from _listed(manager, name)


def _listed(resource: Document, name: str) -> Iterator[ConsoleService]:
    """A console that is described as a whole, with the list of its protocols."""
    described = dig(resource, name)
    protocols = dig(described, "ConnectTypesSupported")
    for protocol in protocols if isinstance(protocols, list) else []:
        if isinstance(protocol, str) and protocol.strip():
            yield ConsoleService(
                purpose=_PURPOSES[name],
                protocol=protocol.strip()[:40],
                enabled=boolean(described, "ServiceEnabled"),
                port=_whole(described, "Port"),
                max_sessions=_whole(described, "MaxConcurrentSessions"),
            )


def _whole(value: object, name: str) -> int | None:
    found = number(value, name)
    return int(found) if found is not None and found.is_integer() and 0 <= found < 1 << 31 else None
