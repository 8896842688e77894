"""The driver against OpenIPMI's `ipmi_sim`: suite 3 only, an empty event log, boot flags that are not given back."""

import asyncio
import os
import shutil
import subprocess
from typing import Any, cast

import pytest

from drivers import Drivers, Target, load, operations_of
from protocol.errors import ErrorCode, OperationError
from tests.drivers.ends import ended
from tests.drivers.ipmi.conftest import PASSWORD, IpmiSim, StartSite
from tests.drivers.ipmi.peer_table import BY_TESTS_OF_THEIR_OWN, IPMI_SIM

pytestmark = pytest.mark.e2e


async def test_power_is_driven_and_the_machine_behind_agrees(ipmi_sim: IpmiSim) -> None:
    async with Drivers() as drivers:
        assert (await drivers.invoke(ipmi_sim.target, "power.getPower"))["state"] == "off"
        for action, state in (("on", "on"), ("reset", "on"), ("off", "off")):
            result = await drivers.invoke(ipmi_sim.target, "power.setPower", {"action": action}, timeout=20)
            assert result["state"] == state
            assert ipmi_sim.state()["power"] == ("1" if state == "on" else "0")


@pytest.mark.parametrize(("device", "kept"), [("pxe", "pxe"), ("cd", "cdrom"), ("bios", "bios"), ("disk", "default")])
async def test_the_boot_device_reaches_the_machine_and_the_missing_flags_are_told(
    ipmi_sim: IpmiSim, device: str, kept: str
) -> None:
    async with Drivers() as drivers:
        async with drivers.turn(ipmi_sim.target, "boot.setBootDevice", {"device": device}) as turn:
            reply = await turn.run({"device": device, "mode": "bios"})
        assert reply.result["target"] == device
        assert "does not give its flags" in reply.observed["bootReadBack"]
    assert ipmi_sim.state()["boot"] == kept


async def test_it_is_described_and_its_sensor_is_read(ipmi_sim: IpmiSim) -> None:
    async with Drivers() as drivers:
        info = await drivers.invoke(ipmi_sim.target, "management.getInfo")
        assert (info["vendor"], info["model"], info["serial"]) == ("ACME", "SIMBOARD", "SN0001")
        sensors = (await drivers.invoke(ipmi_sim.target, "management.getSensors"))["sensors"]
        assert isinstance(sensors, list)
        assert [(s["name"], s["reading"], s["unit"], s["status"]) for s in sensors] == [("DJTemp", 96.0, "°C", "ok")]
        assert (await drivers.invoke(ipmi_sim.target, "management.getEventLog"))["entries"] == []
        assert (await drivers.invoke(ipmi_sim.target, "management.clearEventLog"))["cleared"] is True


async def test_a_wrong_password_is_refused_once_and_then_blocked(ipmi_sim: IpmiSim) -> None:
    target = Target(address=ipmi_sim.target.address, username="admin", password="wrong")
    async with Drivers() as drivers:
        for expected in (ErrorCode.AUTH_FAILED, ErrorCode.AUTH_BLOCKED):
            with pytest.raises(OperationError) as caught:
                await drivers.invoke(target, "power.getPower")
            assert caught.value.code is expected


def ipmitool(target: Target, password: str, suite: int, *words: str) -> list[str]:
    """What ipmitool, another client, reads from the BMC."""
    program = shutil.which("ipmitool")
    if program is None:
        pytest.skip("no ipmitool here: install the package ipmitool")
    host, _, port = target.endpoint.rpartition(":")
    login = ["-H", host, "-p", port, "-U", "admin", "-E", "-C", str(suite)]
    run = subprocess.run(
        [program, "-I", "lanplus", *login, *words],
        env={**os.environ, "IPMI_PASSWORD": password},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.split()


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ({"device": "pxe", "mode": "bios"}, ["80", "04"]),
        ({"device": "pxe", "mode": "uefi"}, ["a0", "04"]),
        ({"device": "pxe", "mode": "uefi", "persistent": True}, ["e0", "04"]),
        ({"device": "cd", "mode": "bios", "persistent": True}, ["c0", "14"]),
        ({"device": "disk", "mode": "uefi"}, ["a0", "08"]),
        ({"device": "bios", "mode": "uefi"}, ["a0", "18"]),
        ({"device": "none"}, ["00", "00"]),
    ],
)
async def test_another_client_reads_the_boot_flags_as_they_were_meant(
    start_site: StartSite, arguments: dict[str, Any], flags: list[str]
) -> None:
    site = await start_site()
    await site.invoke("boot.setBootDevice", **arguments)
    read = await asyncio.to_thread(ipmitool, site.target, PASSWORD, 17, "raw", "0x00", "0x09", "0x05", "0x00", "0x00")
    assert read[2:4] == flags


async def test_the_device_in_the_boot_flags_of_the_peer_is_the_one_that_was_asked_for(ipmi_sim: IpmiSim) -> None:
    async with Drivers() as drivers:
        for device, code in (("pxe", "04"), ("cd", "14"), ("disk", "08"), ("bios", "18"), ("none", "00")):
            await drivers.invoke(ipmi_sim.target, "boot.setBootDevice", {"device": device, "mode": "bios"})
            read = await asyncio.to_thread(
                ipmitool, ipmi_sim.target, "secret", 3, "raw", "0x00", "0x09", "0x05", "0x00", "0x00"
            )
            assert read[3] == code


async def test_an_entry_that_another_client_wrote_is_read_from_the_log_and_cleared(ipmi_sim: IpmiSim) -> None:
    # A temperature sensor crosses its upper critical threshold upwards (IPMI 2.0, table 32-1).
    entry = [
        "0x00",
        "0x00",
        "0x02",
        "0x00",
        "0x00",
        "0x00",
        "0x00",
        "0x20",
        "0x00",
        "0x04",
        "0x01",
        "0x01",
        "0x01",
        "0x59",
        "0x60",
        "0x50",
    ]
    await asyncio.to_thread(ipmitool, ipmi_sim.target, "secret", 3, "raw", "0x0a", "0x44", *entry)
    async with Drivers() as drivers:
        log = await drivers.invoke(ipmi_sim.target, "management.getEventLog")
        (read,) = cast(list[dict[str, str]], log["entries"])
        assert read["severity"] == "critical"
        assert "temperature: above the upper critical threshold" in read["text"]
        assert await drivers.invoke(ipmi_sim.target, "management.clearEventLog") == {"cleared": True, "remaining": 0}
        assert (await drivers.invoke(ipmi_sim.target, "management.getEventLog"))["entries"] == []
    assert "0" in await asyncio.to_thread(ipmitool, ipmi_sim.target, "secret", 3, "sel", "info")


async def test_the_fru_of_the_peer_is_in_the_inventory(ipmi_sim: IpmiSim) -> None:
    async with Drivers() as drivers:
        inventory = await drivers.invoke(ipmi_sim.target, "inspect.getInventory")
    system = cast(dict[str, str], inventory["system"])
    assert (system["vendor"], system["model"], system["serial"], system["partNumber"]) == (
        "ACME",
        "SIMBOARD",
        "SN0001",
        "PN42",
    )


async def test_every_operation_ends_at_the_peer_as_it_really_answers(ipmi_sim: IpmiSim) -> None:
    assert list(IPMI_SIM) == operations_of(load("ipmi"))
    async with Drivers() as drivers:
        for operation, end in IPMI_SIM.items():
            if operation in BY_TESTS_OF_THEIR_OWN:
                continue
            found = await ended(drivers.invoke(ipmi_sim.target, operation, end.arguments))
            assert end.is_met_by(found), (operation, found)
