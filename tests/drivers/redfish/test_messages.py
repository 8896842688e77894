"""A BMC's words, in all the shapes they come in."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.redfish import messages
from drivers.redfish.failures import Refused
from drivers.redfish.messages import Note, notes_of
from protocol.errors import ErrorCode

MISSING = {"MessageId": "Base.1.5.PropertyMissing", "Message": "needed", "RelatedProperties": ["#/MediaType"]}
NOTE = Note("Base.1.5.PropertyMissing", "needed", ("#/MediaType",))

SHAPES: dict[str, Any] = {
    "as DSP0266 has it": {"error": {"code": "x", "message": "y", "@Message.ExtendedInfo": [MISSING]}},
    "one object for the list": {"error": {"@Message.ExtendedInfo": MISSING}},
    "a list in a list": {"error": {"@Message.ExtendedInfo": [[MISSING]]}},
    "at the top": {"@Message.ExtendedInfo": [MISSING]},
    "no code": {"error": {"@Message.ExtendedInfo": [MISSING, MISSING]}},
    "iLO 4": {"Messages": [{**MISSING, "MessageID": MISSING["MessageId"]}], "Type": "ExtendedError.0.9.5"},
}


@pytest.mark.parametrize("document", SHAPES.values(), ids=SHAPES.keys())
def test_every_shape_gives_the_same_message_once(document: object) -> None:
    assert notes_of(document) == [NOTE]


def test_a_message_beside_a_property_is_about_that_property() -> None:
    (note,) = notes_of({"MediaType@Message.ExtendedInfo": [{"MessageId": "Base.1.5.PropertyMissing"}]})
    assert note.properties == ("MediaType",)
    assert messages.mentions([note], "MediaType")


@pytest.mark.parametrize(
    ("document", "notes"),
    [
        ({"error": {"code": "Base.1.0.GeneralError", "message": "See"}}, [Note("Base.1.0.GeneralError", "See")]),
        ({"error": "denied"}, [Note("", "denied")]),
        ({"error": {"@Message.ExtendedInfo": ["in words"]}}, [Note("", "in words")]),
        ({"code": 7, "message": "denied"}, [Note("7", "denied")]),
        ("Forbidden", [Note("", "Forbidden")]),
        (None, []),
        ([], []),
        ({"error": None}, []),
        ({"error": {"@Message.ExtendedInfo": None}}, []),
    ],
)
def test_a_body_that_says_less_gives_what_it_says(document: object, notes: list[Note]) -> None:
    assert notes_of(document) == notes


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["error", "@Message.ExtendedInfo", "MessageId", "Message", "Messages", "code", "x"])
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@given(json_values)
def test_no_json_breaks_the_reading_of_messages(document: object) -> None:
    for note in notes_of(document):
        assert isinstance(note.id, str)
        assert isinstance(note.text, str)
        Refused.from_answer(400, [note], "GET /x")


@pytest.mark.parametrize(
    ("status", "key", "code"),
    [
        (401, "", ErrorCode.AUTH_FAILED),
        (403, "InsufficientPrivilege", ErrorCode.AUTH_FAILED),
        (403, "OemLicenseNotPassed", ErrorCode.LICENSE_REQUIRED),
        (403, "PasswordChangeRequired", ErrorCode.AUTH_FAILED),
        (404, "ResourceMissingAtURI", ErrorCode.UNSUPPORTED),
        (405, "", ErrorCode.UNSUPPORTED),
        (400, "UnsupportedOperation", ErrorCode.UNSUPPORTED),
        (400, "UnableToModifyDuringSystemPOST", ErrorCode.CONFLICT),
        (400, "PropertyValueNotInList", ErrorCode.BMC_ERROR),
        (409, "", ErrorCode.CONFLICT),
        (412, "", ErrorCode.CONFLICT),
        (428, "", ErrorCode.CONFLICT),
        (429, "", ErrorCode.BUSY),
        (503, "", ErrorCode.BUSY),
        (500, "InternalError", ErrorCode.BMC_ERROR),
        (400, "RAC0218", ErrorCode.BUSY),
    ],
)
def test_a_refusal_s_code_says_what_can_help(status: int, key: str, code: ErrorCode) -> None:
    refused = Refused.from_answer(status, [Note(f"X.1.0.{key}", "words")] if key else [], "GET /x")
    assert refused.code is code
    assert refused.details == {"status": status, "request": "GET /x"}


def test_arguments_without_end_are_cut_so_that_searching_them_is_no_endless_work() -> None:
    endless = "/redfish/v1/" * 100_000
    said = {"MessageId": "Base.1.8.PasswordChangeRequired", "MessageArgs": [endless, *map(str, range(10_000))]}
    (note,) = notes_of({"error": {"@Message.ExtendedInfo": [said]}})
    assert len(note.properties) <= 256
    assert max(map(len, note.properties)) <= 1_000


@pytest.mark.parametrize(
    ("resolution", "advice"),
    [
        ("Release it first.", "Release it first."),
        ("None.", ""),
        ("none", ""),
        (" ", ""),
        ("x" * 9_000, "x" * 500),
    ],
)
def test_what_the_bmc_advises_is_kept_where_it_advises_something(resolution: object, advice: str) -> None:
    said = {"error": {"@Message.ExtendedInfo": [{**MISSING, "Resolution": resolution}]}}
    (message,) = messages.bmc_messages(notes_of(said))
    assert (message.text, message.resolution) == ("needed", advice)
