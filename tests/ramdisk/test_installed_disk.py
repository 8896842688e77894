"""The file systems of a disk, on real block devices of the kernel: found, read, and left as they were."""

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivers.linux.block_device import BlockDevice
from drivers.linux.disks import read_disks
from drivers.linux.host import Host
from drivers.linux.kernel_partitions import forget_partitions, show_partitions
from drivers.linux.partitioning import read_table, spans_of
from protocol.errors import OperationError
from ramdisk.installed_disk import mounted_volumes
from ramdisk.installed_kernel import installed_kernel
from ramdisk.volumes import Volumes, names_of
from tests.drivers.linux.disk_images import LINUX_ROOT, SYSTEM, gpt_image
from tests.ramdisk.systems import System
from tests.ramdisk.test_grub import STUB, debian_menu

MIB = 1 << 20
ESP, ROOT = (2048, 34 * 2048 - 1), (34 * 2048, 150 * 2048)


@pytest.fixture
def system(tmp_path: Path) -> System:
    system = System(tmp_path / "system").kernels("6.1.0-57-amd64", "6.1.0-9-amd64")
    system.write("/boot/efi/EFI/debian/grub.cfg", STUB % (System.ROOT, "/boot"))
    return system.write("/boot/grub/grub.cfg", debian_menu())


def attach(image: Path) -> tuple[str, Host]:
    """A loop device's name, and a host whose device files are the test's own: not everywhere does udev make them, and
    not every kernel reads a loop device's table by itself."""
    made = subprocess.run(["losetup", "--find", "--show", image], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"this kernel gives no loop device: {made.stderr.strip()}")
    name = Path(made.stdout.strip()).name
    with BlockDevice(f"/dev/{name}", writing=True) as device:
        table = read_table(device.read_bytes(0, MIB), device.sector)
        assert table is not None
        show_partitions(device, spans_of(table, device.sector))
    dev = image.parent / "dev"
    dev.mkdir()
    for place in [Path("/sys/block", name), *Path("/sys/block", name).glob(f"{name}p*")]:
        major, minor = (place / "dev").read_text().strip().split(":")
        os.mknod(dev / place.name, 0o600 | stat.S_IFBLK, os.makedev(int(major), int(minor)))
    return name, Host(loop_devices=True, dev=dev)


def detach(name: str) -> None:
    with BlockDevice(f"/dev/{name}", writing=True) as device:
        forget_partitions(device, [1, 2])
    subprocess.run(["losetup", "--detach", f"/dev/{name}"], check=False)


@pytest.fixture
def loop(tmp_path: Path, system: System) -> Iterator[tuple[str, Host]]:
    """A disk with an EFI system partition and a root."""
    needed = ("losetup", "mkfs.ext4", "mkfs.vfat", "mcopy", "mount")
    if os.geteuid() != 0 or any(shutil.which(program) is None for program in needed):
        pytest.skip(f"a disk of one's own needs root and {', '.join(needed)}")
    image = tmp_path / "disk"
    image.write_bytes(gpt_image(160 * MIB, [(1, SYSTEM, *ESP), (2, LINUX_ROOT, *ROOT)], fill=False))
    make(tmp_path / "esp.img", image, ESP, ["mkfs.vfat", "-F", "32", "-i", "7B1E4C2A"])
    subprocess.run(["mcopy", "-s", "-i", tmp_path / "esp.img", system.folder / "esp" / "EFI", "::"], check=True)
    put(tmp_path / "esp.img", image, ESP)
    make(
        tmp_path / "root.img",
        image,
        ROOT,
        ["mkfs.ext4", "-q", "-U", System.ROOT, "-L", "root", "-d", str(system.folder / "root")],
    )
    put(tmp_path / "root.img", image, ROOT)
    name, host = attach(image)
    yield name, host
    detach(name)


def make(file: Path, image: Path, span: tuple[int, int], words: list[str]) -> None:
    with file.open("wb") as handle:
        handle.truncate((span[1] + 1 - span[0]) * 512)
    subprocess.run([*words, file], check=True, capture_output=True)


def put(file: Path, image: Path, span: tuple[int, int]) -> None:
    with image.open("r+b") as handle:
        handle.seek(span[0] * 512)
        handle.write(file.read_bytes())


def shown(volumes: Volumes) -> list[tuple[int, str, str | None, bool]]:
    return [(one.number, one.kind, one.uuid, one.system_partition) for one in volumes.all]


async def test_a_disks_file_systems_are_found_and_its_kernel_chosen_and_nothing_is_written(
    loop: tuple[str, Host], tmp_path: Path
) -> None:
    before = (tmp_path / "disk").read_bytes()
    name, host = loop
    disk = next(disk for disk in read_disks(host) if disk.name == name)
    async with mounted_volumes(host, disk) as volumes:
        # A partition that this kernel cannot mount is left out, and the others still tell what is started.
        fat = [(1, "vfat", "7B1E-4C2A", True)] if "vfat" in Path("/proc/filesystems").read_text() else []
        assert shown(volumes) == [*fat, (2, "ext4", System.ROOT, False)]
        choice = installed_kernel(volumes, uefi=True, architecture="x86_64")
        assert choice.kernel.file is not None
        assert choice.kernel.file.read_text() == "kernel 6.1.0-57-amd64"
        places = [tree.root for one in volumes.all for tree in one.trees]
    assert not any(place.exists() for place in places)
    assert next(disk for disk in read_disks(host) if disk.name == name).mounted == ()
    assert (tmp_path / "disk").read_bytes() == before


async def test_a_disk_without_file_systems_is_told_of(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("losetup") is None:
        pytest.skip("a disk of one's own needs root and losetup")
    image = tmp_path / "disk"
    image.write_bytes(gpt_image(40 * MIB, [(1, SYSTEM, 2048, 4095), (2, LINUX_ROOT, 4096, 8191)], fill=False))
    name, host = attach(image)
    try:
        disk = next(disk for disk in read_disks(host) if disk.name == name)
        with pytest.raises(OperationError, match="no file system that can be read here"):
            async with mounted_volumes(host, disk):
                raise AssertionError("there is something")
    finally:
        detach(name)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("ext4", ["mkfs.ext4", "-q", "-U", System.ROOT, "-L", "system"]),
        ("btrfs", ["mkfs.btrfs", "-q", "-U", System.ROOT, "-L", "system"]),
        ("xfs", ["mkfs.xfs", "-q", "-m", f"uuid={System.ROOT}", "-L", "system"]),
    ],
)
def test_a_file_systems_own_names_are_read_from_what_its_own_program_made(
    tmp_path: Path, kind: str, words: list[str]
) -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    file = tmp_path / "image"
    with file.open("wb") as handle:
        handle.truncate(400 * MIB)
    subprocess.run([*words, file], check=True, capture_output=True)
    with file.open("rb") as handle:
        assert names_of(kind, handle.read(80 << 10)) == (System.ROOT, "system")


def test_fat_has_a_short_serial_for_a_uuid(tmp_path: Path) -> None:
    if shutil.which("mkfs.vfat") is None:
        pytest.skip("mkfs.vfat is not installed")
    for size, bits in ((40, "32"), (16, "16")):
        file = tmp_path / bits
        with file.open("wb") as handle:
            handle.truncate(size * MIB)
        words = ["mkfs.vfat", "-F", bits, "-i", "7B1E4C2A", "-n", "EFI"]
        subprocess.run([*words, file], check=True, capture_output=True)
        with file.open("rb") as handle:
            assert names_of("vfat", handle.read(80 << 10)) == ("7B1E-4C2A", "EFI")
