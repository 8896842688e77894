"""Management: facts about the machine as people read them, and changes that were seen to happen."""

from datetime import UTC, datetime
from typing import Any

import pytest

from drivers.redfish.bmc_reset import reset_types_for
from drivers.redfish.event_log import moment_of, rank, record_of
from drivers.redfish.health import component, health_of, severity_of, worst
from drivers.redfish.indicator import light_of, writings
from drivers.redfish.management import info_of
from drivers.redfish.manners import Manners
from drivers.redfish.sensors import of_sensor, of_thermal_and_power
from drivers.redfish.vendors import QUIRKS, Facts, manners_of
from protocol.errors import ErrorCode
from protocol.shapes.management import Health, Indicator
from simulators.redfish import Drop, FaultRule, Outage, ServiceOptions
from tests.drivers.redfish.harness import SYSTEM, bench, without_waiting

MANAGER_RESET = "*/Actions/Manager.Reset"
CLEAR = "*/Actions/LogService.ClearLog"
MANAGER = "/redfish/v1/Managers/1"


@pytest.mark.parametrize("outage", list(Outage))
@pytest.mark.parametrize("force", [False, True])
@without_waiting
async def test_a_bmc_that_restarts_is_waited_for_until_it_serves_well(outage: Outage, force: bool) -> None:
    options = ServiceOptions(manager_reset_seconds=75, manager_reset_outage=outage)
    async with bench(options=options) as bmc:
        await bmc("power.getPower")
        result = await bmc("management.resetBmc", {"force": force})
        assert 60 <= result["secondsAway"] <= 90
        assert result["version"]
        assert len(bmc.bmc.state.manager_resets) == 1
        assert (await bmc("power.getPower"))["state"] == "on"


@without_waiting
async def test_a_bmc_that_flaps_when_it_comes_back_is_not_back_yet() -> None:
    async with bench(options=ServiceOptions(manager_reset_seconds=20)) as bmc:
        bmc.bmc.faults.add(FaultRule(name="flap", method="GET", path=SYSTEM, after=3, count=2, status=500))
        await bmc("management.resetBmc")
        assert bmc.bmc.faults.hits("flap") == 2


@without_waiting
async def test_a_restart_that_was_taken_and_does_not_happen_is_not_applied() -> None:
    async with bench(faults=[FaultRule(method="POST", path=MANAGER_RESET, status=204)]) as bmc:
        error = await bmc.fails("management.resetBmc")
        assert error.code is ErrorCode.NOT_APPLIED
        assert len(bmc.requests("POST", MANAGER_RESET)) == 1


@pytest.mark.case("B28")
@pytest.mark.parametrize("drop", [Drop.AFTER, Drop.BEFORE])
@without_waiting
async def test_a_restart_whose_answer_is_lost_is_settled_by_watching(drop: Drop) -> None:
    async with bench(options=ServiceOptions(manager_reset_seconds=30)) as bmc:
        bmc.bmc.faults.add(FaultRule(method="POST", path=MANAGER_RESET, drop=drop))
        if drop is Drop.AFTER:
            assert (await bmc("management.resetBmc"))["secondsAway"] > 20
        else:
            assert (await bmc.fails("management.resetBmc")).code is ErrorCode.OUTCOME_UNKNOWN
        assert len(bmc.requests("POST", MANAGER_RESET)) == 1


@without_waiting
async def test_a_bmc_that_does_not_come_back_ends_the_operation_in_time() -> None:
    async with bench(options=ServiceOptions(manager_reset_seconds=1e6)) as bmc:
        error = await bmc.fails("management.resetBmc", timeout=300)
        assert error.code is ErrorCode.TIMEOUT
        assert "went away" in error.message


def test_the_reset_type_follows_force_and_what_is_listed() -> None:
    assert reset_types_for(False, ["GracefulRestart", "ForceRestart"])[0] == "GracefulRestart"
    assert reset_types_for(True, ["GracefulRestart", "ForceRestart"])[0] == "ForceRestart"
    assert reset_types_for(True, ["GracefulRestart"]) == ["GracefulRestart"]
    assert reset_types_for(False, ["ResetAll"]) == []


@without_waiting
async def test_the_event_log_gives_the_newest_entries_first() -> None:
    async with bench() as bmc:
        entries = (await bmc("management.getEventLog"))["entries"]
        times = [entry["time"] for entry in entries]
        assert times == sorted(times, reverse=True)
        assert (await bmc("management.getEventLog", {"limit": 2}))["entries"] == entries[:2]
        newer = (await bmc("management.getEventLog", {"since": times[2]}))["entries"]
        assert newer == entries[:3]
        error = await bmc.fails("management.getEventLog", {"since": "yesterday"})
        assert error.code is ErrorCode.INVALID_ARGUMENT


@without_waiting
async def test_a_log_in_pages_is_read_to_its_end() -> None:
    async with bench() as bmc:
        everything = (await bmc("management.getEventLog"))["entries"]
        (path,) = {entry.path for entry in bmc.bmc.journal.entries("GET", "*/Entries")}
        document = bmc.bmc.state.document(path) or {}
        first, rest = document["Members"][:2], document["Members"][2:]
        bmc.bmc.state.put(f"{path}/More", {**document, "@odata.id": f"{path}/More", "Members": rest})
        following = {"Members": first, "Members@odata.nextLink": f"{path}/More"}
        bmc.bmc.state.edit(path, lambda collection: collection.update(following))
        assert (await bmc("management.getEventLog"))["entries"] == everything


@without_waiting
async def test_a_log_whose_pages_lead_in_a_circle_ends() -> None:
    async with bench() as bmc:
        everything = (await bmc("management.getEventLog"))["entries"]
        (path,) = {entry.path for entry in bmc.bmc.journal.entries("GET", "*/Entries")}
        bmc.bmc.state.edit(path, lambda collection: collection.update({"Members@odata.nextLink": path}))
        assert len((await bmc("management.getEventLog"))["entries"]) >= len(everything)


@without_waiting
async def test_the_log_is_cleared_and_counted_again() -> None:
    async with bench() as bmc:
        result = await bmc("management.clearEventLog")
        assert result == {"cleared": True, "remaining": 0}
        assert (await bmc("management.getEventLog"))["entries"] == []


@without_waiting
async def test_a_clear_that_wants_its_type_gets_it_and_one_that_does_nothing_is_not_applied() -> None:
    note = {"MessageId": "B.1.0.ActionParameterMissing", "Message": "ClearType"}
    missing = {"error": {"@Message.ExtendedInfo": [note]}}
    async with bench(faults=[FaultRule(method="POST", path=CLEAR, count=1, status=400, body=missing)]) as bmc:
        await bmc("management.clearEventLog")
        assert bmc.bmc.journal.entries("POST", CLEAR)[-1].body == {"ClearType": "ClearAll"}
    async with bench(faults=[FaultRule(method="POST", path=CLEAR, status=204)]) as bmc:
        assert (await bmc.fails("management.clearEventLog")).code is ErrorCode.NOT_APPLIED


@pytest.mark.parametrize(
    ("word", "moment"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05.123+00:00", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-01T21:04:05-0600", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02 03:04:05", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("0000-00-00T00:00:00+00:00", None),
        ("1970-01-01T00:02:17+00:00", None),
        ("2026-13-40T99:00:00Z", None),
        ("System Boot", None),
        (None, None),
    ],
)
def test_a_bmc_s_times_are_read_and_a_clock_that_was_not_set_is_none(
    word: str | None, moment: datetime | None
) -> None:
    assert moment_of(word) == moment


@pytest.mark.parametrize(
    ("service", "place"),
    [
        ({"Id": "Sel", "LogEntryType": "SEL"}, 0),
        ({"Id": "IML", "Name": "Integrated Management Log"}, 0),
        ({"Id": "Log1", "Name": "Health Event Log Service", "LogEntryType": "SEL"}, 1),
        ({"Id": "EventLog", "Name": "Event Log Service"}, 2),
        ({"Id": "Lclog", "Name": "LifeCycle Controller Log Service"}, 3),
        ({"Id": "FaultList", "LogEntryType": "SEL"}, 4),
        ({"Id": "AuditLog", "Name": "Audit Log"}, None),
        ({"Id": "SL", "Name": "Security Log"}, None),
        ({"Id": "Dump"}, None),
        ({"Id": "HostLogger"}, None),
    ],
)
def test_the_hardware_s_own_log_is_known_among_many(service: dict[str, Any], place: int | None) -> None:
    assert rank({**service, "Entries": {"@odata.id": "/x"}}) == place
    assert rank(service) is None


def test_an_entry_that_says_little_is_kept() -> None:
    _, record = record_of({"Id": "7"}, "SEL")
    assert (record.id, record.time, record.text, record.source) == ("7", None, "", "SEL")
    _, record = record_of({"Id": 8, "Message": "hot", "Severity": "CRITICAL", "Created": "0000"}, None)
    assert (record.id, record.severity) == ("8", Health.CRITICAL)


@without_waiting
async def test_the_light_is_switched_and_read_back() -> None:
    async with bench() as bmc:
        assert await bmc("management.setIndicator", {"state": "on"}) == {"state": "on"}
        assert await bmc("management.getIndicator") == {"state": "on"}
        before = len(bmc.requests("PATCH"))
        await bmc("management.setIndicator", {"state": "on"})
        assert len(bmc.requests("PATCH")) == before
        assert await bmc("management.setIndicator", {"state": "off"}) == {"state": "off"}


@without_waiting
async def test_a_light_that_stays_dark_is_not_applied() -> None:
    async with bench(faults=[FaultRule(method="PATCH", status=200, body={})]) as bmc:
        assert (await bmc.fails("management.setIndicator", {"state": "on"})).code is ErrorCode.NOT_APPLIED


@pytest.mark.parametrize(
    ("document", "light"),
    [
        ({"LocationIndicatorActive": False, "IndicatorLED": "Lit"}, Indicator.OFF),
        ({"LocationIndicatorActive": True, "IndicatorLED": "Lit"}, Indicator.ON),
        ({"LocationIndicatorActive": True, "IndicatorLED": "Blinking"}, Indicator.BLINK),
        ({"IndicatorLED": "Blinking"}, Indicator.BLINK),
        ({"IndicatorLED": "Unknown"}, None),
        ({"IndicatorLED": None}, None),
        ({}, None),
    ],
)
def test_two_properties_tell_one_light(document: dict[str, Any], light: Indicator | None) -> None:
    assert light_of(document) is light


def test_the_newer_property_is_written_first() -> None:
    assert writings({"LocationIndicatorActive": False, "IndicatorLED": "Off"}, Indicator.BLINK) == [
        {"LocationIndicatorActive": True},
        {"IndicatorLED": "Blinking"},
        {"IndicatorLED": "Lit"},
    ]


@pytest.mark.parametrize(
    ("system", "serial", "uuid"),
    [
        ({"SerialNumber": "S1", "UUID": "u"}, "S1", "u"),
        ({"SerialNumber": "          ", "UUID": ""}, None, None),
        ({"SerialNumber": "To be filled by O.E.M.", "UUID": "00000000-0000-0000-0000-000000000000"}, None, None),
        ({"SerialNumber": 1234, "UUID": None}, "1234", None),
    ],
)
def test_a_maker_s_placeholders_are_no_facts(system: dict[str, Any], serial: str | None, uuid: str | None) -> None:
    info = info_of({}, system, {}, Manners())
    assert (info.serial, info.uuid) == (serial, uuid)


def test_health_is_the_rollup_and_the_worst_counts() -> None:
    assert health_of({"Status": {"Health": "OK", "HealthRollup": "Critical"}}, rollup=True) is Health.CRITICAL
    assert health_of({"Status": {"Health": "OK", "HealthRollup": "Critical"}}) is Health.OK
    assert health_of({"Status": {"Health": None}}) is Health.UNKNOWN
    assert worst([Health.OK, Health.WARNING, Health.UNKNOWN]) is Health.WARNING
    assert worst([]) is Health.UNKNOWN
    assert severity_of("Informational") is Health.OK
    assert component({"Name": "Bay 3", "Status": {"State": "Absent"}}, "fan") is None


def test_a_sensor_is_read_from_its_resource() -> None:
    sensor = of_sensor(
        {
            "Name": "Inlet",
            "Reading": 21,
            "ReadingType": "Temperature",
            "ReadingUnits": "Cel",
            "Status": {"Health": "OK"},
            "Thresholds": {"UpperCritical": {"Reading": 47}, "UpperCaution": {"Reading": 42}},
        }
    )
    assert sensor is not None
    assert (sensor.kind, sensor.reading, sensor.unit, sensor.status) == ("temperature", 21.0, "Cel", Health.OK)
    assert sensor.thresholds is not None
    assert (sensor.thresholds.upper_warning, sensor.thresholds.upper_critical) == (42.0, 47.0)
    assert of_sensor({"Name": "x", "Status": {"State": "Absent"}, "Reading": 1}) is None
    fan = of_sensor({"Name": "Fan 1", "Reading": 45, "ReadingUnits": "%", "PhysicalContext": "Fan"})
    assert fan is not None
    assert fan.kind == "fan"


def test_sensors_are_read_from_the_older_resources_too() -> None:
    sensors = of_thermal_and_power(
        {
            "Temperatures": [{"Name": "CPU", "ReadingCelsius": 40, "UpperThresholdCritical": 90}, None],
            "Fans": [{"FanName": "Fan", "ReadingRPM": 9000}],
            "Voltages": None,
            "PowerControl": [{"Name": "All", "PowerConsumedWatts": 312}],
        }
    )
    assert [(s.name, s.kind, s.reading, s.unit) for s in sensors] == [
        ("CPU", "temperature", 40.0, "Cel"),
        ("Fan", "fan", 9000.0, "RPM"),
        ("All", "power", 312.0, "W"),
    ]
    assert of_thermal_and_power(None) == []


@without_waiting
async def test_sensors_come_from_thermal_and_power_where_there_is_no_collection() -> None:
    async with bench() as bmc:
        named = {sensor["kind"] for sensor in (await bmc("management.getSensors"))["sensors"]}
        assert {"temperature", "fan"} <= named
        bmc.bmc.faults.add(FaultRule(method="GET", path="*/Sensors*", status=404))
        assert isinstance((await bmc("management.getSensors"))["sensors"], list)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts(vendor="dell", manufacturer="dell inc."), {"serial_property": "SKU", "bmc_type": "iDRAC"}),
        (
            Facts(oem=frozenset({"supermicro"}), manufacturer="supermicro", model="sys-821ge-tnhr"),
            {"cd_targets": ("UsbCd", "Cd", "CD/DVD", "UefiUsbCd", "UefiCd"), "resend_mode": True},
        ),
        (Facts(manufacturer="supermicro", model="ars-111gl-nhr"), {"cd_targets": ("Cd", "UsbCd")}),
        (Facts(manufacturer="supermicro", model="x12spi-tf"), {"image_may_not_hold": "?="}),
        (Facts(vendor="ami", manufacturer="gigabyte"), {"full_override": True, "resend_mode": True}),
        (Facts(vendor="lenovo", model="thinksystem sr675 v3"), {"restart_by_off_and_on": True}),
        (Facts(vendor="lenovo", model="thinksystem sr670 v2"), {"restart_by_off_and_on": False}),
        (Facts(vendor="hpe", manufacturer="hpe"), {"resend_mode": False, "serial_property": "SerialNumber"}),
        (Facts(), {"full_override": False}),
    ],
)
def test_vendor_knowledge_is_laid_over_the_defaults(facts: Facts, expected: dict[str, object]) -> None:
    manners = manners_of(facts)
    assert {name: getattr(manners, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("manufacturer", "model", "is_x12"),
    [
        ("supermicro", "x12spi-tf", True),
        ("super micro computer, inc.", "SYS-120U-TNR", True),
        ("supermicro", "SYS-F620P3-RTBN", True),
        ("supermicro", "SSG-620P-ACR16H", True),
        ("supermicro", "SYS-E300-12D-8CN6P", True),
        ("supermicro", "Super Server", True),
        ("supermicro", "", True),
        ("supermicro", "SYS-821GE-TNHR", False),
        ("supermicro", "SYS-6029P-TRT", False),
        ("supermicro", "X11DPi-NT", False),
        ("supermicro", "H13SSL-N", False),
        ("supermicro", "ARS-111GL-NHR", False),
        ("supermicro", "AS -1124US-TNRP", False),
        ("another maker", "x12spi-tf", False),
        ("", "SYS-120U-TNR", False),
    ],
)
def test_an_x12_is_known_by_its_maker_and_by_its_board_or_server_name(
    manufacturer: str, model: str, is_x12: bool
) -> None:
    manners = manners_of(Facts(manufacturer=manufacturer, model=model.lower()))
    assert manners.image_may_not_hold == ("?=" if is_x12 else "")


def test_every_quirk_names_its_hardware_and_its_source() -> None:
    for quirk in QUIRKS:
        assert quirk.who
        assert quirk.source
        assert quirk.differs


@without_waiting
async def test_a_bmc_is_qualified_by_reading_only() -> None:
    async with bench() as bmc:
        report = await bmc("management.qualify")
        assert {entry.method for entry in bmc.bmc.journal.entries("*", "/redfish/v1/[!S]*")} <= {"GET"}
        verdicts = {line["operation"]: line["support"] for line in report["operations"]}
        assert verdicts["power.setPower"] == "supported"
        assert verdicts["deploy.writeImage"] == "unsupported"
        assert all(line["evidence"] for line in report["operations"])
        assert MANAGER in {line["evidence"].split(", ")[-1] for line in report["operations"]}
