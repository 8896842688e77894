"""What firmware runs where: the update service's inventories, or what system and manager say where there are none."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish.document import Document, boolean, dig, link, links, text
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.manners import Manners
from drivers.redfish.walking import is_whole, read_listing
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.firmware import FirmwareComponent

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["component_of", "from_system", "read_inventory", "update_service_path"]

_MOST_COMPONENTS = 2000
_COPY_STATES = frozenset({"disabled", "standbyspare", "standbyoffline", "updating", "absent"})
"""States of an inventory entry that does not run: OpenBMC's standby image, Lenovo's empty pending one."""


async def read_inventory(
    connection: RedfishConnection, service: Document | None, call: Call
) -> list[FirmwareComponent]:
    """Every component once, in the BMC's order; members that cannot be read are left out.

    FirmwareInventory, else SoftwareInventory (Intel has only that), else the versions that the system and its manager
    give themselves.
    """
    manners = await connection.service.manners_so_far(call)
    for name in ("FirmwareInventory", "SoftwareInventory"):
        found = await _read_members(connection, link(service, name), manners, call)
        if found:
            return found
    system = await connection.service.system(call)
    return from_system(system, await connection.service.manager(call, system) or {})


def component_of(document: Document, path: str | None, manners: Manners) -> FirmwareComponent | None:
    """One entry of an inventory; None for one that says neither what nor which version."""
    identifier = text(document, "Id") or (path.rstrip("/").rpartition("/")[2] if path else None)
    name, version, state = text(document, "Name"), text(document, "Version"), text(document, "Status", "State")
    if identifier is None or ("error" in document and name is None and version is None):
        return None
    return FirmwareComponent(
        id=identifier,
        name=name or identifier,
        version=version,
        updateable=boolean(document, "Updateable"),
        path=path,
        software_id=text(document, "SoftwareId"),
        state=state,
        related=links(document, "RelatedItem"),
        active=not _is_copy(identifier, name or "", state, manners),
    )


def from_system(system: Document, manager: Document) -> list[FirmwareComponent]:
    """What a machine without an inventory says of itself."""
    found = []
    bios, bmc = text(system, "BiosVersion"), text(manager, "FirmwareVersion")
    if bios is not None:
        found.append(FirmwareComponent(id="BIOS", name="BIOS", version=bios, related=_own(system)))
    if bmc is not None:
        found.append(FirmwareComponent(id="BMC", name="BMC", version=bmc, related=_own(manager)))
    return found


async def update_service_path(connection: RedfishConnection, call: Call) -> str | None:
    return link(await connection.root(call), "UpdateService")


async def _read_members(
    connection: RedfishConnection, path: str | None, manners: Manners, call: Call
) -> list[FirmwareComponent]:
    if path is None:
        return []
    try:
        listed = await read_listing(connection, path, call, _MOST_COMPONENTS)
    except (Refused, NoAnswer) as failure:
        if isinstance(failure, Refused) and not failure.absent:
            raise
        if isinstance(failure, NoAnswer):
            raise
        return []
    except OperationError as error:
        if error.code is not ErrorCode.BMC_ERROR:
            raise
        return []
    found: dict[str, FirmwareComponent] = {}
    for item in listed[:_MOST_COMPONENTS]:
        place = link(item)
        if place is not None and place in found:
            continue
        document = item if is_whole(item) else await connection.find(place, call)
        component = component_of(document, place, manners) if document is not None else None
        if component is not None:
            found[place or f"{component.id}"] = component
    return list(found.values())


def _is_copy(identifier: str, name: str, state: str | None, manners: Manners) -> bool:
    if (state or "").lower() in _COPY_STATES:
        return True
    pattern = manners.firmware_copies
    return pattern is not None and any(re.search(pattern, word) for word in (identifier, name))


def _own(document: Document) -> list[str]:
    path = link(document)
    found = dig(document, "Bios", "@odata.id")
    return [item for item in (path, found) if isinstance(item, str)]
