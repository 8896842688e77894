"""qcow2 images: read as QEMU writes them, and written to a disk that is their own way-station."""

import hashlib
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from drivers.linux.connection import LinuxConnection
from drivers.linux.decoding import DecodingError
from drivers.linux.deploy import LinuxDeploy
from drivers.linux.qcow2 import Qcow2, parse_header
from protocol.errors import OperationError
from protocol.shapes.deploy import Image, RootDeviceHints, WriteImage, WriteImageResult
from tests.drivers.linux.disk_images import compressible
from tests.drivers.linux.image_server import serving
from tests.drivers.linux.machine import Machine, call

MIB = 1 << 20
needs_qemu = pytest.mark.skipif(shutil.which("qemu-img") is None, reason="no qemu-img: install qemu-utils")


def made_by_hand(content: bytes, *, bits: int = 16) -> bytes:
    """The smallest file that QEMU reads: header, one L1 and one L2 table, the clusters."""
    cluster = 1 << bits
    count = -(-len(content) // cluster)
    assert count <= cluster // 8
    header = struct.pack(
        ">4sIQIIQIIQQIIQ", b"QFI\xfb", 2, 0, 0, bits, len(content), 0, 1, cluster, 3 * cluster, 1, 0, 0
    )
    l1 = struct.pack(">Q", 2 * cluster | 1 << 63)
    l2, data, place = b"", b"", 4 * cluster
    for start in range(0, len(content), cluster):
        part = content[start : start + cluster].ljust(cluster, b"\0")
        if any(part):
            l2 += struct.pack(">Q", place | 1 << 63)
            data += part
            place += cluster
        else:
            l2 += bytes(8)
    return b"".join(part.ljust(cluster, b"\0") for part in (header, l1, l2, b"")) + data


def read_all(file: bytes) -> bytes:
    image = Qcow2(lambda offset, size: file[offset : offset + size].ljust(size, b"\0"))
    memory = bytearray(image.header.size + 100)
    assert image.read_into(memoryview(memory)) == image.header.size
    return bytes(memory[: image.header.size])


async def write(machine: Machine, file: bytes) -> WriteImageResult:
    with serving(file) as server:
        address = server.url.replace("image.raw", "image.qcow2")
        arguments = WriteImage(
            image=Image(url=address, sha256=hashlib.sha256(file).hexdigest()), root_device=RootDeviceHints(name="sda")
        )
        return await LinuxDeploy(LinuxConnection(machine.host)).write_image(arguments, call())


def test_a_file_becomes_the_disk_that_it_holds() -> None:
    content = compressible(3 * MIB + 512)
    assert read_all(made_by_hand(content)) == content


@needs_qemu
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["-c"],
        ["-c", "-o", "compression_type=zstd"],
        ["-o", "cluster_size=4096"],
        ["-o", "compat=0.10"],
        ["-o", "cluster_size=2M"],
        ["-o", "preallocation=metadata"],
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_files_of_qemu_become_the_disks_that_they_hold(options: list[str], tmp_path: Path) -> None:
    content = compressible(9 * MIB)
    raw, made = tmp_path / "raw", tmp_path / "qcow2"
    raw.write_bytes(content)
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", *options, raw, made], check=True)
    assert read_all(made.read_bytes()) == content


async def test_an_image_is_decoded_from_the_disks_own_end_and_leaves_nothing_there(machine: Machine) -> None:
    content = compressible(8 * MIB)
    machine.add_disk("sda", 40 * MIB)
    result = await write(machine, made_by_hand(content))
    written = machine.bytes_of("sda")
    assert written[: len(content)] == content
    assert not any(written[len(content) :])
    assert result.bytes == len(content)
    assert result.checksum == hashlib.sha256(made_by_hand(content)).hexdigest()


async def test_a_disk_without_room_for_both_is_refused_with_what_to_do(machine: Machine) -> None:
    machine.add_disk("sda", 12 * MIB)
    with pytest.raises(OperationError, match=r"publish it as raw\.zst"):
        await write(machine, made_by_hand(compressible(8 * MIB)))


async def test_a_file_that_leans_on_another_is_refused_at_its_beginning(machine: Machine) -> None:
    file = bytearray(made_by_hand(compressible(2 * MIB)))
    file[8:16] = struct.pack(">Q", 1024)
    machine.add_disk("sda", 12 * MIB)
    with pytest.raises(OperationError, match="publish it in one piece"):
        await write(machine, bytes(file))


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (0, b"QFI\0", "no qcow2"),
        (4, struct.pack(">I", 4), "version 4"),
        (32, struct.pack(">I", 1), "encrypted"),
        (20, struct.pack(">I", 63), "impossible sizes"),
        (24, struct.pack(">Q", 1 << 60), "impossible sizes"),
    ],
)
def test_what_cannot_be_written_is_refused(place: int, value: bytes, said: str) -> None:
    header = bytearray(made_by_hand(bytes(MIB))[:512])
    header[place : place + len(value)] = value
    with pytest.raises(ValueError, match=said):
        parse_header(bytes(header))


def test_a_damaged_cluster_is_told_and_not_written_as_it_is() -> None:
    file = bytearray(made_by_hand(compressible(MIB, seed=3)))
    file[2 << 16 : (2 << 16) + 8] = struct.pack(">Q", 1 << 62 | 4 << 16)
    file[4 << 16 : 5 << 16] = b"\xff" * (1 << 16)
    with pytest.raises(DecodingError, match="cannot be decompressed"):
        read_all(bytes(file))
