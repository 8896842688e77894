"""Attribute registries: parsed whatever is in them, evaluated as their dependencies say, and found where they lie."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivers.redfish.bios_registry import AttributeRegistry, Definition, same_value, whole_number
from drivers.redfish.bios_request import apply_time_fault, check_attributes, differing
from drivers.redfish.bios_view import BiosView, offered_apply_times
from drivers.redfish.manners import Manners
from drivers.redfish.registries import locations, members_for
from protocol.shapes.bios import ApplyTime


def registry(*attributes: dict[str, Any], dependencies: list[Any] | None = None) -> AttributeRegistry:
    parsed = AttributeRegistry.parse(
        {"Id": "R.v1_0_0", "RegistryEntries": {"Attributes": list(attributes), "Dependencies": dependencies or []}}
    )
    assert parsed is not None
    return parsed


def attribute(name: str, kind: str = "String", **more: Any) -> dict[str, Any]:
    return {"AttributeName": name, "Type": kind, **more}


def choice(*names: str) -> list[dict[str, str]]:
    return [{"ValueName": name, "ValueDisplayName": f"{name} (shown)"} for name in names]


def rule(target: str, aspect: str, value: Any, *conditions: dict[str, Any]) -> dict[str, Any]:
    return {
        "Type": "Map",
        "DependencyFor": target,
        "Dependency": {
            "MapFrom": list(conditions),
            "MapToAttribute": target,
            "MapToProperty": aspect,
            "MapToValue": value,
        },
    }


def when(name: str, value: Any, operator: str = "EQU", term: str | None = None, of: str = "CurrentValue") -> Any:
    condition = {"MapFromAttribute": name, "MapFromProperty": of, "MapFromCondition": operator, "MapFromValue": value}
    return condition if term is None else {**condition, "MapTerms": term}


def view(
    current: dict[str, Any],
    queued: dict[str, Any] | None = None,
    bios: dict[str, Any] | None = None,
    settings_object: dict[str, Any] | None = None,
    **manners: Any,
) -> BiosView:
    waiting = None if queued is None else {"Attributes": queued, **(settings_object or {})}
    return BiosView.of(
        "/bios",
        {"Attributes": current, **(bios or {})},
        None if queued is None else "/bios/settings",
        waiting,
        takes_patch=None,
        manners=Manners(**manners),
    )


def faults(wanted: dict[str, Any], current: dict[str, Any], of: AttributeRegistry | None) -> list[str]:
    return [str(issue) for issue in check_attributes(wanted, view(current), of)[1]]


# --- single attributes ---


def test_an_attribute_is_read_with_its_kind_bounds_and_choices() -> None:
    number = Definition.of(
        attribute("N", "Integer", LowerBound=5, UpperBound=20, ScalarIncrement=5, ReadOnly=True, HelpText="how many")
    )
    assert number is not None
    assert (number.kind, number.minimum, number.maximum, number.step) == ("integer", 5, 20, 5)
    assert number.read_only
    assert number.help == "how many"
    switch = Definition.of(attribute("S", "Enumeration", Value=choice("On", "Off")))
    assert switch is not None
    assert switch.choices == ("On", "Off")


@pytest.mark.parametrize(
    ("low", "high", "bounds"),
    [
        (0, 9223372036854775807, (0, 9223372036854775807)),
        (0, 18446744073709551615, (0, 18446744073709551615)),
        (-9223372036854775808, 0, (-9223372036854775808, 0)),
        (0, -1, (0, 18446744073709551615)),
        (5, 3, (5, None)),
        ("1", "0x10", (1, 16)),
        (1.0, 7.0, (1, 7)),
        (None, "many", (None, None)),
        (True, 2**70, (None, None)),
    ],
)
def test_bounds_are_exact_and_64_bits_wide(low: object, high: object, bounds: tuple[int | None, int | None]) -> None:
    found = Definition.of(attribute("N", "Integer", LowerBound=low, UpperBound=high))
    assert found is not None
    assert (found.minimum, found.maximum) == bounds


@pytest.mark.parametrize(
    ("name", "kind", "label", "secret"),
    [
        ("SETUP001", "Password", "Administrator Password", True),
        ("UefiPassword", "String", "UEFI Password", True),
        ("IscsiDev1Con1ChapSecret", "String", "", True),
        ("PasswordStatus", "Enumeration", "Password Status", False),
        ("StrongPasswordMinLength", "Integer", "", False),
        ("LegacyPasswordEnable", "Boolean", "", False),
        ("AssetTag", "String", "Asset Tag", False),
    ],
)
def test_passwords_are_known_by_their_type_or_by_their_name(name: str, kind: str, label: str, secret: bool) -> None:
    found = Definition.of(attribute(name, kind, DisplayName=label, Value=choice("a")))
    assert found is not None
    assert found.is_secret is secret


def test_the_first_of_two_definitions_of_one_name_counts() -> None:
    twice = registry(attribute("A", "String"), attribute("A", "Integer"))
    assert twice.definitions["A"].kind == "string"


def test_choices_follow_the_words_that_the_bios_itself_uses() -> None:
    both = registry(attribute("A", "Enumeration", Value=choice("1", "0")))
    assert both.spoken({"A": "1"}).definitions["A"].choices == ("1", "0")
    assert both.spoken({"A": "0 (shown)"}).definitions["A"].choices == ("1 (shown)", "0 (shown)")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1, True),
        (1, "1", True),
        (True, "true", True),
        (True, 1, False),
        (None, None, True),
        (None, "", False),
        ("a", "A", False),
    ],
)
def test_values_are_one_whatever_form_they_were_written_in(one: object, other: object, same: bool) -> None:
    assert same_value(one, other) is same


# --- dependencies ---


def test_an_attribute_is_read_only_while_another_has_a_value() -> None:
    one = registry(
        attribute("Profile", "Enumeration", Value=choice("Fast", "Custom")),
        attribute("Turbo", "Enumeration", Value=choice("On", "Off")),
        dependencies=[rule("Turbo", "ReadOnly", True, when("Profile", "Custom", "NEQ"))],
    )
    assert one.at({"Profile": "Fast"})["Turbo"].read_only
    assert one.at({"Profile": "Fast"})["Turbo"].note == "ReadOnly because Profile is not Custom"
    assert not one.at({"Profile": "Custom"})["Turbo"].read_only


@pytest.mark.parametrize(
    ("terms", "values", "holds"),
    [
        ((None, None), {"A": 1, "B": 1}, True),
        ((None, None), {"A": 1, "B": 0}, False),
        ((None, "AND"), {"A": 1, "B": 0}, False),
        ((None, "OR"), {"A": 1, "B": 0}, True),
        ((None, "OR"), {"A": 0, "B": 0}, False),
        ((None, "OR", "AND"), {"A": 1, "B": 0, "C": 0}, False),
        ((None, "AND", "OR"), {"A": 0, "B": 0, "C": 1}, True),
        ((None, "OR,AND"), {"A": 1, "B": 1}, False),
    ],
)
def test_conditions_are_joined_from_left_to_right(
    terms: tuple[str | None, ...], values: dict[str, Any], holds: bool
) -> None:
    conditions = [when(name, 1, term=term) for name, term in zip("ABC", terms, strict=False)]
    one = registry(
        *(attribute(name, "Integer") for name in "ABCX"), dependencies=[rule("X", "Hidden", True, *conditions)]
    )
    assert one.at(values)["X"].hidden is holds


@pytest.mark.parametrize(
    ("operator", "value", "holds"),
    [("GTR", 4, True), ("GTR", 5, False), ("GEQ", 5, True), ("LSS", 6, True), ("LSS", 5, False), ("LEQ", 5, True),
     ("EQU", "5", True), ("NEQ", 5, False), ("GTR", "many", False)],
)  # fmt: skip
def test_numbers_are_compared_as_numbers(operator: str, value: object, holds: bool) -> None:
    one = registry(
        attribute("N", "Integer"),
        attribute("X"),
        dependencies=[rule("X", "Hidden", True, when("N", value, operator))],
    )
    assert one.at({"N": 5})["X"].hidden is holds


def test_bounds_lengths_and_choices_change_with_another_attribute() -> None:
    one = registry(
        attribute("Mode"),
        attribute("N", "Integer", LowerBound=0, UpperBound=10),
        attribute("S", "String", MaxLength=8),
        attribute("E", "Enumeration", Value=choice("a", "b", "c")),
        dependencies=[
            rule("N", "UpperBound", 4, when("Mode", "small")),
            rule("S", "MaxLength", 2, when("Mode", "small")),
            rule("E", "Value", choice("a"), when("Mode", "small")),
        ],
    )
    small = one.at({"Mode": "small"})
    assert (small["N"].maximum, small["S"].longest, small["E"].choices) == (4, 2, ("a",))
    assert one.at({"Mode": "large"})["N"].maximum == 10


def test_a_rule_may_look_at_what_an_earlier_rule_has_made_of_an_attribute() -> None:
    one = registry(
        attribute("Mode"),
        attribute("A"),
        attribute("B"),
        dependencies=[
            rule("A", "Hidden", "true", when("Mode", "off")),
            rule("B", "Hidden", True, when("A", True, of="Hidden")),
        ],
    )
    assert one.at({"Mode": "off"})["B"].hidden
    assert not one.at({"Mode": "on"})["B"].hidden


def test_what_cannot_be_told_does_not_hold() -> None:
    without_value = when("A", None)
    one = registry(
        attribute("A"),
        attribute("X"),
        dependencies=[
            rule("X", "ReadOnly", True, when("Unknown", "x", "NEQ")),
            rule("X", "ReadOnly", True, without_value),
            rule("X", "ReadOnly", True, {"MapFromAttribute": "A", "MapFromCondition": "LIKE", "MapFromValue": "a"}),
            rule("Nowhere", "ReadOnly", True, when("A", "a")),
            {"Type": "Map"},
            None,
            7,
        ],
    )
    assert not one.at({"A": "a"})["X"].read_only


# --- wishes ---

PLENTY = registry(
    attribute("Profile", "Enumeration", DisplayName="System Profile", Value=choice("Fast", "Custom")),
    attribute("Turbo", "Enumeration", Value=choice("On", "Off")),
    attribute("Minutes", "Integer", LowerBound=5, UpperBound=20, ScalarIncrement=5),
    attribute("Wide", "Integer", LowerBound=0, UpperBound=18446744073709551615),
    attribute("Quiet", "Boolean"),
    attribute("Tag", "String", MinLength=2, MaxLength=6, ValueExpression="^[A-Z]{0,6}$"),
    attribute("Model", "String", ReadOnly=True),
    attribute("Cpus", "Integer", Immutable=True),
    attribute("SetupPassword", "Password"),
    attribute("Baud", "Enumeration", Value=choice("9600", "115200")),
    dependencies=[rule("Turbo", "ReadOnly", True, when("Profile", "Custom", "NEQ"))],
)
CURRENT: dict[str, Any] = {
    "Profile": "Fast",
    "Turbo": "On",
    "Minutes": 5,
    "Wide": 0,
    "Quiet": False,
    "Tag": "",
    "Model": "M1",
    "Cpus": 2,
    "SetupPassword": None,
    "Baud": "9600",
}


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("Profil", "Fast", "this BIOS has no such attribute (did you mean Profile?)"),
        ("System Profile", "Fast", "did you mean Profile"),
        ("Nothing", 1, "bios.getBios lists what there is"),
        ("Profile", "Slow", "must be one of Fast, Custom, not 'Slow'"),
        ("Profile", "fast", "did you mean 'Fast'?"),
        ("Profile", None, "must be one of Fast, Custom, not null"),
        ("Profile", True, "not true"),
        ("Minutes", 25, "must be a whole number from 5 to 20 in steps of 5, not 25"),
        ("Minutes", 7, "must be 5 and a multiple of 5, not 7"),
        ("Minutes", "5", "must be a whole number, not '5'"),
        ("Minutes", True, "must be a whole number, not true"),
        ("Minutes", 5.5, "must be a whole number, not 5.5"),
        ("Wide", 18446744073709551616, "must be a whole number from 0 to 18446744073709551615"),
        ("Quiet", "yes", "must be true or false, not 'yes'"),
        ("Quiet", 1, "must be true or false, not 1"),
        ("Tag", "A", "must have from 2 to 6 characters, not 1"),
        ("Tag", "ABCDEFG", "not 7"),
        ("Tag", "abc", "must match ^[A-Z]{0,6}$"),
        ("Tag", 12, 'write it in quotes ("12")'),
        ("Model", "M2", "is read-only"),
        ("Cpus", 4, "is read-only"),
        ("Turbo", "Off", "is read-only (ReadOnly because Profile is not Custom)"),
    ],
)
def test_what_is_wrong_with_a_value_is_said_with_what_would_be_right(name: str, value: Any, says: str) -> None:
    found = faults({name: value}, CURRENT, PLENTY)
    assert len(found) == 1
    assert found[0].startswith(f"attributes.{name}: ")
    assert says in found[0]


def test_every_fault_is_told_at_once() -> None:
    wrong = {"Nothing": 1, "Profile": "Slow", "Minutes": 7, "Quiet": "yes", "Model": "M2"}
    assert len(faults(wrong, CURRENT, PLENTY)) == 5


@pytest.mark.parametrize(
    "wanted",
    [
        {"Minutes": 20},
        {"Minutes": 10.0},
        {"Wide": 18446744073709551615},
        {"Baud": 115200},
        {"Tag": ""},
        {"Tag": "ABC"},
        {"Model": "M1"},
        {"Profile": "Custom", "Turbo": "Off"},
    ],
)
def test_a_sound_wish_has_no_fault(wanted: dict[str, Any]) -> None:
    assert faults(wanted, CURRENT, PLENTY) == []


def test_values_are_written_as_the_bios_writes_them() -> None:
    checked, _ = check_attributes({"Baud": 115200, "Minutes": 10.0}, view(CURRENT), PLENTY)
    assert checked == {"Baud": "115200", "Minutes": 10}
    assert isinstance(checked["Minutes"], int)


def test_a_password_is_refused_and_never_repeated() -> None:
    found = faults({"SetupPassword": "Hunter2-hunter2"}, CURRENT, PLENTY)
    assert "is a password" in found[0]
    assert "Hunter2" not in found[0]


@pytest.mark.case("B39")
def test_b39_an_attribute_that_the_bios_does_not_show_now_is_told_from_one_that_there_is_not() -> None:
    found = faults({"Turbo": "On"}, {"Profile": "Custom"}, PLENTY)
    assert len(found) == 1
    assert "the BIOS does not show it now" in found[0]
    assert "management.resetBmc" in found[0]


def test_an_attribute_that_another_one_of_the_same_wish_brings_may_be_set_with_it() -> None:
    current = {name: value for name, value in CURRENT.items() if name != "Turbo"}
    assert faults({"Profile": "Custom", "Turbo": "Off"}, current, PLENTY) == []


def test_without_a_registry_names_and_kinds_are_checked() -> None:
    current = {"A": "x", "B": 5, "C": True}
    assert faults({"A": "anything", "B": 7, "C": False}, current, None) == []
    assert len(faults({"A": 1, "B": "7", "C": "no", "D": 1}, current, None)) == 4


def test_an_expression_that_could_take_for_ever_is_not_tried() -> None:
    nested = registry(attribute("X", "String", ValueExpression="^(a+)+$"))
    assert faults({"X": "a" * 60 + "!"}, {"X": ""}, nested) == []


# --- what waits ---


def test_what_waits_is_what_a_sparse_settings_object_holds_and_a_full_one_differs_in() -> None:
    many = {f"A{number}": number for number in range(20)}
    assert view(many, {"A1": 7}).pending == {"A1": 7}
    assert view(many, {**many, "A1": 7}).pending == {"A1": 7}
    assert view(many, {}).pending == {}
    assert view(many, {"A1": 1}).pending == {}


@pytest.mark.case("B39")
def test_b39_a_value_that_shows_before_its_job_has_run_still_waits() -> None:
    many = {f"A{number}": number for number in range(20)}
    assert view({**many, "A1": 7}, {"A1": 7}, bios_shows_pending=True).pending == {"A1": 7}
    assert view(many, many, bios_shows_pending=True).pending == {}


def test_only_values_that_differ_are_sent() -> None:
    now = view({"A": 1, "B": 2, "C": 3}, {"B": 5})
    assert differing({"A": 1, "B": 5, "C": 4}, now, at_once=False) == {"C": 4}
    assert differing({"A": 1, "B": 5}, now, at_once=True) == {"B": 5}
    assert differing({"B": 2}, now, at_once=False) == {"B": 2}


@pytest.mark.parametrize(
    ("bios", "settings_object", "offered"),
    [
        ({"@Redfish.Settings": {"SupportedApplyTimes": ["OnReset", "Immediate"]}}, {}, ["OnReset", "Immediate"]),
        (
            {},
            {"@Redfish.SettingsApplyTime": {"ApplyTime@Redfish.AllowableValues": ["OnReset"]}},
            ["OnReset"],
        ),
        ({"@Redfish.Settings": {"SupportedApplyTimes": None}}, {"@Redfish.SettingsApplyTime": []}, []),
        ({}, {"@Redfish.SettingsApplyTime": {"ApplyTime": "Immediate"}}, ["Immediate"]),
    ],
)
def test_apply_times_are_found_wherever_they_are_listed(
    bios: dict[str, Any], settings_object: dict[str, Any], offered: list[str]
) -> None:
    assert offered_apply_times(view({}, {}, bios, settings_object)) == offered


@pytest.mark.parametrize(
    ("wanted", "offered", "says"),
    [
        (ApplyTime.ON_RESET, [], None),
        (ApplyTime.ON_RESET, ["OnReset"], None),
        (ApplyTime.IMMEDIATE, ["OnReset", "Immediate"], None),
        (ApplyTime.IMMEDIATE, ["OnReset", "AtMaintenanceWindowStart"], "offers OnReset, AtMaintenanceWindowStart"),
        (ApplyTime.IMMEDIATE, [], "leaves no choice"),
        (ApplyTime.ON_RESET, ["Immediate"], "offers Immediate"),
    ],
)
def test_an_apply_time_that_is_not_offered_is_refused_with_what_is(
    wanted: ApplyTime, offered: list[str], says: str | None
) -> None:
    fault = apply_time_fault(wanted, offered)
    assert fault is None if says is None else fault is not None and says in fault


# --- where registries lie ---


@pytest.mark.parametrize(
    ("name", "listed", "first"),
    [
        (
            "BiosAttributeRegistry.v1_0_3",
            ["Base.1.8", "BiosAttributeRegistry.v1_0_0"],
            "BiosAttributeRegistry.v1_0_0",
        ),
        ("BiosAttributeRegistry.v1_0_0", ["BiosAttributeRegistry", "SMC.1.0"], "BiosAttributeRegistry"),
        (
            "BiosAttributeRegistryU58.v1_2_44",
            ["BiosAttributeRegistryA42.v1_2_60", "HpeBiosMessageRegistry.v1", "BiosAttributeRegistryU58.v1_2_44"],
            "BiosAttributeRegistryU58.v1_2_44",
        ),
        (None, ["Base", "ManagerAttributeRegistry", "BiosAttributeRegistry"], "BiosAttributeRegistry"),
        ("Bios_P89", ["bios_p89.json", "Base"], "bios_p89.json"),
        (None, ["Base", "NetworkAttributesRegistry_NIC.1"], None),
    ],
)
def test_the_member_is_found_by_its_name_whatever_version_it_carries(
    name: str | None, listed: list[str], first: str | None
) -> None:
    found = members_for(name, [f"/redfish/v1/Registries/{member}" for member in listed])
    assert (found[0].rpartition("/")[2] if found else None) == first


def test_english_comes_first_and_any_language_is_better_than_none() -> None:
    japanese, english = {"Language": "ja", "Uri": "/ja"}, {"Language": "en-US", "Uri": "https://192.0.2.1/en"}
    assert locations({"Location": [japanese, english]}) == ["/en", "/ja"]
    assert locations({"Location": [japanese]}) == ["/ja"]
    assert locations({"Location": [{"Uri": {"extref": "/four"}}]}) == ["/four"]
    assert locations({"Location": None}) == locations({}) == locations(None) == []


# --- anything at all ---

TREES = {
    "dell-r750-idrac9-7.10/redfish/v1/Systems/System.Embedded.1/Bios/BiosRegistry": 687,
    "hpe-dl380a-ilo6/redfish/v1/RegistryStore/registries/en/biosattributeregistryu58.v1_2_44": 648,
    "lenovo-sr670v2-xcc/redfish/v1/schemas/registries/BiosAttributeRegistry.1.0.0.json": 348,
    "supermicro-821ge/registries/BiosAttributeRegistry.1.0.0.json": 495,
    "gigabyte-h262-megarac/redfish/v1/Registries/BiosAttributeRegistry.json": 549,
    "nvidia-dgx-h100-ami/redfish/v1/Registries/BiosAttributeRegistry113.en-US.1.1.3.json": 223,
}


@pytest.mark.parametrize(("path", "count"), TREES.items())
def test_recorded_registries_are_read_whole(path: str, count: int, shared: Path) -> None:
    document = json.loads((shared / "mockups" / path / "index.json").read_text())
    parsed = AttributeRegistry.parse(document)
    assert parsed is not None
    assert len(parsed.definitions) == count
    assert len(parsed.dependencies) >= 0.9 * len(document["RegistryEntries"]["Dependencies"])
    assert not any(one.kind is None for one in parsed.definitions.values())


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_KEYS = [
    "AttributeName", "Type", "Value", "LowerBound", "UpperBound", "ScalarIncrement", "MaxLength", "ReadOnly",
    "DisplayName", "HelpText", "ValueExpression", "DefaultValue", "CurrentValue",
]  # fmt: skip
_RULE_KEYS = ["MapFrom", "MapToAttribute", "MapToProperty", "MapToValue"]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.dictionaries(st.sampled_from(_KEYS), _JSON) | _JSON, max_size=4),
    st.lists(st.fixed_dictionaries({"Dependency": st.dictionaries(st.sampled_from(_RULE_KEYS), _JSON)}) | _JSON),
    st.dictionaries(st.text(max_size=8), st.none() | st.booleans() | st.integers() | st.text(max_size=8)),
)
def test_no_registry_breaks_the_reading(attributes: list[Any], rules: list[Any], values: dict[str, Any]) -> None:
    parsed = AttributeRegistry.parse({"RegistryEntries": {"Attributes": attributes, "Dependencies": rules}})
    assert parsed is not None
    parsed.spoken(values).at(values)
    check_attributes(values, view(values), parsed)
    view(values).reading(parsed, only_pending=False)


@given(st.integers() | st.floats() | st.text() | st.none() | st.booleans())
def test_whole_numbers_are_exact_or_none(value: Any) -> None:
    found = whole_number(value)
    assert found is None or -(2**63) <= found < 2**64
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64:
        assert found == value
