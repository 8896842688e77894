"""A wish for BIOS attributes, checked against the registry before anything is sent: every fault of it at once."""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from drivers.redfish import messages
from drivers.redfish.bios_registry import AttributeRegistry, Definition, same_value, whole_number
from drivers.redfish.bios_view import BiosView, is_secret
from drivers.redfish.document import Document
from drivers.redfish.failures import Refused
from protocol.errors import ErrorCode, Issue, OperationError
from protocol.shapes.bios import ApplyTime, BiosValue

__all__ = ["APPLY_TIMES", "BiosRequest", "apply_time_fault", "check_attributes", "differing", "raise_refusal"]

APPLY_TIMES = {ApplyTime.ON_RESET: "OnReset", ApplyTime.IMMEDIATE: "Immediate"}
"""Ours, and the words of the Redfish schema (Settings, ApplyTime)."""
_SIMPLE_PATTERN = re.compile(r"\^\[(?:[^\]\\]|\\[^bBAZ0-9])+\](?:[*+?]|\{\d{1,4}(?:,\d{0,4})?\})?\$")
"""Expressions that are tried here: one class of characters, repeated. Those of Dell and HPE nest repetitions, which
take for ever on some texts; the BIOS tries them itself."""
_LISTED_CHOICES = 40
_LIKENED = 20
"""How many unknown names are held against the known ones: each costs some milliseconds."""


@dataclass(frozen=True, slots=True)
class BiosRequest:
    """What is sent: the attributes that change, and when they are to be applied where the BMC wants to hear it."""

    attributes: Mapping[str, BiosValue]
    apply_time: str | None = None

    @property
    def body(self) -> Document:
        body: Document = {"Attributes": dict(self.attributes)}
        if self.apply_time is not None:
            body["@Redfish.SettingsApplyTime"] = {"ApplyTime": self.apply_time}
        return body


def check_attributes(
    wanted: Mapping[str, BiosValue], view: BiosView, registry: AttributeRegistry | None
) -> tuple[dict[str, BiosValue], list[Issue]]:
    """The values as the BIOS writes them, and every fault of the wish.

    Dependencies are looked at as they will be with the new values: an attribute that another one of the same wish
    makes writable may be set with it. Without a registry only the names and the kinds of the values can be told.
    """
    known = view.registry_or_own(registry)
    definitions = known.at({**view.coming, **wanted})
    checked: dict[str, BiosValue] = {}
    issues: list[Issue] = []
    for name, value in wanted.items():
        definition = definitions.get(name)
        if definition is None and name in view.current:
            definition = _told_by(name, view.current[name])
        if definition is None:
            issues.append(_unknown(name, view, definitions, likens=len(issues) < _LIKENED))
            continue
        checked[name] = _as_written(definition, value)
        path = f"attributes.{name}"
        issues += [Issue(path, message) for message in _faults(definition, checked[name], view)]
        if _is_missing(definition, view) and not known.is_ruled_by(name, wanted):
            issues.append(_not_shown(name))
    return checked, issues


def differing(wanted: Mapping[str, BiosValue], view: BiosView, *, at_once: bool) -> dict[str, BiosValue]:
    """Those of the values that the BIOS neither has nor, unless they are wanted at once, waits to have."""
    there = view.current if at_once else view.coming
    waiting = view.pending if at_once else {}
    return {
        name: value
        for name, value in wanted.items()
        if not (name in there and same_value(there[name], value)) or name in waiting
    }


def apply_time_fault(wanted: ApplyTime, offered: list[str]) -> str | None:
    """Why the wished apply time cannot be had, with what can."""
    word = APPLY_TIMES[wanted]
    if word in offered or (not offered and wanted is ApplyTime.ON_RESET):
        return None
    if not offered:
        return "this BMC leaves no choice of the time: BIOS settings are applied with a reset (applyTime=onReset)"
    return f"this BMC does not apply BIOS settings {wanted.value}; it offers {', '.join(offered)}"


def raise_refusal(refused: Refused, what: str) -> NoReturn:
    """Raises the refusal as it is; one that an earlier change's waiting job gives says what ends it."""
    if not messages.is_committed(refused.notes):
        raise refused
    raise OperationError(
        ErrorCode.CONFLICT,
        f"the BMC takes no further {what} while an earlier change waits to be applied: restart the host so that it "
        "is applied, or delete the waiting job at the BMC, then ask again",
        bmc=refused.bmc,
        details=refused.details,
    ) from refused


def _is_missing(definition: Definition, view: BiosView) -> bool:
    """Whether the BIOS does not show an attribute that it should show, were it there."""
    name = definition.name
    return name not in view.current and name not in view.queued and not definition.write_only


def _not_shown(name: str) -> Issue:
    return Issue(
        f"attributes.{name}",
        "is in this BIOS's registry, but the BIOS does not show it now",
        "the hardware for it may be missing, another setting may hide it, or the BMC may need a restart "
        "(management.resetBmc) or the host a start before it shows",
    )


def _unknown(name: str, view: BiosView, definitions: Mapping[str, Definition], *, likens: bool) -> Issue:
    if not likens:
        return Issue(f"attributes.{name}", "this BIOS has no such attribute")
    names = {**dict.fromkeys(view.current), **dict.fromkeys(definitions)}
    folded = {known.lower(): known for known in names}
    by_label = [one.name for one in definitions.values() if one.label and one.label.lower() == name.lower()]
    close = [folded[match] for match in difflib.get_close_matches(name.lower(), folded, 3, 0.7)]
    found = list(dict.fromkeys([*by_label[:3], *close]))
    hint = f"did you mean {' or '.join(found)}?" if found else "bios.getBios lists what there is"
    return Issue(f"attributes.{name}", "this BIOS has no such attribute", hint)


def _told_by(name: str, value: BiosValue) -> Definition:
    """What the present value tells of an attribute that no registry describes."""
    if isinstance(value, bool):
        return Definition(name, kind="boolean")
    if isinstance(value, int | float):
        return Definition(name, kind="integer")
    return Definition(name, kind="string" if isinstance(value, str) else None)


def _as_written(definition: Definition, value: BiosValue) -> BiosValue:
    """The value in the BIOS's own form where there is no doubt: 115200 for the choice "115200", 5.0 for 5."""
    if definition.kind == "enumeration" and isinstance(value, int) and not isinstance(value, bool):
        return str(value) if str(value) in definition.choices else value
    if definition.kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _faults(definition: Definition, value: BiosValue, view: BiosView) -> Iterator[str]:
    """What is wrong with one value; never says the value of a password."""
    if is_secret(definition, value):
        yield (
            "is a password: arguments are kept in the history of commands, so that passwords are not set this way; "
            "use the BMC's own Bios.ChangePassword"
        )
        return
    if definition.read_only or definition.immutable:
        if same_value(view.coming.get(definition.name), value):
            # What is asked for holds already: a profile that was read from a machine fits this machine.
            return
        why = f" ({definition.note})" if definition.note and not definition.immutable else ""
        yield f"is read-only{why}"
        return
    match definition.kind:
        case "enumeration":
            yield from _choice_faults(definition, value, view)
        case "integer":
            yield from _number_faults(definition, value)
        case "boolean":
            if not isinstance(value, bool):
                yield f"must be true or false, not {_named(value)}"
        case "string":
            yield from _text_faults(definition, value)
        case _:
            if value is None:
                yield "must have a value"


def _choice_faults(definition: Definition, value: BiosValue, view: BiosView) -> Iterator[str]:
    if not definition.choices:
        if not isinstance(value, str):
            yield f"must be text, not {_named(value)}"
        return
    if value in definition.choices:
        return
    listed = ", ".join(definition.choices[:_LISTED_CHOICES])
    more = len(definition.choices) - _LISTED_CHOICES
    close = [choice for choice in definition.choices if choice.lower() == str(value).lower()]
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    yield f"must be one of {listed}{f' and {more} more' if more > 0 else ''}, not {_named(value)}{hint}"


def _number_faults(definition: Definition, value: BiosValue) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int):
        yield f"must be a whole number, not {_named(value)}"
        return
    low, high, step = definition.minimum, definition.maximum, definition.step
    if whole_number(value) is None or (low is not None and value < low) or (high is not None and value > high):
        yield f"must be a whole number {_range(low, high)}{f' in steps of {step}' if step > 1 else ''}, not {value}"
    elif step > 1 and (value - (low or 0)) % step:
        yield f"must be {low or 0} and a multiple of {step}, not {value}"


def _text_faults(definition: Definition, value: BiosValue) -> Iterator[str]:
    if not isinstance(value, str):
        yield f'must be text, not {_named(value)}: write it in quotes ("{value}")'
        return
    shortest, longest = definition.shortest or 0, definition.longest
    # An empty text clears an attribute, also one that is long once it is set (Dell's CHAP secrets).
    if value and (len(value) < shortest or (longest is not None and len(value) > longest)):
        yield f"must have {_range(shortest, longest)} characters, not {len(value)}"
    elif value and definition.pattern and not _fits(definition.pattern, value):
        yield f"must match {definition.pattern}"


def _fits(pattern: str, value: str) -> bool:
    if len(pattern) > 200 or not _SIMPLE_PATTERN.fullmatch(pattern):
        return True
    try:
        return re.fullmatch(pattern[1:-1], value) is not None
    except re.error:
        return True


def _range(low: int | None, high: int | None) -> str:
    if low is not None and high is not None:
        return f"from {low} to {high}"
    if low is not None:
        return f"of {low} or more"
    return f"of {high} or less" if high is not None else "of 64 bits"


def _named(value: BiosValue) -> str:
    if value is None:
        return "null"
    return repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
