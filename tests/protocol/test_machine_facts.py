"""What firmware says of a machine, and what of it can tell one machine from another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.machine_facts import MachineFacts, Marks, marks_of

UUID = "4c4c4544-0042-3510-8052-b9c04f4e4d32"


def test_a_uuid_counts_as_one_in_either_of_its_byte_orders() -> None:
    turned = "44454c4c-4200-1035-8052-b9c04f4e4d32"
    assert marks_of(MachineFacts(uuid=UUID)) == marks_of(MachineFacts(uuid=turned.upper()))


@pytest.mark.parametrize(
    "text",
    [
        "00000000-0000-0000-0000-000000000000",
        "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
        "03000200-0400-0500-0006-000700080009",
        "00020003-0004-0005-0006-000700080009",
        "Not Settable",
        "",
        "4c4c4544",
    ],
)
def test_a_uuid_that_says_nothing_is_left_out(text: str) -> None:
    assert marks_of(MachineFacts(uuid=text)).is_empty


@pytest.mark.parametrize(
    "text", ["To be filled by O.E.M.", "Default string", "0123456789", "None", "........", "0000", " ", "\x00\x07"]
)
def test_a_placeholder_is_no_serial_number(text: str) -> None:
    assert marks_of(MachineFacts(serial=text)).is_empty


def test_a_serial_number_has_one_spelling() -> None:
    assert marks_of(MachineFacts(serial=" cz12345 ")) == Marks(serial="CZ12345")


def test_mac_addresses_are_read_in_every_usual_form_and_nonsense_is_left_out() -> None:
    facts = MachineFacts(
        macs=[
            "B8-2A-72-DD-A0-01",
            "b82a.72dd.a002",
            "b8:2a:72:dd:a0:01",
            "00:00:00:00:00:00",
            "ff:ff:ff:ff:ff:ff",
            "01:00:5e:00:00:01",
            "80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:31:78:f2",
            "N/A",
        ]
    )
    assert marks_of(facts).macs == {"b8:2a:72:dd:a0:01", "b8:2a:72:dd:a0:02"}


@given(st.text(max_size=300), st.text(max_size=300), st.lists(st.text(max_size=300), max_size=5))
def test_no_text_of_a_firmware_is_too_strange_to_be_read(uuid: str, serial: str, macs: list[str]) -> None:
    marks_of(MachineFacts(uuid=uuid, serial=serial, macs=macs))
