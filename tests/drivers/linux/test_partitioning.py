"""What becomes of an image's partition table on the disk that it is written to."""

import contextlib
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivers.linux import gpt, mbr
from drivers.linux.partitioning import (
    CONFIG_DRIVE_BYTES,
    Layout,
    check_head,
    find_config_drive,
    lay_out,
    read_table,
    with_config_drive,
)
from tests.drivers.linux.disk_images import LINUX_ROOT, SYSTEM, gpt_image

MIB = 1 << 20
DISK = 100 * MIB


def head_of(*parts: tuple[int, object, int, int], size: int = 20 * MIB, sector: int = 512) -> bytes:
    return gpt_image(size, list(parts), sector, fill=False)[:MIB]  # type: ignore[arg-type]


def mbr_head(*slots: tuple[int, int, int]) -> bytes:
    """(type, first sector, sectors) of each."""
    head = bytearray(MIB)
    head[510:512] = b"\x55\xaa"
    for place, (kind, first, sectors) in zip(range(446, 510, 16), slots, strict=False):
        head[place : place + 16] = struct.pack("<B3sB3sII", 0x80, b"\1\1\1", kind, b"\2\2\2", first, sectors)
    return bytes(head)


def on_disk(layout: Layout, size: int, folder: Path) -> Path:
    file = folder / "disk"
    with file.open("wb") as handle:
        handle.write(layout.head)
        handle.truncate(size)
        if layout.backup is not None:
            handle.seek(layout.backup[0])
            handle.write(layout.backup[1])
    return file


def test_the_root_takes_the_room_up_to_the_config_drives() -> None:
    layout = lay_out(head_of((14, SYSTEM, 2048, 4095), (1, LINUX_ROOT, 4096, 30000)), 512, DISK, grow=True)
    assert layout.grown
    assert layout.root is not None
    assert (layout.root.number, layout.root.start) == (1, 4096 * 512)
    assert layout.root.start + layout.root.size == DISK - CONFIG_DRIVE_BYTES - MIB
    assert [span.number for span in layout.spans] == [1, 14]


def test_a_root_that_is_not_the_last_partition_stays_as_it_is() -> None:
    layout = lay_out(head_of((1, LINUX_ROOT, 2048, 9000), (2, SYSTEM, 10000, 12000)), 512, DISK, grow=True)
    assert not layout.grown
    assert layout.note == "the last partition holds no Linux root: nothing was grown"
    assert layout.backup is not None
    assert layout.backup[0] + len(layout.backup[1]) == DISK


def test_an_image_without_a_table_stays_as_it_is() -> None:
    head = b"file system" + bytes(MIB)
    assert lay_out(head, 512, DISK, grow=True).head == head


@pytest.mark.parametrize("sector", [512, 4096])
@pytest.mark.skipif(shutil.which("sgdisk") is None, reason="no sgdisk: install gdisk")
def test_others_find_nothing_wrong_with_the_table(sector: int, tmp_path: Path) -> None:
    per_mib = MIB // sector
    layout = lay_out(head_of((1, LINUX_ROOT, per_mib, 10 * per_mib), sector=sector), sector, DISK, grow=True)
    layout, span = with_config_drive(layout.head, sector, DISK)
    file = on_disk(layout, DISK, tmp_path)
    if sector == 512:
        told = subprocess.run(["sgdisk", "--verify", file], capture_output=True, text=True, check=True).stdout
        assert "No problems found" in told
    assert span.start + span.size <= DISK
    assert gpt.parse(file.read_bytes()[:MIB], sector) is not None


def test_the_config_drive_is_made_once_and_found_again() -> None:
    grown = lay_out(head_of((1, LINUX_ROOT, 2048, 30000)), 512, DISK, grow=True)
    first, span = with_config_drive(grown.head, 512, DISK)
    assert (span.number, span.size, span.name) == (2, CONFIG_DRIVE_BYTES, "cidata")
    again, same = with_config_drive(first.head, 512, DISK)
    assert same == span
    assert again.head == first.head


def test_a_config_drive_that_the_image_brings_is_used() -> None:
    table = gpt.parse(head_of((1, LINUX_ROOT, 2048, 30000), (3, SYSTEM, 32000, 34000)), 512)
    assert table is not None
    own = replace(table.entries[1], name="CIDATA")
    head = gpt.encode(table.with_entry(own), head_of())[0]
    assert with_config_drive(head, 512, DISK)[1].number == 3


def test_no_room_is_told_with_the_sizes() -> None:
    full = head_of((1, LINUX_ROOT, 2048, (DISK - MIB) // 512), size=DISK)
    with pytest.raises(ValueError, match="a configuration drive needs 16 MiB behind them"):
        with_config_drive(full, 512, DISK)


def test_a_table_that_does_not_fit_the_disk_is_refused_at_the_first_mib() -> None:
    head = head_of((1, LINUX_ROOT, 2048, 30000))
    check_head(head, 512, DISK)
    with pytest.raises(ValueError, match="its partitions need"):
        check_head(head, 512, 10 * MIB)


def test_a_table_for_other_sectors_is_refused() -> None:
    with pytest.raises(ValueError, match="sectors of 512 bytes, and the disk's have 4096"):
        check_head(head_of((1, LINUX_ROOT, 2048, 30000)), 4096, DISK)


@pytest.mark.parametrize(
    ("place", "said"), [(512 + 40, "header is wrong"), (1024 + 3, "entries is wrong"), (512 + 13, "impossible sizes")]
)
def test_a_damaged_table_is_told(place: int, said: str) -> None:
    head = bytearray(head_of((1, LINUX_ROOT, 2048, 30000)))
    head[place] ^= 0xFF
    with pytest.raises(ValueError, match=said):
        gpt.parse(bytes(head), 512)


def test_an_mbr_grows_its_last_partition_and_takes_a_config_drive(tmp_path: Path) -> None:
    layout = lay_out(mbr_head((0xEF, 2048, 2048), (0x83, 4096, 20000)), 512, DISK, grow=True)
    assert layout.root is not None
    assert layout.root.start + layout.root.size == DISK - CONFIG_DRIVE_BYTES
    layout, span = with_config_drive(layout.head, 512, DISK)
    assert (span.number, span.start) == (3, DISK - CONFIG_DRIVE_BYTES)
    assert with_config_drive(layout.head, 512, DISK)[1] == span
    table = mbr.parse(layout.head)
    assert table is not None
    assert [slot.kind for slot in table.slots] == [0xEF, 0x83, 0x01]
    # The bytes that nobody asked to change are as they were.
    assert layout.head[446:462] == mbr_head((0xEF, 2048, 2048))[446:462]


def test_an_mbr_with_an_extended_partition_is_left_alone() -> None:
    head = mbr_head((0x83, 2048, 2048), (0x05, 4096, 2000))
    assert lay_out(head, 512, DISK, grow=True).head == head
    with pytest.raises(ValueError, match="no free entry"):
        with_config_drive(head, 512, DISK)


@pytest.mark.parametrize("head", [bytes(MIB), b"\xeb\x3c" + bytes(508) + b"\x55\xaa" + bytes(MIB)])
def test_what_is_no_table_is_none(head: bytes) -> None:
    table = read_table(head, 512)
    assert table is None
    assert find_config_drive(table, 512) is None


@settings(deadline=None)
@given(st.binary(max_size=2048), st.integers(0, 20000))
def test_no_damage_makes_the_reader_fail_in_another_way(noise: bytes, place: int) -> None:
    head = bytearray(head_of((1, LINUX_ROOT, 2048, 30000)))
    head[place : place + len(noise)] = noise
    with contextlib.suppress(ValueError):
        read_table(bytes(head), 512)
        lay_out(bytes(head), 512, DISK, grow=True)
