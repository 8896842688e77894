"""Every fault of an input is reported at once, each with its path and a hint."""

from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.operations import OPERATIONS
from protocol.shapes import Arguments
from protocol.shapes.bios import SetBios
from protocol.shapes.boot import SetBootOrder
from protocol.shapes.deploy import WriteImage
from protocol.shapes.power import SetPower
from protocol.shapes.raid import ApplyRaid
from protocol.validation import arguments_from_text, check, faults


def texts(kind: type[object], value: object) -> list[str]:
    return [str(issue) for issue in faults(kind, value)]


def test_sound_input_is_converted() -> None:
    checked, issues = check(SetPower, {"action": "softOff", "softTimeout": 5})
    assert issues == []
    assert checked == SetPower(action="softOff", soft_timeout=5.0)  # type: ignore[arg-type]


def test_every_fault_is_told_with_its_path_and_a_hint() -> None:
    assert texts(SetPower, {"actoin": "on", "softTimeout": 0, "wait": "yes"}) == [
        "actoin: is not known here (did you mean 'action'?)",
        "action: is required",
        "wait: true or false is wanted, this is a text",
        "softTimeout: must be more than 0",
    ]


def test_a_word_that_is_not_a_choice_names_the_choices_and_the_closest() -> None:
    (text,) = texts(SetPower, {"action": "of"})
    assert text == "action: 'of' is not one of on, off, softOff, reset, cycle, nmi (did you mean 'off'?)"


def test_faults_deep_inside_lists_and_objects_have_their_path() -> None:
    value = {
        "volumes": [
            {"level": "RAID1", "drives": ["a", 2]},
            {"level": "RAID9", "drives": {"count": 0, "media": "tape"}, "sizeGiB": "min"},
        ]
    }
    paths = [issue.path for issue in faults(ApplyRaid, value)]
    assert sorted(paths) == sorted(
        [
            "volumes[0].drives[1]",
            "volumes[1].level",
            "volumes[1].drives.count",
            "volumes[1].drives.media",
            "volumes[1].sizeGiB",
        ]
    )


@pytest.mark.parametrize("value", [None, 3, "text", [1]])
def test_what_is_no_object_is_told_as_such(value: object) -> None:
    (text,) = texts(SetPower, value)
    assert text.startswith("an object is wanted, this is ")


class _Choice(Arguments, frozen=True, kw_only=True):
    size: Annotated[float, msgspec.Meta(gt=0)] | Literal["max"]


@pytest.mark.parametrize(
    ("value", "count"), [({"size": "max"}, 0), ({"size": 2}, 0), ({"size": 0}, 1), ({"size": "most"}, 1)]
)
def test_a_number_or_a_word_may_stand_in_one_field(value: object, count: int) -> None:
    assert len(faults(_Choice, value)) == count


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(list(OPERATIONS.values())), _json)
def test_no_input_breaks_the_validation_and_exactly_one_of_value_and_faults_is_given(
    row: object, value: object
) -> None:
    kind = row.arguments  # type: ignore[attr-defined]
    checked, issues = check(kind, value)
    assert (checked is None) is bool(issues)
    if checked is not None:
        assert check(kind, msgspec.to_builtins(checked))[0] == checked


def test_words_of_a_command_line_are_read_by_the_types_of_the_fields() -> None:
    assert arguments_from_text(SetPower, ["action=on", "wait=false", "softTimeout=7"]) == (
        {"action": "on", "wait": False, "softTimeout": 7.0},
        [],
    )


def test_lists_and_objects_are_written_as_json() -> None:
    assert arguments_from_text(SetBootOrder, ['order=["Boot0001", "Boot0000"]'])[0] == {
        "order": ["Boot0001", "Boot0000"]
    }
    assert arguments_from_text(SetBios, ['attributes={"AssetTag": "7"}'])[0] == {"attributes": {"AssetTag": "7"}}


def test_a_dotted_key_reaches_into_an_object() -> None:
    words = ["image.url=https://images.example/a.raw", "image.format=raw", "rootDevice.smallest=true"]
    assert arguments_from_text(WriteImage, words)[0] == {
        "image": {"url": "https://images.example/a.raw", "format": "raw"},
        "rootDevice": {"smallest": True},
    }


def test_text_that_looks_like_a_number_stays_text_where_text_is_wanted() -> None:
    assert arguments_from_text(WriteImage, ["rootDevice.serial=0042"])[0] == {"rootDevice": {"serial": "0042"}}


def test_words_that_are_no_assignments_are_faults_and_the_rest_is_kept() -> None:
    values, issues = arguments_from_text(SetPower, ["on", "=x", "action=on", "action.deep=1"])
    assert values == {"action": "on"}
    assert [issue.path for issue in issues] == ["on", "=x", "action.deep"]
