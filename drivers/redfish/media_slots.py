"""Virtual media slots as the documents show them: what is in them, and how an image gets in and out. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from drivers.redfish.document import Document, action, boolean, dig, path_of, same_path, text
from drivers.redfish.manners import Manners
from protocol.shapes.virtual_media import InsertMethod, MediaDevice, MediaSlot

__all__ = ["MEDIA_TYPES", "Slot", "candidates", "holds", "shows", "slot_of", "without_mirrors"]

MEDIA_TYPES: dict[MediaDevice, tuple[str, ...]] = {
    MediaDevice.CD: ("CD", "DVD"),
    MediaDevice.USB: ("USBStick",),
    MediaDevice.FLOPPY: ("Floppy",),
}
_LOGIN = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)[^/]*@")
_METHOD_ORDER = (InsertMethod.ACTION, InsertMethod.PATCH, InsertMethod.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot as it was read."""

    path: str
    id: str
    media_types: tuple[str, ...]
    image: str | None
    inserted: bool
    write_protected: bool | None
    method: InsertMethod
    insert_target: str | None
    eject_target: str | None
    patchable: bool = False
    """Whether its `Allow` header says PATCH."""
    document: Document | None = field(default=None, repr=False, compare=False)
    """The resource, where it was read by itself; None where it came with its collection, without its headers."""

    @property
    def tells_way(self) -> bool:
        """Whether all is known of how an image gets in: without an action, only the slot's own headers tell it."""
        return self.document is not None or self.method is not InsertMethod.UNKNOWN

    def takes(self, device: MediaDevice) -> bool:
        """Whether it may stand for the device; a slot that lists no types may stand for any."""
        return not self.media_types or any(kind in self.media_types for kind in MEDIA_TYPES[device])

    def shown(self) -> MediaSlot:
        return MediaSlot(
            id=self.id,
            media_types=list(self.media_types),
            image=self.image,
            inserted=self.inserted,
            insert_method=self.method,
            write_protected=self.write_protected,
            location=self.path,
        )


def slot_of(path: str, document: Document, allow: Iterable[str] | None, manners: Manners) -> Slot:
    """A slot from its resource and the `Allow` headers of its answer; None for one that came with its collection."""
    name = text(document, "Id") or path.rstrip("/").rpartition("/")[2]
    kinds = dig(document, "MediaTypes")
    insert, eject = action(document, "VirtualMedia.InsertMedia"), action(document, "VirtualMedia.EjectMedia")
    image = text(document, "Image")
    # Services write "no image" as null, as "" (iLO) or as the word None (MegaRAC).
    image = None if image is not None and image.lower() in ("none", "null") else image
    # Some show the address with the user and password that it was inserted with.
    image = _LOGIN.sub(r"\1", image) if image is not None else None
    inserted = boolean(document, "Inserted")
    present = inserted if inserted is not None else image is not None
    if manners.connected_tells and text(document, "ConnectedVia") == "NotConnected":
        present = False
    methods = {word.strip().upper() for header in allow or () for word in header.split(",")}
    return Slot(
        path=path,
        id=name,
        media_types=tuple(kind for kind in kinds if isinstance(kind, str)) if isinstance(kinds, list) else (),
        image=image,
        inserted=present,
        write_protected=boolean(document, "WriteProtected"),
        method=_method(name, insert is not None, methods, manners),
        insert_target=path_of(str(insert["target"])) if insert else None,
        eject_target=path_of(str(eject["target"])) if eject else None,
        patchable="PATCH" in methods,
        document=document if allow is not None else None,
    )


def without_mirrors(collections: list[list[Slot]]) -> list[Slot]:
    """Every slot once: resources that were reached twice, and a later collection that only mirrors an earlier one.

    Lenovo XCC shows the same ten devices under the system and under the manager, by the same names.
    """
    kept: list[Slot] = []
    names: list[set[str]] = []
    for slots in collections:
        fresh = [slot for slot in slots if not any(same_path(slot.path, other.path) for other in kept)]
        own = {slot.id for slot in fresh}
        if not fresh or own in names:
            continue
        names.append(own)
        kept += fresh
    return kept


def candidates(slots: list[Slot], device: MediaDevice) -> list[Slot]:
    """The slots that an image for the device may go into: those with an action first, then by their names."""
    usable = [slot for slot in slots if slot.takes(device) and slot.method in _METHOD_ORDER]
    collections = list(dict.fromkeys(_parent(slot.path) for slot in slots))

    def rank(slot: Slot) -> tuple[int, bool, int, list[tuple[int, int | str]]]:
        # Members come in any order, and iDRAC 10 boots from slot 1 only (Launchpad bug 2125571).
        place = collections.index(_parent(slot.path))
        return _METHOD_ORDER.index(slot.method), not slot.media_types, place, _natural(slot.id)

    return sorted(usable, key=rank)


def holds(slot: Slot, image: str) -> bool:
    """Whether the slot shows this very address."""
    return slot.inserted and slot.image is not None and _address(slot.image) == _address(image)


def shows(slot: Slot, image: str) -> bool:
    """Whether the slot shows this image in some way: BMCs rewrite an address as a path, or keep the file's name only.

    Enough after an insertion; too little to leave another image of the same name where it is.
    """
    if not slot.inserted or slot.image is None:
        return slot.inserted
    return holds(slot, image) or ("://" not in slot.image and _file(slot.image) == _file(image) != "")


def _address(image: str) -> str:
    parts = _split(image)
    host = parts.netloc.rpartition("@")[2].lower()
    port = {"http": ":80", "https": ":443"}.get(parts.scheme.lower(), "")
    host = host.removesuffix(port) if port else host
    return f"{parts.scheme.lower()}://{host}{unquote(parts.path)}?{parts.query}"


def _file(address: str) -> str:
    return unquote(_split(address.replace("\\", "/")).path).rpartition("/")[2].lower()


def _split(address: str) -> SplitResult:
    """An address in parts; one that is none is all path."""
    try:
        return urlsplit(address.strip())
    except ValueError:
        return SplitResult("", "", address.strip(), "", "")


def _method(name: str, has_action: bool, methods: set[str], manners: Manners) -> InsertMethod:
    if manners.upload_slots is not None and re.search(manners.upload_slots, name):
        return InsertMethod.UPLOAD
    if has_action:
        return InsertMethod.ACTION
    if not methods:
        return InsertMethod.UNKNOWN
    return InsertMethod.PATCH if "PATCH" in methods else InsertMethod.NONE


def _parent(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0].lower()


def _natural(name: str) -> list[tuple[int, int | str]]:
    return [
        (0, int(part)) if part.isdecimal() and len(part) < 20 else (1, part)
        for part in re.split(r"(\d+)", name.lower())
        if part
    ]
