"""What an operation takes, in words: types, defaults, meanings and an example, read from its typed arguments.

The meanings are the docstrings below the fields of `protocol/shapes`, so that they are written once. Where no source
code is installed there are none.
"""

import ast
import inspect
import itertools
import json
import shlex
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import msgspec
from msgspec import NODEFAULT, structs

from protocol.operations import Operation, Repeat

__all__ = ["EXAMPLES", "ArgumentHelp", "Explained", "argument_help", "explained", "explanation"]


@dataclass(frozen=True, slots=True)
class ArgumentHelp:
    """One argument of an operation, in a word or two."""

    name: str
    kind: str
    """`text`, `number`, `true|false`, the choices with `|` between, or `JSON`."""
    choices: list[str]
    required: bool
    default: object


@dataclass(frozen=True, slots=True)
class Explained:
    """An argument, or a field inside one (`image.url`, `volumes[].level`)."""

    name: str
    kind: str
    """Such as `list of objects`, or `number, more than 0, or max`."""
    required: bool
    default: str
    """As it is written on a command line; empty where there is none."""
    meaning: str


EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "power.setPower": ("action=softOff", "softTimeout=60"),
    "management.getEventLog": ("limit=20", "since=2026-01-31T00:00:00Z"),
    "management.setIndicator": ("state=blink",),
    "management.resetBmc": (),
    "boot.setBootDevice": ("device=pxe", "mode=uefi"),
    "boot.setBootOrder": ('order=["Boot0001","Boot0000"]',),
    "boot.setSecureBoot": ("enabled=true",),
    "virtual-media.insertMedia": ("image=https://images.example/rescue.iso",),
    "virtual-media.ejectMedia": ("device=cd",),
    "console.openConsole": ("kind=sol", "takeOver=true"),
    "console.closeConsole": ("stream=3f2c1a",),
    "bios.getBios": ("pending=true",),
    "bios.setBios": ("attributes.BootMode=Uefi", "attributes.ProcVirtualization=Enabled"),
    "raid.applyRaid": ('volumes=[{"level":"RAID1","drives":{"count":2,"media":"ssd"}}]', "dryRun=true"),
    "raid.createVolume": ("controller=RAID.Slot.1-1", "level=RAID1", 'drives=["Disk.0","Disk.1"]'),
    "raid.deleteVolume": ("controller=RAID.Slot.1-1", "volume=Disk.Virtual.0"),
    "raid.clearRaid": ("controller=RAID.Slot.1-1",),
    "firmware.updateFirmware": (
        "image=https://images.example/bios-2.19.exe",
        'targets=["BIOS"]',
        "expectVersion=2.19.1",
    ),
    "config.setConfig": ("ntpEnabled=true", 'ntpServers=["192.0.2.1","192.0.2.2"]'),
    "config.rotatePassword": ("user=admin", "newCredentialRef=lab/rack7-next"),
    "config.generateCsr": ("commonName=bmc7.example", 'alternativeNames=["192.0.2.10"]'),
    "config.replaceCertificate": ("certificate=$(cat bmc7.pem)",),
    "config.exportConfig": ("part=BIOS",),
    "config.importConfig": ("document=$(cat profile.xml)", "restart=graceful"),
    "deploy.eraseDisks": ("mode=metadata", "disks.serial=S4EVNX0M"),
    "deploy.writeImage": ("image.url=https://images.example/debian.raw.zst", "rootDevice.minSizeGiB=200"),
    "deploy.writeConfigDrive": ("userData=$(cat user-data.yaml)",),
    "deploy.setBootEntry": ("label=debian",),
}
"""By operation: the arguments of a call as they are typed. What is not here takes none."""

_REPEATED = {
    Repeat.READ: "it changes nothing",
    Repeat.CONVERGE: "it asks for a state: repeating it is harmless",
    Repeat.ONCE: "it is an act: each call does it again",
}


def argument_help(kind: type[msgspec.Struct]) -> list[ArgumentHelp]:
    """Every argument of an operation, in the order of its definition."""
    found = []
    for field in structs.fields(kind):
        words, choices = _short_words(field.type)
        default = None if field.default is NODEFAULT else msgspec.to_builtins(field.default)
        found.append(ArgumentHelp(field.encode_name, words, choices, _is_required(field), default))
    return found


def explained(kind: type[msgspec.Struct]) -> list[Explained]:
    """Every argument, each followed by the fields inside it."""
    return list(_explained(kind, "", {}))


def explanation(row: Operation, call: str, width: int = 100) -> str:
    """The operation in full. `call`: how a call begins, such as `rackwright invoke NODE`."""
    repeated = _REPEATED[row.repeat]
    if row.once_when is not None:
        field, acts = row.once_when
        repeated += f", but {field}={'|'.join(sorted(acts))} is an act: each call does it again"
    lines = [f"{row.id}: {row.summary}", "", f"  repeated: {repeated}", f"  takes at most {_span(row.timeout)}"]
    arguments = explained(row.arguments)
    lines += ["", "arguments" if arguments else "It takes no arguments."]
    for argument in arguments:
        told = "required" if argument.required else f"default {argument.default}" if argument.default else "optional"
        lines.append(f"  {argument.name}: {argument.kind}; {told}")
        lines += textwrap.wrap(argument.meaning, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    typed = " ".join([call, row.id, *map(_typed, EXAMPLES.get(row.id, ()))])
    return "\n".join([*lines, "", "example", f"  {typed}"])


def _explained(kind: type[msgspec.Struct], path: str, told: dict[type, str]) -> Iterator[Explained]:
    """`told`: the structs whose fields were listed before, and where."""
    meanings = _meanings(kind)
    for field in structs.fields(kind):
        name = f"{path}{field.encode_name}"
        inside = list(_structs_in(field.type))
        known = [f"An object is as in {told[inner]}." for inner, _ in inside if inner in told]
        words = [meanings.get(field.name, ""), *_choice_meanings(field.type), *known]
        meaning = " ".join(word for word in words if word)
        yield Explained(name, _long_words(field.type), _is_required(field), _default(field), meaning)
        for inner, brackets in inside:
            if inner not in told:
                told[inner] = name
                yield from _explained(inner, f"{name}{brackets}.", told)


def _is_required(field: structs.FieldInfo) -> bool:
    return field.default is NODEFAULT and field.default_factory is NODEFAULT


def _default(field: structs.FieldInfo) -> str:
    if field.default is NODEFAULT or field.default is None or field.default is msgspec.UNSET:
        return ""
    value = msgspec.to_builtins(field.default)
    if isinstance(value, dict):
        value = {name: item for name, item in value.items() if item is not None}
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def _structs_in(kind: Any) -> Iterator[tuple[type[msgspec.Struct], str]]:
    """The structs that a field's type holds, each with what stands between the field's name and theirs."""
    origin, parameters = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind, ""
    elif origin is typing.Annotated:
        yield from _structs_in(parameters[0])
    elif origin in (typing.Union, types.UnionType):
        for member in parameters:
            yield from _structs_in(member)
    elif origin is list:
        for inner, brackets in _structs_in(parameters[0]):
            yield inner, f"[]{brackets}"
    elif origin is dict:
        for inner, brackets in _structs_in(parameters[1]):
            yield inner, f".NAME{brackets}"


@cache
def _meanings(kind: type[msgspec.Struct]) -> Mapping[str, str]:
    """The docstrings below a struct's fields, those of its bases included; by the field's Python name."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if not issubclass(each, msgspec.Struct) or each is msgspec.Struct:
            continue
        found |= _docstrings(each)
    return found


def _choice_meanings(kind: Any) -> list[str]:
    """What the words of an enumeration mean, of those that say so."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType, typing.Annotated):
        return [words for member in typing.get_args(kind) for words in _choice_meanings(member)]
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        return []
    meanings = _docstrings(kind)
    return [f"{member.value}: {meanings[member.name]}" for member in kind if member.name in meanings]


def _docstrings(kind: type) -> dict[str, str]:
    """Of the names that are defined in a class: the text below each."""
    body = _class_bodies(kind.__module__).get(kind.__qualname__, [])
    found: dict[str, str] = {}
    for statement, after in itertools.pairwise(body):
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else getattr(statement, "targets", [])
        words = _text_of(after)
        if words is not None:
            found |= {target.id: " ".join(words.split()) for target in targets if isinstance(target, ast.Name)}
    return found


@cache
def _class_bodies(module: str) -> Mapping[str, list[ast.stmt]]:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {each.name: each.body for each in tree.body if isinstance(each, ast.ClassDef)}


def _text_of(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        value = statement.value.value
        return value if isinstance(value, str) else None
    return None


def _short_words(kind: Any) -> tuple[str, list[str]]:
    """How an argument's type reads, and the words that it takes where these are few."""
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return _short_words(typing.get_args(kind)[0])
    if origin in (typing.Union, types.UnionType):
        members = [_short_words(member) for member in typing.get_args(kind) if member is not type(None)]
        choices = [choice for _, listed in members for choice in listed]
        return "|".join(dict.fromkeys(words for words, _ in members)), choices
    choices = _choices(kind)
    if choices:
        return "|".join(choices), choices
    if kind is bool:
        return "true|false", ["true", "false"]
    return {str: "text", int: "number", float: "number"}.get(kind, "JSON"), []


def _choices(kind: Any) -> list[str]:
    if typing.get_origin(kind) is typing.Literal:
        return [str(value) for value in typing.get_args(kind)]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    return []


def _long_words(kind: Any) -> str:
    origin, parameters = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _long_words(parameters[0]) + "".join(
            _bounds(meta) for meta in parameters[1:] if isinstance(meta, msgspec.Meta)
        )
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_long_words(member) for member in parameters if member is not type(None)))
    if origin is list:
        return f"list of {_plural(_long_words(parameters[0]))}"
    if origin is dict:
        return "object"
    if choices := _choices(kind):
        return "|".join(choices)
    words = {str: "text", int: "whole number", float: "number", bool: "true|false"}
    return words.get(kind, "object" if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else "JSON")


def _plural(words: str) -> str:
    return f"{words}s" if words in ("text", "object", "number", "whole number") else words


def _bounds(meta: msgspec.Meta) -> str:
    told = ""
    for value, words in ((meta.ge, "from"), (meta.gt, "more than"), (meta.le, "to"), (meta.lt, "less than")):
        if value is not None:
            told += f" {words} {value:g}"
    if meta.max_length is not None:
        told += f" of at most {meta.max_length} characters"
    return told


def _typed(assignment: str) -> str:
    """As a shell wants it. What the shell itself is to fill in stands in double quotes."""
    if "$(" in assignment:
        return f'"{assignment}"'
    return shlex.quote(assignment) if any(mark in assignment for mark in '"[]{} ') else assignment


def _span(seconds: float) -> str:
    for size, word in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return f"{count} {word}{'' if count == 1 else 's'}"
    return f"{seconds:g} seconds"
