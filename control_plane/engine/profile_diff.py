"""What differs between two versions of a profile."""

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from control_plane.engine.expansion import step_ids
from control_plane.engine.profile import Profile, ProfileStep, document_of, document_text

__all__ = ["Change", "profile_changes"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One difference. `before` is null where it was added, `after` where it was removed."""

    path: str
    """Steps are named by their id, not by their place: `steps[write].timeout`."""
    kind: Literal["added", "removed", "changed", "moved"]
    before: object = None
    after: object = None


def profile_changes(before: Profile, after: Profile) -> list[Change]:
    """The differences in the order of the document; none for documents that say the same.

    A step is the same step where its id is the same: one that was put in front of others does not make them differ.
    """
    old, new = document_of(before), document_of(after)
    changes: list[Change] = []
    for name in (field.encode_name for field in msgspec.structs.fields(Profile)):
        if name in ("steps", "cleanup"):
            changes += _step_changes(name, getattr(before, name), getattr(after, name))
        else:
            changes += _changes(name, old, new)
    return changes


def _step_changes(where: str, before: list[ProfileStep], after: list[ProfileStep]) -> Iterator[Change]:
    old, new = _by_id(before), _by_id(after)
    for identifier in [*old, *(identifier for identifier in new if identifier not in old)]:
        path = f"{where}[{identifier}]"
        if identifier in old and identifier in new:
            names = {**old[identifier], **new[identifier]}
            for name in names:
                if name != "id":
                    yield from _changes(name, old[identifier], new[identifier], path)
        else:
            yield from _changes(identifier, old, new, where, path)
    kept_before = [identifier for identifier in old if identifier in new]
    kept_after = [identifier for identifier in new if identifier in old]
    if kept_before != kept_after:
        yield Change(path=where, kind="moved", before=kept_before, after=kept_after)


def _by_id(steps: list[ProfileStep]) -> dict[str, dict[str, object]]:
    return {
        identifier: msgspec.to_builtins(step) for identifier, step in zip(step_ids(steps, set()), steps, strict=True)
    }


def _changes(
    name: str, before: Mapping[str, object], after: Mapping[str, object], inside: str = "", path: str | None = None
) -> Iterator[Change]:
    """The differences of one field of two objects."""
    where = path or (f"{inside}.{name}" if inside else name)
    if name not in before and name not in after:
        return
    if name not in before:
        yield Change(path=where, kind="added", after=after[name])
    elif name not in after:
        yield Change(path=where, kind="removed", before=before[name])
    else:
        yield from _value_changes(where, before[name], after[name])


def _value_changes(where: str, before: object, after: object) -> Iterator[Change]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in {**before, **after}:
            yield from _changes(name, before, after, where)
    elif document_text(before) != document_text(after):
        yield Change(path=where, kind="changed", before=before, after=after)
