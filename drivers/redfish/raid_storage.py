"""Finding and reading a machine's RAID controllers; what makes no volumes is passed over and costs nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish.document import Document, Found, dig, link, links, members, text
from drivers.redfish.failures import Refused
from drivers.redfish.raid_reading import (
    Shelf,
    controller_of,
    offers_volumes,
    shelf_of,
    types_of_capabilities,
)
from drivers.redfish.survey import Survey
from drivers.redfish.walking import expand_query
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.raid import RaidReading

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["Shelves", "capabilities_path", "read_shelves"]

_PART = "raid"


@dataclass(slots=True)
class Shelves:
    """Every RAID controller of a machine, and what could not be read."""

    found: list[Shelf] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def reading(self) -> RaidReading:
        drives = [drive for shelf in self.found for drive in shelf.drives]
        return RaidReading(
            controllers=[shelf.shown for shelf in self.found],
            drives=drives,
            volumes=[volume for shelf in self.found for volume in shelf.volumes],
            foreign=[drive.id for drive in drives if drive.state == "foreign"],
            unread=list(self.unread),
        )

    def of(self, controller: str) -> Shelf:
        """The controller of this id. Raises OperationError INVALID_ARGUMENT that names those that are there, BUSY
        where it may be among what could not be read."""
        for shelf in self.found:
            if shelf.id == controller:
                return shelf
        self.check_complete()
        known = ", ".join(shelf.id for shelf in self.found) or "none"
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT, f"controller: there is no {controller!r}; this machine has {known}"
        )

    def check_complete(self) -> None:
        """Raises OperationError BUSY where something could not be read: a volume that was not seen must not be taken
        for one that is not there."""
        if self.unread:
            raise OperationError(
                ErrorCode.BUSY,
                f"nothing was changed, because a part of the storage could not be read ({'; '.join(self.unread)}): "
                "ask again",
            )


async def read_shelves(
    connection: RedfishConnection, call: Call, *, only: str | None = None, boot_drives: bool = False
) -> Shelves:
    """The controllers with their drives and volumes, as they are now.

    `only`: the id of the one that is wanted, where no other needs to be read. `boot_drives`: also ask the boot
    options which drive the machine boots from, for two more requests.
    Raises OperationError UNSUPPORTED where the system has no `Storage` at all.
    """
    system = await connection.service.system(call)
    path = link(system, "Storage")
    if path is None:
        raise _no_storage(system)
    survey = _Survey(connection, call)
    storages = await _storages(connection, survey, path, only, call)
    if storages is None:
        survey.raise_first()
        raise _no_storage(system)
    boot = await _boot_items(survey, system) if boot_drives else []
    shelves = Shelves()
    paths = [at for at, _ in storages]
    for at, storage in [found for found in storages if text(found[1], "Id") == only] or storages:
        if offers_volumes(at, storage, paths):
            shelves.found.append(await _shelf(survey, at, storage, boot, connection))
    shelves.unread = [f"{one.path}: {one.reason}" for one in survey.unread]
    return shelves


def capabilities_path(collection: Document) -> str | None:
    """Where a volume collection describes what can be given when a volume is made (DSP0266)."""
    listed = dig(collection, "@Redfish.CollectionCapabilities", "Capabilities")
    for item in listed if isinstance(listed, list) else []:
        if text(item, "UseCase") in ("VolumeCreation", None):
            found = link(item, "CapabilitiesObject")
            if found is not None:
                return found
    return None


class _Survey(Survey):
    """A survey to which a link that leads nowhere says that there is nothing: it hides nothing that exists."""

    first: OperationError | None = None

    def note_failure(self, path: str, failure: OperationError, part: str) -> None:
        self.first = self.first or failure
        if not (isinstance(failure, Refused) and failure.status in (404, 410)):
            super().note_failure(path, failure, part)

    def raise_first(self) -> None:
        """Raises what could not be read first; nothing where it was only not there."""
        if self.first is not None and self.unread:
            raise self.first


def _no_storage(system: Document) -> OperationError:
    simple = " (only SimpleStorage, which has no volumes)" if link(system, "SimpleStorage") else ""
    return OperationError(ErrorCode.UNSUPPORTED, f"this BMC shows no storage controllers{simple}")


async def _storages(
    connection: RedfishConnection, survey: _Survey, path: str, only: str | None, call: Call
) -> list[Found] | None:
    """All storages; or the one that `only` names, where its path tells which it is."""
    if only is None or await expand_query(connection, call) is not None:
        return await survey.members(path, _PART)
    listed = members(await survey.read(path, _PART))
    named = [at for at in listed if at.rstrip("/").rpartition("/")[2].lower() == only.lower()]
    found = [(at, document) for at in named if (document := await survey.read(at, _PART)) is not None]
    if any(text(document, "Id") in (only, None) for _, document in found):
        return found
    return await survey.members(path, _PART)


async def _shelf(
    survey: _Survey, path: str, storage: Document, boot: list[str], connection: RedfishConnection
) -> Shelf:
    controllers = await _controllers(survey, storage)
    drive_paths = links(storage, "Drives")
    known = [item for part in controllers or () if isinstance(item := dig(part, "SupportedRAIDTypes"), list)]
    volumes: list[Found] = []
    if drive_paths or not known or any(known):
        volumes = await survey.members(link(storage, "Volumes"), _PART) or []
    drives = [(at, document) for at in drive_paths if (document := await survey.read(at, _PART)) is not None]
    types = None
    if controllers and not known:
        collection = await survey.read(link(storage, "Volumes"), _PART)
        types = types_of_capabilities(await survey.read(capabilities_path(collection or {}), _PART))
    made = any(text(document, "VolumeType") != "RawDevice" for _, document in volumes)
    shown = controller_of(path, storage, controllers, types, made, connection.service.manners)
    return shelf_of(path, storage, shown, drives, volumes, boot)


async def _controllers(survey: _Survey, storage: Document) -> list[Document] | None:
    """The controllers' documents: inside the storage where they are told there (deprecated, and free), else their
    resources; None where those cannot be read."""
    inside = dig(storage, "StorageControllers")
    listed = [item for item in inside if isinstance(item, dict)] if isinstance(inside, list) else []
    if any(len(item) > 1 for item in listed):
        return listed
    path = link(storage, "Controllers")
    if path is None:
        return []
    found = await survey.members(path, _PART)
    return None if found is None else [document for _, document in found]


async def _boot_items(survey: _Survey, system: Document) -> list[str]:
    """What the first entry of the boot order says that it belongs to: a drive or a volume, where it says so."""
    order = dig(system, "Boot", "BootOrder")
    first = order[0] if isinstance(order, list) and order and isinstance(order[0], str) else None
    path = link(system, "Boot", "BootOptions")
    if first is None or path is None:
        return []
    for at in members(await survey.read(path, _PART)):
        if at.rstrip("/").rpartition("/")[2].lower() in (first.lower(), first.lower().removeprefix("boot")):
            option = await survey.read(at, _PART)
            return [*links(option, "RelatedItem"), *links(option, "Links", "RelatedItem")]
    return []
