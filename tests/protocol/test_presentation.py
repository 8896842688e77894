"""How results and errors read on a terminal."""

import pytest

from protocol.errors import ErrorCode, OperationError, ProtocolError, RequestCode, RequestError
from protocol.operations import OPERATIONS
from protocol.presentation import Fields, Table, argument_help, error_text, plain, printable, sections


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


def test_columns_and_fields_are_aligned() -> None:
    parts: list[Fields | Table] = [
        Fields("", [("a", "1"), ("long", "2")]),
        Table("t", ["id", "name"], [["1", "x"], ["22", "y"]]),
    ]
    assert plain(parts) == "a     1\nlong  2\n\nt\n  id  name\n  1   x\n  22  y"


def test_an_empty_result_is_an_empty_text() -> None:
    assert plain(sections({})) == ""


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


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_argument_of_every_operation_can_be_described(operation: str) -> None:
    for argument in argument_help(OPERATIONS[operation].arguments):
        assert argument.kind
        assert not (argument.required and argument.default is not None)


def test_arguments_are_told_in_words() -> None:
    words = {argument.name: argument.kind for argument in argument_help(OPERATIONS["boot.setBootDevice"].arguments)}
    assert words == {
        "device": "pxe|disk|cd|usb|bios|uefiHttp|none",
        "persistent": "true|false",
        "mode": "uefi|bios",
        "httpBootUri": "text",
    }
