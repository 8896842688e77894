"""The attribute registry of a BIOS: what each attribute may be, and how one attribute rules over another (DSP8010,
AttributeRegistry).

Parsing never raises: an attribute or a dependency that makes no sense is left out; a bound that makes none is none.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from drivers.redfish.document import Document, boolean, dig, text
from protocol.shapes.bios import BiosValue

__all__ = ["AttributeRegistry", "Definition", "Dependency", "Kind", "same_value", "whole_number"]

Kind = str
"""enumeration, integer, string, boolean or password."""

_KINDS = frozenset({"enumeration", "integer", "string", "boolean", "password"})
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
"""Bounds are 64 bits wide, signed or not; what lies outside is no bound that a BIOS can mean."""
_SECRET = re.compile(r"passw(or)?d|passphrase|chap.*secret|secret.*key|private.*key", re.IGNORECASE)
_LONGEST_HELP = 600
_MOST_CHOICES = 1000
_LISTED_CONDITIONS = 3


@dataclass(frozen=True, slots=True)
class Definition:
    """One attribute as its registry describes it."""

    name: str
    kind: Kind | None = None
    label: str | None = None
    help: str | None = None
    choices: tuple[str, ...] = ()
    shown_choices: tuple[str, ...] = ()
    """The same choices by their display names: Supermicro's values are these."""
    minimum: int | None = None
    maximum: int | None = None
    step: int = 0
    """An integer's distance from the minimum is a multiple of it; 0 where any will do."""
    shortest: int | None = None
    longest: int | None = None
    pattern: str | None = None
    read_only: bool = False
    immutable: bool = False
    write_only: bool = False
    hidden: bool = False
    needs_reset: bool | None = None
    default: BiosValue = None
    value: BiosValue = None
    """The registry's own CurrentValue: for attributes that the BIOS does not show."""
    note: str | None = None
    """Why it is read-only or hidden, where a dependency makes it so."""

    @property
    def is_secret(self) -> bool:
        """A value that must not be shown. Not every vendor has the type for it: BlueField's passwords are strings."""
        return self.kind == "password" or (
            self.kind in (None, "string") and bool(_SECRET.search(self.name) or _SECRET.search(self.label or ""))
        )

    @classmethod
    def of(cls, entry: Document) -> "Definition | None":
        name = text(entry, "AttributeName")
        if name is None:
            return None
        kind = (text(entry, "Type") or "").lower()
        minimum, maximum = _bounds(entry)
        names, shown = _choices(entry.get("Value")) if kind == "enumeration" else ((), ())
        return cls(
            name=name,
            kind=kind if kind in _KINDS else None,
            label=text(entry, "DisplayName"),
            help=_shortened(text(entry, "HelpText")),
            choices=names,
            shown_choices=shown,
            minimum=minimum,
            maximum=maximum,
            step=max(0, whole_number(entry.get("ScalarIncrement")) or 0),
            shortest=whole_number(entry.get("MinLength")),
            longest=whole_number(entry.get("MaxLength")) or None,
            pattern=text(entry, "ValueExpression"),
            read_only=_is_true(entry.get("ReadOnly")),
            immutable=_is_true(entry.get("Immutable")),
            write_only=_is_true(entry.get("WriteOnly")),
            hidden=_is_true(entry.get("Hidden")),
            needs_reset=boolean(entry, "ResetRequired"),
            default=_plain(entry.get("DefaultValue")),
            value=_plain(entry.get("CurrentValue")),
        )


@dataclass(frozen=True, slots=True)
class _Condition:
    attribute: str
    aspect: str
    operator: str
    value: Any
    term: str | None
    """How it is joined to the conditions before it; None where that makes no sense."""

    def __str__(self) -> str:
        sign = {"EQU": "is", "NEQ": "is not", "GTR": ">", "GEQ": ">=", "LSS": "<", "LEQ": "<="}[self.operator]
        return f"{self.attribute} {sign} {self.value}"


@dataclass(frozen=True, slots=True)
class Dependency:
    """While the conditions hold, a property of an attribute has another value."""

    attribute: str
    aspect: str
    """Its property that changes, by the schema's name."""
    value: Any
    conditions: tuple[_Condition, ...]

    @property
    def rulers(self) -> frozenset[str]:
        """The attributes that it depends on."""
        return frozenset(condition.attribute for condition in self.conditions)

    @classmethod
    def of(cls, entry: object) -> "Dependency | None":
        rule = dig(entry, "Dependency")
        attribute, changed = text(rule, "MapToAttribute"), text(rule, "MapToProperty")
        listed = dig(rule, "MapFrom")
        if attribute is None or changed is None or not isinstance(listed, list) or not listed:
            return None
        conditions = tuple(_conditions(listed))
        if len(conditions) != len(listed):
            return None
        return cls(attribute, changed, rule.get("MapToValue"), conditions)


@dataclass(frozen=True, slots=True)
class AttributeRegistry:
    """A registry that was read. `definitions` by name; attributes may be in it that this BIOS does not show."""

    name: str | None
    definitions: Mapping[str, Definition] = field(default_factory=dict)
    dependencies: tuple[Dependency, ...] = ()

    @classmethod
    def parse(cls, document: Document) -> "AttributeRegistry | None":
        """None where the document is no attribute registry."""
        listed = dig(document, "RegistryEntries", "Attributes")
        if not isinstance(listed, list):
            return None
        definitions: dict[str, Definition] = {}
        for entry in listed:
            definition = Definition.of(entry) if isinstance(entry, dict) else None
            if definition is not None:
                definitions.setdefault(definition.name, definition)
        rules = dig(document, "RegistryEntries", "Dependencies")
        dependencies = (Dependency.of(entry) for entry in (rules if isinstance(rules, list) else []))
        return cls(text(document, "Id"), definitions, tuple(rule for rule in dependencies if rule is not None))

    def spoken(self, values: Mapping[str, BiosValue]) -> "AttributeRegistry":
        """The registry with its choices in the BIOS's own words.

        The standard's values are the ValueNames ("1"); Supermicro's are the display names ("Force BIOS"). What the
        BIOS shows tells which it speaks.
        """
        by_name = by_display = 0
        for name, value in values.items():
            definition = self.definitions.get(name)
            if definition is None or not definition.choices or not isinstance(value, str):
                continue
            by_name += value in definition.choices
            by_display += value in definition.shown_choices
        if by_display <= by_name:
            return self
        spoken = {
            name: replace(one, choices=one.shown_choices) if one.shown_choices else one
            for name, one in self.definitions.items()
        }
        return replace(self, definitions=spoken)

    def at(self, values: Mapping[str, BiosValue]) -> dict[str, Definition]:
        """The definitions as they are while the attributes have these values: every dependency whose conditions hold
        is laid over them, in the registry's order."""
        now = dict(self.definitions)
        for rule in self.dependencies:
            target = now.get(rule.attribute)
            if target is not None and self._holds(rule, values, now):
                now[rule.attribute] = _with(target, rule)
        return now

    def is_ruled_by(self, attribute: str, rulers: Iterable[str]) -> bool:
        """Whether a dependency changes `attribute` by the value of any of `rulers`."""
        ruling = frozenset(rulers)
        return any(rule.attribute == attribute and rule.rulers & ruling for rule in self.dependencies)

    @staticmethod
    def _holds(rule: Dependency, values: Mapping[str, BiosValue], now: Mapping[str, Definition]) -> bool:
        """From left to right (the schema's own words on MapTerms); what cannot be told does not hold."""
        result: bool | None = None
        for condition in rule.conditions:
            holds = _is_met(condition, values, now)
            if result is None:
                result = holds
            elif condition.term == "OR":
                result = result or holds
            elif condition.term == "AND":
                result = result and holds
            else:
                # Supermicro's "OR,AND" stand for brackets that the schema does not know.
                return False
        return bool(result)


def same_value(one: object, other: object) -> bool:
    """Whether two values of an attribute are one: BIOSes write numbers and truth as text here and there."""
    if isinstance(one, bool) == isinstance(other, bool) and one == other:
        return True
    if one is None or other is None:
        return False
    return _as_text(one) == _as_text(other)


def whole_number(value: object) -> int | None:
    """A whole number of 64 bits, exactly; also one that came as text or as 5.0. None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    if isinstance(value, str):
        try:
            value = int(value[:40], 0)
        except ValueError:
            return None
    return value if isinstance(value, int) and _SMALLEST <= value <= _LARGEST else None


def _bounds(entry: Document) -> tuple[int | None, int | None]:
    low, high = whole_number(entry.get("LowerBound")), whole_number(entry.get("UpperBound"))
    if low is not None and high is not None and high < low:
        # An unsigned bound that went through a signed number: NVIDIA GH200 writes 2^64 - 1 as -1.
        high = high + 2**64 if high < 0 <= low else None
    return low, high


def _choices(listed: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names, shown = [], []
    for item in listed[:_MOST_CHOICES] if isinstance(listed, list) else ():
        name = item if isinstance(item, str) else _name_of(item)
        if name:
            names.append(name)
            shown.append(text(item, "ValueDisplayName") or name)
    return tuple(dict.fromkeys(names)), tuple(dict.fromkeys(shown))


def _name_of(item: object) -> str | None:
    """The ValueName with its blanks: it must be sent as it is written."""
    found = dig(item, "ValueName")
    return found if isinstance(found, str) and found.strip() else text(item, "ValueName")


def _conditions(listed: list[object]) -> Iterator[_Condition]:
    for item in listed:
        attribute = text(item, "MapFromAttribute")
        operator = (text(item, "MapFromCondition") or "").upper()
        if attribute is None or not isinstance(item, dict) or operator not in _OPERATORS:
            return
        term = (text(item, "MapTerms") or "AND").upper()
        yield _Condition(
            attribute,
            text(item, "MapFromProperty") or "CurrentValue",
            operator,
            item.get("MapFromValue"),
            term if term in ("AND", "OR") else None,
        )


def _is_met(condition: _Condition, values: Mapping[str, BiosValue], now: Mapping[str, Definition]) -> bool:
    if condition.value is None:
        return False
    found = _property(condition, values, now.get(condition.attribute))
    return found is not None and _OPERATORS[condition.operator](found, condition.value)


def _property(condition: _Condition, values: Mapping[str, BiosValue], definition: Definition | None) -> object:
    if condition.aspect == "CurrentValue":
        if condition.attribute in values:
            return values[condition.attribute]
        if definition is None:
            return None
        return definition.value if definition.value is not None else definition.default
    field_name = _FIELDS.get(condition.aspect)
    return None if definition is None or field_name is None else getattr(definition, field_name)


def _with(definition: Definition, rule: Dependency) -> Definition:
    """The definition with what the rule changes in it; values that a rule sets are the BIOS's to set, not ours."""
    if rule.aspect == "Value":
        names, shown = _choices(rule.value)
        if definition.choices == definition.shown_choices:
            names = shown
        return replace(definition, choices=names) if names else definition
    field_name = _FIELDS.get(rule.aspect)
    if field_name is None:
        return definition
    if field_name in ("read_only", "immutable", "write_only", "hidden"):
        holds = _is_true(rule.value)
        note = definition.note
        if holds and field_name in ("read_only", "hidden") and not getattr(definition, field_name):
            note = f"{rule.aspect} because {_explained(rule)}"
        changed: dict[str, Any] = {field_name: holds, "note": note}
        return replace(definition, **changed)
    number = whole_number(rule.value)
    changed = {field_name: number}
    return definition if number is None else replace(definition, **changed)


def _explained(rule: Dependency) -> str:
    words = str(rule.conditions[0])
    for condition in rule.conditions[1:_LISTED_CONDITIONS]:
        words += f" {(condition.term or '').lower()} {condition}"
    return words if len(rule.conditions) <= _LISTED_CONDITIONS else f"{words} …"


def _order(one: object, other: object) -> int | None:
    first, second = whole_number(one), whole_number(other)
    return None if first is None or second is None else (first > second) - (first < second)


_OPERATORS: Mapping[str, Any] = {
    "EQU": same_value,
    "NEQ": lambda one, other: not same_value(one, other),
    "GTR": lambda one, other: _order(one, other) == 1,
    "GEQ": lambda one, other: _order(one, other) in (0, 1),
    "LSS": lambda one, other: _order(one, other) == -1,
    "LEQ": lambda one, other: _order(one, other) in (0, -1),
}
_FIELDS = {
    "ReadOnly": "read_only",
    "Immutable": "immutable",
    "WriteOnly": "write_only",
    "Hidden": "hidden",
    "LowerBound": "minimum",
    "UpperBound": "maximum",
    "ScalarIncrement": "step",
    "MinLength": "shortest",
    "MaxLength": "longest",
}


def _is_true(value: object) -> bool:
    """AMI writes truth as text."""
    return value is True or (isinstance(value, str) and value.strip().lower() == "true")


def _plain(value: object) -> BiosValue:
    return value if isinstance(value, str | int | float | bool) else None


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) or str(value).lower() in ("true", "false") else str(value)


def _shortened(words: str | None) -> str | None:
    if words is None or len(words) <= _LONGEST_HELP:
        return words
    return f"{words[:_LONGEST_HELP].rstrip()} …"
