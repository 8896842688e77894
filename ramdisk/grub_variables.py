"""GRUB's variables, and the commands that set and test them by what the file systems hold. Pure, but for the files
that are read."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ramdisk.grub_words import evaluate_test, parse_environment_block
from ramdisk.volumes import Located, Volume, Volumes

__all__ = ["VARIABLE_COMMANDS", "Environment"]


@dataclass(frozen=True)
class Environment:
    """The variables of one execution, and the file systems that they speak of."""

    volumes: Volumes
    variables: dict[str, str]

    def located(self, path: str) -> Located | None:
        """`/path` on the root, or `(device)/path`. None where that device is none of the volumes."""
        device, rest = self.variables.get("root", ""), path
        if path.startswith("("):
            device, _, rest = path[1:].partition(")")
        volume: Volume | None = self.volumes.named(device)
        return None if volume is None else Located(volume, rest or "/")


_Handler = Callable[[Environment, list[str]], bool]


def _set(environment: Environment, arguments: list[str]) -> bool:
    for word in arguments:
        name, _, value = word.partition("=")
        environment.variables[name] = value
    return True


def _unset(environment: Environment, arguments: list[str]) -> bool:
    for name in arguments:
        environment.variables.pop(name, None)
    return True


def _test(environment: Environment, arguments: list[str]) -> bool:
    words = arguments[:-1] if arguments and arguments[-1] == "]" else arguments
    return evaluate_test(words, functools.partial(_file_test, environment))


def _file_test(environment: Environment, letter: str, path: str) -> bool:
    place = environment.located(path)
    if place is None:
        return False
    if letter == "d":
        return place.volume.is_dir(place.path)
    if letter == "s":
        return bool(place.volume.read(place.path))
    return place.volume.is_file(place.path) or (letter == "e" and place.volume.is_dir(place.path))


def _load_env(environment: Environment, arguments: list[str]) -> bool:
    path, names = f"{environment.variables.get('prefix', '')}/grubenv", []
    rest = iter(arguments)
    for word in rest:
        if word in ("-f", "--file"):
            path = next(rest, "")
        elif word.startswith("--file="):
            path = word.removeprefix("--file=")
        elif not word.startswith("-"):
            names.append(word)
    place = environment.located(path)
    data = place.volume.read(place.path) if place is not None else None
    if data is None:
        return False
    found = parse_environment_block(data)
    environment.variables.update({name: value for name, value in found.items() if not names or name in names})
    return True


def _search_volume(environment: Environment, arguments: list[str]) -> bool:
    by, variable, name = "file", "root", None
    rest = iter(arguments)
    for word in rest:
        option, _, value = word.partition("=")
        if option in ("-f", "--file", "-l", "--label", "-u", "--fs-uuid"):
            by = {"-f": "file", "--file": "file", "-l": "label", "--label": "label"}.get(option, "uuid")
        elif option in ("-s", "--set"):
            variable = value or "root"
        elif option in ("--hint", "-h") and not value:
            next(rest, None)
        elif not word.startswith("-"):
            name = name or word
    if name is None:
        return False
    found = {
        "uuid": environment.volumes.by_uuid,
        "label": environment.volumes.by_label,
        "file": environment.volumes.with_file,
    }[by](name)
    if found is not None:
        environment.variables[variable] = found.name
    return found is not None


def _probe(environment: Environment, arguments: list[str]) -> bool:
    """`probe --set=name --fs-uuid device`, as the configurations of some distributions begin."""
    variable = next((word.partition("=")[2] for word in arguments if word.startswith(("--set=", "-s="))), None)
    if variable is None and "-s" in arguments[:-1]:
        variable = arguments[arguments.index("-s") + 1]
    device = next((word for word in reversed(arguments) if not word.startswith("-")), "")
    volume = environment.volumes.named(device.strip("()"))
    label = any(word in ("-l", "--label") for word in arguments)
    value = None if volume is None else volume.label if label else volume.uuid
    if variable and value:
        environment.variables[variable] = value
    return value is not None


def _search_by(option: str) -> _Handler:
    """`search.fs_uuid VALUE VARIABLE`, and its like."""
    return lambda environment, words: _search_volume(
        environment, [option, f"--set={words[1] if len(words) > 1 else 'root'}", *words[:1]]
    )


VARIABLE_COMMANDS: Mapping[str, _Handler] = {
    "set": _set,
    "unset": _unset,
    "[": _test,
    "test": _test,
    "load_env": _load_env,
    "search": _search_volume,
    "search.fs_uuid": _search_by("--fs-uuid"),
    "search.fs_label": _search_by("--label"),
    "search.file": _search_by("--file"),
    "probe": _probe,
}
"""Each takes its arguments and gives its status."""
