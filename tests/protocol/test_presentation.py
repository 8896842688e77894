"""How results and errors read on a terminal."""

import pytest

from protocol.errors import BmcMessage, ErrorCode, OperationError, ProtocolError, RequestCode, RequestError
from protocol.presentation import Fields, Quote, Table, error_text, printable, sections


def test_plain_values_come_first_and_lists_of_objects_are_tables() -> None:
    value = {
        "slots": [{"id": "a", "image": None, "types": ["CD", "DVD"]}, {"id": "b", "image": None, "types": []}],
        "count": 2,
        "info": {"ready": True, "version": None},
    }
    assert sections(value) == [
        Fields("", [("count", "2")]),
        Table("slots", ["id", "types"], [["a", "CD, DVD"], ["b", "-"]]),
        Fields("info", [("ready", "yes"), ("version", "-")]),
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain é 漢", "plain é 漢"), ("a\x1b[2Jb", r"a\x1b[2Jb"), ("two\nlines", "two lines"), ("\u202e", r"\x202e")],
)
def test_control_characters_are_made_visible(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("code", ErrorCode)
def test_every_operation_error_says_what_to_do_next(code: ErrorCode) -> None:
    assert "\n  next: " in error_text(OperationError(code, "it failed"))


def test_other_errors_say_what_they_are() -> None:
    assert error_text(RequestError(RequestCode.NOT_FOUND, "no such node")) == "error: NOT_FOUND: no such node"
    assert error_text(ProtocolError("not JSON")) == "error: not JSON"


def test_a_text_of_several_lines_stays_as_it_is() -> None:
    pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    assert sections({"pem": pem, "served": True, "document": "<x>" * 500}) == [
        Fields("", [("served", "yes")]),
        Quote("pem", pem),
        Quote("document", "<x>" * 500),
    ]


def test_the_bmcs_words_are_shown_once_with_what_it_advises() -> None:
    said = [
        BmcMessage("Base.1.0.NoValidSession", "The session is over."),
        BmcMessage("Base.1.0.InsufficientPrivilege", "Too few rights.", "Log in as another user.\x1b"),
        BmcMessage("iLO.2.0.Same", "Too few rights."),
    ]
    error = OperationError(ErrorCode.AUTH_FAILED, "refused: The session is over", bmc=said)
    assert error_text(error).splitlines()[:-1] == [
        "error: AUTH_FAILED: refused: The session is over",
        "  the BMC said: Base.1.0.InsufficientPrivilege: Too few rights.",
        "  the BMC advises: Log in as another user.\\x1b",
    ]
