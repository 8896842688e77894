"""SEL, sensors, inventories, users and settings; and no command that a stray byte could break."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.ipmi import Privilege
from simulators.ipmi.commands import ALL_COMMANDS
from simulators.ipmi.event_log import EventLog
from simulators.ipmi.inventory import Fru
from simulators.ipmi.sensors import AnalogSensor, DiscreteSensor
from tests.simulators.ipmi_remote_console import PEER, RemoteConsole, make_bmc

RECORD = struct.pack("<HBIHBBBB3s", 0, 2, 0, 0x20, 4, 1, 1, 1, b"\x59\xff\xff")


def administrator(**options: object) -> RemoteConsole:
    """A session at administrator level."""
    console = RemoteConsole(make_bmc(None, **options)).open()
    console.send(6, 0x3B, b"\x04")
    return console


def reserve(console: RemoteConsole, cmd: int) -> bytes:
    """A reservation of the SEL (0x42) or the SDR repository (0x22)."""
    return console.send(0x0A, cmd)[1:]


def test_events_are_read_from_first_to_last() -> None:
    console, number, seen = administrator(), 0, []
    while number != 0xFFFF:
        answer = console.send(0x0A, 0x43, struct.pack("<HHBB", 0, number, 0, 0xFF))
        seen.append(struct.unpack_from("<H", answer, 3)[0])
        number = struct.unpack_from("<H", answer, 1)[0]
        assert len(answer) == 19
    assert seen == [1, 2, 3]


def test_an_added_event_gets_its_number_and_time() -> None:
    console = administrator(events=())
    assert console.send(0x0A, 0x44, RECORD) == b"\x00\x01\x00"
    record = console.send(0x0A, 0x43, struct.pack("<HHBB", 0, 0xFFFF, 0, 0xFF))[3:]
    assert struct.unpack_from("<HBI", record) == (1, 2, 1_700_000_000)
    assert record[7:] == RECORD[7:]


def test_clearing_needs_a_reservation_that_still_holds() -> None:
    console = administrator()
    old = reserve(console, 0x42)
    new = reserve(console, 0x42)
    assert console.send(0x0A, 0x47, old + b"CLR\xaa") == b"\xc5"
    assert console.send(0x0A, 0x47, new + b"CLX\xaa") == b"\xcc"
    assert console.send(0x0A, 0x47, new + b"CLR\xaa") == b"\x00\x01"
    assert console.send(0x0A, 0x43, struct.pack("<HHBB", 0, 0, 0, 0xFF)) == b"\xcb"
    assert console.send(0x0A, 0x47, new + b"CLR\xaa") == b"\xc5"


def test_a_deleted_event_is_gone_and_its_neighbours_stay() -> None:
    console = administrator()
    assert console.send(0x0A, 0x46, reserve(console, 0x42) + b"\x02\x00") == b"\x00\x02\x00"
    first = console.send(0x0A, 0x43, struct.pack("<HHBB", 0, 1, 0, 0xFF))
    assert first[1:3] == b"\x03\x00"
    assert console.send(0x0A, 0x43, struct.pack("<HHBB", 0, 2, 0, 0xFF)) == b"\xcb"


def test_a_full_log_takes_no_more_and_says_that_it_overflowed() -> None:
    console = administrator(events=())
    console.bmc.sel.capacity = 1
    assert console.send(0x0A, 0x44, RECORD)[0] == 0
    assert console.send(0x0A, 0x44, RECORD) == b"\xc4"
    assert console.send(0x0A, 0x40)[14] & 0x80


def test_power_changes_are_logged() -> None:
    console = administrator(events=())
    for action in (b"\x00", b"\x01", b"\x03"):
        console.send(0, 2, action)
    assert [(record[10], record[12]) for record in console.bmc.sel.records()] == [(9, 0x6F), (9, 0xEF), (0x1D, 0x6F)]


def test_sel_time_can_be_set() -> None:
    console = administrator()
    assert console.send(0x0A, 0x49, struct.pack("<I", 42)) == b"\x00"
    assert console.send(0x0A, 0x48) == b"\x00" + struct.pack("<I", 42)


def test_record_numbers_never_reach_the_two_reserved_ones() -> None:
    log = EventLog(lambda: 0.0, capacity=2)
    for _ in range(0xFFFF):
        number = log.add(RECORD)
        assert 0 < number < 0xFFFF
        log.delete(number)


def test_sensor_records_are_read_whole_or_in_parts() -> None:
    console = administrator()
    count = struct.unpack_from("<H", console.send(0x0A, 0x20), 2)[0]
    reservation, number, whole = reserve(console, 0x22), 0, []
    while number != 0xFFFF:
        answer = console.send(0x0A, 0x23, reservation + struct.pack("<HBB", number, 0, 0xFF))
        record = answer[3:]
        assert record[4] + 5 == len(record)
        part = console.send(0x0A, 0x23, reservation + struct.pack("<HBB", number, 5, 6))
        assert part[3:] == record[5:11]
        whole.append(record)
        number = struct.unpack_from("<H", answer, 1)[0]
    assert len(whole) == count
    stale = struct.pack("<H", struct.unpack("<H", reservation)[0] + 1)
    assert console.send(0x0A, 0x23, stale + struct.pack("<HBB", 1, 5, 6)) == b"\xc5"


def test_a_reading_follows_its_sensor_and_crosses_thresholds() -> None:
    console = administrator()
    inlet = console.bmc.sdr.named("Inlet Temp")
    assert isinstance(inlet, AnalogSensor)
    assert console.send(4, 0x2D, b"\x01") == bytes((0, 24, 0xC0, 0xC0))
    inlet.value = 46.0
    assert console.send(4, 0x2D, b"\x01") == bytes((0, 46, 0xC0, 0xD8))
    supply = console.bmc.sdr.named("PSU2 Status")
    assert isinstance(supply, DiscreteSensor)
    supply.states = 0b1001
    assert console.send(4, 0x2D, b"\x42") == bytes((0, 0, 0xC0, 0x09, 0x80))
    assert console.send(4, 0x27, b"\x42") == b"\xcd"
    assert console.send(4, 0x2D, b"\x99") == b"\xcb"


def test_a_fan_of_a_machine_that_is_off_cannot_be_read() -> None:
    console = administrator(powered=False)
    assert console.send(4, 0x2D, b"\x31")[2] & 0x20
    assert not console.send(4, 0x2D, b"\x01")[2] & 0x20


def test_thresholds_can_be_set_where_they_exist() -> None:
    console = administrator()
    assert console.send(4, 0x27, b"\x31") == bytes((0, 0x03, 20, 10, 0, 0, 0, 0))
    assert console.send(4, 0x26, bytes((0x31, 0x01, 22, 0, 0, 0, 0, 0))) == b"\x00"
    assert console.send(4, 0x27, b"\x31")[2] == 22
    assert console.send(4, 0x26, bytes((0x31, 0x20, 0, 0, 0, 0, 0, 99))) == b"\xcc"


def test_an_inventory_is_read_in_parts_and_every_area_adds_up_to_zero() -> None:
    console = administrator()
    size = struct.unpack_from("<H", console.send(0x0A, 0x10, b"\x00"), 1)[0]
    data = b"".join(console.send(0x0A, 0x11, struct.pack("<BHB", 0, offset, 32))[2:] for offset in range(0, size, 32))
    assert len(data) == size
    assert sum(data[:8]) & 0xFF == 0
    for place in (2, 3, 4):
        start = data[place] * 8
        area = data[start : start + data[start + 1] * 8]
        assert sum(area) & 0xFF == 0
    assert b"RWSIM000001" in data
    assert console.send(0x0A, 0x11, struct.pack("<BHB", 0, size, 1)) == b"\xc9"
    assert console.send(0x0A, 0x11, struct.pack("<BHB", 0, 0, 200)) == b"\xca"
    assert console.send(0x0A, 0x10, b"\x09") == b"\xcb"


def test_an_inventory_can_be_written() -> None:
    console = administrator()
    assert console.send(0x0A, 0x12, struct.pack("<BH", 1, 500) + b"note") == b"\x00\x04"
    assert console.send(0x0A, 0x11, struct.pack("<BHB", 1, 500, 4)) == b"\x00\x04note"


def test_an_inventory_without_a_chassis_has_no_chassis_area() -> None:
    data = Fru("PSU", (10, 1), "Maker", "Unit", "P", "S").encode()
    assert data[2] == 0
    assert data[3] == 1


def test_a_user_is_made_renamed_and_may_then_log_in() -> None:
    console = administrator()
    assert console.send(6, 0x45, b"\x05" + b"rack".ljust(16, b"\0")) == b"\x00"
    assert console.send(6, 0x46, b"\x05")[1:] == b"rack".ljust(16, b"\0")
    assert console.send(6, 0x47, b"\x05\x02" + b"new pass".ljust(16, b"\0")) == b"\x00"
    assert console.send(6, 0x43, b"\x91\x05\x03") == b"\x00"
    assert console.send(6, 0x47, b"\x05\x01") == b"\x00"
    assert console.send(6, 0x44, b"\x01\x05")[2] & 0x3F == 4
    login = RemoteConsole(console.bmc, user="rack", password=b"new pass", level=3, remote_id=9).open()
    assert login.statuses == [0, 0, 0]
    assert console.send(6, 0x47, b"\x05\x03" + b"other".ljust(16, b"\0")) == b"\x80"
    assert console.send(6, 0x47, b"\x05\x00") == b"\x00"
    assert RemoteConsole(console.bmc, user="rack", password=b"new pass", level=3).open().statuses == [0, 0x0D]


def test_a_user_slot_that_does_not_exist_is_refused() -> None:
    console = administrator()
    assert console.send(6, 0x44, b"\x01\x11") == b"\xc9"
    assert console.send(6, 0x46, b"\x0f") == b"\xcc"


def test_lan_settings_tell_the_suites_and_keep_what_is_set() -> None:
    console = administrator(suites=(17,))
    assert console.send(0x0C, 2, b"\x01\x17\x00\x00") == b"\x00\x11\x00\x11"
    assert console.send(0x0C, 1, b"\x01\x03\x0a\x00\x00\x05") == b"\x00"
    assert console.send(0x0C, 2, b"\x01\x03\x00\x00") == b"\x00\x11\x0a\x00\x00\x05"
    assert console.send(0x0C, 1, b"\x01\x17\x00\x11") == b"\x82"
    assert console.send(0x0C, 2, b"\x01\xc0\x00\x00") == b"\x80"
    assert console.send(0x0C, 1, b"\x01\x03\x0a") == b"\xc7"


def test_device_self_test_and_acpi_state() -> None:
    console = administrator()
    assert console.send(6, 4) == b"\x00\x55\x00"
    assert console.send(6, 7) == b"\x00\x00\x00"
    console.send(0, 2, b"\x00")
    assert console.send(6, 7) == b"\x00\x05\x00"


def test_an_unknown_command_is_c1() -> None:
    assert administrator().send(0x2C, 0x00, b"\x00") == b"\xc1"


@pytest.mark.parametrize("level", [Privilege.USER, Privilege.OPERATOR])
def test_no_command_above_the_sessions_level_is_carried_out(level: Privilege) -> None:
    console = RemoteConsole(make_bmc()).open()
    console.send(6, 0x3B, bytes((level,)))
    for (netfn, cmd), command in ALL_COMMANDS.items():
        if command.privilege > level:
            assert console.send(netfn, cmd, bytes(command.shortest)) == b"\xd4", (netfn, cmd)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(ALL_COMMANDS)), st.binary(max_size=40))
def test_every_command_answers_any_data(which: tuple[int, int], data: bytes) -> None:
    console = administrator()
    (outgoing,) = console.outgoing(*which, data)
    answer = console.result(outgoing.packet)
    assert len(answer) >= 1
    assert answer[0] == 0 or len(answer) == 1, "a refusal carries no data"


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80))
def test_no_datagram_breaks_the_bmc(noise: bytes) -> None:
    bmc = make_bmc()
    for head in (b"", b"\x06\x00\xff\x07", b"\x06\x00\xff\x07\x06\x10" + bytes(8), b"\x06\x00\xff\x06"):
        bmc.receive(head + noise, PEER)
