"""Everything that is read to say what a BMC can do: each resource once, and why one could not be read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish import indicator
from drivers.redfish.boot_override import BootView
from drivers.redfish.document import (
    Document,
    action,
    action_info_uri,
    allowed_values,
    allowed_values_of_action_info,
    dig,
    link,
    links,
    settings_path,
)
from drivers.redfish.event_log import log_among
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.media_reading import read_slots, with_their_ways
from drivers.redfish.media_slots import Slot
from drivers.redfish.walking import expand_query, is_whole
from protocol.errors import ErrorCode, OperationError

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["Evidence", "gather"]


@dataclass(slots=True)
class Evidence:
    """Everything that was read for the report."""

    root: Document
    system: Document
    manager: Document
    reset_types: list[str] = field(default_factory=list)
    manager_reset_types: list[str] = field(default_factory=list)
    boot: BootView = field(default_factory=lambda: BootView({}, {}))
    secure_boot: Document | None = None
    refusals: dict[str, str] = field(default_factory=dict)
    """Why a resource could not be read, by its name here."""
    slots: list[Slot] = field(default_factory=list)
    log: Document | None = None
    light: bool = False
    sensors: str | None = None
    bios: Document | None = None
    storage: list[Document] = field(default_factory=list)
    update: Document | None = None
    accounts: Document | None = None
    network: Document | None = None
    certificates: Document | None = None
    interface: Document | None = None
    """One of the system's EthernetInterfaces; `processor` and `drive` likewise."""
    processor: Document | None = None
    drive: Document | None = None

    def why_not(self, name: str) -> str | None:
        """Why a resource that is linked could not be read; None where it was read, or is not there."""
        return self.refusals.get(name)


async def gather(connection: RedfishConnection, call: Call) -> Evidence:
    """Raises OperationError where the system cannot be read, or the BMC is gone."""
    service = connection.service
    system = await service.system(call)
    managers = [await connection.find(path, call) for path in await service.managers(call, system)]
    manager = next((document for document in managers if document is not None), {})
    evidence = Evidence(await connection.root(call), system, manager)

    async def read(name: str, path: str | None) -> Document | None:
        """An optional resource; why it cannot be read is evidence too."""
        if path is None:
            return None
        try:
            return await connection.get(path, call, patience=0)
        except (Refused, NoAnswer) as failure:
            evidence.refusals[name] = failure.message
        except OperationError as error:
            if error.code is not ErrorCode.BMC_ERROR:
                raise
            evidence.refusals[name] = error.message
        return None

    async def collection(name: str, path: str | None, most: int | None = None) -> list[Document]:
        """The members of a collection, or the first of them where one stands for all."""
        query = await expand_query(connection, call)
        listed = None
        if path is not None and query is not None:
            listed = dig(await connection.find(f"{path}?{query}", call), "Members")
        if not listed:
            listed = dig(await read(name, path), "Members")
        items = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
        found = [item if is_whole(item) else await read(f"{name} member", link(item)) for item in items[:most]]
        return [document for document in found if document is not None]

    async def holders() -> AsyncIterator[Document | None]:
        for document in (system, *managers, *chassis):
            yield document

    async def resets(holder: Document, name: str) -> list[str]:
        offered = action(holder, name) or {}
        return allowed_values(offered, "ResetType") or allowed_values_of_action_info(
            await read(name, action_info_uri(offered)), "ResetType"
        )

    evidence.reset_types = await resets(system, "ComputerSystem.Reset")
    evidence.manager_reset_types = await resets(manager, "Manager.Reset")
    evidence.boot = BootView.of(system, await read("settings", settings_path(system)))
    evidence.secure_boot = await read("SecureBoot", link(system, "SecureBoot"))
    slots, _ = await read_slots(connection, call, holders=[system, *managers])
    evidence.slots = await with_their_ways(connection, slots, call)
    chassis = [await read("chassis", path) for path in await service.chassis(call, system)]
    try:
        evidence.log = await log_among(connection, holders(), call)
    except OperationError as error:
        if error.code is not ErrorCode.UNSUPPORTED:
            raise
    evidence.light = indicator.has_light(system)
    for document in chassis:
        evidence.light = evidence.light or indicator.has_light(document or {})
        for key in ("Sensors", "Thermal", "Power", "ThermalSubsystem"):
            evidence.sensors = evidence.sensors or link(document, key)
    evidence.bios = await read("Bios", link(system, "Bios"))
    evidence.storage = await collection("Storage", link(system, "Storage"))
    evidence.update = await read("UpdateService", link(evidence.root, "UpdateService"))
    evidence.accounts = await read("AccountService", link(evidence.root, "AccountService"))
    evidence.network = await read("NetworkProtocol", link(manager, "NetworkProtocol"))
    evidence.certificates = await read("CertificateService", link(evidence.root, "CertificateService"))
    interfaces = await collection("EthernetInterfaces", link(system, "EthernetInterfaces"), most=1)
    evidence.interface = next(iter(interfaces), None)
    evidence.processor = next(iter(await collection("Processors", link(system, "Processors"), most=1)), None)
    drives = [path for storage in evidence.storage for path in links(storage, "Drives")]
    evidence.drive = await read("drive", next(iter(drives), None))
    return evidence
