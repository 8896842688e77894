"""An image on its way to a disk: everything that a network, a server and a disk can do to it."""

import asyncio
import gzip
import hashlib
import os
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from drivers.linux.block_device import BlockDevice
from drivers.linux.connection import LinuxConnection
from drivers.linux.deploy import LinuxDeploy
from drivers.linux.disk_writer import HEAD, UNFINISHED, cover_up, reveal
from drivers.linux.host import Ran
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.deploy import DiskStage, Image, ImageFormat, RootDeviceHints, WriteImage, WriteImageResult
from tests.drivers.linux.disk_images import LINUX_ROOT, SYSTEM, compressible, gpt_image, zstd
from tests.drivers.linux.image_server import Faults, serving
from tests.drivers.linux.machine import Machine, call

MIB = 1 << 20
needs_sfdisk = pytest.mark.skipif(shutil.which("sfdisk") is None, reason="no sfdisk: install fdisk")
IMAGE = compressible(11 * MIB + 1536)


def image_of(url: str, content: bytes, form: ImageFormat = ImageFormat.RAW) -> Image:
    return Image(url=url, sha256=hashlib.sha256(content).hexdigest(), format=form)


async def write(machine: Machine, image: Image, *, seconds: float = 50.0, grow: bool = True) -> WriteImageResult:
    arguments = WriteImage(image=image, root_device=RootDeviceHints(name="sda"), grow_root=grow)
    return await LinuxDeploy(LinuxConnection(machine.host)).write_image(arguments, call(seconds=seconds))


async def stage(machine: Machine) -> DiskStage | None:
    disks = await LinuxDeploy(LinuxConnection(machine.host)).get_disks(Nothing(), call())
    image = disks.disks[0].image
    return None if image is None else image.stage


@pytest.fixture
def disk(machine: Machine) -> Path:
    file = machine.add_disk("sda", 40 * MIB)
    file.write_bytes(b"\xa5" * 40 * MIB)
    return file


@pytest.mark.parametrize(
    ("form", "content"),
    [
        (ImageFormat.RAW, IMAGE),
        (ImageFormat.RAW_ZST, zstd(IMAGE)),
        (ImageFormat.RAW_ZST, zstd(IMAGE[: 5 * MIB]) + zstd(IMAGE[5 * MIB :])),
        (ImageFormat.RAW_GZ, gzip.compress(IMAGE, 1)),
        (ImageFormat.RAW_GZ, gzip.compress(IMAGE[: 3 * MIB], 1) + gzip.compress(IMAGE[3 * MIB :], 1)),
    ],
    ids=["raw", "zstd", "zstd-frames", "gzip", "gzip-members"],
)
async def test_the_disk_holds_the_image_and_its_checksum_is_of_what_was_published(
    machine: Machine, disk: Path, form: ImageFormat, content: bytes
) -> None:
    with serving(content) as server:
        result = await write(machine, image_of(server.url, content, form))
    assert disk.read_bytes()[: len(IMAGE)] == IMAGE
    assert (result.disk, result.bytes) == ("sda", len(IMAGE))
    assert result.checksum == hashlib.sha256(content).hexdigest()
    assert "agrees" in (result.proof or "")
    assert await stage(machine) is DiskStage.DONE


async def test_the_format_is_taken_from_the_address(machine: Machine, disk: Path) -> None:
    content = zstd(IMAGE)
    with serving(content) as server:
        address = server.url.replace("image.raw", "debian.raw.zst")
        await write(machine, Image(url=address, sha512=hashlib.sha512(content).hexdigest()))
    assert disk.read_bytes()[: len(IMAGE)] == IMAGE


async def test_without_a_published_checksum_all_of_it_is_read_back(machine: Machine, disk: Path) -> None:
    with serving(IMAGE) as server:
        result = await write(machine, Image(url=server.url))
    assert result.proof == "all of it read back"


async def test_a_dropped_connection_is_gone_on_with_where_it_broke(machine: Machine, disk: Path) -> None:
    with serving(IMAGE, Faults(drops=[3 * MIB, 100, 5 * MIB, len(IMAGE)])) as server:
        await write(machine, image_of(server.url, IMAGE))
        assert server.asked == [None, f"bytes={3 * MIB}-", f"bytes={3 * MIB + 100}-", f"bytes={8 * MIB + 100}-"]
    assert disk.read_bytes()[: len(IMAGE)] == IMAGE


async def test_a_server_that_gives_less_than_was_asked_for_is_asked_for_the_rest(
    machine: Machine, disk: Path
) -> None:
    """Without a checksum nothing else would tell a cut image from a whole one."""
    with serving(IMAGE, Faults(drops=[3 * MIB, len(IMAGE)], part=5 * MIB)) as server:
        result = await write(machine, Image(url=server.url))
        assert server.asked == [None, f"bytes={3 * MIB}-", f"bytes={8 * MIB}-"]
    assert result.bytes == len(IMAGE)
    assert disk.read_bytes()[: len(IMAGE)] == IMAGE


async def test_without_a_checksum_and_a_word_of_the_server_a_cut_image_is_fetched_anew(
    machine: Machine, disk: Path
) -> None:
    with serving(IMAGE, Faults(drops=[6 * MIB, len(IMAGE)], tagged=False)) as server:
        result = await write(machine, Image(url=server.url))
        assert server.asked == [None, None]
    assert result.bytes == len(IMAGE)
    assert disk.read_bytes()[: len(IMAGE)] == IMAGE


async def test_a_server_that_goes_on_with_another_image_is_found_out(machine: Machine, disk: Path) -> None:
    faults = Faults(drops=[6 * MIB, len(IMAGE)], tags=['"old"'], heeds_conditions=False)
    with serving(IMAGE, faults) as server:
        await write(machine, Image(url=server.url))
        assert server.asked == [None, f"bytes={6 * MIB}-", None]


async def test_a_server_without_ranges_is_read_from_its_beginning_and_what_is_known_is_let_go(
    machine: Machine, disk: Path
) -> None:
    with serving(IMAGE, Faults(drops=[6 * MIB, len(IMAGE)], ranges=False)) as server:
        await write(machine, image_of(server.url, IMAGE))
        assert len(server.asked) == 2
    assert disk.read_bytes()[: len(IMAGE)] == IMAGE


async def test_an_image_that_is_replaced_while_it_is_read_is_fetched_anew(machine: Machine, disk: Path) -> None:
    with serving(IMAGE, Faults(drops=[6 * MIB, len(IMAGE)], tags=['"old"'])) as server:
        await write(machine, image_of(server.url, IMAGE))
        assert server.asked == [None, f"bytes={6 * MIB}-", None]
    assert disk.read_bytes()[: len(IMAGE)] == IMAGE


@pytest.mark.parametrize("faults", [Faults(chunked=True), Faults(length=False)], ids=["chunked", "no length"])
async def test_an_answer_that_does_not_tell_its_length_is_read_to_its_end(
    machine: Machine, disk: Path, faults: Faults
) -> None:
    with serving(IMAGE, faults) as server:
        await write(machine, image_of(server.url, IMAGE))
    assert disk.read_bytes()[: len(IMAGE)] == IMAGE


async def test_a_server_error_that_passes_is_waited_for(machine: Machine, disk: Path) -> None:
    with serving(IMAGE, Faults(status=[503, 429, 200])) as server:
        await write(machine, image_of(server.url, IMAGE))
        assert len(server.asked) == 3


async def test_a_redirect_is_followed(machine: Machine, disk: Path) -> None:
    with serving(IMAGE, Faults(redirect="/elsewhere/image")) as server:
        await write(machine, image_of(server.url, IMAGE))
    assert disk.read_bytes()[: len(IMAGE)] == IMAGE


@pytest.mark.case("B53")
@pytest.mark.parametrize("status", [401, 403, 404, 410])
async def test_b53_a_refused_image_fails_at_once_and_leaves_nothing_that_starts(
    machine: Machine, disk: Path, status: int
) -> None:
    with serving(IMAGE, Faults(status=[status])) as server:
        with pytest.raises(OperationError, match=f"HTTP {status}") as failure:
            await write(machine, image_of(server.url, IMAGE))
        assert len(server.asked) == 1
    assert failure.value.code is ErrorCode.INVALID_ARGUMENT
    assert failure.value.details == {"status": status}
    assert disk.read_bytes().startswith(UNFINISHED)
    assert await stage(machine) is DiskStage.FAILED


@pytest.mark.case("B53")
async def test_a_short_body_with_200_has_the_whole_image_fetched_once_more(machine: Machine, disk: Path) -> None:
    with serving(IMAGE, Faults(short=[4 * MIB])) as server:
        await write(machine, image_of(server.url, IMAGE))
        assert server.asked == [None, None]
    assert disk.read_bytes()[: len(IMAGE)] == IMAGE


@pytest.mark.case("B53")
async def test_a_wrong_checksum_has_the_whole_image_fetched_once_more(machine: Machine, disk: Path) -> None:
    with serving(IMAGE, Faults(damaged=1)) as server:
        await write(machine, image_of(server.url, IMAGE))
        assert server.asked == [None, None]
    assert disk.read_bytes()[: len(IMAGE)] == IMAGE


@pytest.mark.case("B53")
@pytest.mark.parametrize("form", [ImageFormat.RAW, ImageFormat.RAW_ZST])
async def test_a_checksum_that_stays_wrong_is_fatal_and_the_disk_is_never_shown_as_done(
    machine: Machine, disk: Path, form: ImageFormat
) -> None:
    content = IMAGE if form is ImageFormat.RAW else zstd(IMAGE, checksum=True)
    with serving(content, Faults(damaged=99)) as server:
        with pytest.raises(OperationError, match="is not the image that was asked for") as failure:
            await write(machine, image_of(server.url, content, form))
        assert len(server.asked) == 3
    assert failure.value.code is ErrorCode.INVALID_ARGUMENT
    assert disk.read_bytes().startswith(UNFINISHED)


@pytest.mark.case("B53")
async def test_an_image_that_is_larger_than_the_disk_is_fatal_as_soon_as_that_is_known(machine: Machine) -> None:
    machine.add_disk("sda", 8 * MIB)
    content = zstd(IMAGE)
    for published, form in ((IMAGE, ImageFormat.RAW), (content, ImageFormat.RAW_ZST)):
        with serving(published) as server:
            with pytest.raises(OperationError, match="has only") as failure:
                await write(machine, image_of(server.url, published, form))
            assert len(server.asked) == 1
        assert failure.value.code is ErrorCode.INVALID_ARGUMENT
        assert failure.value.details["diskBytes"] == 8 * MIB


@pytest.mark.case("B53")
async def test_a_full_disk_is_fatal_with_the_kernels_words(
    machine: Machine, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite

    def full(handle: int, data: memoryview, offset: int) -> int:
        if 5 * MIB <= offset < 30 * MIB:
            raise OSError(28, "No space left on device")
        return real(handle, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with serving(IMAGE) as server:
        with pytest.raises(OperationError, match=r"at byte .*No space left on device") as failure:
            await write(machine, image_of(server.url, IMAGE))
        assert len(server.asked) == 1
    assert failure.value.details["errno"] == "ENOSPC"
    assert disk.read_bytes().startswith(UNFINISHED)


@pytest.mark.case("B53")
async def test_a_server_that_trickles_is_given_up_at_the_deadline(machine: Machine, disk: Path) -> None:
    late = pytest.raises(OperationError, match="within the time")
    with serving(IMAGE, Faults(rate=20_000)) as server, late as failure:
        await write(machine, image_of(server.url, IMAGE), seconds=1.5)
    assert failure.value.code is ErrorCode.TIMEOUT
    assert disk.read_bytes().startswith(UNFINISHED)


async def test_no_thread_writes_any_more_once_a_cancelled_write_has_ended(machine: Machine, disk: Path) -> None:
    before = threading.active_count()
    with serving(IMAGE, Faults(rate=400_000)) as server:
        writing = asyncio.create_task(write(machine, image_of(server.url, IMAGE)))
        while not disk.read_bytes().startswith(UNFINISHED):
            await asyncio.sleep(0.02)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        names = {thread.name for thread in threading.enumerate()}
    assert not names & {"image-read", "image-decode"}
    assert disk.read_bytes().startswith(UNFINISHED)
    assert await stage(machine) is DiskStage.FAILED
    assert threading.active_count() <= before + 8


async def test_a_disk_that_loses_what_was_written_is_found_out(
    machine: Machine, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = BlockDevice.write

    def losing(self: BlockDevice, offset: int, data: memoryview) -> None:
        if offset != 4 * MIB:
            real(self, offset, data)

    monkeypatch.setattr(BlockDevice, "write", losing)
    with serving(IMAGE) as server, pytest.raises(OperationError, match="does not hold what was written"):
        await write(machine, image_of(server.url, IMAGE))
    assert disk.read_bytes().startswith(UNFINISHED)


async def test_a_disk_that_loses_its_table_is_found_out_while_it_still_says_that_it_is_half_written(
    machine: Machine, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = BlockDevice.write

    def losing(self: BlockDevice, offset: int, data: memoryview) -> None:
        if offset != self.sector:
            real(self, offset, data)

    monkeypatch.setattr(BlockDevice, "write", losing)
    with serving(IMAGE) as server, pytest.raises(OperationError, match="does not hold its beginning"):
        await write(machine, image_of(server.url, IMAGE))
    assert disk.read_bytes().startswith(UNFINISHED)
    assert await stage(machine) is DiskStage.FAILED


async def test_neither_progress_nor_disk_nor_record_shows_what_admits_to_the_image(
    machine: Machine, disk: Path
) -> None:
    token, heard = "0123456789" * 4, list[str]()
    with serving(IMAGE, Faults(status=[404])) as server:
        address = server.url.replace("image.raw", f"images/{token}/{hashlib.sha256(IMAGE).hexdigest()}/image.raw")
        arguments = WriteImage(image=image_of(address, IMAGE), root_device=RootDeviceHints(name="sda"))
        listening = replace(call(), progress=lambda words, _percent: heard.append(words))
        with pytest.raises(OperationError, match="404") as failure:
            await LinuxDeploy(LinuxConnection(machine.host)).write_image(arguments, listening)
    disks = await LinuxDeploy(LinuxConnection(machine.host)).get_disks(Nothing(), call())
    assert heard
    assert token not in f"{heard} {failure.value} {failure.value.details} {disks}"
    assert token.encode() not in disk.read_bytes()


async def test_the_beginning_of_the_disk_is_written_last(
    machine: Machine, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[int, bool]] = []
    real = BlockDevice.write

    def watched(self: BlockDevice, offset: int, data: memoryview) -> None:
        real(self, offset, data)
        written.append((offset, disk.read_bytes()[:HEAD] == IMAGE[:HEAD]))

    monkeypatch.setattr(BlockDevice, "write", watched)
    with serving(IMAGE) as server:
        await write(machine, image_of(server.url, IMAGE))
    assert written[0][0] == 0
    assert written[-1] == (0, True)
    assert not any(shown for _, shown in written[:-1])


async def test_a_disk_whose_head_is_written_in_part_still_says_so(machine: Machine, disk: Path) -> None:
    with BlockDevice(str(disk), writing=True) as device:
        cover_up(device, b"")
        real = device.write_bytes

        def broken_off(offset: int, data: bytes) -> None:
            if offset == 0:
                raise OperationError(ErrorCode.NOT_APPLIED, "the power is gone")
            real(offset, data)

        device.write_bytes = broken_off  # type: ignore[method-assign]
        with pytest.raises(OperationError, match="the power is gone"):
            reveal(device, IMAGE[:HEAD])
        device.write_bytes = real  # type: ignore[method-assign]
        assert disk.read_bytes().startswith(UNFINISHED)
        reveal(device, IMAGE[:HEAD])
    assert disk.read_bytes()[:HEAD] == IMAGE[:HEAD]


async def test_the_old_systems_table_is_gone_at_both_ends_before_anything_is_written(
    machine: Machine, disk: Path
) -> None:
    disk.write_bytes(gpt_image(40 * MIB, [(1, SYSTEM, 2048, 4095)]))
    with serving(IMAGE, Faults(status=[404])) as server, pytest.raises(OperationError, match="404"):
        await write(machine, image_of(server.url, IMAGE))
    left = disk.read_bytes()
    assert left[: len(UNFINISHED)] == UNFINISHED
    assert b"EFI PART" not in left[:HEAD] + left[-HEAD:]


async def test_a_disk_in_use_is_not_touched(machine: Machine, disk: Path) -> None:
    machine.write("block/sda/dev", "8:0")
    machine.mount("8:0", "/")
    with serving(IMAGE) as server, pytest.raises(OperationError, match="mounted at /") as failure:
        await write(machine, image_of(server.url, IMAGE))
    assert failure.value.code is ErrorCode.CONFLICT
    assert disk.read_bytes() == b"\xa5" * 40 * MIB
    assert server.asked == []


@needs_sfdisk
async def test_the_gpt_moves_to_the_disks_end_and_the_root_grows_up_to_the_room_of_the_config_drive(
    machine: Machine, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drivers.linux.write_image._NODE_SECONDS", 0.0)
    image = gpt_image(12 * MIB, [(15, SYSTEM, 2048, 6143), (1, LINUX_ROOT, 6144, 12 * 2048 - 34)])
    with serving(image) as server:
        result = await write(machine, image_of(server.url, image))
    assert result.partition == "sda1"
    told = subprocess.run(["sfdisk", "--json", disk], capture_output=True, text=True)
    assert '"lastlba":81886' in told.stdout.replace(" ", ""), told
    assert told.stderr == ""
    assert '"start":6144,"size":40960' in "".join(told.stdout.split())
    assert "shows no" in result.notes[0]


@needs_sfdisk
async def test_growing_can_be_left_out(machine: Machine, disk: Path) -> None:
    image = gpt_image(12 * MIB, [(1, LINUX_ROOT, 2048, 8191)])
    with serving(image) as server:
        result = await write(machine, image_of(server.url, image), grow=False)
    assert result.notes == []
    told = subprocess.run(["sfdisk", "--json", disk], capture_output=True, text=True, check=True)
    assert '"size":6144' in "".join(told.stdout.split())


async def test_a_system_whose_growing_was_stopped_in_the_middle_starts_no_more(machine: Machine, disk: Path) -> None:
    image = gpt_image(12 * MIB, [(1, LINUX_ROOT, 2048, 8191)])
    node = bytearray(1 * MIB)
    node[1080:1082] = b"\x53\xef"
    (machine.host.dev / "sda1").write_bytes(node)
    machine.host.programs["e2fsck"] = lambda _words: Ran(0, "", "")

    def stopped(_words: tuple[str, ...]) -> Ran:
        assert not disk.read_bytes().startswith(UNFINISHED)
        raise OperationError(ErrorCode.TIMEOUT, "resize2fs did not end within 5 s and was stopped")

    machine.host.programs["resize2fs"] = stopped
    with serving(image) as server, pytest.raises(OperationError, match="resize2fs did not end"):
        await write(machine, image_of(server.url, image))
    left = disk.read_bytes()
    assert left.startswith(UNFINISHED)
    assert b"EFI PART" not in left[:HEAD] + left[-HEAD:]
    assert await stage(machine) is DiskStage.FAILED


async def test_an_image_for_other_sectors_is_refused_before_it_is_fetched_to_its_end(machine: Machine) -> None:
    machine.add_disk("sda", 40 * MIB)
    image = gpt_image(12 * MIB, [(1, LINUX_ROOT, 512, 1023)], sector=4096)
    with serving(image) as server:
        with pytest.raises(OperationError, match="sectors of 4096 bytes, and the disk's have 512") as failure:
            await write(machine, image_of(server.url, image))
        assert len(server.asked) == 1
    assert failure.value.code is ErrorCode.INVALID_ARGUMENT


async def test_zeros_are_left_out_only_where_the_disk_has_them(machine: Machine) -> None:
    """The disk takes a discard, says zeros where it is probed, and still holds old data in one place."""
    image = b"\x01" * MIB + bytes(70 * MIB) + b"\x02" * MIB
    machine.add_disk("sda", 80 * MIB, queue__discard_max_bytes="4294966784")
    with (machine.host.dev / "sda").open("r+b") as file:
        file.seek(33 * MIB + 512)
        file.write(b"old data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockDevice, "discard", lambda *_: True)
        with serving(image) as server:
            result = await write(machine, image_of(server.url, image))
    assert machine.bytes_of("sda")[: len(image)] == image
    assert "of zeros were there already" in (result.proof or "")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://images.example/a.raw", "write http://"),
        ("https://user:secret@images.example/a.raw", "offer the image under an address of its own"),
        ("https://images.example/a.iso", "does not end in"),
    ],
)
async def test_an_unusable_address_is_refused_before_the_disk_is_touched(
    machine: Machine, disk: Path, url: str, said: str
) -> None:
    with pytest.raises(OperationError, match=said) as failure:
        await write(machine, Image(url=url))
    assert failure.value.code is ErrorCode.INVALID_ARGUMENT
    assert "secret" not in str(failure.value)
    assert disk.read_bytes() == b"\xa5" * 40 * MIB


async def test_a_server_that_stays_away_is_unreachable(machine: Machine, disk: Path) -> None:
    from drivers.linux.image_source import ImageSource

    with serving(IMAGE) as server:
        address = server.url
    source = ImageSource(address, deadline=time.monotonic() + 30, patience=1.0)
    with pytest.raises(OperationError, match="Connection refused") as failure:
        await asyncio.to_thread(source.read_into, memoryview(bytearray(10)))
    assert failure.value.code is ErrorCode.UNREACHABLE


async def test_a_frame_that_needs_too_much_memory_is_refused_with_what_to_do(machine: Machine, disk: Path) -> None:
    content = zstd(compressible(80 * MIB), window_log=27)
    with serving(content) as server, pytest.raises(OperationError, match="--long=25"):
        await write(machine, image_of(server.url, content, ImageFormat.RAW_ZST))
