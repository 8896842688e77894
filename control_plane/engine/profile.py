"""A profile: the document in which a user says what is to be done to a machine, step by step.

`parse` reads it from a JSON value and reports every fault at once, each with its path (`steps[2].timeout`). It knows
the document only; `resolution` knows what its steps mean.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec import field

from control_plane.engine.states import RunsOn
from control_plane.engine.timing import MAX_STEPS
from control_plane.engine.when import expression_faults
from protocol.durations import parse_duration
from protocol.errors import Issue
from protocol.fault_words import kind_words
from protocol.operations import CONCERNS, DRIVERS
from protocol.validation import check, faults

__all__ = [
    "ANY_DRIVER",
    "LONGEST_ID",
    "LONGEST_TIMEOUT_MS",
    "MOST_RETRIES",
    "NAME_PATTERN",
    "STEP_ID_PATTERN",
    "FailureStep",
    "Fallback",
    "Parsed",
    "Placed",
    "Profile",
    "ProfileStep",
    "document_of",
    "document_text",
    "mended",
    "parse",
    "place_of",
]

NAME_PATTERN = r"^(?!prof_)[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
STEP_ID_PATTERN = r"^[^\s:#\x00-\x1f\x7f]([^:#\x00-\x1f\x7f]*[^\s:#\x00-\x1f\x7f])?$"
"""`:` and `#` delimit the parts of an idempotency key."""
LONGEST_ID = 256
LONGEST_TIMEOUT_MS = 30 * 86_400_000
MOST_RETRIES = 1000
ANY_DRIVER = "auto"
"""The driver that finds out by the BMC's address what it is."""
_LONGEST_DESCRIPTION = 1024
_LONGEST_WHEN = 4096
_DEEPEST = 64
_NESTED = "{}.onFailure.onFailure"
"""Told in words of its own."""
_NAME = re.compile(NAME_PATTERN)
_STEP_ID = re.compile(STEP_ID_PATTERN)

Place = Literal["control-plane", "site", "ramdisk", "daemon", "host"]
"""Where a step runs. `host` is another word for `daemon`."""


class _Document(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """The base of a profile's parts: a field that is not known may be a slip in something destructive."""


class Fallback(_Document, frozen=True, kw_only=True):
    """What is used where `use` does not resolve; `on` and `with` are the step's own where they are left out."""

    use: str
    on: Place | None = None
    with_: dict[str, object] | None = field(default=None, name="with")
    fallback: "str | Fallback | None" = None


class FailureStep(_Document, frozen=True, kw_only=True):
    """The step that runs when another one has spent its retries."""

    use: str
    on: Place | None = None
    with_: dict[str, object] = field(default_factory=dict, name="with")
    when: str | None = None
    timeout: str | int | None = None
    retries: int | None = None


class ProfileStep(_Document, frozen=True, kw_only=True):
    """One step of a profile."""

    id: str | None = None
    use: str
    on: Place | None = None
    with_: dict[str, object] = field(default_factory=dict, name="with")
    when: str | None = None
    """A label expression, see `when.py`; absent, the step runs."""
    timeout: str | int | None = None
    """Of one attempt: `15m`, or whole milliseconds."""
    retries: int | None = None
    """Attempts after the first."""
    on_failure: Literal["fail", "continue", "rescue"] | FailureStep = "fail"
    await_: Literal["rejoin"] | None = field(default=None, name="await")
    fallback: str | Fallback | None = None


class Profile(_Document, frozen=True, kw_only=True):
    """The whole document."""

    profile: str
    """Its name; the server counts the versions."""
    description: str = ""
    drivers: dict[str, str] = {}
    """Which driver serves each concern."""
    steps: list[ProfileStep]
    cleanup: list[ProfileStep] = []
    host_config: dict[str, object] | None = None
    """What the installed daemon is to have once the workflow has succeeded."""


_STEP_FIELDS = tuple(found.encode_name for found in msgspec.structs.fields(ProfileStep))


class Placed(NamedTuple):
    """A step and where it stands in the document."""

    path: str
    step: ProfileStep


class Parsed(NamedTuple):
    """What could be read. A step's faulty fields are left out, so that the rest of it can still be looked into."""

    profile: Profile | None
    """None when there is any fault."""
    drivers: dict[str, str]
    steps: list[Placed]
    cleanup: list[Placed]
    issues: list[Issue]


def parse(document: object) -> Parsed:
    """Reads a document given as a JSON value. Never raises for its content."""
    if not isinstance(document, Mapping):
        return Parsed(None, {}, [], [], [Issue("", "a profile is an object with the fields profile and steps")])
    if _too_deep(document):
        return Parsed(None, {}, [], [], [Issue("", f"it is nested too deeply: {_DEEPEST} levels are the most")])
    shell = {name: value for name, value in document.items() if name not in ("steps", "cleanup")}
    issues = [mended(issue) for issue in faults(Profile, {**shell, "steps": []})]
    issues += _shell_faults(document)
    steps = list(_steps(document, "steps", issues))
    cleanup = list(_steps(document, "cleanup", issues))
    profile = None
    if not issues:
        profile, issues = check(Profile, document)
    return Parsed(profile, _bound(document.get("drivers")), steps, cleanup, issues)


def document_of(profile: Profile) -> dict[str, object]:
    """The profile as a JSON value in its one form: fields in their order, defaults left out."""
    made: dict[str, object] = msgspec.to_builtins(profile)
    return made


def document_text(document: object) -> str:
    """The text by which two documents, or two values in them, are the same: the order of fields does not count.

    Python's own comparison would take 1 and true for the same.
    """
    return msgspec.json.encode(document, order="sorted").decode()


def place_of(on: Place | None) -> RunsOn | None:
    """The place that a profile's `on` means."""
    if on is None:
        return None
    return RunsOn.DAEMON if on == "host" else RunsOn(on)


def mended(issue: Issue) -> Issue:
    """The issue, with a hint where it is one of the usual slips of writing YAML."""
    if issue.hint:
        return issue
    wanted, _, got = issue.message.partition(" is wanted, this is ")
    if kind_words("bool") in wanted and got == kind_words("str"):
        return Issue(issue.path, issue.message, "write true or false, without quotes; yes, no, on and off are texts")
    if kind_words("str") in wanted and got in map(kind_words, ("int", "float", "bool")):
        return Issue(issue.path, issue.message, "put it in quotes to make it a text")
    return issue


def _shell_faults(document: Mapping[str, object]) -> Iterator[Issue]:
    name, description = document.get("profile"), document.get("description")
    if isinstance(name, str) and not _NAME.fullmatch(name):
        yield Issue(
            "profile",
            f"{name[:140]!r} is no name for a profile",
            "letters and digits, then also . _ and -, 128 at the most, and not prof_ in front",
        )
    if isinstance(description, str) and len(description) > _LONGEST_DESCRIPTION:
        yield Issue("description", f"has {len(description)} characters: {_LONGEST_DESCRIPTION} are the most")
    if isinstance(document.get("drivers"), Mapping):
        yield from _driver_faults(_bound(document["drivers"]))
    if document.get("steps") == []:
        yield Issue("steps", "is empty: a profile has at least one step")


def _driver_faults(drivers: Mapping[str, str]) -> Iterator[Issue]:
    known = [*DRIVERS, ANY_DRIVER]
    for concern, driver in drivers.items():
        if concern not in CONCERNS:
            message = f"{concern!r} is none of the concerns {', '.join(CONCERNS)}"
            yield Issue(f"drivers.{concern}", message, _close(concern, CONCERNS))
        if driver not in known:
            message = f"{driver!r} is none of the drivers {', '.join(known)}"
            yield Issue(f"drivers.{concern}", message, _close(driver, known))


def _bound(drivers: object) -> dict[str, str]:
    """The bindings that can be read. A concern whose driver has a fault is bound all the same."""
    if not isinstance(drivers, Mapping):
        return {}
    return {concern: driver for concern, driver in drivers.items() if isinstance(driver, str)}


def _steps(document: Mapping[str, object], where: str, issues: list[Issue]) -> Iterator[Placed]:
    """The steps of a list, or what is sound of them; the faults are added to `issues`."""
    if where not in document:
        if where == "steps":
            issues.append(Issue("steps", "is required"))
        return
    listed = document[where]
    if not isinstance(listed, list | tuple):
        issues.append(Issue(where, "must be a list of steps"))
        return
    if len(listed) > MAX_STEPS:
        issues.append(Issue(where, f"holds {len(listed)} steps: {MAX_STEPS} are the most"))
        return
    for index, raw in enumerate(listed):
        path = f"{where}[{index}]"
        found = [mended(issue) for issue in check(ProfileStep, raw, path)[1] if issue.path != _NESTED.format(path)]
        if isinstance(raw, Mapping):
            found += _step_faults(raw, path)
            found += _failure_faults(raw.get("onFailure"), path, main=where == "steps")
        issues += found
        step = _sound_part(raw, path, found)
        if step is not None:
            yield Placed(path, step)


def _sound_part(raw: object, path: str, found: list[Issue]) -> ProfileStep | None:
    """The step without its faulty fields; None where nothing can be said of what it does."""
    if not isinstance(raw, Mapping):
        return None
    told = {issue.path for issue in found}
    sound = {name: raw[name] for name in _STEP_FIELDS if name in raw and not _fault_at(found, told, f"{path}.{name}")}
    if "use" not in sound or ("fallback" in raw and "fallback" not in sound):
        return None
    return check(ProfileStep, sound)[0]


def _fault_at(found: list[Issue], told: set[str], path: str) -> bool:
    """Whether one of the issues is about what stands at this path, or inside of it."""
    return path in told or any(issue.path.startswith((f"{path}.", f"{path}[")) for issue in found)


def _step_faults(raw: Mapping[str, object], path: str) -> Iterator[Issue]:
    """What the types alone cannot say of a step, or of an on-failure step."""
    identifier, when, timeout, retries = (raw.get(name) for name in ("id", "when", "timeout", "retries"))
    if isinstance(identifier, str) and not (len(identifier) <= LONGEST_ID and _STEP_ID.fullmatch(identifier)):
        yield Issue(
            f"{path}.id",
            f"{identifier[:LONGEST_ID]!r} is no step's id",
            f"1 to {LONGEST_ID} characters without : and #, and no blank at either end",
        )
    if isinstance(when, str) and len(when) > _LONGEST_WHEN:
        yield Issue(f"{path}.when", f"has {len(when)} characters: {_LONGEST_WHEN} are the most")
    elif isinstance(when, str):
        yield from expression_faults(when, f"{path}.when")
    if isinstance(timeout, str | int) and not isinstance(timeout, bool):
        yield from _timeout_faults(timeout, f"{path}.timeout")
    if isinstance(retries, int) and not isinstance(retries, bool) and not 0 <= retries <= MOST_RETRIES:
        yield Issue(f"{path}.retries", f"{retries} is out of bounds: 0 to {MOST_RETRIES}")


def _timeout_faults(timeout: str | int, path: str) -> Iterator[Issue]:
    try:
        milliseconds = parse_duration(timeout)
    except ValueError as error:
        yield Issue(path, str(error))
        return
    if not 1 <= milliseconds <= LONGEST_TIMEOUT_MS:
        yield Issue(path, "must be longer than nothing, and 30d at the most")


def _failure_faults(raw: object, path: str, *, main: bool) -> Iterator[Issue]:
    """The faults of a step-valued `onFailure` that its type does not show."""
    if not isinstance(raw, Mapping):
        return
    where = f"{path}.onFailure"
    if not main:
        yield Issue(where, "a clean-up step has no step of its own for its failure", "write continue, or fail")
    if "onFailure" in raw:
        yield Issue(_NESTED.format(path), "the step for a failure has none for its own", "leave it out")
    yield from _step_faults({name: value for name, value in raw.items() if name != "id"}, where)


def _too_deep(document: Mapping[str, object]) -> bool:
    level: list[object] = [document]
    for _ in range(_DEEPEST):
        inner: list[object] = []
        for value in level:
            if isinstance(value, Mapping):
                inner += value.values()
            elif isinstance(value, list | tuple):
                inner += value
        if not inner:
            return False
        level = inner
    return True


def _close(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean {close[0]!r}?" if close else ""
