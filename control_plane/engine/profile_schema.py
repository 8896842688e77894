"""The JSON Schema of a profile, for editors: completion of steps, operations and their arguments as one types.

It is looser than `expansion`, which alone decides: a `use` that is not known here may come with a plugin.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from control_plane.engine.profile import (
    ANY_DRIVER,
    LONGEST_ID,
    MOST_RETRIES,
    NAME_PATTERN,
    STEP_ID_PATTERN,
)
from control_plane.engine.registry import Definition, StepRegistry
from control_plane.engine.timing import MAX_STEPS
from protocol.operations import CONCERNS, DRIVERS, OPERATIONS

__all__ = ["profile_schema"]

_Schema = dict[str, Any]
_PLACES = ["control-plane", "site", "ramdisk", "daemon", "host"]
_AGENTS = ["site", "ramdisk", "daemon", "host"]


def profile_schema(registry: StepRegistry) -> _Schema:
    """The schema (draft 2020-12) with this registry's steps and every driver operation."""
    arguments, definitions = _arguments(registry)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Rackwright profile",
        "description": "What is to be done to a machine, step by step.",
        "type": "object",
        "required": ["profile", "steps"],
        "additionalProperties": False,
        "properties": {
            "profile": {"type": "string", "pattern": NAME_PATTERN, "description": "Its name. The versions count up."},
            "description": {"type": "string", "maxLength": 1024},
            "drivers": {
                "type": "object",
                "description": "Which driver serves each concern.",
                "additionalProperties": False,
                "properties": {concern: {"enum": [*DRIVERS, ANY_DRIVER]} for concern in CONCERNS},
            },
            "steps": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_STEPS,
                "items": {"$ref": "#/$defs/step"},
                "description": "Done in this order, one at a time.",
            },
            "cleanup": {
                "type": "array",
                "maxItems": MAX_STEPS,
                "items": {"$ref": "#/$defs/cleanupStep"},
                "description": "Done at the end, whatever the outcome.",
            },
            "hostConfig": {
                "type": "object",
                "description": "What the installed system's daemon is to have once the workflow has succeeded.",
            },
        },
        "$defs": {
            **_steps(registry),
            "arguments": {"allOf": arguments},
            "neededArguments": {"allOf": _needed(registry)},
            **definitions,
        },
    }


def _steps(registry: StepRegistry) -> _Schema:
    use = {
        "description": "A registered step, or a driver operation.",
        "anyOf": [{"enum": [*(definition.id for definition in registry), *OPERATIONS]}, {"type": "string"}],
    }
    call = {
        "use": use,
        "on": {"enum": _PLACES, "description": "Where it runs; needed for a driver operation."},
        "with": {"type": "object", "description": "What it is given."},
    }
    common = {
        **call,
        "when": {
            "type": "string",
            "description": "By the node's labels: key, !key, key=value or key!=value, joined by &&.",
        },
        "timeout": {
            "description": "Of one attempt, such as 90s, 15m or 1h; a plain number is milliseconds.",
            "anyOf": [
                {"type": "string", "pattern": r"^\s*[0-9]{1,12}(ms|s|m|h|d)\s*$"},
                {"type": "integer", "minimum": 1},
            ],
        },
        "retries": {
            "type": "integer",
            "minimum": 0,
            "maximum": MOST_RETRIES,
            "description": "Attempts after the first.",
        },
    }
    step = {
        "id": {"type": "string", "maxLength": LONGEST_ID, "pattern": STEP_ID_PATTERN},
        **common,
        "await": {"const": "rejoin", "description": "It has succeeded once the machine's agent is back."},
        "fallback": {
            "description": "Used where `use` is not there; has `on` and `with` from the step.",
            "anyOf": [{"type": "string"}, {"$ref": "#/$defs/fallback"}],
        },
    }
    words = {"enum": ["fail", "continue", "rescue"]}
    on_failure = {
        "description": "What happens once the retries are spent.",
        "anyOf": [words, {"$ref": "#/$defs/failureStep"}],
    }
    return {
        "step": _object({**step, "onFailure": on_failure}, needed=True),
        "cleanupStep": _object({**step, "onFailure": words}, needed=True),
        "failureStep": _object(common, needed=True),
        "fallback": _object({**call, "fallback": step["fallback"]}, needed=False),
    }


def _object(properties: _Schema, *, needed: bool) -> _Schema:
    made: _Schema = {
        "type": "object",
        "required": ["use"],
        "additionalProperties": False,
        "properties": properties,
        "allOf": [{"$ref": "#/$defs/arguments"}],
    }
    if needed:
        made["allOf"].append({"$ref": "#/$defs/neededArguments"})
    return made


def _arguments(registry: StepRegistry) -> tuple[list[_Schema], _Schema]:
    """For each `use` the schema of its `with` and the places where it can run; and what those schemas refer to."""
    definitions = [definition for definition in registry if definition.with_ is not None]
    kinds: list[Any] = [*(row.arguments for row in OPERATIONS.values()), *(row.with_ for row in definitions)]
    schemas, components = msgspec.json.schema_components(kinds, schema_hook=_any_value, ref_template="#/$defs/{name}")
    withs = dict(zip([*OPERATIONS, *(definition.id for definition in definitions)], schemas, strict=True))
    rules = []
    for use in sorted({*OPERATIONS, *(definition.id for definition in registry)}):
        definition = registry.get(use)
        then: _Schema = {"on": {"enum": _AGENTS if definition is None else _places(definition)}}
        if use in withs and (definition is None or definition.with_ is not None):
            then["with"] = withs[use]
        rules.append(_when_used([use], {"properties": then}))
    return rules, components


def _places(definition: Definition) -> list[str]:
    allowed = {place.value for place in (definition.runs_on, *definition.relays)}
    return [place for place in _PLACES if place in allowed or (place == "host" and "daemon" in allowed)]


def _needed(registry: StepRegistry) -> list[_Schema]:
    """`with` where an argument has no default, `on` for driver operations, unless a fallback may stand in."""
    operations = [use for use in OPERATIONS if registry.get(use) is None]
    with_arguments = [use for use in operations if _has_required(OPERATIONS[use].arguments)]
    with_arguments += [row.id for row in registry if row.with_ is not None and _has_required(row.with_)]
    return [
        _when_used(operations, {"anyOf": [{"required": ["on"]}, {"required": ["fallback"]}]}),
        _when_used(with_arguments, {"anyOf": [{"required": ["with"]}, {"required": ["fallback"]}]}),
    ]


def _when_used(uses: Iterable[str], then: _Schema) -> _Schema:
    return {"if": {"properties": {"use": {"enum": sorted(uses)}}, "required": ["use"]}, "then": then}


def _has_required(kind: type[msgspec.Struct]) -> bool:
    return any(field.required for field in msgspec.structs.fields(kind))


def _any_value(kind: type) -> _Schema:
    if kind is object:
        return {"description": "any JSON value"}
    raise TypeError(f"{kind} has no JSON schema")
