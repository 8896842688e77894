"""Linux software RAID: what is read from superblocks and the kernel, and what mdadm is told."""

import random
import shutil
import struct
import subprocess
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.linux.block_device import BlockDevice
from drivers.linux.connection import LinuxConnection
from drivers.linux.host import Ran
from drivers.linux.md_superblock import parse_superblock, superblock_places
from drivers.linux.raid import LinuxRaid, create_words
from drivers.raid_plan import Make
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.raid import (
    ApplyRaid,
    ClearRaid,
    CreateVolume,
    DeleteVolume,
    DriveSelector,
    RaidLevel,
    VolumeSpec,
)
from tests.drivers.linux.machine import Machine, call

MIB = 1 << 20
SIZE = 64 * MIB
ARRAY = uuid.UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")


def superblock(
    *, level: int = 1, devices: int = 2, number: int = 0, role: int | None = None, name: str = "any:system"
) -> bytes:
    """One member's, as the kernel writes it (struct mdp_superblock_1)."""
    data = bytearray(4096)
    struct.pack_into(
        "<IIII16s32sQiiQII",
        data,
        0,
        0xA92B4EFC,
        1,
        0,
        0,
        ARRAY.bytes,
        name.encode(),
        0,
        level,
        0,
        100_000,
        0,
        devices,
    )
    struct.pack_into("<QQQQI", data, 128, 2048, 120_000, 8, 0, number)
    data[168:184] = bytes(random.Random(number).randbytes(16))
    data[200:208] = (17).to_bytes(8, "little")
    data[220:224] = (128).to_bytes(4, "little")
    for place in range(128):
        data[256 + 2 * place : 258 + 2 * place] = (0xFFFF).to_bytes(2, "little")
    data[256 + 2 * number : 258 + 2 * number] = (number if role is None else role).to_bytes(2, "little")
    used = data[: 256 + 256]
    total = sum(struct.unpack(f"<{len(used) // 4}I", used))
    data[216:220] = ((total & 0xFFFFFFFF) + (total >> 32) & 0xFFFFFFFF).to_bytes(4, "little")
    return bytes(data)


class Md:
    """A kernel with software arrays, as /sys shows them, and the program that makes them."""

    def __init__(self, machine: Machine, *disks: str) -> None:
        self.machine = machine
        self.told: list[tuple[str, ...]] = []
        self.fails = ""
        for name in disks:
            machine.add_disk(
                name, SIZE, device=f"pci0000:00/ata1/{name}", device__model="DISK", dev=f"8:{ord(name[-1])}"
            )
        machine.host.programs["mdadm"] = self.run

    def run(self, words: tuple[str, ...]) -> Ran:
        self.told.append(words)
        if self.fails and self.fails in words:
            return Ran(1, "", "mdadm: cannot do that\n")
        if "--create" in words:
            members = [Path(word).name for word in words if word.startswith(str(self.machine.host.dev))]
            level = next(word for word in words if word.startswith("--level=")).removeprefix("--level=")
            name = next(word for word in words if word.startswith("--name=")).removeprefix("--name=")
            self.assemble("md127", f"raid{level}", members, name)
        elif "--stop" in words:
            self.dissolve(Path(words[-1]).name)
        elif "--zero-superblock" in words:
            for path in words[3:]:
                with Path(path).open("r+b") as file:
                    file.seek(4096)
                    file.write(bytes(4096))
        return Ran(0, "", "")

    def assemble(self, array: str, level: str, members: list[str], name: str = "system") -> None:
        self.machine.add_disk(
            array, 62 * MIB, device=f"virtual/{array}", md__level=level, md__array_state="clean", md__degraded="0"
        )
        for number, member in enumerate(members):
            self.machine.write(f"block/{array}/slaves/{member}/x", "")
            self.machine.write(f"block/{array}/md/dev-{member}/state", "in_sync")
            self.machine.write(f"block/{member}/holders/{array}/x", "")
            self.lay_superblock(member, superblock(number=number, name=f"any:{name}"))

    def dissolve(self, array: str) -> None:
        for member in (self.machine.host.sys / "block" / array / "slaves").iterdir():
            shutil.rmtree(self.machine.host.sys / "block" / member.name / "holders" / array)
        shutil.rmtree((self.machine.host.sys / "block" / array).resolve())
        (self.machine.host.sys / "block" / array).unlink()

    def lay_superblock(self, disk: str, data: bytes) -> None:
        with (self.machine.host.dev / disk).open("r+b") as file:
            file.seek(4096)
            file.write(data)


@pytest.fixture
def md(machine: Machine) -> Md:
    return Md(machine, "sda", "sdb", "sdc", "sdd")


@pytest.fixture
def raid(md: Md) -> LinuxRaid:
    return LinuxRaid(LinuxConnection(md.machine.host))


def test_a_superblock_is_read_as_the_kernel_writes_it() -> None:
    block = parse_superblock(superblock(number=1))
    assert block is not None
    assert (block.array, block.name, block.level, block.devices, block.role) == (ARRAY, "system", 1, 2, 1)
    assert block.component_bytes == 100_000 * 512


@pytest.mark.skipif(shutil.which("mdadm") is None, reason="no mdadm")
def test_mdadm_reads_the_same_out_of_it(tmp_path: Path) -> None:
    file = tmp_path / "member"
    file.write_bytes(bytes(4096) + superblock(number=1) + bytes(SIZE - 8192))
    told = subprocess.run(["mdadm", "--examine", file], capture_output=True, text=True).stdout
    assert "Magic : a92b4efc" in told
    assert "Name : any:system" in told
    assert "Raid Level : raid1" in told
    assert "correct" in next(line for line in told.splitlines() if "Checksum" in line)


@pytest.mark.parametrize(
    ("role", "spare", "faulty"), [(0, False, False), (0xFFFF, True, False), (0xFFFE, True, True)]
)
def test_a_spare_has_no_place(role: int, spare: bool, faulty: bool) -> None:
    block = parse_superblock(superblock(role=role))
    assert block is not None
    assert ((block.role is None), block.faulty) == (spare, faulty)


@given(st.binary(max_size=600), st.integers(0, 4096))
def test_a_damaged_superblock_is_none_or_whole(noise: bytes, place: int) -> None:
    data = bytearray(superblock())
    data[place : place + len(noise)] = noise
    parse_superblock(bytes(data))


def test_version_one_lies_in_three_places() -> None:
    assert superblock_places(SIZE) == [0, 4096, SIZE - 8192]


async def test_disks_that_nothing_else_uses_are_what_arrays_are_made_of(md: Md, raid: LinuxRaid) -> None:
    md.machine.mount(f"8:{ord('d')}", "/")
    reading = await raid.get_raid(Nothing(), call("raid.getRaid"))
    assert [controller.id for controller in reading.controllers] == ["md"]
    assert [(drive.id, drive.state) for drive in reading.drives] == [
        ("sda", "ready"),
        ("sdb", "ready"),
        ("sdc", "ready"),
    ]


async def test_a_running_array_is_told_with_its_members_and_its_name(md: Md, raid: LinuxRaid) -> None:
    md.assemble("md0", "raid1", ["sda", "sdb"])
    md.machine.write("block/md0/md/degraded", "1")
    reading = await raid.get_raid(Nothing(), call("raid.getRaid"))
    volume = reading.volumes[0]
    assert (volume.id, volume.name, volume.level, volume.drives) == ("md0", "system", RaidLevel.RAID1, ["sda", "sdb"])
    assert (volume.state, volume.health) == ("online", "warning")
    assert [drive.volumes for drive in reading.drives] == [["md0"], ["md0"], [], []]


async def test_an_array_that_is_not_running_is_seen_on_its_members(md: Md, raid: LinuxRaid) -> None:
    md.lay_superblock("sdb", superblock(number=1))
    reading = await raid.get_raid(Nothing(), call("raid.getRaid"))
    volume = reading.volumes[0]
    assert (volume.id, volume.name, volume.drives, volume.state) == (str(ARRAY), "system", ["sdb"], "offline")
    assert volume.health == "warning"
    assert [drive.volumes for drive in reading.drives if drive.id == "sdb"] == [[str(ARRAY)]]


async def test_what_is_asked_is_planned_made_and_kept(md: Md, raid: LinuxRaid) -> None:
    asked = ApplyRaid(volumes=[VolumeSpec(level=RaidLevel.RAID1, name="system", drives=["sda", "sdb"])])
    dry = await raid.apply_raid(ApplyRaid(volumes=asked.volumes, dry_run=True), call("raid.applyRaid"))
    assert md.told == []
    assert [step.act for step in dry.plan] == ["create"]
    done = await raid.apply_raid(asked, call("raid.applyRaid"))
    assert [(made.id, made.drives) for made in done.made] == [("md127", ["sda", "sdb"])]
    again = await raid.apply_raid(asked, call("raid.applyRaid"))
    assert [step.act for step in again.plan] == ["keep"]
    assert [words[1] for words in md.told] == ["--create"]


async def test_drives_are_chosen_and_other_arrays_deleted_where_that_is_allowed(md: Md, raid: LinuxRaid) -> None:
    md.assemble("md0", "raid1", ["sda", "sdb"])
    asked = VolumeSpec(level=RaidLevel.RAID10, drives=DriveSelector(count=4))
    with pytest.raises(OperationError, match="deleteOthers"):
        await raid.apply_raid(ApplyRaid(volumes=[asked]), call("raid.applyRaid"))
    done = await raid.apply_raid(ApplyRaid(volumes=[asked], delete_others=True), call("raid.applyRaid"))
    assert [words[1] for words in md.told] == ["--stop", "--zero-superblock", "--create"]
    assert done.deleted == ["md0"]
    assert done.made[0].drives == ["sda", "sdb", "sdc", "sdd"]


async def test_a_failed_step_tells_how_far_it_came(md: Md, raid: LinuxRaid) -> None:
    md.assemble("md0", "raid1", ["sda", "sdb"])
    md.fails = "--create"
    asked = ApplyRaid(volumes=[VolumeSpec(level=RaidLevel.RAID0, drives=["sda", "sdb"])], delete_others=True)
    with pytest.raises(OperationError, match="mdadm: cannot do that") as failed:
        await raid.apply_raid(asked, call("raid.applyRaid"))
    done, rest = failed.value.details["done"], failed.value.details["notDone"]
    assert isinstance(done, list)
    assert isinstance(rest, list)
    assert ([step["act"] for step in done], [step["act"] for step in rest]) == (["delete"], ["create"])


async def test_a_disk_is_made_blank_before_it_becomes_a_member(md: Md, raid: LinuxRaid) -> None:
    (md.machine.host.dev / "sda").write_bytes(b"\xa5" * SIZE)
    asked = CreateVolume(controller="md", level=RaidLevel.RAID1, drives=["sda", "sdb"])
    made = await raid.create_volume(asked, call("raid.createVolume"))
    assert made.volume == "md127"
    data = md.machine.bytes_of("sda")
    assert not any(data[8192 : 4 * MIB])
    assert not any(data[-4 * MIB :])


async def test_a_name_that_another_disk_has_taken_since_is_not_made_blank(
    md: Md, raid: LinuxRaid, monkeypatch: pytest.MonkeyPatch
) -> None:
    (md.machine.host.dev / "sda").write_bytes(b"\xa5" * SIZE)
    real = BlockDevice.__init__

    def swapped(self: BlockDevice, path: str, *, writing: bool = False) -> None:
        if writing:
            md.machine.write("block/sda/serial", "S-OTHER")
        real(self, path, writing=writing)

    monkeypatch.setattr(BlockDevice, "__init__", swapped)
    asked = CreateVolume(controller="md", level=RaidLevel.RAID1, drives=["sda", "sdb"])
    with pytest.raises(OperationError, match="sda is another disk now"):
        await raid.create_volume(asked, call("raid.createVolume"))
    assert md.machine.bytes_of("sda") == b"\xa5" * SIZE


async def test_an_array_is_deleted_by_its_name_and_its_members_forget_it(md: Md, raid: LinuxRaid) -> None:
    md.assemble("md0", "raid1", ["sda", "sdb"])
    done = await raid.delete_volume(DeleteVolume(controller="md", volume="system"), call("raid.deleteVolume"))
    assert done.deleted == ["md0"]
    assert (await raid.get_raid(Nothing(), call("raid.getRaid"))).volumes == []


async def test_an_array_in_use_is_not_deleted(md: Md, raid: LinuxRaid) -> None:
    md.assemble("md0", "raid1", ["sda", "sdb"])
    md.fails = "--stop"
    with pytest.raises(OperationError, match="md0 cannot be stopped") as refused:
        await raid.clear_raid(ClearRaid(controller="md"), call("raid.clearRaid"))
    assert refused.value.code is ErrorCode.CONFLICT
    assert refused.value.details["deleted"] == []


@pytest.mark.parametrize(
    ("controller", "volume", "said"),
    [("md", "md9", "'md9' is no array here"), ("RAID.1", "md0", "there is no 'RAID.1'")],
)
async def test_an_unknown_array_is_told_with_those_that_there_are(
    controller: str, volume: str, said: str, md: Md, raid: LinuxRaid
) -> None:
    with pytest.raises(OperationError, match=said) as refused:
        await raid.delete_volume(DeleteVolume(controller=controller, volume=volume), call("raid.deleteVolume"))
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


async def test_without_mdadm_nothing_can_be_made_and_everything_can_be_read(md: Md, raid: LinuxRaid) -> None:
    md.assemble("md0", "raid1", ["sda", "sdb"])
    del md.machine.host.programs["mdadm"]
    reading = await raid.get_raid(Nothing(), call("raid.getRaid"))
    assert reading.controllers[0].unsuitable == "mdadm is not installed here"
    assert len(reading.volumes) == 1
    asked = CreateVolume(controller="md", level=RaidLevel.RAID1, drives=["sdc", "sdd"])
    with pytest.raises(OperationError, match="mdadm is not installed") as refused:
        await raid.create_volume(asked, call("raid.createVolume"))
    assert refused.value.code is ErrorCode.UNSUPPORTED


async def test_a_size_that_md_cannot_give_is_refused_before_anything_is_destroyed(md: Md, raid: LinuxRaid) -> None:
    (md.machine.host.dev / "sda").write_bytes(b"\xa5" * SIZE)
    asked = CreateVolume(controller="md", level=RaidLevel.RAID0, size_gib=0.05, drives=["sda", "sdb"])
    with pytest.raises(OperationError, match="all the space only"):
        await raid.create_volume(asked, call("raid.createVolume"))
    assert md.machine.bytes_of("sda") == b"\xa5" * SIZE


def test_a_mirror_keeps_its_superblock_at_the_end_so_that_firmware_can_start_from_it() -> None:
    def words(level: RaidLevel) -> list[str]:
        return create_words(Make(0, "md", level, ("sda", "sdb")), ["/dev/sda", "/dev/sdb"], None, "system")

    assert "--metadata=1.0" in words(RaidLevel.RAID1)
    assert "--metadata=1.2" in words(RaidLevel.RAID0)
    assert words(RaidLevel.RAID10)[5:7] == ["--level=10", "--raid-devices=2"]
