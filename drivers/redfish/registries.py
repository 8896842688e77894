"""Finding the attribute registry that a BIOS names among those of the service, and keeping it (DSP0266, registries).

A registry is half a megabyte and stays as it is while its name does: it is read once per connection and kept packed,
so that a site with a thousand BMCs keeps some tens of megabytes and not a gigabyte.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from drivers.driver import Call
from drivers.redfish.bios_registry import AttributeRegistry
from drivers.redfish.document import Document, dig, link, members, path_of, text

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["KeptRegistry", "locations", "members_for", "read_bios_registry"]

_KEPT_SECONDS = 3600.0
"""Dell's registry says of each attribute whether it is read-only just now."""
_MOST_TRIED = 3
_VERSION = re.compile(r"(\.json)?$|[._]v?\d+([._]\d+)*(\.json)?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class KeptRegistry:
    """A registry as it was read, packed. `name`: what the BIOS called it; `read_at`: by the event loop's clock."""

    name: str | None
    packed: bytes
    read_at: float

    def unpacked(self) -> AttributeRegistry | None:
        return AttributeRegistry.parse(msgspec.json.decode(zlib.decompress(self.packed)))


async def read_bios_registry(
    connection: RedfishConnection, name: str | None, call: Call, *, afresh: bool = False, patient: bool = False
) -> tuple[AttributeRegistry | None, bool]:
    """The registry of this name, and whether it was read just now; None where the service has none that can be read.

    `name`: the BIOS's AttributeRegistry; without one the service's only BIOS registry is meant (NVIDIA GH200). With
    `patient` a busy BMC is waited for; raises OperationError BUSY where it stays so.
    """
    now = asyncio.get_running_loop().time()
    kept = connection.service.bios_registry
    if kept is not None and kept.name == name and now - kept.read_at < _KEPT_SECONDS and not afresh:
        return kept.unpacked(), False

    async def look(path: str | None) -> Document | None:
        return await (connection.find_patiently(path, call) if patient else connection.find(path, call))

    collection = await look(link(await connection.root(call), "Registries"))
    for member in members_for(name, members(collection))[:_MOST_TRIED]:
        entry = await look(member)
        registry = AttributeRegistry.parse(entry) if entry is not None else None
        for place in [] if registry is not None else locations(entry):
            entry = await look(place)
            registry = AttributeRegistry.parse(entry) if entry is not None else None
            if registry is not None:
                break
        if registry is not None and entry is not None:
            packed = zlib.compress(msgspec.json.encode({"Id": entry.get("Id"), **_entries(entry)}), 1)
            connection.service.bios_registry = KeptRegistry(name, packed, now)
            return registry, True
    return None, True


def members_for(name: str | None, paths: Iterable[str]) -> list[str]:
    """The members that may stand for the registry, the likeliest first.

    The names do not always agree: Dell's BIOS names BiosAttributeRegistry.v1_0_3 and its list has …v1_0_0;
    Supermicro's list has no version at all.
    """
    wanted = (name or "").lower()
    exact, alike, bios = [], [], []
    for path in paths:
        last = path.rstrip("/").rpartition("/")[2].lower()
        if wanted and last in (wanted, f"{wanted}.json"):
            exact.append(path)
        elif wanted and _base(last) == _base(wanted):
            alike.append(path)
        elif "bios" in last and "attribute" in last:
            bios.append(path)
    return exact + alike + bios


def locations(entry: object) -> list[str]:
    """Where a registry's document lies: English first, then what there is (MessageRegistryFile, Location)."""
    listed = dig(entry, "Location")
    found: list[tuple[bool, str]] = []
    for place in listed if isinstance(listed, list) else [listed]:
        # HPE iLO 4 wraps the address in an object.
        uri = text(place, "Uri") or text(place, "Uri", "extref") or link(place, "Uri")
        if uri is not None:
            found.append((not (text(place, "Language") or "en").lower().startswith("en"), path_of(uri)))
    return [path for _, path in sorted(found, key=lambda item: item[0])]


def _entries(entry: Document) -> Document:
    """What is kept of a registry: its menus are of no use here."""
    entries = dig(entry, "RegistryEntries")
    return {"RegistryEntries": {key: entries.get(key) for key in ("Attributes", "Dependencies")}}


def _base(name: str) -> str:
    return _VERSION.sub("", name)
