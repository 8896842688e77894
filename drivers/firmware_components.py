"""Which firmware components a name means, and whether they show a version. Pure; the same for drivers and the agent.

An inventory shows a component more than once (staged, backup, roll-back), gives several the same name, and some BMCs
put the version into the component's id, so that the id changes with the update (Dell iDRAC, OpenBMC).
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from protocol.shapes.firmware import FirmwareComponent

__all__ = ["closest", "counterpart", "is_version", "meant_by", "show", "showing"]

_SHORTEST_IN_ID = 4
_SEPARATORS = re.compile(r"[\s(),;]+")


def is_version(expected: str, shown: str | None) -> bool:
    """Whether `shown` says the version: as a whole, or as one of its words (`iLO 5 v2.72`, `2.72 Sep 04 2022`)."""
    if shown is None:
        return False
    wanted = expected.strip().lower()
    words = {shown.strip().lower(), *_SEPARATORS.split(shown.strip().lower())}
    return bool(wanted) and (wanted in words or any(_bare(word) == _bare(wanted) for word in words if word))


def counterpart(component: FirmwareComponent, others: Sequence[FirmwareComponent]) -> FirmwareComponent | None:
    """The same component in another reading: by its path or id, else by its id but for the version in it."""
    name = _identity(component)
    found = next((item for item in others if _identity(item) == name), None)
    if found is None:
        key = _key(component)
        found = next((item for item in others if _key(item) == key), None) if "*" in key else None
    return found


def meant_by(target: str, components: Sequence[FirmwareComponent]) -> list[FirmwareComponent]:
    """The components that an id, a path, a name, or the path of what they belong to means; maybe several, maybe none.

    Further copies are meant only where there is nothing else.
    """
    for fits in (_by_path, _by_id, _by_name, _by_relation):
        found = [component for component in components if fits(target, component)]
        if found:
            return found if fits is _by_path else [item for item in found if item.active] or found
    return []


def showing(
    expected: str, targets: Iterable[str], components: Sequence[FirmwareComponent]
) -> list[FirmwareComponent]:
    """The components that show the version, where all targets do; without targets, every one that may be updated and
    does. Empty where a target is missing or shows something else."""
    wanted = list(targets)
    if not wanted:
        return [
            component
            for component in components
            if component.active and component.updateable is not False and is_version(expected, component.version)
        ]
    found: list[FirmwareComponent] = []
    for target in wanted:
        meant = meant_by(target, components)
        if not meant or not all(is_version(expected, component.version) for component in meant):
            return []
        found += [component for component in meant if component not in found]
    return found


def closest(target: str, components: Iterable[FirmwareComponent]) -> list[str]:
    """Ids and names that are nearly the target's."""
    known = {word: None for item in components for word in (item.id, item.name) if word}
    return difflib.get_close_matches(target, known, 3, 0.5)


def show(versions: Mapping[str, str | None]) -> str:
    """Versions in one line."""
    return ", ".join(f"{name} {version or 'without a version'}" for name, version in versions.items()) or "nothing"


def _by_path(target: str, component: FirmwareComponent) -> bool:
    return component.path is not None and _same(component.path, target)


def _by_id(target: str, component: FirmwareComponent) -> bool:
    """By id, also by the one that it had before its version changed."""
    if component.id is None:
        return False
    folder, _, name = target.rstrip("/").rpartition("/")
    if folder and not (_same(component.path.rstrip("/").rpartition("/")[0], folder) if component.path else True):
        # The last part of another resource's path, such as that of the manager `1`.
        return False
    if component.id.lower() == name.lower():
        return True
    key = _key(component)
    if "*" not in key:
        return False
    return re.fullmatch(re.escape(key).replace(r"\*", r"[\w.+~-]+"), name, re.IGNORECASE) is not None


def _by_name(target: str, component: FirmwareComponent) -> bool:
    return component.name.lower() == target.strip().lower()


def _by_relation(target: str, component: FirmwareComponent) -> bool:
    return any(_same(path, target) for path in component.related)


def _identity(component: FirmwareComponent) -> str:
    return (component.path or component.id or component.name).rstrip("/").lower()


def _key(component: FirmwareComponent) -> str:
    """The id with a star in place of the version; a short version could be any number in it, and stays."""
    name, version = component.id or component.name, component.version
    return name.replace(version, "*") if version and len(version) >= _SHORTEST_IN_ID else name


def _same(one: str, other: str) -> bool:
    return one.rstrip("/").lower() == other.rstrip("/").lower()


def _bare(word: str) -> str:
    """Without the v that some write before a number."""
    return word[1:] if re.match(r"v\d", word) else word
