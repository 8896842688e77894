"""The configuration drive: its file system, its files, its place."""

import shutil
import subprocess
from pathlib import Path

import pytest

from drivers.linux.config_drive import config_files, written_disk
from drivers.linux.connection import LinuxConnection
from drivers.linux.deploy import LinuxDeploy
from drivers.linux.disk_writer import UNFINISHED
from drivers.linux.fat import make_fat
from drivers.linux.records import DiskRecord, Records
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.deploy import DiskImage, DiskStage, RootDeviceHints, WriteConfigDrive
from tests.drivers.linux.disk_images import LINUX_ROOT, gpt_image
from tests.drivers.linux.machine import Machine, call

MIB = 1 << 20
FILES = {
    "user-data": b"#cloud-config\n",
    "meta-data": b"instance-id: i-1\n",
    "network-config": b"x" * 20000,
    "rackwright.json": b"{}",
    "thirteen-long": b"name of just thirteen characters",
    "empty": b"",
}
needs_mtools = pytest.mark.skipif(shutil.which("mtype") is None, reason="no mtools")


@needs_mtools
@pytest.mark.parametrize("sector", [512, 4096])
def test_others_read_the_files_by_their_long_names(sector: int, tmp_path: Path) -> None:
    file = tmp_path / "fat"
    file.write_bytes(make_fat(FILES, size=16 * MIB, sector=sector, label="CIDATA", serial=1).ljust(16 * MIB, b"\0"))
    for name, content in FILES.items():
        shown = subprocess.run(["mtype", "-i", file, f"::{name}"], capture_output=True, check=True).stdout
        assert shown == content, name
    label = subprocess.run(["mlabel", "-s", "-i", file], capture_output=True, text=True, check=True).stdout
    assert "CIDATA" in label


@pytest.mark.skipif(shutil.which("fsck.vfat") is None, reason="no fsck.vfat: install dosfstools")
def test_a_checker_finds_nothing_wrong(tmp_path: Path) -> None:
    file = tmp_path / "fat"
    file.write_bytes(make_fat(FILES, size=16 * MIB, sector=512, label="CIDATA", serial=1).ljust(16 * MIB, b"\0"))
    told = subprocess.run(["fsck.vfat", "-n", "-v", file], capture_output=True, text=True)
    assert told.returncode == 0, told.stdout


def test_the_same_input_is_the_same_bytes() -> None:
    made = [make_fat(FILES, size=16 * MIB, sector=512, label="CIDATA", serial=1) for _ in range(2)]
    assert made[0] == made[1]


def test_too_much_is_refused() -> None:
    with pytest.raises(ValueError, match="the files need"):
        make_fat({"user-data": bytes(17 * MIB)}, size=16 * MIB, sector=512, label="CIDATA", serial=1)


def test_an_instance_is_named_by_its_configuration_unless_it_has_a_name() -> None:
    one, other = (config_files(WriteConfigDrive(user_data=word), {})["meta-data"] for word in ("a", "b"))
    assert one != other
    assert one.startswith(b"instance-id: rackwright-")
    assert config_files(WriteConfigDrive(meta_data="instance-id: mine\n"), {})["meta-data"] == b"instance-id: mine\n"


def test_what_nobody_gave_is_there_as_cloud_init_wants_it() -> None:
    files = config_files(WriteConfigDrive(), {"rackwright.json": b"{}"})
    assert set(files) == {"user-data", "meta-data", "rackwright.json"}
    assert files["user-data"] == b"#cloud-config\n"


async def test_it_needs_a_disk_that_was_written(machine: Machine) -> None:
    machine.add_disk("sda", 40 * MIB)
    with pytest.raises(OperationError, match=r"use deploy\.writeImage first") as refused:
        await LinuxDeploy(LinuxConnection(machine.host)).write_config_drive(WriteConfigDrive(), call())
    assert refused.value.code is ErrorCode.CONFLICT


async def test_hints_name_the_disk_and_the_agents_own_files_are_on_it(machine: Machine) -> None:
    file = machine.add_disk("sda", 60 * MIB)
    file.write_bytes(gpt_image(60 * MIB, [(1, LINUX_ROOT, 2048, 40000)]))

    async def own() -> dict[str, bytes]:
        return {"rackwright.json": b'{"token": "one-time"}'}

    asked = WriteConfigDrive(user_data="#cloud-config\n", root_device=RootDeviceHints(name="sda"), daemon=True)
    deploy = LinuxDeploy(LinuxConnection(machine.host, own))
    result = await deploy.write_config_drive(asked, call())
    assert result.partition == "sda2"
    before = file.read_bytes()
    assert b'{"token": "one-time"}' in before
    assert "one-time" not in repr(result)
    assert await deploy.write_config_drive(asked, call()) == result
    assert file.read_bytes() == before


async def test_a_ticket_is_only_brought_where_it_is_asked_for_and_can_be_had(machine: Machine) -> None:
    file = machine.add_disk("sda", 60 * MIB)
    file.write_bytes(gpt_image(60 * MIB, [(1, LINUX_ROOT, 2048, 40000)]))

    async def own() -> dict[str, bytes]:
        raise AssertionError("nobody asked for it")

    hints = RootDeviceHints(name="sda")
    await LinuxDeploy(LinuxConnection(machine.host, own)).write_config_drive(
        WriteConfigDrive(root_device=hints), call()
    )
    asked = WriteConfigDrive(root_device=hints, daemon=True)
    with pytest.raises(OperationError, match="only the agent of a ramdisk") as refused:
        await LinuxDeploy(LinuxConnection(machine.host)).write_config_drive(asked, call())
    assert refused.value.code is ErrorCode.UNSUPPORTED


async def test_a_half_written_disk_takes_none(machine: Machine) -> None:
    file = machine.add_disk("sda", 60 * MIB)
    file.write_bytes(UNFINISHED.ljust(60 * MIB, b"\0"))
    asked = WriteConfigDrive(root_device=RootDeviceHints(name="sda"))
    with pytest.raises(OperationError, match="was not written to its end"):
        await LinuxDeploy(LinuxConnection(machine.host)).write_config_drive(asked, call())


@pytest.mark.parametrize("stage", [DiskStage.UNDER_WAY, DiskStage.FAILED])
async def test_a_disk_that_hints_name_and_whose_writing_has_failed_takes_none(
    machine: Machine, stage: DiskStage
) -> None:
    """Its table may be there already: its file system was being grown."""
    file = machine.add_disk("sda", 60 * MIB, serial="S-1")
    file.write_bytes(gpt_image(60 * MIB, [(1, LINUX_ROOT, 2048, 40000)]))
    image = DiskImage(stage=stage, image="http://images.example/debian.raw")
    Records(machine.host.state).write("sda", DiskRecord(serial="S-1", size_bytes=60 * MIB, image=image))
    for hints in (RootDeviceHints(name="sda"), None):
        with pytest.raises(OperationError, match=r"use deploy\.writeImage") as refused:
            written_disk(machine.host, hints, "boot.kexec")
        assert refused.value.code is ErrorCode.CONFLICT


def test_another_disk_that_has_the_name_of_the_written_one_is_not_it(machine: Machine) -> None:
    machine.add_disk("sda", 60 * MIB, serial="S-2")
    image = DiskImage(stage=DiskStage.DONE, image="http://images.example/debian.raw")
    Records(machine.host.state).write("sda", DiskRecord(serial="S-1", size_bytes=60 * MIB, image=image))
    with pytest.raises(OperationError, match="no image was written since this machine was started"):
        written_disk(machine.host, None, "boot.kexec")
