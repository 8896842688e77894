"""What a reading of the inventory says of an update: by comparing it with the one before. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from drivers.firmware_components import counterpart, is_version, meant_by
from protocol.errors import BmcMessage
from protocol.shapes.firmware import FirmwareComponent

__all__ = ["Seen", "Verdict", "judge", "says_reset_is_owed"]

_RESET_OWED = re.compile(
    r"(reset|reboot|restart|power ?cycle)\w*[^.]{0,60}(require|need|necessar|pending|to (apply|activate|complete))"
    r"|(require|need|pending|after|upon|until)\w*[^.]{0,40}(reset|reboot|restart|power ?cycle)"
    r"|successfully scheduled|\bJCP001\b",
    re.IGNORECASE,
)


class Seen(Enum):
    """What has become of the versions that matter."""

    REACHED = "reached"
    STAGED = "staged"
    """A further copy shows the new version, and what runs does not."""
    SAME = "same"
    OTHER = "other"
    """Something has changed, and not to what was expected."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`before` and `after`: versions by the id from before; of the targets, else of what has changed."""

    seen: Seen
    before: dict[str, str | None] = field(default_factory=dict)
    after: dict[str, str | None] = field(default_factory=dict)


def judge(
    before: Sequence[FirmwareComponent],
    now: Sequence[FirmwareComponent],
    targets: Iterable[str],
    expected: str | None,
) -> Verdict:
    """Compares two readings. With `expected` only that version counts as reached; without, any change.

    A component that has gone is looked for among those that are new and belong to the same thing: OpenBMC shows each
    image under a new id. A version that is missing now says nothing: a BMC that starts shows half of it.
    """
    watched: list[FirmwareComponent] = []
    for target in targets:
        watched += [item for item in meant_by(target, before) if item not in watched]
    pairs = [(item, _now(item, before, now)) for item in watched] if watched else _changed(before, now)
    versions = {(b or n).id or (b or n).name: n.version for b, n in pairs if n is not None}
    earlier = {b.id or b.name: b.version for b, _ in pairs if b is not None}
    new = [n for b, n in pairs if n is not None and n.version and (b is None or n.version != b.version)]
    if expected is None:
        reached = bool(new)
    elif watched:
        reached = all(n is not None and is_version(expected, n.version) for _, n in pairs)
    else:
        reached = any(is_version(expected, n.version) for n in new)
    if reached:
        return Verdict(Seen.REACHED, earlier, versions)
    if any(_is_staged(item, before, watched, expected) for item in now):
        return Verdict(Seen.STAGED, earlier, versions)
    return Verdict(Seen.OTHER if new else Seen.SAME, earlier, versions)


def says_reset_is_owed(words: Iterable[BmcMessage]) -> bool:
    """Whether a task's messages say that what it did waits for a reset."""
    return any(_RESET_OWED.search(f"{word.id.rpartition('.')[2]} {word.text}") for word in words)


_Pair = tuple[FirmwareComponent | None, FirmwareComponent | None]


def _now(
    item: FirmwareComponent, before: Sequence[FirmwareComponent], now: Sequence[FirmwareComponent]
) -> FirmwareComponent | None:
    """What shows now for a component from before."""
    found = counterpart(item, now)
    if found is not None and (found.active or not item.active):
        return found
    related = set(item.related)
    successors = (n for n in now if n.active and related & set(n.related) and counterpart(n, before) is None)
    return next(successors, None)


def _changed(before: Sequence[FirmwareComponent], now: Sequence[FirmwareComponent]) -> list[_Pair]:
    pairs: list[_Pair] = [(counterpart(item, before), item) for item in now if item.active and item.version]
    return [(old, new) for old, new in pairs if new is not None and (old is None or old.version != new.version)]


def _is_staged(
    item: FirmwareComponent,
    before: Sequence[FirmwareComponent],
    watched: Sequence[FirmwareComponent],
    expected: str | None,
) -> bool:
    old = counterpart(item, before)
    if item.active or not item.version or (old is not None and old.version == item.version):
        return False
    if expected is not None and not is_version(expected, item.version):
        return False
    return not watched or any(item.name == one.name or set(item.related) & set(one.related) for one in watched)
