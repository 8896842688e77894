"""Whether a machine that joins can be the one that its ticket is for."""

from collections.abc import Mapping

import pytest

from control_plane.machine_match import Known, contradiction
from protocol.machine_facts import MachineFacts, Marks, marks_of

OWN: Known = {
    "uuid": {marks_of(MachineFacts(uuid="4c4c4544-0042-3510-8052-b9c04f4e4d32")).uuid or ""},
    "serial": {"CZ1"},
    "mac": {"b8:2a:72:dd:a0:01", "b8:2a:72:dd:a0:02"},
}
UUID, OTHER_UUID = "4c4c4544-0042-3510-8052-b9c04f4e4d32", "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
MACS, OTHER_MACS = ["b8:2a:72:dd:a0:02"], ["b8:2a:72:dd:ff:09"]


def told(uuid: str | None = None, serial: str | None = None, macs: list[str] | None = None) -> Marks:
    return marks_of(MachineFacts(uuid=uuid, serial=serial, macs=macs or []))


@pytest.mark.parametrize(
    ("what", "marks"),
    [
        ("all is as known", told(UUID, "CZ1", MACS)),
        ("it says nothing of itself", told()),
        ("it says only nonsense", told("03000200-0400-0500-0006-000700080009", "Default string", ["ff" * 6])),
        ("its NIC was replaced", told(UUID, "CZ1", OTHER_MACS)),
        ("its serial number was written anew", told(UUID, "CZ9", MACS)),
        ("its firmware tells another UUID than its BMC", told(OTHER_UUID, "CZ1", MACS)),
        ("only its MACs can be compared", told(macs=MACS)),
    ],
)
def test_a_machine_is_taken_where(what: str, marks: Marks) -> None:
    assert contradiction(marks, OWN, {}) is None, what


@pytest.mark.parametrize(
    ("what", "marks", "words"),
    [
        ("everything is another's", told(OTHER_UUID, "CZ9", OTHER_MACS), OTHER_UUID),
        ("the UUID is another's and nothing else is told", told(OTHER_UUID), "is known"),
        ("it has another mainboard in the same case, and another NIC", told(OTHER_UUID, "CZ1", OTHER_MACS), "MAC"),
        ("a NIC was moved into it", told(OTHER_UUID, "CZ9", MACS), "serial number CZ9, where CZ1 is known"),
    ],
)
def test_a_machine_is_refused_where(what: str, marks: Marks, words: str) -> None:
    why = contradiction(marks, OWN, {})
    assert why is not None, what
    assert words in why


def test_a_machine_of_which_nothing_is_known_is_taken_for_what_its_ticket_says() -> None:
    assert contradiction(told(UUID, "CZ1", MACS), {}, {}) is None


def test_a_machine_that_is_known_under_another_name_is_refused_by_that_name() -> None:
    elsewhere: Mapping[tuple[str, str], str] = {("serial", "CZ1"): "rack7-3"}
    assert contradiction(told(serial="CZ1"), {}, elsewhere) == "its serial number CZ1, known of rack7-3"


def test_values_that_several_machines_share_say_nothing() -> None:
    shared = {("uuid", next(iter(OWN["uuid"]))): "twin", ("serial", "CZ1"): "twin"}
    assert contradiction(told(UUID, "CZ1", MACS), OWN, shared) is None
    assert contradiction(told(UUID, "CZ1", OTHER_MACS), OWN, shared) is not None
