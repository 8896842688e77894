"""Inspect: what the machine is made of, as its BMC tells it; every resource that can be read is in it.

Each resource is read once, a collection in one request where the service offers `$expand` and sends whole members
with it. What is told twice is read in the cheaper place: functions and ports of a card only for what the interfaces
do not say, PCI devices from the chassis and not once more from the system.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from drivers.driver import Call
from drivers.redfish.boot_choices import BootChoice, boot_choices
from drivers.redfish.boot_override import BootView
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.document import Document, Found, dig, link, links, text
from drivers.redfish.health import is_absent
from drivers.redfish.inventory import (
    chassis_identity,
    controller_firmware,
    drive,
    memory_module,
    pci_device,
    processor,
    simple_drives,
    system_identity,
    trusted_modules,
)
from drivers.redfish.mac_addresses import mac_of
from drivers.redfish.nics import Card, Draft, drafts_of, put_together
from drivers.redfish.placeholders import real_text
from drivers.redfish.survey import Survey
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.inspect import Drive, FirmwareVersion, Inventory, NetworkInterface, PciDevice

__all__ = ["RedfishInspect"]

_MOST_PCI_FUNCTIONS = 64
"""PCI devices of which the ids are read; a machine that lists more of them lists its bridges (NVIDIA DGX: 134)."""

T = TypeVar("T")


class RedfishInspect:
    def __init__(self, connection: RedfishConnection) -> None:
        self._connection = connection

    async def get_inventory(self, arguments: Nothing, call: Call) -> Inventory:
        """The inventory. A resource that cannot be read is named in `unread`, and the rest is there all the same.

        Raises OperationError where the system itself cannot be read, or where the BMC is gone.
        """
        system = await self._connection.service.system(call)
        return await _Inspection(self._connection, call, system).inventory()


class _Inspection:
    """One reading of one machine."""

    def __init__(self, connection: RedfishConnection, call: Call, system: Document) -> None:
        self._connection = connection
        self._call = call
        self._system = system
        self._survey = Survey(connection, call)
        self._manners = connection.service.manners
        self._firmware: list[FirmwareVersion] = []

    async def inventory(self) -> Inventory:
        call, system = self._call, self._system
        call.progress("reading processors and memory", 0)
        processors = _each(processor(document) for _, document in await self._collection("Processors", "processors"))
        memory = _each(memory_module(document) for _, document in await self._collection("Memory", "memory"))
        call.progress("reading the BMC and the chassis", 20)
        manager = await self._manager()
        self._add_firmware("BIOS", real_text(system, "BiosVersion"))
        self._add_firmware("BMC", real_text(manager, "FirmwareVersion"))
        chassis = await self._chassis()
        call.progress("reading drives", 30)
        drives = await self._drives()
        call.progress("reading NICs", 50)
        nics = await self._nics(chassis, manager)
        call.progress("reading PCI devices", 75)
        pci = await self._pci(chassis)
        return Inventory(
            system=system_identity(system, self._manners, processors, memory),
            chassis=[chassis_identity(document) for _, document in chassis],
            processors=processors,
            memory=memory,
            drives=drives,
            nics=nics,
            pci=pci,
            trusted_modules=trusted_modules(system),
            firmware=self._firmware,
            incomplete=self._survey.incomplete,
            unread=self._survey.unread,
        )

    async def _collection(self, key: str, part: str) -> list[Found]:
        return await self._survey.members(link(self._system, key), part) or []

    async def _manager(self) -> Document | None:
        try:
            paths = await self._connection.service.managers(self._call, self._system)
        except OperationError as failure:
            if failure.code not in (ErrorCode.BUSY, ErrorCode.BMC_ERROR, ErrorCode.UNSUPPORTED, ErrorCode.CONFLICT):
                raise
            self._survey.note_failure("/redfish/v1/Managers", failure, "firmware")
            return None
        return await self._survey.read(paths[0] if paths else None, "firmware")

    async def _chassis(self) -> list[Found]:
        paths = links(self._system, "Links", "Chassis")
        if not paths:
            collection = link(await self._connection.root(self._call), "Chassis")
            return await self._survey.members(collection, "chassis") or []
        return await self._survey.each(paths, "chassis")

    async def _drives(self) -> list[Drive]:
        """The drives of every storage, each read once; those of SimpleStorage where there are none."""
        holders: dict[str, str | None] = {}
        for _, storage in await self._collection("Storage", "drives"):
            self._firmware += controller_firmware(storage)
            for path in links(storage, "Drives"):
                holders.setdefault(path, text(storage, "Id"))
        found = await self._survey.each(list(holders), "drives")
        drives = _each(drive(document, path, holders[path]) for path, document in found)
        if drives:
            return drives
        return [
            item
            for _, storage in await self._collection("SimpleStorage", "drives")
            for item in simple_drives(storage)
        ]

    async def _nics(self, chassis: list[Found], manager: Document | None) -> list[NetworkInterface]:
        drafts = drafts_of(await self._collection("EthernetInterfaces", "nics"))
        cards = await self._cards(chassis, drafts)
        for card in cards:
            await self._read_card(card, drafts)
            self._add_firmware(card.name, card.firmware)
        choices = await self._boot_choices()
        bmc = await self._bmc_macs(manager) if drafts or choices else frozenset[str]()
        return put_together(drafts, cards, choices, bmc, self._manners)

    async def _cards(self, chassis: list[Found], drafts: list[Draft]) -> list[Card]:
        """The network adapters of the chassis; where no source tells an address, those that the system names."""
        found: dict[str, Document] = {}
        for _, document in chassis:
            found.update(await self._survey.members(link(document, "NetworkAdapters"), "nics") or [])
        if not found and not any(draft.mac for draft in drafts):
            # HPE Gen11 answers its NetworkAdapters with 400 now and then; some blades have none at their chassis.
            found.update(await self._collection("NetworkInterfaces", "nics"))
        return [Card(path, document) for path, document in found.items()]

    async def _read_card(self, card: Card, drafts: list[Draft]) -> None:
        """Its functions, unless the interfaces name each of them; its ports, for a link of unknown state or speed."""
        named = [draft for draft in drafts if card.holds(draft.function)]
        if card.function_count is None or len(named) < card.function_count:
            card.functions = await self._survey.members(link(card.document, "NetworkDeviceFunctions"), "nics") or []
        addresses = {mac_of(text(function, "Ethernet", "MACAddress")) for _, function in card.functions}
        named += [draft for draft in drafts if draft not in named and draft.mac in addresses - {None}]
        told = all(draft.link == "down" or (draft.link and draft.speed) for draft in named)
        if named and len(named) >= len(card.functions) and told:
            return
        for key in ("Ports", "NetworkPorts"):
            ports = await self._survey.members(link(card.document, key), "nics")
            if ports is not None:
                card.ports = ports
                return

    async def _boot_choices(self) -> list[BootChoice]:
        order = BootView.of(self._system, None).order
        options = link(self._system, "Boot", "BootOptions")
        if not order or options is None:
            return []
        return boot_choices(order, dict(await self._survey.members(options, "nics") or []))

    async def _bmc_macs(self, manager: Document | None) -> frozenset[str]:
        """The BMC's own addresses: some services list them among those of the host."""
        found = await self._survey.members(link(manager, "EthernetInterfaces"), "nics") or []
        keys = ("MACAddress", "PermanentMACAddress")
        macs = (mac_of(text(document, key)) for _, document in found for key in keys)
        return frozenset(mac for mac in macs if mac is not None)

    async def _pci(self, chassis: list[Found]) -> list[PciDevice]:
        """The devices of the chassis, else those that the system lists (Dell lists the same ones at both)."""
        found: dict[str, Document] = {}
        for _, document in chassis:
            found.update(await self._survey.members(link(document, "PCIeDevices"), "pci") or [])
        if not found:
            found.update(await self._devices_of_system())
        present = {path: document for path, document in found.items() if not is_absent(document)}
        ids = await self._pci_functions(present)
        return _each(pci_device(document, ids.get(path), self._manners) for path, document in present.items())

    async def _devices_of_system(self) -> list[Found]:
        listed = dig(self._system, "PCIeDevices")
        if not isinstance(listed, list):
            return await self._collection("PCIeDevices", "pci")
        return await self._survey.each(links(self._system, "PCIeDevices"), "pci")

    async def _pci_functions(self, devices: dict[str, Document]) -> dict[str, Document]:
        """The first function of each device: it has the device's ids, and the others repeat them."""
        if len(devices) > _MOST_PCI_FUNCTIONS:
            reason = f"its {len(devices)} devices are listed without their PCI ids, to spare the BMC so many requests"
            self._survey.note(next(iter(devices)).rstrip("/").rpartition("/")[0], reason, "pci")
            return {}
        found: dict[str, Document] = {}
        for path, device in devices.items():
            held = dig(device, "PCIeFunctions")
            listed = links(held) if isinstance(held, list) else links(device, "Links", "PCIeFunctions")
            if listed:
                first = await self._survey.read(listed[0], "pci")
            else:
                first = await self._survey.first_member(link(held), "pci")
            if first is not None:
                found[path] = first
        return found

    def _add_firmware(self, name: str, version: str | None) -> None:
        if version is not None:
            self._firmware.append(FirmwareVersion(name=name, version=version))


def _each(found: Iterable[T | None]) -> list[T]:
    return [item for item in found if item is not None]
