"""Management: what the machine and its BMC are, how they fare, the light, the log, and the BMC's own restart."""

from drivers.driver import Call, operations_of
from drivers.redfish import bmc_reset, event_log, indicator, sensors
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.document import Document, dig, link, text
from drivers.redfish.evidence import gather
from drivers.redfish.health import component, health_of, worst
from drivers.redfish.ironic_profile import ironic_verdict
from drivers.redfish.manners import Manners
from drivers.redfish.placeholders import real_text
from drivers.redfish.qualify import judge
from drivers.redfish.walking import read_collection
from drivers.registry import load
from protocol.shapes import Nothing
from protocol.shapes.management import (
    BmcInfo,
    ComponentHealth,
    EventLog,
    EventLogCleared,
    GetEventLog,
    IndicatorReading,
    MachineHealth,
    Qualification,
    ResetBmc,
    ResetBmcResult,
    Sensors,
    SetIndicator,
)

__all__ = ["RedfishManagement", "info_of"]


class RedfishManagement:
    def __init__(self, connection: RedfishConnection) -> None:
        self._connection = connection

    async def get_info(self, arguments: Nothing, call: Call) -> BmcInfo:
        system = await self._connection.service.system(call)
        manager = await self._connection.service.manager(call, system)
        root = await self._connection.root(call)
        return info_of(root, system, manager or {}, self._connection.service.manners)

    async def get_health(self, arguments: Nothing, call: Call) -> MachineHealth:
        """The machine's own rollup where it has one, else the worst of its components."""
        system = await self._connection.service.system(call)
        components = await self._components(system, call)
        rollup = health_of(system, rollup=True)
        if rollup.value == "unknown":
            rollup = worst([line.health for line in components])
        return MachineHealth(rollup=rollup, components=components)

    async def get_sensors(self, arguments: Nothing, call: Call) -> Sensors:
        return await sensors.read_sensors(self._connection, call)

    async def get_event_log(self, arguments: GetEventLog, call: Call) -> EventLog:
        return await event_log.read_event_log(self._connection, arguments, call)

    async def clear_event_log(self, arguments: Nothing, call: Call) -> EventLogCleared:
        return await event_log.clear_event_log(self._connection, call)

    async def get_indicator(self, arguments: Nothing, call: Call) -> IndicatorReading:
        return await indicator.get_indicator(self._connection, call)

    async def set_indicator(self, arguments: SetIndicator, call: Call) -> IndicatorReading:
        return await indicator.set_indicator(self._connection, arguments.state, call)

    async def reset_bmc(self, arguments: ResetBmc, call: Call) -> ResetBmcResult:
        return await bmc_reset.reset_bmc(self._connection, arguments.force, call)

    async def qualify(self, arguments: Nothing, call: Call) -> Qualification:
        """What this BMC can do, and what OpenStack Ironic would find of what it needs, by reading only."""
        evidence = await gather(self._connection, call)
        info = info_of(evidence.root, evidence.system, evidence.manager, self._connection.service.manners)
        own = operations_of(load("redfish"))
        return Qualification(info=info, operations=judge(evidence, own), profile=ironic_verdict(evidence))

    async def _components(self, system: Document, call: Call) -> list[ComponentHealth]:
        found = [
            _summary("processors", dig(system, "ProcessorSummary")),
            _summary("memory", dig(system, "MemorySummary")),
        ]
        manager = await self._connection.service.manager(call, system)
        if manager is not None:
            found.append(component(manager, "bmc"))
        for path in await self._connection.service.chassis(call, system):
            chassis = await self._connection.find(path, call)
            if chassis is None:
                continue
            found.append(component(chassis, "chassis"))
            found += await self._of_chassis(chassis, call)
        for storage in await read_collection(self._connection, link(system, "Storage"), call):
            found.append(component(storage, "storage", rollup=True))
        return [line for line in found if line is not None]

    async def _of_chassis(self, chassis: Document, call: Call) -> list[ComponentHealth | None]:
        """Power supplies and fans: from Power and Thermal, else from the subsystems that replaced them."""
        found: list[ComponentHealth | None] = []
        for holder, listed, subsystem, members, kind in (
            ("Power", "PowerSupplies", "PowerSubsystem", "PowerSupplies", "powerSupply"),
            ("Thermal", "Fans", "ThermalSubsystem", "Fans", "fan"),
        ):
            items = dig(await self._connection.find(link(chassis, holder), call), listed)
            if not isinstance(items, list) or not items:
                newer = await self._connection.find(link(chassis, subsystem), call)
                items = await read_collection(self._connection, link(newer, members), call)
            found += [component(item, kind) for item in items if isinstance(item, dict)]
        return found


def info_of(root: Document, system: Document, manager: Document, manners: Manners) -> BmcInfo:
    """Who the machine and its BMC are; what a maker left at its placeholder counts as absent."""
    manufacturer = real_text(system, "Manufacturer")
    if manufacturer is not None and "://" in manufacturer:
        # NVIDIA BlueField-3 gives its maker's web address.
        manufacturer = None
    model = text(manager, "Model")
    if model is not None and model.lower() == "openbmc":
        model = "OpenBMC"
    return BmcInfo(
        vendor=manufacturer or text(root, "Vendor"),
        model=real_text(system, "Model"),
        serial=real_text(system, manners.serial_property) or real_text(system, "SerialNumber"),
        uuid=real_text(system, "UUID"),
        bmc_type=manners.bmc_type or model,
        bmc_version=text(manager, "FirmwareVersion"),
        redfish_version=text(root, "RedfishVersion"),
    )


def _summary(name: str, summary: object) -> ComponentHealth | None:
    if not isinstance(summary, dict) or not isinstance(summary.get("Status"), dict):
        return None
    return component({**summary, "Name": name}, name, rollup=True)
