"""How results, errors and operations read on a terminal. Text only: no input or output, no colours.

What a BMC says is shown, never obeyed: control characters in its words are made visible.
"""

import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
from msgspec import NODEFAULT, structs

from protocol.errors import Advice, ErrorCode, OperationError, RackwrightError, RequestCode, RequestError

__all__ = [
    "ArgumentHelp",
    "Fields",
    "Table",
    "argument_help",
    "error_text",
    "exit_code",
    "plain",
    "printable",
    "sections",
]

_NEXT = {
    Advice.RETRY: "nothing was changed; the same command may succeed later",
    Advice.FIX: "it will fail again until the cause is mended",
    Advice.LOOK: "it may have happened: read the machine's state before you repeat it",
    Advice.NEVER: "this machine or driver cannot do it; management.qualify tells what it can do",
}
_NEXT_OF_CODE = {
    ErrorCode.AUTH_FAILED: "check the user name and the password; the same ones will be refused again",
    ErrorCode.AUTH_BLOCKED: "change the credential first; more wrong logins could lock the account",
    ErrorCode.TLS_UNTRUSTED: (
        "if it is the right machine, pin what it shows: --verify (of a node: --tls) sha256:<hex>; "
        "or name the CA of its certificate: ca:/path.pem"
    ),
    ErrorCode.LICENSE_REQUIRED: "install the licence that the BMC asks for",
    ErrorCode.INVALID_ARGUMENT: "correct the arguments; nothing was sent that changes the machine",
}
_REFUSED = (RequestCode.FORBIDDEN, RequestCode.UNAUTHENTICATED)


@dataclass(frozen=True, slots=True)
class Fields:
    """Names and values, one a line."""

    title: str
    rows: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True, slots=True)
class ArgumentHelp:
    """One argument of an operation, in words."""

    name: str
    kind: str
    """`text`, `number`, `true|false`, the choices with `|` between, or `JSON`."""
    choices: list[str]
    required: bool
    default: object


def exit_code(error: RackwrightError) -> int:
    """1 failed, 2 usage, 3 not found, 4 refused."""
    if isinstance(error, OperationError):
        if error.code in (ErrorCode.AUTH_FAILED, ErrorCode.AUTH_BLOCKED):
            return 4
        return 2 if error.code is ErrorCode.INVALID_ARGUMENT else 1
    if isinstance(error, RequestError):
        if error.code in _REFUSED:
            return 4
        return {RequestCode.NOT_FOUND: 3, RequestCode.INVALID_INPUT: 2}.get(error.code, 1)
    return 1


def error_text(error: RackwrightError) -> str:
    """The code, the cause, the BMC's own words, and what to do next."""
    if isinstance(error, RequestError):
        return f"error: {error}"
    if not isinstance(error, OperationError):
        return f"error: {printable(str(error))}"
    lines = [f"error: {error.code}: {printable(error.message)}"]
    lines += [
        f"  the BMC said: {printable(f'{said.id}: {said.text}' if said.id else said.text)}" for said in error.bmc
    ]
    lines.append(f"  next: {_NEXT_OF_CODE.get(error.code, _NEXT[error.code.advice])}")
    return "\n".join(lines)


def sections(value: Mapping[str, object], title: str = "") -> list[Fields | Table]:
    """An operation's result in an order to read: plain values first, then the nested ones; lists become tables."""
    rows = [(name, _cell(item)) for name, item in value.items() if not _nested(item)]
    found: list[Fields | Table] = [Fields(title, rows)] if rows else []
    for name, item in value.items():
        heading = f"{title}.{name}" if title else name
        if isinstance(item, Mapping) and item:
            found += sections(item, heading)
        elif _nested(item):
            found.append(_table(heading, typing.cast("list[Mapping[str, object]]", item)))
    return found


def plain(parts: Iterable[Fields | Table]) -> str:
    """The sections as aligned text, without a line's end at the end."""
    return "\n\n".join("\n".join(_lines(part)) for part in parts)


def printable(text: str) -> str:
    """The text with control characters made visible, so that a BMC's words cannot steer a terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else " " if character in "\n\t" else f"\\x{ord(character):02x}"
        for character in text
    )


def argument_help(kind: type[msgspec.Struct]) -> list[ArgumentHelp]:
    """Every argument of an operation, in the order of its definition."""
    found = []
    for field in structs.fields(kind):
        words, choices = _words(field.type)
        required = field.default is NODEFAULT and field.default_factory is NODEFAULT
        default = None if field.default is NODEFAULT else msgspec.to_builtins(field.default)
        found.append(ArgumentHelp(field.encode_name, words, choices, required, default))
    return found


def _nested(value: object) -> bool:
    if isinstance(value, Mapping):
        return bool(value)
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _cell(value: object) -> str:
    if value is None or value in ([], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return ", ".join(_cell(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_cell(item)}" for name, item in value.items() if item is not None)
    return printable(str(value))


def _table(title: str, items: Sequence[Mapping[str, object]]) -> Table:
    """Columns that are empty in every row are left out."""
    names = list(dict.fromkeys(name for item in items for name in item))
    columns = [name for name in names if any(item.get(name) not in (None, [], {}) for item in items)]
    return Table(title, columns, [[_cell(item.get(name)) for name in columns] for item in items])


def _lines(part: Fields | Table) -> list[str]:
    title = [part.title] if part.title else []
    indent = "  " if part.title else ""
    if isinstance(part, Fields):
        width = max(len(name) for name, _ in part.rows)
        return title + [f"{indent}{name:<{width}}  {value}" for name, value in part.rows]
    lines = [part.columns, *part.rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(part.columns))]
    return title + [
        indent + "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _words(kind: Any) -> tuple[str, list[str]]:
    """How an argument's type reads, and the words that it takes where these are few."""
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return _words(typing.get_args(kind)[0])
    if origin in (typing.Union, types.UnionType):
        members = [_words(member) for member in typing.get_args(kind) if member is not type(None)]
        choices = [choice for _, listed in members for choice in listed]
        return "|".join(dict.fromkeys(words for words, _ in members)), choices
    if origin is typing.Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        choices = [str(value) for value in typing.get_args(kind)] or [str(member.value) for member in kind]
        return "|".join(choices), choices
    if kind is bool:
        return "true|false", ["true", "false"]
    return {str: "text", int: "number", float: "number"}.get(kind, "JSON"), []
