"""A machine that was just started: nothing looks at its disks before all of them are there."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from drivers.driver import Call, method_name
from drivers.linux import DRIVER
from drivers.linux.connection import LinuxConnection
from drivers.linux.deploy import LinuxDeploy
from drivers.linux.devices import settled
from drivers.linux.host import Ran
from protocol.errors import ErrorCode, OperationError
from protocol.operations import OPERATIONS
from protocol.shapes import Nothing
from tests.drivers.linux.machine import Machine, call

WAITING = "waiting until the machine has shown all its devices"
ARGUMENTS: Mapping[str, Mapping[str, object]] = {
    "deploy.eraseDisks": {"mode": "metadata"},
    "deploy.writeImage": {"image": {"url": "http://192.0.2.1/a.img", "sha256": "0" * 64}},
    "raid.applyRaid": {"volumes": []},
    "raid.createVolume": {"controller": "md", "level": "RAID1", "drives": ["sda", "sdb"]},
    "raid.deleteVolume": {"controller": "md", "volume": "md0"},
    "raid.clearRaid": {"controller": "md"},
}
"""Of the operations that need some."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivers.linux.devices._LOOK_SECONDS", 0.001)


def heard(seconds: float = 50.0) -> tuple[Call, list[str]]:
    """A call and what it tells of its progress."""
    words: list[str] = []
    return replace(call(seconds=seconds), progress=lambda message, _percent: words.append(message)), words


async def test_a_machine_that_has_shown_its_devices_or_never_said_so_is_not_waited_for(machine: Machine) -> None:
    asked, words = heard(seconds=0.0)
    await settled(machine.host, asked)
    assert words == []


async def test_a_disk_behind_a_slow_controller_is_seen_by_who_asks_before_it_is_there(machine: Machine) -> None:
    machine.add_disk("sda", 1 << 20)
    machine.host.devices_settling.touch()
    waiting = asyncio.Event()
    asked = replace(call(), progress=lambda message, _percent: waiting.set() if message == WAITING else None)
    reading = asyncio.create_task(LinuxDeploy(LinuxConnection(machine.host)).get_disks(Nothing(), asked))
    await waiting.wait()
    machine.add_disk("sdb", 1 << 20, device="pci0000:00/0000:00:1d.0/host9/target9:0:0/9:0:0:0")
    machine.host.devices_settling.unlink()
    assert [disk.name for disk in (await reading).disks] == ["sda", "sdb"]


async def test_a_machine_that_never_ends_looking_for_devices_is_used_as_it_is_and_that_is_told(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drivers.linux.devices._MOST_SECONDS", 0.01)
    machine.host.devices_settling.touch()
    asked, words = heard()
    await settled(machine.host, asked)
    assert words == [WAITING, "going on: after 0 s the machine still looks for devices"]


@pytest.mark.parametrize("name", sorted(DRIVER.operations))
async def test_no_operation_looks_at_the_machine_before(name: str, machine: Machine) -> None:
    """What each of them does with a time that is over before the devices are there: nothing."""
    operation = OPERATIONS[name]
    disk = machine.add_disk("sda", 1 << 20)
    disk.write_bytes(b"data".ljust(1 << 20, b"\1"))
    before = disk.read_bytes()
    machine.host.programs["mdadm"] = lambda _words: Ran(0, "", "")
    machine.host.devices_settling.touch()
    asked, words = heard(seconds=0.02)
    concern: Any = DRIVER.concerns[operation.concern](LinuxConnection(machine.host))
    arguments = msgspec.convert(ARGUMENTS.get(name, {}), operation.arguments)
    with pytest.raises(OperationError, match=f"no time was left while {WAITING}") as failure:
        await getattr(concern, method_name(operation))(arguments, asked)
    assert failure.value.code is ErrorCode.TIMEOUT
    assert (words, machine.host.ran, disk.read_bytes()) == ([WAITING], [], before)
