"""The driver against OpenIPMI's `ipmi_sim`: suite 3 only, an empty event log, boot flags that are not given back."""

import pytest

from drivers import Drivers, Target
from protocol.errors import ErrorCode, OperationError
from tests.drivers.ipmi.conftest import IpmiSim

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
