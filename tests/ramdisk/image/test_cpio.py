"""The initial ramdisk's archive."""

import stat
import struct
from collections.abc import Iterator

import pytest

from protocol.boot_ticket import AREA_NAME, AREA_SIZE
from ramdisk.image.cpio import archive_around, device, file, folder, link, make_archive

TIME = 1_700_000_000


def read(archive: bytes) -> Iterator[tuple[str, int, int, bytes]]:
    """Name, mode, device and content of each member, read by the format's own words."""
    place = 0
    while True:
        fields = [int(archive[place + 6 + 8 * index : place + 14 + 8 * index], 16) for index in range(13)]
        assert archive[place : place + 6] == b"070701"
        mode, size, major, minor, name_size = fields[1], fields[6], fields[9], fields[10], fields[11]
        name = archive[place + 110 : place + 110 + name_size]
        assert name.endswith(b"\0"), "Linux 6 takes an archive with another name for damaged"
        place += -(-(110 + name_size) // 4) * 4
        if name == b"TRAILER!!!\0":
            return
        yield name[:-1].decode(), mode, major << 8 | minor, archive[place : place + size]
        place += -(-size // 4) * 4


def test_an_archive_holds_files_folders_links_and_devices() -> None:
    members = [
        folder("dev"),
        device("dev/console", 5, 1),
        file("init", b"#!/bin/sh\n", 0o755),
        link("bin", "usr/bin"),
    ]
    assert list(read(make_archive(members, TIME))) == [
        ("bin", stat.S_IFLNK | 0o777, 0, b"usr/bin"),
        ("dev", stat.S_IFDIR | 0o755, 0, b""),
        ("dev/console", stat.S_IFCHR | 0o600, 5 << 8 | 1, b""),
        ("init", stat.S_IFREG | 0o755, 0, b"#!/bin/sh\n"),
    ]


def test_the_same_members_in_another_order_are_the_same_bytes() -> None:
    members = [folder("etc"), file("etc/hosts", b"127.0.0.1 localhost\n"), link("lib", "usr/lib")]
    assert make_archive(members, TIME) == make_archive(reversed(members), TIME)


def test_a_name_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="init is there twice"):
        make_archive([file("init", b"a"), file("init", b"b")], TIME)


def test_a_file_in_no_folder_is_refused() -> None:
    with pytest.raises(ValueError, match=r"etc/hosts is in etc, which is no folder"):
        make_archive([file("etc/hosts", b"")], TIME)


def test_two_ends_make_an_archive_of_what_lies_between_them() -> None:
    # As the boot loader does: it loads the two ends and the medium's area one behind the other.
    area = bytes(range(256)) * (AREA_SIZE // 256)
    head, tail = archive_around(AREA_NAME, AREA_SIZE)
    assert list(read(head + area + tail)) == [(AREA_NAME, stat.S_IFREG | 0o600, 0, area)]
    assert len(head) % 4 == 0, "boot loaders fill each file up to four bytes"


def test_ends_around_what_would_have_to_be_filled_up_are_refused() -> None:
    with pytest.raises(ValueError, match="63 bytes"):
        archive_around("x", 63)


def test_times_and_numbers_say_nothing_of_the_build() -> None:
    header = make_archive([file("init", b"")], TIME)[:110]
    inode, _mode, uid, gid, links, time = struct.unpack("8s8s8s8s8s8s", header[6:54])
    assert [int(field, 16) for field in (inode, uid, gid, links, time)] == [1, 0, 0, 1, TIME]
