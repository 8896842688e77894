"""How results, errors and operations read on a terminal. Text only: no input or output, no colours.

What a BMC says is shown, never obeyed: control characters in its words are made visible.
"""

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protocol.errors import Advice, ErrorCode, OperationError, RackwrightError, RequestCode, RequestError, unquoted

__all__ = ["Fields", "Part", "Quote", "Table", "error_text", "exit_code", "next_step", "printable", "sections"]

_DOCUMENT = 1_000
"""Characters from which on a text is no field's value any more."""

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
class Quote:
    """A text that is shown as it is, line by line: a certificate, an exported document."""

    title: str
    text: str


Part = Fields | Table | Quote


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
    lines += [f"  the BMC said: {printable(str(said))}" for said in unquoted(error.message, error.bmc)]
    advice = dict.fromkeys(said.resolution for said in error.bmc if said.resolution)
    lines += [f"  the BMC advises: {printable(words)}" for words in advice if words not in error.message]
    lines.append(f"  next: {next_step(error.code)}")
    return "\n".join(lines)


def next_step(code: ErrorCode) -> str:
    """What whoever met with this error can do."""
    return _NEXT_OF_CODE.get(code, _NEXT[code.advice])


def sections(value: Mapping[str, object], title: str = "") -> list[Part]:
    """An operation's result in an order to read: plain values first, then the nested ones; lists become tables, and
    texts of several lines stay as they are."""
    rows = [(name, _cell(item)) for name, item in value.items() if not _nested(item) and not _is_document(item)]
    found: list[Part] = [Fields(title, rows)] if rows else []
    for name, item in value.items():
        heading = f"{title}.{name}" if title else name
        if isinstance(item, str) and _is_document(item):
            found.append(Quote(heading, item))
        elif isinstance(item, Mapping) and item:
            found += sections(item, heading)
        elif _nested(item):
            found.append(_table(heading, typing.cast("list[Mapping[str, object]]", item)))
    return found


def printable(text: str) -> str:
    """The text with control characters made visible, so that a BMC's words cannot steer a terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else " " if character in "\n\t" else f"\\x{ord(character):02x}"
        for character in text
    )


def _nested(value: object) -> bool:
    if isinstance(value, Mapping):
        return bool(value)
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _is_document(value: object) -> bool:
    return isinstance(value, str) and ("\n" in value.strip() or len(value) > _DOCUMENT)


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
