"""Whatever bytes a BMC sends, each parser gives a value or its own error, and no other."""

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.ipmi.boot import parse_boot_flags
from drivers.ipmi.chassis import parse_chassis_status
from drivers.ipmi.device import parse_device_id, uuid_of
from drivers.ipmi.fru import FruError, area_end, area_offsets, parse_areas
from drivers.ipmi.handshake import Privilege, parse_open_session_answer, parse_rakp2, parse_rakp4
from drivers.ipmi.packets import PacketError, SessionKeys, parse_message, parse_packet, unsealed
from drivers.ipmi.sdr import SdrError, parse_factors, parse_record
from drivers.ipmi.sel import SelError, parse_entry, parse_sel_info
from drivers.ipmi.sensors import parse_reading, sensor_of
from drivers.ipmi.session import Session
from drivers.ipmi.sol import parse_activation, parse_sol

KEYS = SessionKeys("sha1", 12, b"k" * 20, b"c" * 16)
anything = st.binary(max_size=300)
datagrams = anything | anything.map(lambda data: b"\x06\x00\xff\x07" + data)
datagrams |= anything.map(lambda data: b"\x06\x00\xff\x07\x06\xc0" + data)


@given(datagrams)
def test_any_datagram_gives_a_packet_or_an_error(datagram: bytes) -> None:
    with contextlib.suppress(PacketError):
        packet = parse_packet(datagram)
        assert len(packet.payload) <= len(datagram)
        unsealed(KEYS, datagram, packet)


@given(datagrams)
def test_a_session_survives_any_datagram(datagram: bytes) -> None:
    session = Session(KEYS, 1, 2, Privilege.USER)
    session.begin(0, 1)
    assert session.receive(datagram) is None


@pytest.mark.parametrize(
    ("parse", "error"),
    [
        (parse_message, PacketError),
        (parse_open_session_answer, PacketError),
        (parse_rakp2, PacketError),
        (parse_rakp4, PacketError),
        (parse_sol, PacketError),
        (parse_activation, PacketError),
        (parse_record, SdrError),
        (parse_factors, SdrError),
        (parse_entry, SelError),
        (parse_sel_info, SelError),
        (area_offsets, FruError),
        (parse_chassis_status, ValueError),
        (parse_device_id, ValueError),
        (parse_boot_flags, ValueError),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@given(data=anything)
def test_any_bytes_give_a_value_or_the_parsers_own_error(
    parse: Callable[[bytes], object], error: type[Exception], data: bytes
) -> None:
    with contextlib.suppress(error):
        parse(data)


@given(anything, anything, anything)
def test_any_fru_areas_give_printable_texts(chassis: bytes, board: bytes, product: bytes) -> None:
    fru = parse_areas(chassis, board, product)
    texts = [text for text in (fru.maker, fru.model, fru.serial, fru.asset_tag) if text is not None]
    assert all(text.isprintable() and text for text in texts)
    assert area_end(8, chassis) <= 8 + 255 * 8


@given(st.binary(min_size=48, max_size=80), st.sampled_from([1, 2]), anything)
def test_any_sensor_with_any_reading_can_be_shown(data: bytes, kind: int, reading: bytes) -> None:
    record = parse_record(data[:3] + bytes((kind,)) + data[4:])
    assert record is not None
    sensor, _ = sensor_of(record, 0, parse_reading(reading), record.factors)
    assert sensor.name


@given(st.binary(max_size=20))
def test_any_guid_gives_a_uuid_or_none(guid: bytes) -> None:
    found = uuid_of(guid)
    assert found is None or len(found) == 36
