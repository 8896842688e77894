"""What the BMC is, its sensors and health, its light and its restart."""

import uuid

import pytest

from drivers.ipmi.device import parse_device_id, uuid_of
from protocol.errors import ErrorCode
from simulators.ipmi.identity import Identity
from tests.drivers.ipmi.conftest import Site, StartSite

COLD_RESET = (0x06, 0x02)
GET_SDR = (0x0A, 0x23)
IDENTIFY = (0x00, 0x04)
GUID = uuid.UUID("12345678-9abc-4def-8123-456789abcdef")


async def test_the_bmc_is_described_by_its_device_id_its_fru_and_its_guid(start_site: StartSite) -> None:
    site = await start_site(identity=Identity(manufacturer=674, guid=GUID.bytes[::-1], serial="SER-1"))
    info = await site.invoke("management.getInfo")
    assert info["uuid"] == str(GUID)
    assert (info["serial"], info["bmcType"], info["bmcVersion"]) == ("SER-1", "iDRAC", "2.14")
    assert (info["ipmiVersion"], info["redfishVersion"]) == ("2.0", None)


async def test_without_a_fru_the_maker_is_known_by_its_number(start_site: StartSite) -> None:
    site = await start_site(identity=Identity(manufacturer=10876), frus=[])
    info = await site.invoke("management.getInfo")
    assert (info["vendor"], info["model"], info["serial"]) == ("Supermicro", None, None)


@pytest.mark.parametrize("wire", [GUID.bytes[::-1], GUID.bytes_le, GUID.bytes])
def test_a_guid_is_read_in_whichever_order_the_bmc_sends_it(wire: bytes) -> None:
    assert uuid_of(wire) == str(GUID)


@pytest.mark.parametrize("wire", [b"", bytes(16), b"\xff" * 16, bytes(15)])
def test_a_blank_guid_is_none(wire: bytes) -> None:
    assert uuid_of(wire) is None


def test_a_device_id_is_read() -> None:
    device = parse_device_id(bytes.fromhex("20 81 07 35 02 bf a2 02 00 00 01 00000000"))
    assert (device.firmware, device.ipmi_version, device.manufacturer) == ("7.35", "2.0", 674)
    assert device.maker.name == "Dell"
    assert device.has_chassis
    assert device.has_sdr_repository
    assert device.provides_device_sdrs


async def test_sensors_are_read_with_unit_status_and_thresholds(site: Site) -> None:
    sensors = {s["name"]: s for s in _list(await site.invoke("management.getSensors"), "sensors")}
    inlet = sensors["Inlet Temp"]
    assert (inlet["kind"], inlet["reading"], inlet["unit"], inlet["status"]) == ("temperature", 24.0, "°C", "ok")
    assert inlet["thresholds"] == {
        "lowerCritical": 2.0,
        "lowerWarning": None,
        "upperWarning": 40.0,
        "upperCritical": 45.0,
    }
    assert sensors["P12V"]["unit"] == "V"
    assert sensors["FAN1"]["unit"] == "RPM"


async def test_sensor_records_are_read_once_and_again_only_when_they_change(site: Site) -> None:
    await site.invoke("management.getSensors")
    read = len(site.asked(*GET_SDR))
    await site.invoke("management.getSensors")
    assert len(site.asked(*GET_SDR)) == read > 0


async def test_a_bmc_that_gives_records_only_in_parts_is_read_in_parts(site: Site) -> None:
    whole = await site.invoke("management.getSensors")
    await site.drivers.aclose()
    site.fault(netfn=0x0A, cmd=0x23, data="0000000000ff", completion_code=0xCA)
    assert await site.invoke("management.getSensors") == whole
    assert any(entry.data[5] <= 32 for entry in site.asked(*GET_SDR))


async def test_a_lost_reservation_of_the_records_is_taken_again(site: Site) -> None:
    whole = await site.invoke("management.getSensors")
    await site.drivers.aclose()
    site.fault(netfn=0x0A, cmd=0x23, data="0000000000ff", completion_code=0xCA)
    site.fault(netfn=0x0A, cmd=0x23, after=4, count=1, completion_code=0xC5)
    assert await site.invoke("management.getSensors") == whole


async def test_a_sensor_that_cannot_be_read_now_is_listed_without_a_reading(site: Site) -> None:
    site.fault(netfn=4, cmd=0x2D, completion_code=0xCB)
    sensors = _list(await site.invoke("management.getSensors"), "sensors")
    assert sensors
    assert {(sensor["reading"], sensor["status"]) for sensor in sensors} == {(None, "unknown")}


async def test_health_is_the_worst_of_chassis_and_sensors(site: Site) -> None:
    health = await site.invoke("management.getHealth")
    assert health["rollup"] == "ok"
    names = [component["name"] for component in _list(health, "components")]
    assert "drive fault" in names
    assert "PSU1 Status" in names


async def test_health_without_a_sensor_repository_is_the_chassis_alone(site: Site) -> None:
    site.fault(netfn=0x0A, cmd=0x20, completion_code=0xC1)
    health = await site.invoke("management.getHealth")
    assert {component["kind"] for component in _list(health, "components")} == {"chassis"}


async def test_the_light_is_switched_and_read(site: Site) -> None:
    for state in ("on", "off"):
        assert await site.invoke("management.setIndicator", state=state) == {"state": state}
        assert await site.invoke("management.getIndicator") == {"state": state}


async def test_a_light_that_cannot_stay_on_is_on_for_a_while_and_that_is_told(site: Site) -> None:
    site.fault(netfn=0, cmd=4, data="0001", completion_code=0xC7)
    reply = await site.reply("management.setIndicator", state="on")
    assert reply.result == {"state": "on"}
    assert "255 s" in reply.observed["indicator"]
    assert site.asked(*IDENTIFY)[-1].data == b"\xff"


async def test_blinking_is_not_a_choice_in_ipmi(site: Site) -> None:
    assert (await site.refused("management.setIndicator", state="blink")).code is ErrorCode.UNSUPPORTED
    assert site.asked(*IDENTIFY) == []


async def test_a_bmc_reset_is_sent_once_and_waits_until_the_bmc_is_back(start_site: StartSite, hasty: None) -> None:
    site = await start_site(restart_seconds=0.3)
    result = await site.invoke("management.resetBmc")
    assert result["version"] == "2.14"
    assert site.bmc.restarts == 1
    assert len(site.asked(*COLD_RESET)) == 1


@pytest.mark.parametrize("effect", ["drop_answer", "drop"])
async def test_a_bmc_reset_without_an_answer_is_settled_by_looking_and_never_sent_again(
    start_site: StartSite, hasty: None, effect: str
) -> None:
    site = await start_site(restart_seconds=0.2)
    site.fault(netfn=6, cmd=2, **{effect: True})
    if effect == "drop_answer":
        assert (await site.invoke("management.resetBmc"))["version"] == "2.14"
    else:
        assert (await site.refused("management.resetBmc")).code is ErrorCode.OUTCOME_UNKNOWN
    assert len(site.asked(*COLD_RESET)) == 1


async def test_qualify_gives_evidence_for_every_operation_and_changes_nothing(site: Site) -> None:
    found = {o["operation"]: o for o in _list(await site.invoke("management.qualify"), "operations")}
    assert found["power.setPower"]["support"] == "supported"
    assert found["virtual-media.insertMedia"]["support"] == "unsupported"
    assert found["management.resetBmc"]["support"] == "unknown"
    assert all(row["evidence"] for row in found.values())
    changing = {(0, 2), (0, 4), (0, 8), (6, 2), (0x0A, 0x47)}
    assert not [e for e in site.bmc.journal.commands() if (e.netfn, e.cmd) in changing]


async def test_qualify_names_a_privilege_that_is_too_low(site: Site) -> None:
    site.fault(netfn=6, cmd=0x3B, completion_code=0x81)
    found = {o["operation"]: o for o in _list(await site.invoke("management.qualify"), "operations")}
    assert found["power.getPower"]["support"] == "supported"
    assert "OPERATOR" in str(found["power.setPower"]["evidence"])


async def test_qualify_quotes_a_refusal(site: Site) -> None:
    site.fault(netfn=0x0A, cmd=0x40, completion_code=0xC1)
    found = {o["operation"]: o for o in _list(await site.invoke("management.qualify"), "operations")}
    assert found["management.getEventLog"]["support"] == "unsupported"
    assert "0xc1 (invalid command)" in str(found["management.getEventLog"]["evidence"])


def _list(result: dict[str, object], key: str) -> list[dict[str, object]]:
    rows = result[key]
    assert isinstance(rows, list)
    return rows
