"""How simulated machines behave: how slow, what fails and when, and what state they begin in. All of it is data.

A script comes from `script("rack-1-*", …)` in the same process, or from the JSON or TOML file that the environment's
`RACKWRIGHT_SIMULATED_SCRIPT` names:

    [machines."rack-1-*"]
    latency = "200ms"
    faults = [{operation = "power.*", code = "BUSY", count = 2}]

Where several patterns match a machine, the last one counts; a script of this process goes before the file's.
"""

import fnmatch
import json
import os
import tomllib
import zlib
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from drivers.simulated.state import MachineState
from protocol.durations import parse_duration
from protocol.errors import BmcMessage, ErrorCode, Issue, OperationError
from protocol.validation import check, faults

__all__ = ["SCRIPT_VARIABLE", "Fault", "Moment", "Script", "clear_scripts", "script", "script_for"]

SCRIPT_VARIABLE = "RACKWRIGHT_SIMULATED_SCRIPT"

T = TypeVar("T")

_Duration = str | int
"""`200ms`, `5s`, or whole milliseconds."""


class Moment(StrEnum):
    """When a fault strikes."""

    BEFORE = "before"
    """The machine did nothing."""
    AFTER = "after"
    """The machine acted; only the answer is lost, late or wrong."""


class _Data(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class Fault(_Data, frozen=True, kw_only=True):
    """One thing that goes wrong.

    Matching calls are counted per machine: the first `after` pass, the next `count` meet the fault. Such a call fails
    with `code`, or is never answered (`hang`: until its deadline), or is late by `delay` and then as usual.
    """

    operation: str = "*"
    """An operation's name, or a pattern such as `power.*`."""
    code: ErrorCode | None = None
    message: str = ""
    bmc: list[BmcMessage] = []
    """The BMC's own words."""
    hang: bool = False
    delay: _Duration = 0
    moment: Moment = Moment.BEFORE
    after: Annotated[int, Meta(ge=0)] = 0
    count: Annotated[int, Meta(ge=1)] | None = None
    """Null: always."""

    def __post_init__(self) -> None:
        if self.hang and self.code is not None:
            raise ValueError("a fault that hangs gives no code: leave one of the two out")
        if not (self.code or self.hang or parse_duration(self.delay)):
            raise ValueError("a fault needs code, hang or delay")

    def matches(self, operation: str) -> bool:
        return fnmatch.fnmatchcase(operation, self.operation)

    @property
    def strikes_for_good(self) -> bool:
        """Whether every call meets it, so that the operation is not to be had from this machine."""
        return self.after == 0 and self.count is None


class Script(_Data, frozen=True, kw_only=True):
    """One kind of machine. Without any field it answers at once and never fails."""

    latency: _Duration = 0
    latencies: dict[str, _Duration] = {}
    """By operation or pattern; the first that matches counts instead of `latency`."""
    jitter: _Duration = 0
    """Added at most; the same for the same seed, machine and number of call."""
    seed: int = 0
    faults: list[Fault] = []
    state: dict[str, object] = {}
    """What a fresh machine has otherwise: any part of `MachineState`, such as `{"power": "off"}`."""
    password: str | None = None
    """Any other password is refused, as a BMC does it. Null takes every credential."""
    observed: dict[str, str] = {}
    """Facts that each call reports beside its result."""

    def __post_init__(self) -> None:
        for text in (self.latency, self.jitter, *self.latencies.values()):
            parse_duration(text)
        issues = faults(MachineState, self.state, "state")
        if issues:
            raise ValueError("; ".join(str(issue) for issue in issues))

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={'***' if name == 'password' else repr(value)}"
            for name in self.__struct_fields__
            if (value := getattr(self, name)) not in (None, 0, [], {})
        )
        return f"Script({shown})"

    def delay_ms(self, operation: str, machine: str, call: int) -> int:
        """Milliseconds before the machine acts on its `call`-th call."""
        base = _latency(self, operation) if self.latencies else parse_duration(self.latency)
        most = parse_duration(self.jitter)
        if not most:
            return base
        return base + zlib.crc32(f"{self.seed}/{machine}/{call}".encode()) % (most + 1)


class _ScriptFile(_Data, frozen=True, kw_only=True):
    machines: dict[str, Script]


PLAIN = Script()
_scripts: dict[str, Script] = {}


def script(pattern: str, behaviour: Script | None = None, /, **fields: object) -> Script:
    """Sets how machines whose name matches behave in this process; the same pattern again replaces its script.

    Takes a `Script`, or its fields as JSON values in camelCase. Raises OperationError INVALID_ARGUMENT that names
    every fault.
    """
    if behaviour is None:
        behaviour = _checked(Script, fields, f"the script for {pattern!r}")
    _scripts.pop(pattern, None)
    _scripts[pattern] = behaviour
    return behaviour


def clear_scripts() -> None:
    _scripts.clear()
    _read_file.cache_clear()


def script_for(name: str) -> Script:
    """The script that counts for this machine. Raises OperationError INVALID_ARGUMENT when the file is unusable."""
    if _scripts:
        found = _matching(_scripts, name)
        if found is not None:
            return found
    path = os.environ.get(SCRIPT_VARIABLE)
    if path:
        try:
            changed = Path(path).stat().st_mtime_ns
        except OSError as error:
            raise _unusable(f"{SCRIPT_VARIABLE} names {path}, which cannot be read: {error.strerror}") from error
        found = _matching(_read_file(path, changed), name)
        if found is not None:
            return found
    return PLAIN


def _matching(scripts: dict[str, Script], name: str) -> Script | None:
    found = None
    for pattern, behaviour in scripts.items():
        if fnmatch.fnmatchcase(name, pattern.lower()):
            found = behaviour
    return found


@lru_cache(maxsize=4)
def _read_file(path: str, _changed: int) -> dict[str, Script]:
    """The file's scripts; read again only when it was changed."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        data = tomllib.loads(text) if path.endswith(".toml") else json.loads(text)
    except (OSError, ValueError) as error:
        raise _unusable(f"the script file {path} cannot be read: {error}") from error
    return _checked(_ScriptFile, data, f"the script file {path}").machines


def _checked(kind: type[T], data: object, what: str) -> T:
    value, issues = check(kind, data)
    if value is None:
        raise _unusable(f"{what}: " + "; ".join(map(str, issues)), issues)
    return value


@lru_cache(maxsize=1024)
def _latency_of(latencies: tuple[tuple[str, _Duration], ...], default: _Duration, operation: str) -> int:
    for pattern, text in latencies:
        if fnmatch.fnmatchcase(operation, pattern):
            return parse_duration(text)
    return parse_duration(default)


def _latency(behaviour: Script, operation: str) -> int:
    return _latency_of(tuple(behaviour.latencies.items()), behaviour.latency, operation)


def _unusable(message: str, issues: list[Issue] | None = None) -> OperationError:
    details: dict[str, object] = {"issues": [msgspec.to_builtins(issue) for issue in issues]} if issues else {}
    return OperationError(ErrorCode.INVALID_ARGUMENT, message, details=details)
