"""The table of operations is the one that the interface description fixes."""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from protocol.errors import ErrorCode, OperationError
from protocol.operation_help import argument_help
from protocol.operations import CONCERNS, DRIVERS, OPERATIONS, Operation, Repeat, find


def _described(text: str) -> dict[str, tuple[str, str]]:
    """The description's rows: each operation with its arguments cell and its repeat class.

    A row may name several operations (`getHealth / getSensors`), and then one repeat class for all or one for each.
    """
    section = text.split("## 1.", 1)[1].split("\n## ", 1)[0]
    found: dict[str, tuple[str, str]] = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or "." not in cells[0] or cells[0] == "operation":
            continue
        concern, _, rest = cells[0].partition(".")
        names = re.split(r"\s*[/,]\s*", rest)
        classes = re.split(r"\s*[/,]\s*", cells[3]) if re.fullmatch(r"\w+(\s*[/,]\s*\w+)*", cells[3]) else [cells[3]]
        if len(classes) != len(names):
            classes = [cells[3]] * len(names)
        parts = re.split(r"(?:^|\s)/(?:\s|$)", cells[1])
        arguments = parts if len(parts) == len(names) else [cells[1]] + [""] * (len(names) - 1)
        for name, repeat, argument in zip(names, classes, arguments, strict=True):
            found[f"{concern}.{name}"] = (argument, repeat)
    return found


@pytest.fixture(scope="module")
def described(shared: Path) -> Mapping[str, tuple[str, str]]:
    return _described((shared / "spec" / "interfaces.md").read_text(encoding="utf-8"))


_ADDED = {"config.getCertificates", "config.generateCsr", "config.replaceCertificate", "deploy.getDisks"}
"""Beyond the description, which leaves adding free."""


def test_the_table_has_every_described_operation_and_those_that_were_added(
    described: Mapping[str, tuple[str, str]],
) -> None:
    assert set(OPERATIONS) == set(described) | _ADDED


def test_what_repeating_means_is_as_described(described: Mapping[str, tuple[str, str]]) -> None:
    words = {operation: repeat.split(",")[0] for operation, (_, repeat) in described.items()}
    del words["power.setPower"]
    assert {operation: OPERATIONS[operation].repeat.value for operation in words} == words


def test_every_described_argument_is_taken(described: Mapping[str, tuple[str, str]]) -> None:
    missing = [
        f"{operation} {word}"
        for operation, (arguments, _) in described.items()
        for word in re.findall(r"`(\w+)`", arguments)
        if word not in {argument.name for argument in argument_help(OPERATIONS[operation].arguments)}
    ]
    assert missing == []


def test_power_actions_are_repeated_or_not_as_described(described: Mapping[str, tuple[str, str]]) -> None:
    assert described["power.setPower"][1] == "on, off, softOff converge; the rest once"
    row = OPERATIONS["power.setPower"]
    assert {
        action: row.repeat_for({"action": action}).value
        for action in ("on", "off", "softOff", "reset", "cycle", "nmi")
    } == {
        "on": "converge",
        "off": "converge",
        "softOff": "converge",
        "reset": "once",
        "cycle": "once",
        "nmi": "once",
    }


@pytest.mark.parametrize("action", [None, 3, ["reset"], {"reset": 1}])
def test_an_unusable_action_is_no_reason_to_fail(action: object) -> None:
    assert OPERATIONS["power.setPower"].repeat_for({"action": action}) is Repeat.CONVERGE


@pytest.mark.parametrize("row", OPERATIONS.values(), ids=list(OPERATIONS))
def test_a_row_is_complete(row: Operation) -> None:
    assert row.id == f"{row.concern}.{row.name}"
    assert row.concern in CONCERNS
    assert row.summary
    assert row.timeout > 0
    assert row.changes is (row.repeat is not Repeat.READ)
    # Arguments refuse what they do not know; results take what a newer agent adds.
    assert row.arguments.__struct_config__.forbid_unknown_fields
    assert not row.result.__struct_config__.forbid_unknown_fields
    assert msgspec.json.schema(row.arguments)
    assert msgspec.json.schema(row.result)
    assert all(re.fullmatch(r"[a-z][a-zA-Z0-9]*", argument.name) for argument in argument_help(row.arguments))


def test_the_drivers_are_the_described_ones() -> None:
    assert set(DRIVERS) == {"redfish", "ipmi", "ssh", "linux", "simulated"}


@pytest.mark.parametrize(
    ("identifier", "hint"),
    [
        ("power.getPowr", "power.getPower"),
        ("power.xxxxxxxxxxxxx", "power.getPower or power.setPower"),
        ("??", "concerns: power"),
    ],
)
def test_an_unknown_operation_is_refused_with_a_hint(identifier: str, hint: str) -> None:
    with pytest.raises(OperationError) as caught:
        find(identifier)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    assert hint in caught.value.message
