"""Reading profiles from files: YAML without its traps, JSON, and every fault of the text at once."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from control_plane.engine.expansion import expand
from control_plane.engine.registry import default_registry
from control_plane.engine.timing import Timing
from protocol.errors import RequestCode, RequestError
from rackwright.profiles import (
    profile_from_file,
    profile_from_json,
    profile_from_text,
    profile_from_yaml,
    profile_to_yaml,
)

_REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = _REPOSITORY / "examples" / "profiles"
FOR_EDITORS = Draft202012Validator(json.loads((_REPOSITORY / "docs" / "profile.schema.json").read_text()))
"""The schema, read by a validator that nobody here wrote."""


def faults(text: str) -> list[tuple[str, str]]:
    with pytest.raises(RequestError) as refused:
        profile_from_text(text)
    assert refused.value.code is RequestCode.INVALID_INPUT
    return [(issue.path, f"{issue.message} | {issue.hint}") for issue in refused.value.issues]


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_examples_have_no_fault(file: Path) -> None:
    expansion = expand(profile_from_file(file), default_registry(), Timing())
    assert expansion.issues == []
    assert expansion.profile is not None
    assert expansion.profile.profile == file.stem
    tidies_up = "cleanup" in {seed.phase.value for seed in expansion.seeds}
    assert tidies_up or file.stem in ("firmware-update", "remediate", "recover")


def test_the_schema_for_editors_is_itself_valid() -> None:
    Draft202012Validator.check_schema(FOR_EDITORS.schema)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_an_editor_finds_no_fault_in_the_examples(file: Path) -> None:
    assert [fault.message for fault in FOR_EDITORS.iter_errors(profile_from_file(file))] == []


@pytest.mark.parametrize(
    "step",
    [
        {"use": "power.setPower", "on": "moon", "with": {"action": "on"}},
        {"use": "power.setPower", "on": "site", "with": {"action": "explode"}},
        {"use": "power.setPower", "on": "site", "with": {"action": "on"}, "timeout": "soon"},
        {"use": "power.setPower", "on": "site", "with": {"action": "on"}, "wenn": "ssd"},
    ],
    ids=["no such place", "no such argument", "no length of time", "no such field"],
)
def test_an_editor_finds_the_faults_that_the_server_finds(step: dict[str, object]) -> None:
    document = {"profile": "p", "drivers": {"power": "redfish"}, "steps": [step]}
    assert expand(document, default_registry(), Timing()).issues
    assert not FOR_EDITORS.is_valid(document)


def test_there_is_an_example_for_each_thing_that_is_done_to_a_machine() -> None:
    names = {file.stem for file in EXAMPLES.glob("*.yaml")}
    assert names == {"commission", "deploy", "release", "rescue", "remediate", "recover", "firmware-update"}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("no", "no"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("12", 12),
        ("-3", -3),
        ("0", 0),
        ("0o10", 8),
        ("0x1F", 31),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("2.19.1", "2.19.1"),
        ("15m", "15m"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2026-01-01", "2026-01-01"),
        ("2026-01-01 10:00:00", "2026-01-01 10:00:00"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ("!!int 12", 12),
        ("=", "="),
        ("18446744073709551615", 18_446_744_073_709_551_615),
    ],
)
def test_a_plain_word_means_what_yaml_1_2_says(word: str, value: object) -> None:
    read: Any = profile_from_yaml(f"key: {word}\n")
    assert read == {"key": value}
    assert type(read["key"]) is type(value)


def test_on_and_no_are_names_like_any_other() -> None:
    assert profile_from_yaml("on: site\nno: {yes: off}\n") == {"on": "site", "no": {"yes": "off"}}


def test_every_fault_is_told_with_its_place_and_line() -> None:
    told = faults(
        "profile: x\nprofile: y\nsteps:\n- use: a\n  with:\n    mode: 0755\n    mode: 1\n    level: .nan\n"
        "    when: !!timestamp 2026-01-01\n- {1: x, true: y}\n- [<<]\n- ? [a]\n  : b\n- {<<: {a: 1}}\n- !!int x\n"
    )
    assert [(path, message.partition(":")[0]) for path, message in told] == [
        ("profile", "line 2"),
        ("steps[0].with.mode", "line 6"),
        ("steps[0].with.mode", "line 7"),
        ("steps[0].with.level", "line 8"),
        ("steps[0].with.when", "line 9"),
        ("steps[1]", "line 10"),
        ("steps[1]", "line 10"),
        ("steps[3]", "line 12"),
        ("steps[4]", "line 14"),
        ("steps[5]", "line 15"),
    ]
    assert "it is also in line 1" in told[0][1]
    assert "eight-based is written 0o17" in told[1][1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [\n", "line 2, column 1"),
        ("a:\n\tb: 1\n", "never with tabs"),
        ("a: 1\n---\nb: 1\n", "single document"),
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("a: \x01\n", "it is no YAML"),
        ("a: 18446744073709551616\n", "more digits than a number can keep"),
        ("a: " + "9" * 5000, "more digits than a number can keep"),
        ("a: 0x" + "f" * 17, "more digits than a number can keep"),
        ("a: 1e999\n", "beyond every number"),
        ("a: 010\n", "put it in quotes if it is a text"),
        ("a: &x [*x]\n", "an alias of what it stands in"),
        ("a: *nowhere\n", "undefined alias"),
        ("[" * 5000, "nested too deeply"),
        ("a: " + "x" * (1 << 20), "characters: "),
        ("a: !!python/object:os.system x\n", "has no place here"),
        ('{"a": 1, "a": 2}', "stands twice"),
        ('{"a": NaN}', "NaN is no JSON number"),
        ('{"a": ', "it is no JSON"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_a_text_that_cannot_be_read_says_why(text: str, said: str) -> None:
    assert any(said in f"{path} {message}" for path, message in faults(text))


def test_aliases_that_would_grow_beyond_every_bound_are_refused() -> None:
    lines = ["a0: &a0 [1,1,1,1,1,1,1,1,1,1]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "once its aliases are put in place" in faults("\n".join(lines))[0][1]


def test_an_alias_stands_for_its_value() -> None:
    assert profile_from_yaml("a: &reset {action: reset}\nb: *reset\n") == {
        "a": {"action": "reset"},
        "b": {"action": "reset"},
    }


def test_json_is_read_as_json() -> None:
    assert profile_from_json('{"profile": "x", "steps": [{"use": "a", "on": null}]}') == {
        "profile": "x",
        "steps": [{"use": "a", "on": None}],
    }
    assert profile_from_text("[1,\t2]", "p.json") == [1, 2]


def test_a_file_is_read_and_its_faults_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(b"\xef\xbb\xbfprofile: x\n")
    assert profile_from_file(file) == {"profile": "x"}
    file.write_bytes(b"profile: \xff\n")
    with pytest.raises(RequestError, match=r"p\.yaml has 1 fault") as refused:
        profile_from_file(file)
    assert refused.value.issues[0].hint == "save it as UTF-8"
    with pytest.raises(RequestError, match="missing has 1 fault") as refused:
        profile_from_file(tmp_path / "missing")
    assert "it cannot be read: No such file" in refused.value.issues[0].message
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"profile: y\n")))
    assert profile_from_file(Path("-")) == {"profile": "y"}


WORDS = st.sampled_from(
    [
        "on",
        "no",
        "yes",
        "true",
        "null",
        "~",
        "12",
        "0o10",
        "010",
        "1e3",
        "1.50",
        ".nan",
        "2026-01-01",
        "<<",
        "=",
        "- a",
    ]
)
TEXTS = WORDS | st.text(max_size=12) | st.from_regex(r"[0-9+.eExo_:-]{1,8}", fullmatch=True)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(TEXTS, JSON_VALUES, max_size=4))
def test_what_is_written_is_read_back_as_the_same(document: dict[str, Any]) -> None:
    assert profile_from_yaml(profile_to_yaml(document)) == document


@settings(deadline=None)
@given(st.dictionaries(TEXTS, JSON_VALUES, max_size=3))
def test_an_older_reader_takes_the_values_for_the_same(document: dict[str, Any]) -> None:
    read = yaml.safe_load(profile_to_yaml({"v": list(document.values())}))
    assert read == {"v": list(document.values())}


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_a_json_value_or_is_refused(text: str) -> None:
    with contextlib.suppress(RequestError):
        msgspec.json.encode(profile_from_text(text))
