"""What a BMC can do, by what was read of it: one line per operation of the table, with what says so. Pure."""

from collections.abc import Collection

from drivers.redfish import boot_override, reset_types
from drivers.redfish.document import Document, action, boolean, dig, link, settings_path, text
from drivers.redfish.evidence import Evidence
from protocol.operations import OPERATIONS, Concern
from protocol.shapes.boot import BootDevice
from protocol.shapes.management import OperationSupport, Support
from protocol.shapes.power import PowerAction
from protocol.shapes.virtual_media import InsertMethod

__all__ = ["judge"]

Verdict = tuple[Support, str]


def judge(evidence: Evidence, own: Collection[str]) -> list[OperationSupport]:
    """The verdict on every operation of the table, in its order. Pure. `own`: the operations that the driver has."""
    lines = []
    for operation in OPERATIONS.values():
        support, words = _verdict(operation.concern, operation.name, evidence)
        if operation.id not in own and operation.concern is not Concern.DEPLOY:
            support, words = Support.UNSUPPORTED, f"this driver does not have it (the BMC: {words})"
        lines.append(OperationSupport(operation=operation.id, support=support, evidence=words))
    return lines


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
    words = "neither manager nor system offers a SerialConsole"
    if offered:
        words = f"SerialConsole offers {', '.join(dict.fromkeys(offered))}: it is reached by the ipmi or ssh driver"
    return _yes(words) if name == "getConsole" else _no(words)


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
        case "getCertificates" | "generateCsr" | "replaceCertificate":
            return _certificates(name, evidence)
        case _:
            offered = dig(evidence.manager, "Actions", "Oem")
            found = [key for key in offered if "Configuration" in key] if isinstance(offered, dict) else []
            wanted = [key for key in found if ("Export" if name == "exportConfig" else "Import") in key]
            return _yes(", ".join(wanted)) if wanted else _no("the manager has no action for a vendor's profile")


def _certificates(name: str, evidence: Evidence) -> Verdict:
    service = evidence.certificates
    if service is None:
        return _no(evidence.refusals.get("CertificateService", "the service has no CertificateService"))
    web = link(evidence.network, "HTTPS", "Certificates")
    if name == "getCertificates":
        return _yes(web) if web else _maybe(f"{_where(service)} names no place for those of the web server")
    wanted = {"generateCsr": "GenerateCSR", "replaceCertificate": "ReplaceCertificate"}[name]
    if action(service, f"CertificateService.{wanted}") is None:
        return _no(f"CertificateService has no {wanted} action")
    words = f"CertificateService.{wanted}"
    return _yes(words) if web else _maybe(f"{words}; it names no place for the certificates of the web server")


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
