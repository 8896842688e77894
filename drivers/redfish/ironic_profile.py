"""What OpenStack Ironic's Redfish interoperability profile wants of a BMC, held against what was read of one. Pure.

The requirements are facts taken from OpenStackIronicProfile 1.2.0 (openstack/ironic, redfish-interop-profiles), in
our own words. Reading cannot prove that a property can be written; a list of the values it takes counts as proof.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from drivers.redfish import boot_override
from drivers.redfish.document import Document, action, boolean, dig, link, links, number, settings_path, text
from drivers.redfish.evidence import Evidence
from protocol.shapes.management import Fulfilment, Need, ProfileVerdict, Requirement
from protocol.shapes.virtual_media import InsertMethod

__all__ = ["PROFILE", "ironic_verdict"]

PROFILE = "OpenStackIronicProfile 1.2.0"
_LEAST_VERSION = (1, 6, 0)

Finding = tuple[Fulfilment, str]


@dataclass(frozen=True, slots=True)
class _Row:
    resource: str
    item: str
    needed_for: str
    need: Need
    check: Callable[[Evidence], Finding]


def ironic_verdict(evidence: Evidence) -> ProfileVerdict:
    """Every requirement with its verdict, and the verdict on the mandatory ones together."""
    lines = []
    for row in _ROWS:
        verdict, words = row.check(evidence)
        lines.append(
            Requirement(
                resource=row.resource,
                item=row.item,
                needed_for=row.needed_for,
                need=row.need,
                verdict=verdict,
                evidence=words,
            )
        )
    return ProfileVerdict(profile=PROFILE, verdict=_together(lines), requirements=lines)


def _together(lines: Iterable[Requirement]) -> Fulfilment:
    verdicts = {line.verdict for line in lines if line.need is Need.MANDATORY}
    for worse in (Fulfilment.NOT_MET, Fulfilment.UNKNOWN):
        if worse in verdicts:
            return worse
    return Fulfilment.MET


def _version(evidence: Evidence) -> Finding:
    told = text(evidence.root, "RedfishVersion")
    parts = (told or "").split(".")
    if told is None or not all(part.isdecimal() for part in parts):
        return _unknown(f"RedfishVersion is {told or 'not told'}")
    return _if(tuple(map(int, parts)) >= _LEAST_VERSION, f"RedfishVersion is {told}")


def _reset(evidence: Evidence) -> Finding:
    if action(evidence.system, "ComputerSystem.Reset") is None:
        return _not_met("the system has no ComputerSystem.Reset action")
    if not evidence.reset_types:
        return _unknown("ComputerSystem.Reset lists no reset types")
    return _has_all(evidence.reset_types, ("On", "ForceOff", "ForceRestart"))


def _override(key: str, wanted: tuple[str, ...]) -> Callable[[Evidence], Finding]:
    def check(evidence: Evidence) -> Finding:
        view = evidence.boot
        listed = view.allowed(key)
        if listed:
            return _has_all(listed, wanted)
        shown = view.value(key)
        if shown is None and key not in view.system and key not in view.settings:
            return _not_met(f"Boot has no {key}")
        return _unknown(f"{key} is {shown or 'null'}; the values that it takes are not listed")

    return check


def _managed_by(evidence: Evidence) -> Finding:
    listed = links(evidence.system, "Links", "ManagedBy")
    return _if(bool(listed), listed[0] if listed else "the system has no Links.ManagedBy")


def _media_types(evidence: Evidence) -> Finding:
    if not evidence.slots:
        return _not_met("neither system nor manager has VirtualMedia with slots")
    told = [slot.id for slot in evidence.slots if slot.media_types]
    return _if(bool(told), f"MediaTypes of {', '.join(told)}" if told else "no slot lists MediaTypes")


def _insert(evidence: Evidence) -> Finding:
    taking = [slot.id for slot in evidence.slots if slot.insert_target]
    if taking:
        return _met(f"InsertMedia of {', '.join(taking)}")
    patched = [slot.id for slot in evidence.slots if slot.method is InsertMethod.PATCH]
    return _not_met(f"{', '.join(patched)} take an image by PATCH only" if patched else "no slot has InsertMedia")


def _eject(evidence: Evidence) -> Finding:
    giving = [slot.id for slot in evidence.slots if slot.eject_target]
    if giving:
        return _met(f"EjectMedia of {', '.join(giving)}")
    if any(slot.insert_target and not slot.inserted for slot in evidence.slots):
        return _unknown("EjectMedia is not there while the slots are empty, which is Supermicro's way")
    return _not_met("no slot has EjectMedia")


def _shown(name: str, holder: Callable[[Evidence], Document | None], *keys: str) -> Callable[[Evidence], Finding]:
    """All the properties must have a value; each key is a path with dots."""

    def check(evidence: Evidence) -> Finding:
        document = holder(evidence)
        if document is None:
            why = evidence.why_not(name)
            return _unknown(why or f"there is no {name} to look at")
        lacking = [key for key in keys if dig(document, *key.split(".")) in (None, "")]
        found = link(document) or name
        return _if(not lacking, f"{found} has {'no ' if lacking else ''}{', '.join(lacking or keys)}")

    return check


def _memory(evidence: Evidence) -> Finding:
    gib = number(evidence.system, "MemorySummary", "TotalSystemMemoryGiB")
    return _if(gib is not None, f"TotalSystemMemoryGiB is {gib:g}" if gib is not None else "there is none")


def _storage(evidence: Evidence) -> Finding:
    if not evidence.storage:
        return _unknown(evidence.why_not("Storage") or "the system has no Storage")
    full = [
        text(item, "Id") or "?"
        for item in evidence.storage
        if "Drives" in item and "Volumes" in item and ("Controllers" in item or "StorageControllers" in item)
    ]
    return _if(
        bool(full), f"{', '.join(full)} have them" if full else "no storage has drives, volumes and controllers"
    )


def _bios_settings(evidence: Evidence) -> Finding:
    if evidence.bios is None:
        return _unknown(evidence.why_not("Bios") or "the system has no Bios")
    settings = settings_path(evidence.bios)
    return _if(settings is not None, settings or "Bios names no settings object")


def _secure_boot(evidence: Evidence) -> Finding:
    if evidence.secure_boot is None:
        return _unknown(evidence.why_not("SecureBoot") or "the system has no SecureBoot")
    setting = boolean(evidence.secure_boot, "SecureBootEnable")
    return _if(setting is not None, f"SecureBootEnable is {'missing' if setting is None else str(setting).lower()}")


def _simple_update(evidence: Evidence) -> Finding:
    if evidence.update is None:
        return _unknown(evidence.why_not("UpdateService") or "the service has no UpdateService")
    offered = action(evidence.update, "UpdateService.SimpleUpdate") is not None
    return _if(offered, "UpdateService.SimpleUpdate" if offered else "UpdateService has no SimpleUpdate action")


def _linked(*keys: str, of_root: bool = False) -> Callable[[Evidence], Finding]:
    def check(evidence: Evidence) -> Finding:
        path = link(evidence.root if of_root else evidence.system, *keys)
        return _if(path is not None, path or f"there is no {'.'.join(keys)}")

    return check


def _told(key: str) -> Callable[[Evidence], Finding]:
    def check(evidence: Evidence) -> Finding:
        value = text(evidence.system, key)
        return _if(value is not None, f"{key} is {value}" if value is not None else f"{key} is missing or null")

    return check


def _has_all(listed: Iterable[str], wanted: tuple[str, ...]) -> Finding:
    lacking = [word for word in wanted if word not in listed]
    return _if(not lacking, f"it does not take {', '.join(lacking)}" if lacking else f"it takes {', '.join(listed)}")


def _if(met: bool, words: str) -> Finding:
    return (Fulfilment.MET if met else Fulfilment.NOT_MET), words


def _met(words: str) -> Finding:
    return Fulfilment.MET, words


def _not_met(words: str) -> Finding:
    return Fulfilment.NOT_MET, words


def _unknown(words: str) -> Finding:
    return Fulfilment.UNKNOWN, words


_SYSTEM, _MEDIA, _MUST = "ComputerSystem", "VirtualMedia", Need.MANDATORY
_WHERE, _WISHED = Need.IF_PRESENT, Need.RECOMMENDED
_ROWS: tuple[_Row, ...] = (
    _Row("ServiceRoot", "RedfishVersion 1.6.0 or later", "everything", _MUST, _version),
    _Row("ServiceRoot", "Systems, with a member", "everything", _MUST, lambda e: _if(bool(e.system), "it has one")),
    _Row(_SYSTEM, "PowerState", "reading the power state", _MUST, _told("PowerState")),
    _Row(_SYSTEM, "Reset: On, ForceOff, ForceRestart", "power actions", _MUST, _reset),
    _Row(
        _SYSTEM,
        "Boot.BootSourceOverrideTarget: Pxe, Hdd, Cd",
        "choosing what is booted next",
        _MUST,
        _override(boot_override.TARGET, ("Pxe", "Hdd", "Cd")),
    ),
    _Row(
        _SYSTEM,
        "Boot.BootSourceOverrideEnabled: Once, Continuous",
        "a boot device for once or for good",
        _MUST,
        _override(boot_override.ENABLED, ("Once", "Continuous")),
    ),
    _Row(_SYSTEM, "Boot.BootSourceOverrideMode", "UEFI or legacy boot", _MUST, _override(boot_override.MODE, ())),
    _Row(_SYSTEM, "Links.ManagedBy", "finding the BMC of the machine", _MUST, _managed_by),
    _Row(_MEDIA, "MediaTypes", "booting from an image", _MUST, _media_types),
    _Row(_MEDIA, "InsertMedia", "booting from an image", _MUST, _insert),
    _Row(_MEDIA, "EjectMedia", "booting from an image", _MUST, _eject),
    _Row("Bios", "Attributes", "BIOS settings", _WHERE, _shown("Bios", lambda e: e.bios, "Attributes")),
    _Row("Bios", "@Redfish.Settings.SettingsObject", "changing BIOS settings", _WHERE, _bios_settings),
    _Row(
        "EthernetInterface",
        "MACAddress, Status.State, Status.Health",
        "ports in inspection",
        _WHERE,
        _shown("EthernetInterfaces", lambda e: e.interface, "MACAddress", "Status.State", "Status.Health"),
    ),
    _Row(_SYSTEM, "MemorySummary.TotalSystemMemoryGiB", "memory in inspection", _WHERE, _memory),
    _Row(
        "Processor",
        "ProcessorArchitecture, TotalThreads",
        "processors in inspection",
        _WHERE,
        _shown("Processors", lambda e: e.processor, "ProcessorArchitecture", "TotalThreads"),
    ),
    _Row("Storage", "Drives, Controllers, Volumes", "RAID", _WHERE, _storage),
    _Row(
        "Drive",
        "MediaType, Protocol, Status",
        "drives in RAID",
        _WHERE,
        _shown("drive", lambda e: e.drive, "MediaType", "Protocol", "Status"),
    ),
    _Row("SecureBoot", "SecureBootEnable", "Secure Boot", _WHERE, _secure_boot),
    _Row("UpdateService", "SimpleUpdate", "firmware updates", _WHERE, _simple_update),
    _Row(_SYSTEM, "EthernetInterfaces", "ports in inspection", _WISHED, _linked("EthernetInterfaces")),
    _Row(_SYSTEM, "Processors", "processors in inspection", _WISHED, _linked("Processors")),
    _Row(_SYSTEM, "SimpleStorage", "disks in inspection", _WISHED, _linked("SimpleStorage")),
    _Row(_SYSTEM, "Storage", "RAID", _WISHED, _linked("Storage")),
    _Row(_SYSTEM, "Bios", "BIOS settings", _WISHED, _linked("Bios")),
    _Row(_SYSTEM, "BiosVersion", "the firmware's version", _WISHED, _told("BiosVersion")),
    _Row(_SYSTEM, "SecureBoot", "Secure Boot", _WISHED, _linked("SecureBoot")),
    _Row(_SYSTEM, "Manufacturer", "the vendor", _WISHED, _told("Manufacturer")),
    _Row(_SYSTEM, "IndicatorLED", "the light", _WISHED, _told("IndicatorLED")),
    _Row(
        "Manager",
        "FirmwareVersion",
        "the BMC's version",
        _WISHED,
        _shown("Managers", lambda e: e.manager or None, "FirmwareVersion"),
    ),
    _Row("ServiceRoot", "SessionService", "sessions", _WISHED, _linked("SessionService", of_root=True)),
    _Row("ServiceRoot", "Tasks", "tasks", _WISHED, _linked("Tasks", of_root=True)),
    _Row("ServiceRoot", "UpdateService", "firmware updates", _WISHED, _linked("UpdateService", of_root=True)),
)
