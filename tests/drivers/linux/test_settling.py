"""After a crash of the agent: what the disks prove of a command whose result was lost."""

import hashlib
from collections.abc import Mapping
from urllib.parse import urljoin

import msgspec
import pytest

from agent.observing import observe
from drivers import Drivers, Target
from drivers.linux import DRIVER
from drivers.linux.block_device import BlockDevice
from drivers.linux.connection import LinuxConnection
from drivers.linux.deploy import LinuxDeploy
from drivers.linux.disk_writer import cover_up
from drivers.linux.records import DiskRecord, Records
from protocol.commands import DriverInvoke, Ending, Outcome
from protocol.errors import OperationError
from protocol.image_admission import hidden
from protocol.shapes import Nothing
from protocol.shapes.deploy import (
    DiskErasure,
    DiskImage,
    DiskStage,
    EraseDisks,
    EraseMode,
    Image,
    RootDeviceHints,
    WriteImage,
)
from tests.drivers.linux.disk_images import compressible
from tests.drivers.linux.image_server import serving
from tests.drivers.linux.machine import Machine, call

MIB = 1 << 20
IMAGE = compressible(6 * MIB)
DIGEST = hashlib.sha256(IMAGE).hexdigest()
URL = "http://images.example/debian.raw"


def invoke(operation: str, **args: object) -> DriverInvoke:
    return DriverInvoke("linux", "deploy", operation, args, "node_1")


def write_command(url: str = URL, digest: str = DIGEST) -> DriverInvoke:
    return invoke("writeImage", image={"url": url, "sha256": digest}, rootDevice={"name": "sda"})


async def settled(machine: Machine, command: DriverInvoke) -> Ending:
    deploy = LinuxDeploy(LinuxConnection(machine.host))

    async def read(operation: str) -> Mapping[str, object]:
        assert operation == "deploy.getDisks"
        built: dict[str, object] = msgspec.to_builtins(await deploy.get_disks(Nothing(), call(operation)))
        return built

    return await observe(command, read)


@pytest.fixture(autouse=True)
def _disk(machine: Machine) -> None:
    machine.add_disk("sda", 30 * MIB, serial="S-1").write_bytes(b"\xa5" * 30 * MIB)


async def written(machine: Machine, admission: str = "") -> str:
    """An image written in full; its address. `admission`: it came through the site."""
    with serving(IMAGE) as server:
        url = urljoin(server.url, f"/images/{admission}/{DIGEST}/a.raw") if admission else server.url
        arguments = WriteImage(image=Image(url=url, sha256=DIGEST), root_device=RootDeviceHints(name="sda"))
        await LinuxDeploy(LinuxConnection(machine.host)).write_image(arguments, call())
        return url


async def test_a_write_whose_result_was_lost_succeeded(machine: Machine) -> None:
    url = await written(machine)
    ending = await settled(machine, write_command(url))
    assert ending.outcome is Outcome.SUCCEEDED
    assert ending.result is not None
    assert (ending.result["disk"], ending.result["bytes"], ending.result["checksum"]) == ("sda", len(IMAGE), DIGEST)


async def test_a_write_through_the_site_is_known_by_the_command_which_has_no_admission(machine: Machine) -> None:
    admission = "0123456789" * 4
    url = await written(machine, admission)
    ending = await settled(machine, write_command(hidden(url, admission)))
    assert ending.outcome is Outcome.SUCCEEDED


async def test_a_write_of_another_image_is_not_taken_for_it(machine: Machine) -> None:
    url = await written(machine)
    ending = await settled(machine, write_command(url, "00" * 32))
    assert ending.error is not None
    assert ending.error.code == "OUTCOME_UNKNOWN"


async def test_a_disk_that_was_changed_since_proves_nothing(machine: Machine) -> None:
    url = await written(machine)
    with (machine.host.dev / "sda").open("r+b") as file:
        file.write(b"changed")
    ending = await settled(machine, write_command(url))
    assert ending.error is not None
    assert ending.error.code == "OUTCOME_UNKNOWN"


async def test_a_write_that_was_broken_off_is_told_as_such_and_may_be_asked_for_again(machine: Machine) -> None:
    image = DiskImage(stage=DiskStage.UNDER_WAY, image=URL, expected=DIGEST)
    Records(machine.host.state).write("sda", DiskRecord(serial="S-1", size_bytes=30 * MIB, image=image))
    with BlockDevice(str(machine.host.dev / "sda"), writing=True) as device:
        cover_up(device, b"")
    ending = await settled(machine, write_command())
    assert ending.outcome is Outcome.FAILED
    assert ending.error is not None
    assert (ending.error.code, ending.error.retryable) == ("INTERRUPTED", True)
    assert "sda is marked as half written" in ending.error.message


async def test_without_a_record_nobody_knows(machine: Machine) -> None:
    ending = await settled(machine, write_command())
    assert ending.error is not None
    assert ending.error.code == "OUTCOME_UNKNOWN"
    assert "disks: sda" in ending.error.message


async def test_a_record_of_another_disk_of_that_name_is_none(machine: Machine) -> None:
    image = DiskImage(stage=DiskStage.UNDER_WAY, image=URL, expected=DIGEST)
    Records(machine.host.state).write("sda", DiskRecord(serial="S-2", size_bytes=30 * MIB, image=image))
    ending = await settled(machine, write_command())
    assert ending.error is not None
    assert ending.error.code == "OUTCOME_UNKNOWN"


@pytest.mark.parametrize("mode", EraseMode)
async def test_an_erasure_whose_result_was_lost_succeeded(machine: Machine, mode: EraseMode) -> None:
    await LinuxDeploy(LinuxConnection(machine.host)).erase_disks(EraseDisks(mode=mode), call())
    ending = await settled(machine, invoke("eraseDisks", mode="metadata"))
    assert ending.outcome is Outcome.SUCCEEDED
    assert ending.result is not None
    disks = msgspec.convert(ending.result["disks"], list[dict[str, object]])
    assert [disk["disk"] for disk in disks] == ["sda"]


async def test_an_erasure_of_all_that_left_a_disk_in_use_has_not_succeeded(machine: Machine) -> None:
    machine.add_disk("sdb", 30 * MIB, serial="S-2", device="pci0000:00/0000:00:05.0/virtio2")
    machine.write("block/sdb/holders/dm-0/x", "")
    with pytest.raises(OperationError, match="in use by dm-0"):
        await LinuxDeploy(LinuxConnection(machine.host)).erase_disks(EraseDisks(mode=EraseMode.METADATA), call())
    ending = await settled(machine, invoke("eraseDisks", mode="metadata"))
    assert ending.outcome is Outcome.FAILED


async def test_a_metadata_erasure_is_no_full_one(machine: Machine) -> None:
    await LinuxDeploy(LinuxConnection(machine.host)).erase_disks(EraseDisks(mode=EraseMode.METADATA), call())
    ending = await settled(machine, invoke("eraseDisks", mode="full"))
    assert ending.error is not None
    assert ending.error.code == "OUTCOME_UNKNOWN"


@pytest.mark.parametrize(("mode", "code"), [(EraseMode.METADATA, "INTERRUPTED"), (EraseMode.FULL, "OUTCOME_UNKNOWN")])
async def test_a_broken_off_erasure_is_told_unless_the_drive_may_go_on_with_it(
    machine: Machine, mode: EraseMode, code: str
) -> None:
    erasure = DiskErasure(stage=DiskStage.UNDER_WAY, mode=mode)
    Records(machine.host.state).write("sda", DiskRecord(serial="S-1", size_bytes=30 * MIB, erasure=erasure))
    ending = await settled(machine, invoke("eraseDisks", mode=mode.value))
    assert ending.error is not None
    assert ending.error.code == code


async def test_the_driver_is_found_by_its_name_and_needs_no_bmc(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DRIVER, "host", machine.host)
    async with Drivers() as drivers:
        told = await drivers.invoke(Target(address="localhost", driver="linux"), "deploy.getDisks")
    disks = msgspec.convert(told["disks"], list[dict[str, object]])
    assert [(disk["name"], disk["serial"]) for disk in disks] == [("sda", "S-1")]
