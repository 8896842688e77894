"""The JSON Schema of a profile that editors use."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.engine import registry as registry_module
from control_plane.engine.context import StepContext
from control_plane.engine.profile import FailureStep, Fallback, Profile, ProfileStep
from control_plane.engine.profile_schema import profile_schema
from control_plane.engine.registry import Definition, NoArguments, StepRegistry, default_registry
from control_plane.engine.states import RunsOn
from protocol.operations import CONCERNS, OPERATIONS

CHECKED_IN = Path(__file__).resolve().parents[3] / "docs" / "profile.schema.json"


@pytest.fixture
def own_steps(monkeypatch: pytest.MonkeyPatch) -> StepRegistry:
    """The product's steps without those of plugins that happen to be installed."""
    monkeypatch.setattr(registry_module, "entry_points", lambda group: ())
    return default_registry()


async def nothing(context: StepContext, arguments: object) -> None:
    return None


def rules(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What the schema asks of `on` and `with`, by the `use` that it asks it of."""
    listed = schema["$defs"]["arguments"]["allOf"]
    return {rule["if"]["properties"]["use"]["enum"][0]: rule["then"]["properties"] for rule in listed}


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_the_one_in_the_documentation_is_current(own_steps: StepRegistry) -> None:
    now = json.dumps(profile_schema(own_steps), indent=2, ensure_ascii=False) + "\n"
    assert CHECKED_IN.read_text(encoding="utf-8") == now, "run: rackwright profiles schema > docs/profile.schema.json"


def test_its_fields_are_those_of_the_document(own_steps: StepRegistry) -> None:
    schema = profile_schema(own_steps)
    described = {
        Profile: schema,
        ProfileStep: schema["$defs"]["step"],
        FailureStep: schema["$defs"]["failureStep"],
        Fallback: schema["$defs"]["fallback"],
    }
    for kind, part in described.items():
        assert set(part["properties"]) == set(kind.__struct_encode_fields__)
        assert part["additionalProperties"] is False
    assert set(schema["properties"]["drivers"]["properties"]) == set(CONCERNS)


def test_every_operation_has_the_schema_of_its_arguments(own_steps: StepRegistry) -> None:
    schema = profile_schema(own_steps)
    found = rules(schema)
    assert set(OPERATIONS) <= set(found)
    assert found["power.setPower"] == {
        "on": {"enum": ["site", "ramdisk", "daemon", "host"]},
        "with": {"$ref": "#/$defs/SetPower"},
    }
    assert schema["$defs"]["SetPower"]["required"] == ["action"]


def test_registered_steps_have_their_places_and_arguments(own_steps: StepRegistry) -> None:
    own_steps.add(
        Definition(
            id="power.setPower",
            runs_on=RunsOn.CONTROL_PLANE,
            with_=NoArguments,
            function=nothing,
            relays=frozenset({RunsOn.SITE}),
            timeout_ms=1,
        )
    )
    schema = profile_schema(own_steps)
    found = rules(schema)
    assert found["node.reboot"] == {"on": {"enum": ["ramdisk", "daemon", "host"]}}
    assert found["power.setPower"] == {
        "on": {"enum": ["control-plane", "site"]},
        "with": {"$ref": "#/$defs/NoArguments"},
    }
    needing_on = schema["$defs"]["neededArguments"]["allOf"][0]["if"]["properties"]["use"]["enum"]
    assert "power.setPower" not in needing_on
    assert "power.getPower" in needing_on


def test_everything_that_it_refers_to_is_in_it(own_steps: StepRegistry) -> None:
    schema = profile_schema(own_steps)
    assert {reference.removeprefix("#/$defs/") for reference in references(schema)} <= set(schema["$defs"])
