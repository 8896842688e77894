"""RAID controllers, drives and volumes as a Redfish service shows them. Pure.

A controller is a `Storage` with `Volumes` of its own. What it can do is told in four places, none of which every
maker fills: `SupportedRAIDTypes` of its controllers (inside it, or as resources of their own), the volumes'
capabilities object, the volumes themselves, and the maker's own words on its mode.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from drivers.redfish.document import Document, Found, allowed_values, dig, link, links, same_path, text
from drivers.redfish.health import health_of, is_absent
from drivers.redfish.inventory import place_of, whole
from drivers.redfish.manners import Manners
from drivers.redfish.placeholders import real_text
from protocol.shapes.management import Health
from protocol.shapes.raid import Media, RaidController, RaidDrive, RaidLevel, RaidVolume, SpareKind

__all__ = [
    "RAID_TYPES",
    "VOLUME_TYPES",
    "Shelf",
    "controller_of",
    "drive_of",
    "level_of",
    "levels_of",
    "names_of",
    "offers_volumes",
    "shelf_of",
    "types_of_capabilities",
    "volume_of",
]

RAID_TYPES = {
    RaidLevel.RAID0: "RAID0",
    RaidLevel.RAID1: "RAID1",
    RaidLevel.RAID5: "RAID5",
    RaidLevel.RAID6: "RAID6",
    RaidLevel.RAID10: "RAID10",
    RaidLevel.RAID50: "RAID50",
    RaidLevel.RAID60: "RAID60",
    RaidLevel.JBOD: "None",
}
"""`Volume.RAIDType` (DSP8010, Volume 1.3.1); None is a volume without redundancy over whole drives."""
VOLUME_TYPES = {
    RaidLevel.RAID0: "NonRedundant",
    RaidLevel.RAID1: "Mirrored",
    RaidLevel.RAID5: "StripedWithParity",
    RaidLevel.RAID6: "StripedWithParity",
    RaidLevel.RAID10: "SpannedMirrors",
    RaidLevel.RAID50: "SpannedStripesWithParity",
    RaidLevel.RAID60: "SpannedStripesWithParity",
    RaidLevel.JBOD: "NonRedundant",
}
"""`Volume.VolumeType`, which older services want; deprecated since Volume 1.3."""
_LEVELS = {word.lower(): level for level, word in RAID_TYPES.items()}
_LEVELS_OF_VOLUME_TYPES = {
    "nonredundant": RaidLevel.RAID0,
    "mirrored": RaidLevel.RAID1,
    "stripedwithparity": RaidLevel.RAID5,
    "spannedmirrors": RaidLevel.RAID10,
    "spannedstripeswithparity": RaidLevel.RAID50,
}
_MEDIA = {"ssd": Media.SSD, "hdd": Media.HDD, "smr": Media.HDD}
_SPARES = {
    "global": SpareKind.GLOBAL,
    "chassis": SpareKind.GLOBAL,
    "enclosure": SpareKind.GLOBAL,
    "dedicated": SpareKind.DEDICATED,
}
_MODES = ("CurrentControllerMode", "ControllerMode", "CurrentOperatingMode", "Mode", "Personality")
"""Where makers write whether a controller makes volumes: Dell, Dell, HPE, Lenovo, Broadcom."""
_NO_MODE = frozenset({"notsupported", "notapplicable", "none", "unknown"})
_HBA_MODES = frozenset({"hba", "it", "jbod", "passthrough", "pass-through"})
_FOREIGN = ("RaidStatus", "DriveState", "DriveStatus", "State")
_FAILED_STATES = frozenset({"failed", "unavailableoffline"})
_SYSTEM_USES = frozenset({"systemdata", "systemreserve"})
_BAY = re.compile(r":?Bay=?\s*\S+$", re.IGNORECASE)


@dataclass(slots=True)
class Shelf:
    """One controller with the paths of what it shows: the shapes name things by id, requests by path."""

    path: str
    storage: Document
    volumes_path: str
    shown: RaidController
    drives: list[RaidDrive] = field(default_factory=list)
    volumes: list[RaidVolume] = field(default_factory=list)
    drive_paths: dict[str, str] = field(default_factory=dict)
    volume_paths: dict[str, str] = field(default_factory=dict)
    volume_names: dict[str, frozenset[str]] = field(default_factory=dict)
    """Every name that each volume has."""

    @property
    def id(self) -> str:
        return self.shown.id


def offers_volumes(path: str, storage: Document, others: Iterable[str]) -> bool:
    """Whether a storage has volumes of its own: a link into another storage's does not count (DMTF's tower)."""
    volumes = link(storage, "Volumes")
    if volumes is None:
        return False
    return not any(not same_path(other, path) and _is_below(volumes, other) for other in others)


def controller_of(
    path: str,
    storage: Document,
    controllers: Sequence[Document] | None,
    types: Sequence[str] | None,
    has_volumes: bool,
    manners: Manners,
) -> RaidController:
    """What the controller is, and whether volumes can be made on it.

    `controllers`: its controllers' documents; None where they could not be read. `types`: the RAID types that the
    volumes' capabilities list; None where nothing lists them. `has_volumes`: whether a volume was made on it.
    """
    parts = [part for part in controllers or () if isinstance(part, dict)]
    first = parts[0] if parts else {}
    offered = _supported(parts)
    if offered is None:
        offered = None if types is None else list(types)
    levels = levels_of(offered or [])
    mode = _mode([storage, *parts])
    health = health_of(storage, rollup=True)
    return RaidController(
        id=text(storage, "Id") or _last(path),
        name=real_text(storage, "Name"),
        model=real_text(first, "Model") or real_text(first, "Name"),
        mode=mode,
        levels=levels,
        firmware=real_text(first, "FirmwareVersion"),
        health=None if health is Health.UNKNOWN else health.value,
        unsuitable=_unsuitable(mode, controllers, offered, levels, has_volumes, manners),
    )


def levels_of(types: Iterable[str]) -> list[RaidLevel]:
    """The levels that this product knows among RAID types, in its own order."""
    known = {_LEVELS.get(word.lower()) for word in types}
    return [level for level in RaidLevel if level in known]


def level_of(volume: Document) -> RaidLevel | None:
    """A volume's level; None for one that this product does not know, and where nothing tells it."""
    raid = text(volume, "RAIDType")
    if raid is not None:
        return _LEVELS.get(raid.lower())
    kind = (text(volume, "VolumeType") or "").lower()
    return RaidLevel.JBOD if kind == "rawdevice" else _LEVELS_OF_VOLUME_TYPES.get(kind)


def drive_of(path: str, document: Document, controller: str, storage: Document) -> RaidDrive | None:
    """One drive; None for an empty bay. The volumes on it are told by `shelf_of`."""
    if is_absent(document):
        return None
    health = health_of(document)
    spare = _SPARES.get((text(document, "HotspareType") or "").lower())
    return RaidDrive(
        id=text(document, "Id") or _last(path),
        controller=controller,
        name=real_text(document, "Name"),
        serial=real_text(document, "SerialNumber"),
        media=_media(document),
        size_bytes=whole(document, "CapacityBytes"),
        enclosure=_enclosure(document, storage),
        state=_drive_state(document, health, spare),
        volumes=[_last(volume) for volume in links(document, "Links", "Volumes")],
        spare=spare,
        health=None if health is Health.UNKNOWN else health.value,
    )


def volume_of(path: str, document: Document, controller: str, drive_ids: Sequence[tuple[str, str]]) -> RaidVolume:
    """One volume. `drive_ids`: the path and id of each drive of the machine."""
    health = health_of(document)
    raw = (text(document, "VolumeType") or "").lower() == "rawdevice"
    state = (text(document, "Status", "State") or "").lower()
    degraded = "degraded" if health in (Health.WARNING, Health.CRITICAL) else None
    return RaidVolume(
        id=text(document, "Id") or _last(path),
        controller=controller,
        name=real_text(document, "DisplayName") or real_text(document, "Name"),
        level=level_of(document),
        size_bytes=whole(document, "CapacityBytes"),
        drives=[_id_at(drive, drive_ids) for drive in links(document, "Links", "Drives")],
        state=degraded or ("online" if state in ("enabled", "") else state),
        health=None if health is Health.UNKNOWN else health.value,
        spares=[_id_at(drive, drive_ids) for drive in links(document, "Links", "DedicatedSpareDrives")],
        raw=raw,
    )


def names_of(document: Document) -> frozenset[str]:
    """The names of a volume: HPE keeps a name of its own in Name and the operator's in DisplayName."""
    return frozenset(name for key in ("DisplayName", "Name") if (name := text(document, key)) is not None)


def shelf_of(
    path: str,
    storage: Document,
    shown: RaidController,
    drives: Sequence[Found],
    volumes: Sequence[Found],
    boot: Sequence[str] = (),
) -> Shelf:
    """The controller put together. `boot`: paths and ids of what the machine is known to boot from."""
    shelf = Shelf(path, storage, link(storage, "Volumes") or f"{path.rstrip('/')}/Volumes", shown)
    found = [(at, drive) for at, document in drives if (drive := drive_of(at, document, shown.id, storage))]
    for at, drive in _with_own_ids(found):
        shelf.drive_paths[drive.id] = at
        shelf.drives.append(drive)
    ids = [(at, name) for name, at in shelf.drive_paths.items()]
    for at, document in volumes:
        volume = volume_of(at, document, shown.id, ids)
        shelf.volume_paths[volume.id] = at
        shelf.volume_names[volume.id] = names_of(document)
        shelf.volumes.append(volume)
    booting = {_last(item).lower() for item in (*boot, *_boot_volumes(storage))}
    for volume, (_, document) in zip(shelf.volumes, volumes, strict=True):
        if (text(document, "VolumeUsage") or "").lower() in _SYSTEM_USES:
            booting.add(volume.id.lower())
    shelf.drives = [_placed(drive, shelf, booting) for drive in shelf.drives]
    return shelf


def _placed(drive: RaidDrive, shelf: Shelf, booting: set[str]) -> RaidDrive:
    """A drive with the volumes on it: those that name it, and those that it names."""
    raw = {volume.id for volume in shelf.volumes if volume.raw}
    naming = [volume.id for volume in shelf.volumes if drive.id in volume.drives and not volume.raw]
    by_last = {_last(path): name for name, path in shelf.volume_paths.items()}
    named = [by_last.get(name, name) for name in drive.volumes]
    volumes = list(dict.fromkeys([*naming, *(name for name in named if name not in raw)]))
    spare = drive.spare
    if spare is None and any(drive.id in volume.spares for volume in shelf.volumes):
        spare = SpareKind.DEDICATED
    state = drive.state
    if state == "ready":
        state = "online" if volumes else "spare" if spare is not None else "ready"
    boots = {drive.id.lower(), *(name.lower() for name in volumes)} & booting
    return msgspec.structs.replace(drive, volumes=volumes, spare=spare, state=state, boot=bool(boots))


def _with_own_ids(found: list[tuple[str, RaidDrive]]) -> Iterator[tuple[str, RaidDrive]]:
    """Drives whose ids are unique on their controller: bays of two enclosures may have the same numbers."""
    for path, drive in found:
        if [other.id for _, other in found].count(drive.id) == 1:
            yield path, drive
        else:
            above = path.rstrip("/").rpartition("/")[0].removesuffix("/Drives")
            yield path, msgspec.structs.replace(drive, id=f"{_last(above)}/{drive.id}")


def _supported(controllers: list[Document]) -> list[str] | None:
    """What the controllers themselves list; None where none has a list, which is not the same as an empty one."""
    listed = [dig(part, "SupportedRAIDTypes") for part in controllers]
    found = [item for item in listed if isinstance(item, list)]
    if not found:
        return None
    return [word for item in found for word in item if isinstance(word, str)]


def _unsuitable(
    mode: str | None,
    controllers: Sequence[Document] | None,
    offered: list[str] | None,
    levels: list[RaidLevel],
    has_volumes: bool,
    manners: Manners,
) -> str | None:
    if mode is not None and mode.lower() in _HBA_MODES:
        return f"it is in {mode} mode and shows its drives as they are: {manners.raid_mode_hint}"
    if levels or has_volumes:
        return None
    if offered is not None:
        named = f" (only {', '.join(offered)})" if offered else ""
        return f"it offers no RAID level{named}"
    if controllers is not None and not controllers:
        return "its drives are attached directly, without a controller"
    return None


def _mode(documents: Iterable[Document]) -> str | None:
    for document in documents:
        for part in _oem_parts(document):
            for key in _MODES:
                word = text(part, key)
                if word is not None and word.lower() not in _NO_MODE:
                    return word
    return None


def _oem_parts(document: object) -> Iterator[Document]:
    """The objects of `Oem`, one and two levels down: `Oem.Lenovo`, `Oem.Dell.DellController`."""
    sections = dig(document, "Oem")
    for section in sections.values() if isinstance(sections, dict) else ():
        if isinstance(section, dict):
            yield section
            yield from (part for part in section.values() if isinstance(part, dict))


def _media(document: Document) -> Media | None:
    word = (text(document, "MediaType") or "").lower()
    if word in _MEDIA:
        return _MEDIA[word]
    if (text(document, "Protocol") or "").lower() == "nvme":
        return Media.SSD
    return Media.HDD if whole(document, "RotationSpeedRPM") is not None else None


def _enclosure(document: Document, storage: Document) -> str | None:
    chassis = link(document, "Links", "Chassis")
    if chassis is not None:
        return _last(chassis)
    label = place_of(document)
    if label is not None and "bay" in label.lower() and (box := _BAY.sub("", label).strip(" :")):
        return box
    enclosures = links(storage, "Links", "Enclosures")
    return _last(enclosures[0]) if len(enclosures) == 1 else None


def _drive_state(document: Document, health: Health, spare: SpareKind | None) -> str:
    words = [text(part, key) or "" for part in _oem_parts(document) for key in _FOREIGN]
    if any("foreign" in word.lower() for word in words):
        return "foreign"
    state = (text(document, "Status", "State") or "").lower()
    if health is Health.CRITICAL or state in _FAILED_STATES:
        return "failed"
    return "spare" if spare is not None or state == "standbyspare" else "ready"


def _boot_volumes(storage: Document) -> list[str]:
    """The volume that the controller offers to boot from (Dell)."""
    return [name for part in _oem_parts(storage) if (name := real_text(part, "BootVirtualDiskFQDD")) is not None]


def _id_at(path: str, drive_ids: Sequence[tuple[str, str]]) -> str:
    return next((name for at, name in drive_ids if same_path(at, path)), _last(path))


def _is_below(path: str, parent: str) -> bool:
    return path.rstrip("/").lower().startswith(f"{parent.rstrip('/').lower()}/")


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def types_of_capabilities(capabilities: Document | None) -> list[str] | None:
    """The RAID types in a capabilities object (DSP0266, collection capabilities); None where it lists none."""
    return allowed_values(capabilities, "RAIDType") or None
