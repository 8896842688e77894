"""What IPMI tells of a machine: FRU, GUID, firmware versions, and sensors that say that a part is there."""

from typing import Any

import pytest

from drivers.ipmi.system_info import join_blocks
from protocol.errors import ErrorCode
from simulators.ipmi.identity import Identity
from simulators.ipmi.sensors import DiscreteSensor
from tests.drivers.ipmi.conftest import Site, StartSite

SYSTEM_INFO = (0x06, 0x59)


async def inventory(site: Site) -> dict[str, Any]:
    return await site.invoke("inspect.getInventory")


async def qualified(site: Site) -> dict[str, Any]:
    report: dict[str, Any] = await site.invoke("management.qualify")
    return {line["operation"]: line for line in report["operations"]}


def sensor(number: int, name: str, kind: int, states: int) -> DiscreteSensor:
    return DiscreteSensor(number=number, name=name, type=kind, states=states)  # type: ignore[arg-type]


async def test_the_machine_is_identified_by_its_fru_its_guid_and_its_firmware(start_site: StartSite) -> None:
    guid = bytes.fromhex("efcdab896745238163efcd4c9a785634")[::-1]
    site = await start_site(identity=Identity(serial="SER-1", guid=guid))
    found = await inventory(site)
    system = found["system"]
    assert (system["vendor"], system["model"], system["serial"]) == ("Rackwright", "Simulated 1U Server", "SER-1")
    assert (system["partNumber"], system["assetTag"], system["hostName"]) == (
        "RW-1U-SIM",
        "rack-7-u12",
        "rackwright-sim",
    )
    assert found["chassis"] == [
        {
            "name": "chassis",
            "kind": None,
            "vendor": None,
            "model": None,
            "serial": "SER-1-C",
            "partNumber": "RW-CHASSIS-1U",
            "assetTag": None,
        }
    ]
    assert [(line["name"], line["version"]) for line in found["firmware"]] == [
        ("BIOS", "RW-BIOS 2.4.1"),
        ("BMC", "2.14"),
    ]
    assert found["unread"] == []


async def test_what_ipmi_does_not_tell_is_named_and_no_address_is_made_up(site: Site) -> None:
    found = await inventory(site)
    assert found["nics"] == []
    assert {"nics", "pci", "drives", "processors", "memory"} <= set(found["incomplete"])


async def test_parts_whose_sensors_say_that_they_are_there_are_listed(
    start_site: StartSite,
) -> None:
    site = await start_site(
        sensors=[
            sensor(1, "CPU1 Status", 0x07, 1 << 7),
            sensor(2, "CPU2 Status", 0x07, 0),
            sensor(3, "DIMM A1", 0x0C, 1 << 6),
            sensor(4, "Bay 0", 0x0D, 1),
            sensor(5, "PSU1", 0x08, 1),
        ]
    )
    found = await inventory(site)
    assert [item["socket"] for item in found["processors"]] == ["CPU1 Status"]
    assert [item["slot"] for item in found["memory"]] == ["DIMM A1"]
    assert [item["name"] for item in found["drives"]] == ["Bay 0"]
    assert found["system"]["processorCount"] == 1
    assert {entry.data[0] for entry in site.asked(0x04, 0x2D)} == {1, 2, 3, 4}


async def test_a_bmc_without_a_fru_still_tells_the_rest(start_site: StartSite) -> None:
    site = await start_site(identity=Identity(manufacturer=10876), frus=[])
    found = await inventory(site)
    assert (found["system"]["vendor"], found["system"]["serial"]) == ("Supermicro", None)
    assert found["unread"][0]["path"] == "FRU device 0"
    assert "system" in found["incomplete"]
    assert found["firmware"][-1] == {"name": "BMC", "version": "2.14", "updateable": None}


async def test_a_bmc_without_system_info_or_sensor_records_still_tells_the_rest(site: Site) -> None:
    site.fault(netfn=SYSTEM_INFO[0], cmd=SYSTEM_INFO[1], completion_code=0xC1)
    site.fault(netfn=0x0A, cmd=0x20, completion_code=0xC1)
    found = await inventory(site)
    assert [line["name"] for line in found["firmware"]] == ["BMC"]
    assert [line["path"] for line in found["unread"]] == ["SDR repository"]
    assert found["system"]["model"] == "Simulated 1U Server"


async def test_nothing_is_changed(site: Site) -> None:
    await inventory(site)
    changing = {(0, 2), (0, 4), (0, 8), (6, 2), (0x0A, 0x12), (0x0A, 0x47)}
    assert not [entry for entry in site.bmc.journal.commands() if (entry.netfn, entry.cmd) in changing]


async def test_a_bmc_that_does_not_answer_is_an_error(site: Site, hasty: None) -> None:
    site.fault(netfn=6, cmd=1, drop=True)
    assert (await site.refused("inspect.getInventory")).code is ErrorCode.UNREACHABLE


async def test_a_long_version_is_read_in_all_its_blocks(start_site: StartSite) -> None:
    version = "BIOS 1.2.3 of a maker with very long version texts"
    site = await start_site(identity=Identity(system_info={1: version}))
    found = await inventory(site)
    assert found["firmware"][0]["version"] == version
    assert found["system"]["hostName"] is None
    assert len([e for e in site.asked(*SYSTEM_INFO) if e.data[1] == 1]) == 4


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ([b"\x00\x05R1.04" + bytes(9)], "R1.04"),
        ([b"\x00\x10ABCDEFGHIJKLMN", b"OP" + bytes(14)], "ABCDEFGHIJKLMNOP"),
        ([b"\x02\x06" + "R1é".encode("utf-16-le")], "R1é"),
        ([b"\x01\x04R1\xc3\xa9"], "R1é"),
        ([b"\x00\x00" + bytes(14)], None),
        ([b"\x00"], None),
        ([], None),
        ([b"\x0f\xff" + b"\xff" * 14], None),
    ],
)
def test_a_system_info_text_is_joined_from_its_blocks(blocks: list[bytes], text: str | None) -> None:
    assert join_blocks(blocks) == text


async def test_qualify_tells_inspection_and_has_no_redfish_profile(site: Site) -> None:
    lines = await qualified(site)
    assert lines["inspect.getInventory"]["support"] == "supported"
    assert lines["bios.getBios"]["support"] == "unsupported"
    assert (await site.invoke("management.qualify"))["profile"] is None


@pytest.mark.parametrize(("enabled", "support"), [(b"\x01", "unknown"), (b"\x00", "unsupported")])
async def test_qualify_reads_whether_serial_over_lan_is_on(site: Site, enabled: bytes, support: str) -> None:
    site.bmc.sol_settings.write(1, enabled)
    assert (await qualified(site))["console.openConsole"]["support"] == support


async def test_a_bmc_that_does_not_tell_its_console_settings_may_have_one(site: Site) -> None:
    site.fault(netfn=0x0C, cmd=0x22, completion_code=0x80)
    assert (await qualified(site))["console.openConsole"]["support"] == "unknown"
