"""Reading a profile: its shape, and every fault of it at once."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.engine.profile import (
    FailureStep,
    Fallback,
    Parsed,
    ProfileStep,
    document_of,
    document_text,
    parse,
)

WHOLE: dict[str, Any] = {
    "profile": "deploy-debian",
    "description": "Debian 12 on the first disk",
    "drivers": {"power": "redfish", "deploy": "linux"},
    "steps": [
        {"id": "boot", "use": "metal.bootRamdisk", "on": "site", "timeout": "20m", "retries": 1},
        {"use": "deploy.eraseDisks", "on": "ramdisk", "with": {"mode": "metadata"}, "when": "!keep"},
        {
            "use": "boot.kexec",
            "on": "host",
            "await": "rejoin",
            "timeout": 900_000,
            "onFailure": {"use": "power.setPower", "on": "site", "with": {"action": "reset"}, "retries": 2},
        },
        {"use": "plugin.own", "fallback": {"use": "power.getPower", "on": "site", "fallback": "plugin.other"}},
    ],
    "cleanup": [{"use": "virtual-media.ejectMedia", "on": "site", "onFailure": "continue"}],
    "hostConfig": {"hostname": "{node.name}"},
}


def sound(**changes: Any) -> dict[str, Any]:
    return {"profile": "p", "steps": [{"use": "x"}], **changes}


def faults_of(document: object) -> dict[str, str]:
    return {issue.path: f"{issue.message} | {issue.hint}" for issue in parse(document).issues}


def step_faults(**step: Any) -> dict[str, str]:
    return faults_of(sound(steps=[{"use": "x", **step}]))


def test_a_whole_profile_is_read_and_written_back_as_it_was() -> None:
    parsed = parse(WHOLE)
    assert parsed.issues == []
    assert parsed.profile is not None
    assert document_of(parsed.profile) == WHOLE
    kexec = parsed.steps[2].step
    assert kexec.await_ == "rejoin"
    assert kexec.on_failure == FailureStep(use="power.setPower", on="site", with_={"action": "reset"}, retries=2)
    assert parsed.steps[3].step.fallback == Fallback(use="power.getPower", on="site", fallback="plugin.other")
    assert parsed.cleanup[0].path == "cleanup[0]"


def test_what_is_left_out_has_its_default() -> None:
    step = parse(sound()).steps[0].step
    assert step == ProfileStep(use="x", with_={}, on_failure="fail", retries=None, timeout=None, when=None)


def test_the_same_said_otherwise_is_the_same_document() -> None:
    plain, wordy = parse(sound()), parse({"steps": [{"with": {}, "use": "x", "onFailure": "fail"}], "profile": "p"})
    assert plain.profile is not None
    assert wordy.profile is not None
    assert document_text(document_of(plain.profile)) == document_text(document_of(wordy.profile))


def test_one_and_true_are_not_the_same() -> None:
    assert document_text({"a": 1}) != document_text({"a": True})


def test_every_fault_is_reported_at_once_with_its_place() -> None:
    faults = faults_of(
        {
            "profile": "a b",
            "driver": {},
            "drivers": {"pwer": "redfihs"},
            "steps": [
                {"use": "x", "timeout": "15x", "retries": -1, "onFailure": "contineu", "when": "a||b"},
                3,
                {"on": "sitee", "await": "rejon", "fallback": {"usee": "x"}},
            ],
            "cleanup": {},
        }
    )
    assert set(faults) == {
        "profile",
        "driver",
        "drivers.pwer",
        "steps[0].timeout",
        "steps[0].retries",
        "steps[0].onFailure",
        "steps[0].when",
        "steps[1]",
        "steps[2].use",
        "steps[2].on",
        "steps[2].await",
        "steps[2].fallback.usee",
        "steps[2].fallback.use",
        "cleanup",
    }
    assert "did you mean 'drivers'?" in faults["driver"]
    assert "did you mean 'continue'?" in faults["steps[0].onFailure"]
    assert "did you mean 'site'?" in faults["steps[2].on"]


@pytest.mark.parametrize("document", [None, [], "profile", 3, True])
def test_what_is_no_object_is_no_profile(document: object) -> None:
    assert [issue.path for issue in parse(document).issues] == [""]


def test_names_that_no_json_has_are_a_fault_too() -> None:
    # A caller in the same process may hand over any Python value.
    assert parse(sound(steps=[{"use": "x", "with": {1: 2}}])).issues
    assert parse(sound(hostConfig={1: 2})).issues
    assert parse(sound(steps=[{1: 2}])).issues


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a:b", "x" * 129, "prof_x", "a\n"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    assert list(faults_of(sound(profile=name))) == ["profile"]


@pytest.mark.parametrize("name", ["a", "7", "deploy-debian_12.raw", "x" * 128])
def test_a_name_is_letters_digits_and_some_signs(name: str) -> None:
    assert faults_of(sound(profile=name)) == {}


def test_a_profile_has_steps() -> None:
    assert list(faults_of({"profile": "p"})) == ["steps"]
    assert list(faults_of(sound(steps=[]))) == ["steps"]
    assert list(faults_of(sound(steps=None))) == ["steps"]
    assert list(faults_of(sound(steps={}))) == ["steps"]


@pytest.mark.parametrize("identifier", ["", "a:b", "a#b", " a", "a ", "a\nb", "a\x00", "x" * 257])
def test_an_id_without_the_signs_of_a_key(identifier: str) -> None:
    assert list(step_faults(id=identifier)) == ["steps[0].id"]


@pytest.mark.parametrize("identifier", ["a", "write image", "größe", "a.b/c-d", "x" * 256])
def test_an_id_may_be_any_other_words(identifier: str) -> None:
    assert step_faults(id=identifier) == {}


@pytest.mark.parametrize("timeout", ["15", "m", "1.5h", "-1s", "0s", 0, -5, "31d", "999999999999d", True, 1.5, []])
def test_a_timeout_is_a_duration_within_bounds(timeout: object) -> None:
    assert list(step_faults(timeout=timeout)) == ["steps[0].timeout"]


@pytest.mark.parametrize("timeout", ["1ms", "90s", "15m", "1h", "30d", 1])
def test_a_timeout_is_text_with_a_unit_or_milliseconds(timeout: object) -> None:
    assert step_faults(timeout=timeout) == {}


@pytest.mark.parametrize("retries", [-1, 1001, True, "3", 1.5])
def test_retries_are_a_small_number(retries: object) -> None:
    assert list(step_faults(retries=retries)) == ["steps[0].retries"]


def test_a_step_for_a_failure_has_none_for_its_own_and_no_id() -> None:
    inner = {"use": "y", "id": "k", "onFailure": {"use": "z"}, "timeout": "never", "when": "=", "retries": -1}
    faults = step_faults(onFailure=inner)
    assert set(faults) == {
        "steps[0].onFailure.id",
        "steps[0].onFailure.onFailure",
        "steps[0].onFailure.timeout",
        "steps[0].onFailure.when",
        "steps[0].onFailure.retries",
    }


def test_a_cleanup_step_has_no_step_for_its_failure() -> None:
    assert list(faults_of(sound(cleanup=[{"use": "x", "onFailure": {"use": "y"}}]))) == ["cleanup[0].onFailure"]


def test_the_usual_slips_of_yaml_get_a_hint() -> None:
    assert "put it in quotes" in step_faults(id=7)["steps[0].id"]
    assert "put it in quotes" in faults_of(sound(drivers={"power": 5}))["drivers.power"]


def test_a_faulty_field_does_not_hide_the_rest_of_its_step() -> None:
    parsed = parse(sound(steps=[{"use": "x", "on": "nowhere", "with": {"a": 1}}]))
    assert parsed.steps[0].step == ProfileStep(use="x", with_={"a": 1})


def test_a_bound_concern_with_a_faulty_driver_is_bound_all_the_same() -> None:
    assert parse(sound(drivers={"power": "redfihs"})).drivers == {"power": "redfihs"}


def test_too_much_is_refused_as_a_whole() -> None:
    deep: dict[str, Any] = {}
    for _ in range(70):
        deep = {"a": deep}
    assert "too deeply" in faults_of(sound(hostConfig=deep))[""]
    assert list(step_faults(when="a && " * 2000)) == ["steps[0].when"]
    assert list(faults_of(sound(description="x" * 1025))) == ["description"]


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["id", "use", "on", "with", "when", "timeout", "retries", "onFailure", "await", "fallback", "other"]
)
WORDS = st.sampled_from(["site", "ramdisk", "fail", "continue", "rejoin", "power.setPower", "15m", "a && !b"])
STEPS = st.dictionaries(FIELDS, WORDS | JSON_VALUES, max_size=6)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "profile": st.sampled_from(["p", ""]) | JSON_VALUES,
        "drivers": st.dictionaries(st.sampled_from(["power", "boot"]), WORDS | JSON_VALUES, max_size=2) | JSON_VALUES,
        "steps": st.lists(STEPS | JSON_VALUES, max_size=3) | JSON_VALUES,
        "cleanup": st.lists(STEPS, max_size=2) | JSON_VALUES,
        "hostConfig": JSON_VALUES,
        "else": JSON_VALUES,
    },
)


@settings(deadline=None)
@given(DOCUMENTS | JSON_VALUES)
def test_whatever_is_given_is_read_or_has_faults(document: object) -> None:
    parsed = parse(document)
    assert isinstance(parsed, Parsed)
    assert (parsed.profile is None) is bool(parsed.issues)
    if parsed.profile is not None:
        again = parse(msgspec.json.decode(msgspec.json.encode(document_of(parsed.profile))))
        assert again.profile == parsed.profile
