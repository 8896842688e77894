"""The body of a request for a volume, and how it changes by what the BMC refuses. Pure.

The first body is as short as it can be: what a service does not know it refuses, and services know different things.
HPE iLO 6 refuses VolumeType and Encrypted and wants the drives in `Links`; older ones want VolumeType, and the drives
beside it (OpenStack Ironic's notes on RAID over Redfish). The time of the change is named only where the collection
says which times it takes. All the space is asked for by leaving the size out.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from drivers.raid_plan import Make
from drivers.redfish.document import Document, dig, text
from drivers.redfish.messages import Note
from drivers.redfish.raid_reading import RAID_TYPES, VOLUME_TYPES
from protocol.errors import Issue
from protocol.shapes.raid import RaidLevel

__all__ = ["APPLY_TIME", "VolumeRequest", "apply_time", "is_about", "name_property", "request_faults"]

APPLY_TIME = "@Redfish.OperationApplyTime"
_ALONE = frozenset({RaidLevel.RAID0, RaidLevel.RAID1, RaidLevel.RAID5, RaidLevel.RAID10, RaidLevel.RAID50})
"""Levels that VolumeType tells without RAIDType beside it: two parities look like one."""
_MISSING = frozenset({"PropertyMissing", "CreateFailedMissingReqProperties", "ActionParameterMissing"})
_VAGUE = frozenset({"GeneralError", "InternalError", ""})
_NAMES = ("Name", "DisplayName")


def apply_time(collection: Document) -> str | None:
    """The time to name: at once where that is offered, else what is; None where the collection offers no choice."""
    listed = dig(collection, "@Redfish.OperationApplyTimeSupport", "SupportedValues")
    offered = [word for word in listed if isinstance(word, str)] if isinstance(listed, list) else []
    return next((word for word in ("Immediate", "OnReset") if word in offered), None)


def name_property(capabilities: Document | None) -> str:
    """How a new volume is named: HPE takes DisplayName and gives names of its own."""
    named = [
        name for name in ("DisplayName", "Name") if any(key.startswith(f"{name}@") for key in capabilities or {})
    ]
    return named[0] if named else "Name"


def request_faults(make: Make, capabilities: Document | None) -> list[Issue]:
    """What the capabilities object says against a volume before it is asked for."""
    faults = []
    pattern = text(capabilities, f"{name_property(capabilities)}@Redfish.AllowablePattern")
    if make.name is not None and pattern is not None and not _matches(pattern, make.name):
        faults.append(
            Issue("name", f"{make.name!r} is not a name that this controller takes: it must match {pattern}")
        )
    types = dig(capabilities, "RAIDType@Redfish.AllowableValues")
    if isinstance(types, list) and types and RAID_TYPES[make.level] not in types:
        faults.append(
            Issue("level", f"{make.level} is not offered; this controller makes {', '.join(map(str, types))}")
        )
    return faults


@dataclass(slots=True)
class VolumeRequest:
    """One request in the making: `body` is what to send next."""

    make: Make
    drives: list[str]
    """The paths of the drives."""
    time: str | None = None
    name_as: str = "Name"
    body: Document = field(init=False)
    _tried: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.body = {"RAIDType": RAID_TYPES[self.make.level], "Links": {"Drives": self._links()}}
        if self.make.size_bytes is not None:
            self.body["CapacityBytes"] = self.make.size_bytes
        if self.make.name is not None:
            self.body[self.name_as] = self.make.name
        if self.make.spans is not None:
            self.body["MediaSpanCount"] = len(self.drives) // self.make.spans
        if self.time is not None:
            self.body[APPLY_TIME] = self.time

    @property
    def at_once(self) -> bool:
        """Whether the change was asked for at once, so that a task that has not begun yet will soon."""
        return self.body.get(APPLY_TIME) == "Immediate"

    def after_refusal(self, notes: list[Note]) -> bool:
        """Changes the body by what a refusal names. False where that cannot help."""
        return self._drop_unwanted(notes) or self._add_missed(notes)

    def _drop_unwanted(self, notes: list[Note]) -> bool:
        unwanted = [note for note in notes if note.key not in _MISSING and not note.key.startswith("PropertyValue")]
        about = [name for name in self.body if any(is_about(note, name) for note in unwanted)]
        changed = [name for name in about if self._without(name)]
        if not changed and APPLY_TIME in self.body and any(is_about(note, APPLY_TIME) for note in notes):
            changed = [APPLY_TIME]
            del self.body[APPLY_TIME]
        return bool(changed)

    def _without(self, name: str) -> bool:
        if name in (APPLY_TIME, "VolumeType", "Encrypted"):
            del self.body[name]
            self._tried.add(name)
            return True
        if name in _NAMES:
            other = _NAMES[1 - _NAMES.index(name)]
            return self._instead(name, other, self.make.name)
        if name == "Links":
            return self._instead(name, "Drives", self._links())
        if name == "RAIDType" and self.make.level in _ALONE:
            return self._instead(name, "VolumeType", VOLUME_TYPES[self.make.level])
        return False

    def _instead(self, name: str, other: str, value: object) -> bool:
        """Says the same in the other way, unless that was refused before."""
        self._tried.add(name)
        if other in self._tried:
            return False
        del self.body[name]
        self.body[other] = value
        return True

    def _add_missed(self, notes: list[Note]) -> bool:
        says = [note for note in notes if note.key in _MISSING or note.key in _VAGUE]

        def is_missed(name: str) -> bool:
            return name not in self.body and name not in self._tried and any(is_about(note, name) for note in says)

        added = False
        if is_missed("VolumeType"):
            self.body["VolumeType"] = VOLUME_TYPES[self.make.level]
            added = True
        if is_missed("Encrypted"):
            self.body["Encrypted"] = False
            added = True
        if is_missed("Drives") and not any(is_about(note, "Links") for note in says):
            added = self._instead("Links", "Drives", self._links()) or added
        return added

    def _links(self) -> list[Document]:
        return [{"@odata.id": path} for path in self.drives]


def is_about(note: Note, name: str) -> bool:
    """Whether a message is about a property: by its related properties and arguments, else as a word of its text."""
    bare = name.removeprefix("@Redfish.")
    about = {part for item in note.properties for part in _parts(item)}
    if about:
        return bool({name.lower(), bare.lower()} & about)
    return re.search(rf"\b{re.escape(bare)}\b", f"{note.text} {note.resolution}") is not None


def _parts(pointer: str) -> Iterable[str]:
    """What a pointer is about: its last part, and for `#/Links/Drives` what holds it too."""
    parts = [part.lower() for part in pointer.strip().lstrip("#").split("/") if part and not part.isdecimal()]
    return {*parts, *(part.removeprefix("@redfish.") for part in parts)}


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error:
        return True
