"""Event log records in words, and reading and clearing the log."""

import pytest

from drivers.ipmi.sel import SelError, parse_entry, parse_sel_info
from protocol.errors import ErrorCode
from protocol.shapes.management import Health
from simulators.ipmi.event_log import Event
from simulators.ipmi.sensors import SensorType
from tests.drivers.ipmi.conftest import Site, StartSite

GET_ENTRY = (0x0A, 0x43)
CLEAR = (0x0A, 0x47)
NOON = 1_700_000_000


def entry(sensor_type: int, event: int, offset: int, *, seconds: int = NOON, kind: int = 2) -> bytes:
    head = b"\x07\x00" + bytes((kind,)) + seconds.to_bytes(4, "little")
    return head + b"\x20\x00\x04" + bytes((sensor_type, 0x30, event, offset, 0, 0))


@pytest.mark.parametrize(
    ("sensor_type", "event", "offset", "text", "severity"),
    [
        (0x01, 0x01, 0x09, "temperature: above the upper critical threshold", Health.CRITICAL),
        (0x01, 0x01, 0x07, "temperature: above the upper warning threshold", Health.WARNING),
        (0x08, 0x6F, 0x01, "power supply: failed", Health.CRITICAL),
        (0x08, 0xEF, 0x01, "power supply: failed (no longer)", Health.OK),
        (0x0C, 0x6F, 0x00, "memory: correctable ECC error", Health.WARNING),
        (0x0C, 0x6F, 0x01, "memory: uncorrectable ECC error", Health.CRITICAL),
        (0x0D, 0x6F, 0x01, "drive bay: drive fault", Health.CRITICAL),
        (0x02, 0x07, 0x02, "voltage: critical from less severe", Health.CRITICAL),
        (0xC1, 0x6F, 0x02, "OEM type 0xc1: event 0x2 of type 0x6f", Health.UNKNOWN),
    ],
)
def test_events_are_put_in_words_with_their_gravity(
    sensor_type: int, event: int, offset: int, text: str, severity: Health
) -> None:
    record = parse_entry(entry(sensor_type, event, offset))
    assert (record.text, record.severity) == (text, severity)
    assert (record.id, record.source, record.time) == ("0x0007", "sensor 0x30", "2023-11-14T22:13:20Z")


@pytest.mark.parametrize("seconds", [0, 0x1FFFFFFF, 0xFFFFFFFF])
def test_a_time_since_the_bmcs_start_is_no_time_of_day(seconds: int) -> None:
    assert parse_entry(entry(1, 1, 9, seconds=seconds)).time is None


def test_a_makers_own_record_keeps_its_bytes() -> None:
    timed, untimed = parse_entry(entry(1, 2, 3, kind=0xC5)), parse_entry(entry(1, 2, 3, kind=0xE0))
    assert timed.text.startswith("OEM record 0xc5: 20 00 04")
    assert (timed.time, untimed.time) == ("2023-11-14T22:13:20Z", None)


def test_records_that_are_cut_short_are_an_error() -> None:
    for length in range(16):
        with pytest.raises(SelError):
            parse_entry(entry(1, 1, 1)[:length])
    with pytest.raises(SelError):
        parse_sel_info(b"\x51\x00")


def events(count: int) -> list[Event]:
    return [Event(SensorType.POWER_SUPPLY, 0x40 + n % 8, b"\x01") for n in range(count)]


async def test_the_newest_entries_come_first(start_site: StartSite) -> None:
    site = await start_site(events=events(5))
    log = await site.invoke("management.getEventLog")
    assert [record["id"] for record in _entries(log)] == ["0x0005", "0x0004", "0x0003", "0x0002", "0x0001"]


async def test_of_a_long_log_only_the_wanted_entries_are_read(start_site: StartSite) -> None:
    site = await start_site(events=events(200))
    log = await site.invoke("management.getEventLog", limit=3)
    assert [record["id"] for record in _entries(log)] == ["0x00c8", "0x00c7", "0x00c6"]
    assert len(site.asked(*GET_ENTRY)) == 3


async def test_a_long_log_whose_ids_are_not_in_a_row_is_read_through(start_site: StartSite) -> None:
    site = await start_site(events=events(20))
    site.fault(netfn=0x0A, cmd=0x43, data="00001300", completion_code=0xCB, count=1)
    log = await site.invoke("management.getEventLog", limit=3)
    assert [record["id"] for record in _entries(log)] == ["0x0014", "0x0013", "0x0012"]


async def test_entries_before_a_time_are_left_out(site: Site) -> None:
    assert _entries(await site.invoke("management.getEventLog", since="2099-01-01T00:00:00Z")) == []
    assert _entries(await site.invoke("management.getEventLog", since="2001-01-01T00:00:00+02:00"))
    for text in ("yesterday", "2001-01-01T00:00:00"):
        error = await site.refused("management.getEventLog", since=text)
        assert error.code is ErrorCode.INVALID_ARGUMENT


async def test_clearing_waits_for_the_erasure_and_tells_what_remains(site: Site) -> None:
    result = await site.invoke("management.clearEventLog")
    assert result["cleared"] is True
    assert len(_entries(await site.invoke("management.getEventLog"))) == result["remaining"]


async def test_a_lost_reservation_is_taken_again_and_not_for_ever(site: Site) -> None:
    rule = site.fault(netfn=0x0A, cmd=0x47, completion_code=0xC5, count=1)
    assert (await site.invoke("management.clearEventLog"))["cleared"] is True
    assert site.bmc.faults.met(rule) == 1
    site.bmc.faults.clear()
    site.fault(netfn=0x0A, cmd=0x47, completion_code=0xC5)
    assert (await site.refused("management.clearEventLog")).code is ErrorCode.CONFLICT


def _entries(log: dict[str, object]) -> list[dict[str, object]]:
    entries = log["entries"]
    assert isinstance(entries, list)
    return entries
