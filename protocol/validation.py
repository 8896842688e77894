"""Checks an input against a msgspec type and reports every fault at once, each with its path and a hint.

msgspec itself stops at the first fault, which makes an operator mend a file ten times. Here a struct's fields
are converted one by one; only when all are sound is the whole converted.
"""

import difflib
import json
import types
import typing
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import NODEFAULT, UNSET, structs

from protocol.errors import Issue
from protocol.fault_words import fault_words, kind_words

__all__ = ["arguments_from_text", "check", "faults"]

T = TypeVar("T")


def check(kind: type[T], value: object, path: str = "") -> tuple[T | None, list[Issue]]:
    """The converted value, or every fault of it. Exactly one of the two is empty."""
    issues = faults(kind, value, path)
    if issues:
        return None, issues
    try:
        return msgspec.convert(value, kind), []
    except msgspec.ValidationError as error:
        return None, [_issue(error, path)]


def faults(kind: Any, value: object, path: str = "") -> list[Issue]:
    """Every fault of `value` as a `kind`, outermost first; empty when it is sound."""
    kind = _strip_annotation(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct_faults(kind, value, path)
    origin, parameters = typing.get_origin(kind), typing.get_args(kind)
    if origin is list and isinstance(value, (list, tuple)):
        return [issue for i, item in enumerate(value) for issue in faults(parameters[0], item, f"{path}[{i}]")]
    if origin is dict and isinstance(value, Mapping):
        return [issue for key, item in value.items() for issue in faults(parameters[1], item, _join(path, str(key)))]
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in parameters:
            return []
        nested = [p for p in parameters if _takes(p, value)]
        if len(nested) == 1:
            return faults(nested[0], value, path)
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        choices = _choices(kind)
        if choices and not isinstance(value, (Mapping, list, tuple)):
            close = difflib.get_close_matches(str(value), choices, 1)
            hint = f"did you mean {close[0]!r}?" if close else ""
            return [Issue(path, f"{value!r} is not one of {', '.join(choices)}", hint)]
        return [_issue(error, path)]
    return []


def arguments_from_text(kind: type[msgspec.Struct], pairs: Iterable[str]) -> tuple[dict[str, object], list[Issue]]:
    """`key=value` words of a command line as JSON values, read by the types of the struct's fields.

    Lists and objects are written as JSON, or with a dotted key (`image.url=…`). Faults of the words are returned
    beside; faults of the values are left to `check`.
    """
    result: dict[str, object] = {}
    issues: list[Issue] = []
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key:
            issues.append(Issue(pair, "is not of the form key=value", "quote the value if it has blanks"))
            continue
        into, names, field_kind = result, key.split("."), _field_kind(kind, key.split("."))
        for name in names[:-1]:
            deeper = into.setdefault(name, {})
            if not isinstance(deeper, dict):
                issues.append(Issue(key, f"{name} was given a plain value before"))
                break
            into = deeper
        else:
            into[names[-1]] = _value_from_text(field_kind, text)
    return result, issues


def _struct_faults(kind: type[msgspec.Struct], value: object, path: str) -> list[Issue]:
    if not isinstance(value, Mapping):
        return [Issue(path, f"an object is wanted, this is {kind_words(_json_kind(value))}")]
    fields = _fields(kind)
    issues = []
    tag = kind.__struct_config__.tag_field
    if kind.__struct_config__.forbid_unknown_fields:
        for name in value:
            if name not in fields and name != tag:
                close = difflib.get_close_matches(str(name), fields, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(fields)) or 'none'}"
                issues.append(Issue(_join(path, str(name)), "is not known here", hint))
    for name, field in fields.items():
        if name in value:
            issues += faults(field.type, value[name], _join(path, name))
        elif field.default is NODEFAULT and field.default_factory is NODEFAULT:
            issues.append(Issue(_join(path, name), "is required"))
    return issues


@cache
def _fields(kind: type[msgspec.Struct]) -> Mapping[str, structs.FieldInfo]:
    return {field.encode_name: field for field in structs.fields(kind)}


def _takes(kind: Any, value: object) -> bool:
    """Whether a member of a union is the one that a value of this JSON kind is meant for."""
    kind = _strip_annotation(kind)
    origin = typing.get_origin(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return isinstance(value, Mapping)
    if origin is dict:
        return isinstance(value, Mapping)
    if origin is list:
        return isinstance(value, (list, tuple))
    return kind is not type(None) and not isinstance(value, (Mapping, list, tuple))


def _choices(kind: Any) -> list[str]:
    """The words that an enum, a Literal or a union made only of those (and null) takes; empty for other types."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    if typing.get_origin(kind) is typing.Literal:
        return [str(value) for value in typing.get_args(kind)]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        members = [p for p in typing.get_args(kind) if p is not type(None)]
        words = [_choices(member) for member in members]
        return [word for listed in words for word in listed] if all(words) else []
    return []


def _strip_annotation(kind: Any) -> Any:
    if typing.get_origin(kind) is typing.Annotated:
        inner = typing.get_args(kind)[0]
        # A constraint on a plain value is msgspec's to check; only a container must be walked.
        return inner if typing.get_origin(inner) in (list, dict) and not _constrained(kind) else kind
    return kind


def _constrained(kind: Any) -> bool:
    return any(isinstance(meta, msgspec.Meta) for meta in typing.get_args(kind)[1:])


def _issue(error: msgspec.ValidationError, path: str) -> Issue:
    text, separator, inner = str(error).partition(" - at `$")
    where = path + inner.rstrip("`") if separator else path
    return Issue(where.lstrip("."), fault_words(text))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _json_kind(value: object) -> str:
    """As msgspec names it."""
    kinds = {dict: "object", list: "array", type(None): "null"}
    return kinds.get(type(value), type(value).__name__)


def _field_kind(kind: Any, names: list[str]) -> Any:
    for name in names:
        candidates = [
            p for p in (kind, *typing.get_args(kind)) if isinstance(p, type) and issubclass(p, msgspec.Struct)
        ]
        if not candidates:
            return Any
        found = [f.type for f in structs.fields(candidates[0]) if f.encode_name == name]
        if not found:
            return Any
        kind = found[0]
    return kind


def _takes_text(kind: Any) -> bool:
    """Whether plain text is a value of this type; the texts inside a list or object are not meant."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType, typing.Annotated):
        return any(_takes_text(parameter) for parameter in typing.get_args(kind))
    return kind is str


def _value_from_text(kind: Any, text: str) -> object:
    """The JSON value that the text stands for, when the type takes it; the text itself otherwise."""
    if kind is not Any:
        try:
            converted = msgspec.convert(text, kind, strict=False)
        except msgspec.ValidationError:
            # A text field that refuses this text must see it as text, so that the fault names the text.
            if _takes_text(kind):
                return text
        else:
            return None if converted is UNSET else msgspec.to_builtins(converted)
    try:
        return typing.cast(object, json.loads(text))
    except ValueError:
        return text
