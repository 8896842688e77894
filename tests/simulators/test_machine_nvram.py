"""UEFI variables in OVMF's file: what an earlier plan left is gone, what this one needs is there."""

import struct
import uuid

import pytest

from simulators.machine.boot_plan import BootPlan, BootTarget
from simulators.machine.nvram import HTTP_OPTION, HTTP_OPTION_NAME, NvramError, VariableStore, with_plan

VENDOR = uuid.UUID("11111111-2222-3333-4444-555555555555")
STORE = uuid.UUID("aaf32c78-947b-439a-a180-2e144ec37792")
ADDRESS = "http://10.0.2.2:8080/secret/boot.iso"


def empty_store(size: int = 4096) -> bytes:
    """A firmware volume that holds a variable store without variables."""
    volume = bytes(40) + b"_FVH" + bytes(4) + struct.pack("<H", 72) + bytes(22)
    return volume + struct.pack("<16sIBB6x", STORE.bytes_le, size, 0x5A, 0xFE) + b"\xff" * (size - 28)


def test_a_variable_is_read_back_and_replaced() -> None:
    store = VariableStore(empty_store())

    store.set("Lang", b"en", VENDOR)
    store.set("Lang", b"english", VENDOR)
    store.set("Other", b"x")

    again = VariableStore(store.encode())
    assert again.get("Lang", VENDOR) == b"english"
    assert [variable.name for variable in again.variables()] == ["Lang", "Other"]
    again.delete("Lang", VENDOR)
    assert VariableStore(again.encode()).get("Lang", VENDOR) is None


def test_an_address_is_left_as_the_option_of_the_next_start() -> None:
    store = VariableStore(with_plan(empty_store(), BootPlan(BootTarget.HTTP, uri=ADDRESS)))

    assert store.get("BootNext") == struct.pack("<H", HTTP_OPTION)
    option = store.get(HTTP_OPTION_NAME)
    assert option is not None
    assert option.endswith(struct.pack("<BBH", 3, 0x18, 4 + len(ADDRESS)) + ADDRESS.encode() + b"\x7f\xff\x04\x00")


def test_an_option_that_was_for_an_earlier_start_is_gone() -> None:
    before = with_plan(empty_store(), BootPlan(BootTarget.HTTP, uri=ADDRESS))

    assert VariableStore(with_plan(before, BootPlan(BootTarget.CD))).variables() == []


def test_the_guests_own_choice_of_the_next_start_is_left_alone() -> None:
    guest = VariableStore(empty_store())
    guest.set("BootNext", struct.pack("<H", 3))
    guest.set("Boot0003", b"debian")

    store = VariableStore(with_plan(guest.encode(), BootPlan()))

    assert store.get("BootNext") == struct.pack("<H", 3)
    assert store.get("Boot0003") == b"debian"


def test_the_setup_is_asked_for_by_the_indications_of_the_operating_system() -> None:
    store = VariableStore(with_plan(empty_store(), BootPlan(BootTarget.SETUP)))

    assert store.get("OsIndications") == struct.pack("<Q", 1)


def test_nothing_changes_where_nothing_is_asked() -> None:
    assert with_plan(empty_store(), BootPlan()) == empty_store()


def test_a_store_without_room_says_so() -> None:
    store = VariableStore(empty_store(128))

    with pytest.raises(NvramError, match="no room for Large"):
        store.set("Large", bytes(200))


@pytest.mark.parametrize("content", [bytes(200), empty_store().replace(STORE.bytes_le, bytes(16))])
def test_another_kind_of_file_is_refused(content: bytes) -> None:
    with pytest.raises(NvramError):
        VariableStore(content)
