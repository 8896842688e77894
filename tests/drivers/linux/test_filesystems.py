"""File systems by their superblocks, their growing, and the programs that are run for it."""

import asyncio
import os

import pytest

from drivers.linux.filesystems import file_system_of, grow
from drivers.linux.host import Host, Ran
from protocol.errors import ErrorCode, OperationError
from tests.drivers.linux.machine import Machine


def head(*parts: tuple[int, bytes]) -> bytes:
    data = bytearray(72 << 10)
    for place, value in parts:
        data[place : place + len(value)] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (head((1080, b"\x53\xef")), "ext4"),
        (head((0, b"XFSB")), "xfs"),
        (head((65600, b"_BHRfS_M")), "btrfs"),
        (head((510, b"\x55\xaa"), (54, b"FAT12   ")), "vfat"),
        (head((510, b"\x55\xaa"), (82, b"FAT32   ")), "vfat"),
        (head((32769, b"CD001")), "iso9660"),
        (head((0, b"LUKS\xba\xbe")), "luks"),
        (head((512, b"LABELONE")), "lvm"),
        (head((4086, b"SWAPSPACE2")), "swap"),
        (head(), None),
        (b"", None),
    ],
)
def test_a_file_system_is_known_by_its_superblock(data: bytes, kind: str | None) -> None:
    assert file_system_of(data) == kind


async def test_a_missing_program_leaves_the_image_whole_and_is_told(machine: Machine) -> None:
    said = await grow(machine.host, "/dev/sda1", "ext4", 10)
    assert said == (
        "the file system on /dev/sda1 was not grown: resize2fs is not installed here, and growing ext4 needs it"
    )


async def test_a_file_system_that_fails_its_check_is_not_grown(machine: Machine) -> None:
    machine.host.programs["resize2fs"] = lambda _: Ran(0, "", "")
    machine.host.programs["e2fsck"] = lambda _: Ran(4, "", "/dev/sda1: UNEXPECTED INCONSISTENCY\n")
    said = await grow(machine.host, "/dev/sda1", "ext4", 10)
    assert "UNEXPECTED INCONSISTENCY" in (said or "")
    assert [words[0] for words in machine.host.ran] == ["e2fsck"]


async def test_a_growing_that_was_stopped_in_the_middle_is_never_called_done(machine: Machine) -> None:
    def stopped(_: tuple[str, ...]) -> Ran:
        raise OperationError(ErrorCode.TIMEOUT, "resize2fs did not end within 1 s and was stopped")

    machine.host.programs["e2fsck"] = lambda _: Ran(1, "", "")
    machine.host.programs["resize2fs"] = stopped
    with pytest.raises(OperationError) as failed:
        await grow(machine.host, "/dev/sda1", "ext4", 1)
    assert failed.value.code is ErrorCode.TIMEOUT


async def test_a_program_that_does_not_end_is_stopped() -> None:
    with pytest.raises(OperationError, match="sleep did not end within 0 s and was stopped") as late:
        await Host().run("sleep", "60", timeout=0.1)
    assert late.value.code is ErrorCode.TIMEOUT


async def test_a_cancelled_caller_leaves_no_program_behind() -> None:
    task = asyncio.create_task(Host().run("sh", "-c", "echo $$ >&2; exec sleep 61", timeout=60))
    while not (found := _sleepers("61")):
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not set(found) & set(_sleepers("61"))


def _sleepers(seconds: str) -> list[int]:
    """Our own children that sleep for so long."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            with open(f"/proc/{name}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if words[:2] == [b"sleep", seconds.encode()] and parent == os.getpid():
            found.append(int(name))
    return found


async def test_a_program_gets_nothing_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACKWRIGHT_SECRET", "secret")
    ran = await Host().run("env", timeout=10)
    assert "secret" not in ran.out
    assert "LC_ALL=C" in ran.out


async def test_a_program_that_is_not_there_is_unsupported() -> None:
    with pytest.raises(OperationError, match="no-such-program is not installed here") as missing:
        await Host().run("no-such-program", timeout=1)
    assert missing.value.code is ErrorCode.UNSUPPORTED


async def test_words_that_are_no_text_are_read_all_the_same() -> None:
    ran = await Host().run("printf", r"\377\n", timeout=10)
    assert ran.code == 0
    assert ran.out == "�\n"
