"""An operation's arguments in words, each with its meaning, and an example that works."""

import pytest

from protocol.operation_help import EXAMPLES, argument_help, explained, explanation
from protocol.operations import OPERATIONS
from protocol.validation import arguments_from_text, check


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


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_argument_has_a_meaning(operation: str) -> None:
    missing = [each.name for each in explained(OPERATIONS[operation].arguments) if not each.meaning]
    assert missing == []


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_with_arguments_has_an_example_that_is_sound(operation: str) -> None:
    row = OPERATIONS[operation]
    assert (operation in EXAMPLES) or not explained(row.arguments)
    arguments, issues = arguments_from_text(row.arguments, EXAMPLES.get(operation, ()))
    assert issues + check(row.arguments, arguments)[1] == []


def test_an_example_belongs_to_an_operation() -> None:
    assert set(EXAMPLES) <= set(OPERATIONS)


def test_what_is_inside_an_argument_is_explained_once_and_referred_to() -> None:
    told = {each.name: each for each in explained(OPERATIONS["raid.applyRaid"].arguments)}
    drives = told["volumes[].drives"]
    assert (drives.kind, drives.required) == ("list of texts or object", True)
    assert (told["volumes[].sizeGiB"].kind, told["volumes[].sizeGiB"].default) == ("number more than 0 or max", "max")
    assert told["volumes[].drives.count"].kind == "whole number from 1"
    assert told["hotSpares"].meaning.endswith("An object is as in volumes[].drives.")
    assert "hotSpares.count" not in told


def test_the_words_that_an_argument_takes_are_explained_where_they_are_documented() -> None:
    told = {each.name: each for each in explained(OPERATIONS["firmware.updateFirmware"].arguments)}
    assert "simple: The BMC fetches it (Redfish SimpleUpdate)." in told["transport"].meaning


def test_the_explanation_of_one_operation() -> None:
    text = explanation(OPERATIONS["power.setPower"], "rackwright bmc invoke", 60)
    assert text.startswith("power.setPower: change the power state\n")
    assert "but action=cycle|nmi|reset is an act: each call does it again" in text
    assert "  takes at most 10 minutes\n" in text
    assert "  action: on|off|softOff|reset|cycle|nmi; required\n" in text
    assert "  softTimeout: number more than 0 to 3600; default 180\n" in text
    assert text.endswith("example\n  rackwright bmc invoke power.setPower action=softOff softTimeout=60")
    assert "It takes no arguments." in explanation(OPERATIONS["power.getPower"], "rackwright bmc invoke")
