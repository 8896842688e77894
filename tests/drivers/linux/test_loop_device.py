"""The same on a real block device of the kernel: partitions that it shows, file systems that grow, disks in use."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivers.linux.block_device import BlockDevice
from drivers.linux.connection import LinuxConnection
from drivers.linux.deploy import LinuxDeploy
from drivers.linux.disks import read_disks
from drivers.linux.host import Host
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.deploy import (
    EraseDisks,
    EraseMode,
    Image,
    ImageFormat,
    RootDeviceHints,
    WriteConfigDrive,
    WriteImage,
)
from tests.drivers.linux.disk_images import LINUX_ROOT, gpt_image, zstd
from tests.drivers.linux.image_server import serving
from tests.drivers.linux.machine import call

MIB = 1 << 20
SIZE = 400 * MIB
START = MIB


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[str]:
    """A loop device of 400 MiB, by its name."""
    if os.geteuid() != 0 or shutil.which("losetup") is None:
        pytest.skip("loop devices need root and losetup")
    file = tmp_path / "disk"
    with file.open("wb") as handle:
        handle.truncate(SIZE)
    made = subprocess.run(["losetup", "--find", "--show", "--partscan", file], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"this kernel gives no loop device: {made.stderr.strip()}")
    device = made.stdout.strip()
    yield Path(device).name
    subprocess.run(["losetup", "--detach", device], check=False)


@pytest.fixture
def deploy(tmp_path: Path) -> LinuxDeploy:
    return LinuxDeploy(LinuxConnection(Host(state=tmp_path / "state", loop_devices=True)))


def root_image(folder: Path, *make: str) -> bytes:
    """A disk of 120 MiB whose only partition is a root file system made by `make`."""
    if shutil.which(make[0]) is None:
        pytest.skip(f"{make[0]} is not installed")
    last = 118 * 2048 - 1
    image = bytearray(gpt_image(120 * MIB, [(1, LINUX_ROOT, START // 512, last)], fill=False))
    system = folder / "root"
    with system.open("wb") as handle:
        handle.truncate((last + 1) * 512 - START)
    subprocess.run([*make, system], check=True, capture_output=True)
    image[START : (last + 1) * 512] = system.read_bytes()
    return bytes(image)


def on(name: str) -> RootDeviceHints:
    return RootDeviceHints(name=name)


async def write(deploy: LinuxDeploy, name: str, image: bytes) -> list[str]:
    content = zstd(image)
    with serving(content) as server:
        digest = hashlib.sha256(content).hexdigest()
        published = Image(url=server.url, sha256=digest, format=ImageFormat.RAW_ZST)
        result = await deploy.write_image(WriteImage(image=published, root_device=on(name)), call())
    assert result.partition == f"{name}p1"
    return result.notes


async def test_the_root_file_system_grows_with_its_partition(loop: str, deploy: LinuxDeploy, tmp_path: Path) -> None:
    image = root_image(tmp_path, "mkfs.ext4", "-q")
    assert await write(deploy, loop, image) == []
    told = subprocess.run(["dumpe2fs", "-h", f"/dev/{loop}p1"], capture_output=True, text=True, check=True).stdout
    facts = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
    size = int(facts["Block count"]) * int(facts["Block size"])
    assert 380 * MIB <= size <= SIZE - 17 * MIB
    subprocess.run(["e2fsck", "-f", "-n", f"/dev/{loop}p1"], check=True, capture_output=True)


async def test_xfs_grows_while_it_is_mounted(loop: str, deploy: LinuxDeploy, tmp_path: Path) -> None:
    assert await write(deploy, loop, root_image(tmp_path, "mkfs.xfs", "-q", "--unsupported")) == []
    words = ["xfs_db", "-r", "-c", "sb 0", "-c", "print dblocks blocksize", f"/dev/{loop}p1"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    facts = dict(line.split(" = ") for line in told.splitlines())
    assert int(facts["dblocks"]) * int(facts["blocksize"]) > 350 * MIB


async def test_btrfs_grows_while_it_is_mounted(loop: str, deploy: LinuxDeploy, tmp_path: Path) -> None:
    assert await write(deploy, loop, root_image(tmp_path, "mkfs.btrfs", "-q")) == []
    words = ["btrfs", "inspect-internal", "dump-super", f"/dev/{loop}p1"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert next(int(line.split()[1]) for line in told.splitlines() if line.startswith("total_bytes")) > 350 * MIB


async def test_the_config_drive_is_a_partition_that_linux_mounts_by_its_label(
    loop: str, deploy: LinuxDeploy, tmp_path: Path
) -> None:
    await write(deploy, loop, root_image(tmp_path, "mkfs.ext4", "-q"))
    given = WriteConfigDrive(user_data="#cloud-config\nhostname: a\n", meta_data="instance-id: i-1\n")
    first = await deploy.write_config_drive(given, call())
    assert first.partition == f"{loop}p2"
    probed = subprocess.run(["blkid", "-p", f"/dev/{loop}p2"], capture_output=True, text=True).stdout
    assert 'LABEL="CIDATA"' in probed
    assert 'TYPE="vfat"' in probed
    # Another configuration goes to the same place.
    assert await deploy.write_config_drive(WriteConfigDrive(user_data="#!/bin/sh\n"), call()) == first
    subprocess.run(["e2fsck", "-f", "-n", f"/dev/{loop}p1"], check=True, capture_output=True)


async def test_a_mounted_disk_is_neither_written_nor_erased(loop: str, deploy: LinuxDeploy, tmp_path: Path) -> None:
    await write(deploy, loop, root_image(tmp_path, "mkfs.ext4", "-q"))
    place = tmp_path / "mounted"
    place.mkdir()
    subprocess.run(["mount", f"/dev/{loop}p1", place], check=True)
    try:
        with pytest.raises(OperationError, match=f"mounted at {place}") as refused:
            await deploy.erase_disks(EraseDisks(mode=EraseMode.FULL, disks=on(loop)), call())
        # Also where somebody mounts it between the look and the opening.
        with pytest.raises(OperationError, match="is in use") as late:
            BlockDevice(f"/dev/{loop}", writing=True)
    finally:
        subprocess.run(["umount", place], check=True)
    assert refused.value.code is late.value.code is ErrorCode.CONFLICT


@pytest.mark.parametrize(
    ("mode", "method"), [(EraseMode.FULL, "discarded"), (EraseMode.METADATA, "metadata cleared")]
)
async def test_an_erased_disk_shows_nothing_and_has_no_partitions(
    loop: str, deploy: LinuxDeploy, tmp_path: Path, mode: EraseMode, method: str
) -> None:
    await write(deploy, loop, root_image(tmp_path, "mkfs.ext4", "-q"))
    done = await deploy.erase_disks(EraseDisks(mode=mode, disks=on(loop)), call())
    assert [(disk.disk, disk.method) for disk in done.disks] == [(loop, method)]
    assert subprocess.run(["blkid", "-p", f"/dev/{loop}"], capture_output=True).returncode == 2
    host = Host(loop_devices=True)
    assert next(disk for disk in read_disks(host) if disk.name == loop).partitions == ()
    told = next(disk for disk in (await deploy.get_disks(Nothing(), call())).disks if disk.name == loop)
    assert told.contents == []
    assert told.image is None
    assert told.erasure is not None
    assert told.erasure.unchanged
