"""What a BMC can do, found out by reading: one line per operation of the table, with what was read that says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish import boot_override, indicator, reset_types
from drivers.redfish.boot import settings_path
from drivers.redfish.boot_override import BootView
from drivers.redfish.document import (
    Document,
    action,
    action_info_uri,
    allowed_values,
    allowed_values_of_action_info,
    boolean,
    dig,
    link,
    members,
    text,
)
from drivers.redfish.event_log import find_log
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.media_slots import Slot
from drivers.redfish.virtual_media import read_slots
from protocol.errors import ErrorCode, OperationError
from protocol.operations import OPERATIONS, Concern
from protocol.shapes.boot import BootDevice
from protocol.shapes.management import OperationSupport, Support
from protocol.shapes.power import PowerAction
from protocol.shapes.virtual_media import InsertMethod

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["Evidence", "judge", "supports"]

Verdict = tuple[Support, str]


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


async def supports(connection: RedfishConnection, call: Call) -> list[OperationSupport]:
    """Reads what is needed once, then judges every operation."""
    return judge(await _gather(connection, call))


def judge(evidence: Evidence) -> list[OperationSupport]:
    """The verdict on every operation of the table, in its order. Pure."""
    lines = []
    for operation in OPERATIONS.values():
        support, words = _verdict(operation.concern, operation.name, evidence)
        lines.append(OperationSupport(operation=operation.id, support=support, evidence=words))
    return lines


async def _gather(connection: RedfishConnection, call: Call) -> Evidence:
    service = connection.service
    system = await service.system(call)
    manager = await service.manager(call, system) or {}
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

    async def resets(holder: Document, name: str) -> list[str]:
        offered = action(holder, name) or {}
        return allowed_values(offered, "ResetType") or allowed_values_of_action_info(
            await read(name, action_info_uri(offered)), "ResetType"
        )

    evidence.reset_types = await resets(system, "ComputerSystem.Reset")
    evidence.manager_reset_types = await resets(manager, "Manager.Reset")
    evidence.boot = BootView.of(system, await read("settings", settings_path(system)))
    evidence.secure_boot = await read("SecureBoot", link(system, "SecureBoot"))
    evidence.slots, _ = await read_slots(connection, call)
    try:
        evidence.log = await find_log(connection, call)
    except OperationError as error:
        if error.code is not ErrorCode.UNSUPPORTED:
            raise
    evidence.light = indicator.has_light(system)
    for path in await service.chassis(call, system):
        chassis = await read("chassis", path) or {}
        evidence.light = evidence.light or indicator.has_light(chassis)
        for key in ("Sensors", "Thermal", "Power", "ThermalSubsystem"):
            evidence.sensors = evidence.sensors or link(chassis, key)
    evidence.bios = await read("Bios", link(system, "Bios"))
    for path in members(await read("Storage", link(system, "Storage"))):
        storage = await read("storage member", path)
        if storage is not None:
            evidence.storage.append(storage)
    evidence.update = await read("UpdateService", link(evidence.root, "UpdateService"))
    evidence.accounts = await read("AccountService", link(evidence.root, "AccountService"))
    evidence.network = await read("NetworkProtocol", link(manager, "NetworkProtocol"))
    return evidence


def _verdict(concern: Concern, name: str, evidence: Evidence) -> Verdict:
    match concern:
        case Concern.POWER:
            return _power(name, evidence)
        case Concern.MANAGEMENT:
            return _management(name, evidence)
        case Concern.BOOT:
            return _boot(name, evidence)
        case Concern.VIRTUAL_MEDIA:
            return _media(name, evidence)
        case Concern.CONSOLE:
            return _console(name, evidence)
        case Concern.INSPECT:
            return _yes(f"{_where(evidence.system)} with {', '.join(_inventory(evidence.system)) or 'no details'}")
        case Concern.BIOS:
            return _bios(name, evidence)
        case Concern.RAID:
            return _raid(name, evidence)
        case Concern.FIRMWARE:
            return _firmware(name, evidence)
        case Concern.CONFIG:
            return _config(name, evidence)
        case Concern.DEPLOY:
            return _no("runs on the machine itself, not through its BMC")


def _power(name: str, evidence: Evidence) -> Verdict:
    if name == "getPower":
        raw = text(evidence.system, "PowerState")
        return _yes(f"PowerState is {raw}") if raw else _maybe("PowerState is missing or null now")
    if action(evidence.system, "ComputerSystem.Reset") is None:
        return _no("the system has no ComputerSystem.Reset action")
    if not evidence.reset_types:
        return _maybe("ComputerSystem.Reset is there, but lists no reset types")
    by_action = {wanted: reset_types.candidates(wanted, evidence.reset_types) for wanted in PowerAction}
    lacking = [wanted.value for wanted, verbs in by_action.items() if not verbs]
    listed = f"ComputerSystem.Reset takes {', '.join(evidence.reset_types)}"
    if not by_action[PowerAction.ON] or not by_action[PowerAction.OFF]:
        return _no(f"{listed}: no way to switch it on and off")
    made_otherwise = {"reset", "cycle", "softOff"} & set(lacking)
    notes = [f"{word} by {'ForceOff' if word == 'softOff' else 'off and on'}" for word in sorted(made_otherwise)]
    notes += ["no nmi"] if "nmi" in lacking else []
    return _yes(listed + (f" ({', '.join(notes)})" if notes else ""))


def _management(name: str, evidence: Evidence) -> Verdict:
    match name:
        case "getInfo" | "qualify":
            return _yes(
                f"{_where(evidence.system)}, {_where(evidence.manager) if evidence.manager else 'no manager'}"
            )
        case "getHealth":
            status = dig(evidence.system, "Status")
            return _yes("the system has a Status") if isinstance(status, dict) else _maybe("the system has no Status")
        case "getSensors":
            return _yes(evidence.sensors) if evidence.sensors else _no("no chassis of the system has sensors")
        case "getEventLog":
            return _yes(_where(evidence.log)) if evidence.log else _no("no log service looks like an event log")
        case "clearEventLog":
            if action(evidence.log, "LogService.ClearLog") is not None:
                return _yes(f"LogService.ClearLog of {_where(evidence.log)}")
            return _no(f"{_where(evidence.log)} has no ClearLog action" if evidence.log else "no event log")
        case "setIndicator" | "getIndicator":
            if evidence.light:
                return _yes("LocationIndicatorActive or IndicatorLED")
            return _no("neither system nor chassis has LocationIndicatorActive or IndicatorLED")
        case _:
            if action(evidence.manager, "Manager.Reset") is None:
                return _no("the manager has no Manager.Reset action")
            listed = ", ".join(evidence.manager_reset_types)
            return _yes(f"Manager.Reset takes {listed}") if listed else _maybe("Manager.Reset lists no reset types")


def _boot(name: str, evidence: Evidence) -> Verdict:
    view = evidence.boot
    owner = "the settings object" if view.settings_own_override else "the system"
    match name:
        case "getBoot":
            return _yes("the system has Boot") if view.system or view.settings else _no("the system has no Boot")
        case "setBootDevice":
            if not view.has_override:
                return _no("Boot has no BootSourceOverrideTarget")
            listed = view.allowed(boot_override.TARGET)
            devices = {
                device for word in listed if (device := boot_override.device_of(word)) not in (None, BootDevice.NONE)
            }
            words = ", ".join(sorted(device.value for device in devices if device))
            return _yes(f"override on {owner}: {words}") if words else _maybe(f"override on {owner} lists no targets")
        case "setBootOrder":
            place = "the settings object" if view.settings_own_order else "the system"
            return _yes(f"BootOrder of {len(view.order)} on {place}") if view.order else _no("Boot has no BootOrder")
        case _:
            if evidence.secure_boot is None:
                why = evidence.refusals.get("SecureBoot")
                return _maybe(why) if why else _no("the system has no SecureBoot")
            setting = boolean(evidence.secure_boot, "SecureBootEnable")
            if setting is None:
                return _maybe("SecureBoot has no SecureBootEnable")
            return _yes(f"SecureBootEnable is {str(setting).lower()}")


def _media(name: str, evidence: Evidence) -> Verdict:
    if not evidence.slots:
        oem = dig(evidence.manager, "VirtualMedia")
        return _no("VirtualMedia has no slots" if oem else "neither system nor manager has VirtualMedia")
    by_method: dict[InsertMethod, list[str]] = {}
    for slot in evidence.slots:
        by_method.setdefault(slot.method, []).append(slot.id)
    listed = "; ".join(f"{', '.join(ids)} by {method}" for method, ids in by_method.items())
    if name == "listMedia" or by_method.keys() & {InsertMethod.ACTION, InsertMethod.PATCH}:
        return _yes(listed)
    return _maybe(listed) if InsertMethod.UNKNOWN in by_method else _no(listed)


def _console(name: str, evidence: Evidence) -> Verdict:
    kinds = dig(evidence.manager, "SerialConsole", "ConnectTypesSupported")
    own = dig(evidence.system, "SerialConsole")
    offered = [str(kind) for kind in kinds] if isinstance(kinds, list) else []
    if isinstance(own, dict):
        offered += [key for key in ("SSH", "IPMI", "Telnet") if isinstance(own.get(key), dict)]
    if offered:
        return _maybe(
            f"SerialConsole offers {', '.join(dict.fromkeys(offered))}: it is reached by the ipmi or ssh driver"
        )
    return _no("neither manager nor system offers a SerialConsole")


def _bios(name: str, evidence: Evidence) -> Verdict:
    if evidence.bios is None:
        why = evidence.refusals.get("Bios")
        return _maybe(why) if why else _no("the system has no Bios")
    attributes = dig(evidence.bios, "Attributes")
    count = len(attributes) if isinstance(attributes, dict) else 0
    match name:
        case "getBios":
            return _yes(f"Bios has {count} attributes") if count else _no("Bios has no Attributes")
        case "setBios":
            settings = settings_path(evidence.bios)
            if not count:
                return _no("Bios has no Attributes")
            return _yes(f"settings object {settings}") if settings else _maybe("Bios names no settings object")
        case _:
            offered = action(evidence.bios, "Bios.ResetBios") is not None
            return _yes("Bios.ResetBios") if offered else _no("Bios has no ResetBios action")


def _raid(name: str, evidence: Evidence) -> Verdict:
    if not evidence.storage:
        return _no(evidence.refusals.get("Storage", "the system has no Storage"))
    with_volumes = [text(storage, "Id") or "?" for storage in evidence.storage if link(storage, "Volumes")]
    if name == "getRaid":
        return _yes(f"{len(evidence.storage)} storage members, {len(with_volumes)} with Volumes")
    if not with_volumes:
        return _no("no storage member has Volumes")
    return _maybe(f"Volumes of {', '.join(with_volumes)}; whether they can be changed shows when it is tried")


def _firmware(name: str, evidence: Evidence) -> Verdict:
    if evidence.update is None:
        return _no(evidence.refusals.get("UpdateService", "the service has no UpdateService"))
    if name == "getFirmware":
        inventory = link(evidence.update, "FirmwareInventory")
        return _yes(inventory) if inventory else _no("UpdateService has no FirmwareInventory")
    ways = ["SimpleUpdate"] if action(evidence.update, "UpdateService.SimpleUpdate") is not None else []
    ways += [key for key in ("MultipartHttpPushUri", "HttpPushUri") if text(evidence.update, key)]
    return _yes(", ".join(ways)) if ways else _no("UpdateService has neither SimpleUpdate nor a push address")


def _config(name: str, evidence: Evidence) -> Verdict:
    match name:
        case "getConfig" | "setConfig":
            if evidence.network is not None:
                return _yes(_where(evidence.network))
            return _no(evidence.refusals.get("NetworkProtocol", "the manager has no NetworkProtocol"))
        case "rotatePassword":
            accounts = link(evidence.accounts, "Accounts")
            return _yes(accounts) if accounts else _no("the service has no AccountService with Accounts")
        case _:
            offered = dig(evidence.manager, "Actions", "Oem")
            found = [key for key in offered if "Configuration" in key] if isinstance(offered, dict) else []
            wanted = [key for key in found if ("Export" if name == "exportConfig" else "Import") in key]
            return _yes(", ".join(wanted)) if wanted else _no("the manager has no action for a vendor's profile")


def _inventory(system: Document) -> list[str]:
    return [key for key in ("Processors", "Memory", "Storage", "EthernetInterfaces", "PCIeDevices") if key in system]


def _where(document: Document | None) -> str:
    return link(document) or "a resource without an address"


def _yes(evidence: str) -> Verdict:
    return Support.SUPPORTED, evidence


def _no(evidence: str) -> Verdict:
    return Support.UNSUPPORTED, evidence


def _maybe(evidence: str) -> Verdict:
    return Support.UNKNOWN, evidence
