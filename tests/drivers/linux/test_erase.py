"""Erasing: which disks, by which way, with which proof, and what is told when one of them fails."""

import asyncio
import errno
import itertools
import os
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from drivers.linux import nvme
from drivers.linux.ata_security import PASSWORD, Security, parse_security
from drivers.linux.block_device import BlockDevice
from drivers.linux.connection import LinuxConnection
from drivers.linux.contents import contents, places
from drivers.linux.deploy import LinuxDeploy
from drivers.linux.disks import Disk
from drivers.linux.erase import select, stoppable_arrays
from drivers.linux.host import Ran
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.deploy import DiskStage, EraseDisks, EraseDisksResult, EraseMode, RootDeviceHints
from tests.drivers.linux.disk_images import LINUX_ROOT, gpt_image
from tests.drivers.linux.machine import Machine, call

MIB = 1 << 20
ATA = "pci0000:00/ata1/host0/target0:0:0/0:0:0:0"
PLAIN = "pci0000:00/0000:00:05.0/virtio2"
NVME = "pci0000:40/0000:41:00.0/nvme/nvme0"


async def erase(
    machine: Machine, mode: EraseMode = EraseMode.FULL, hints: RootDeviceHints | None = None, seconds: float = 50.0
) -> EraseDisksResult:
    deploy = LinuxDeploy(LinuxConnection(machine.host))
    return await deploy.erase_disks(EraseDisks(mode=mode, disks=hints), call("deploy.eraseDisks", seconds))


def fill(file: Path) -> None:
    file.write_bytes(b"\xa5" * file.stat().st_size)


# Which disks


def disk(name: str, **facts: object) -> Disk:
    return Disk(name=name, path=f"/dev/{name}", size_bytes=1 << 30, **facts)  # type: ignore[arg-type]


def test_without_hints_every_disk_is_erased_that_may_be_and_the_others_are_told() -> None:
    disks = [
        disk("sda"),
        disk("sdb", removable=True),
        disk("sdc", mounted=("/",)),
        disk("sdd", transport="usb"),
        disk("sde", boot_medium=True, transport="usb"),
        disk("sdf", read_only=True),
        disk("sdg", removable=True, mounted=("/mnt",)),
        disk("md0", transport="md"),
    ]
    chosen = select(disks, None)
    assert [one.name for one in chosen.disks] == ["sda"]
    assert [one.name for one in chosen.in_the_way] == ["sdc", "sdf"]
    assert {one.disk: one.reason.split(":")[0] for one in chosen.skipped} == {
        "sdb": "is removable",
        "sdg": "is in use",
        "sdd": "it is attached by usb, and no hint gives its name, serial number or WWN",
        "sde": "is the medium that this machine was started from",
    }


def test_a_named_disk_that_is_in_use_stops_everything() -> None:
    with pytest.raises(OperationError, match="nothing was erased") as refused:
        select([disk("sda"), disk("sdb", holders=("md0",))], RootDeviceHints(rotational=None))
    assert refused.value.code is ErrorCode.CONFLICT


def test_hints_that_no_disk_fits_are_an_error_and_not_nothing_to_do() -> None:
    with pytest.raises(OperationError, match="no disk fits the hints: sda: its serial number is not told"):
        select([disk("sda")], RootDeviceHints(serial="S-1"))


def test_an_idle_array_is_stopped_only_when_all_its_members_go() -> None:
    members = [disk("sda", holders=("md0",)), disk("sdb", holders=("md0",)), disk("md0", transport="md")]
    assert stoppable_arrays(members, None) == ["md0"]
    assert stoppable_arrays(members, RootDeviceHints(name="sda")) == []
    busy = [*members[:2], disk("md0", transport="md", mounted=("/",))]
    assert stoppable_arrays(busy, None) == []


async def test_a_disk_in_use_is_one_that_was_not_erased_and_the_others_are(machine: Machine) -> None:
    """A machine that is released with it would count as clean."""
    fill(machine.add_disk("vda", 5 * MIB, device=f"{PLAIN}/vda"))
    fill(machine.add_disk("vdb", 5 * MIB, device=f"{PLAIN}/vdb"))
    machine.write("block/vda/holders/dm-0/x", "")
    with pytest.raises(OperationError, match="1 of 2 disks were not erased: vda: it is in use by dm-0") as failed:
        await erase(machine)
    assert failed.value.code is ErrorCode.CONFLICT
    assert not any(machine.bytes_of("vdb"))
    assert any(machine.bytes_of("vda"))


async def test_a_machine_that_shows_no_disk_was_not_erased(machine: Machine) -> None:
    machine.add_disk("sdb", 5 * MIB, device=PLAIN, removable="1")
    with pytest.raises(OperationError, match=r"shows no disk that could be erased \(sdb: is removable\)"):
        await erase(machine)


async def test_a_name_that_another_disk_has_taken_since_is_not_touched(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drive is pulled, and another one put in, while the one before it is erased."""
    fill(machine.add_disk("vda", 5 * MIB, device=PLAIN, serial="S-1"))
    real = BlockDevice.__init__

    def swapped(self: BlockDevice, path: str, *, writing: bool = False) -> None:
        if writing:
            machine.write("block/vda/serial", "S-2")
        real(self, path, writing=writing)

    monkeypatch.setattr(BlockDevice, "__init__", swapped)
    with pytest.raises(OperationError, match="vda is another disk now than when it was chosen"):
        await erase(machine)
    assert all(machine.bytes_of("vda"))


# Metadata


def test_every_place_that_may_describe_a_disk_is_among_those_that_are_cleared() -> None:
    size = 300 << 30
    found = places(size, [(MIB, 10 << 30)])

    def covered(place: int) -> bool:
        return any(start <= place < start + length for start, length in found)

    wanted = [0, 512, 4096, 65536, size - 1, size - 8192, size - 65536, 64 * MIB, 256 << 30, MIB + 65536]
    assert all(covered(place) for place in (*wanted, MIB + (10 << 30) - 4096, MIB + 64 * MIB))
    assert not covered(20 << 30)
    assert all(first[0] + first[1] < second[0] for first, second in itertools.pairwise(found))


async def test_a_metadata_erasure_leaves_no_signature_and_leaves_the_rest(machine: Machine) -> None:
    file = machine.add_disk("sda", 40 * MIB, device=PLAIN)
    file.write_bytes(gpt_image(40 * MIB, [(1, LINUX_ROOT, 2048, 70000)]))
    subprocess.run(["mkfs.ext4", "-q", "-F", "-E", f"offset={MIB}", file, "20M"], check=True)
    result = await erase(machine, EraseMode.METADATA)
    assert [(one.disk, one.method) for one in result.disks] == [("sda", "metadata cleared")]
    assert "no signature is left" in (result.disks[0].proof or "")
    data = file.read_bytes()
    assert not any(data[: 4 * MIB])
    assert not any(data[-4 * MIB :])
    assert any(data[8 * MIB : 30 * MIB])
    assert subprocess.run(["blkid", "-p", file], capture_output=True).returncode == 2


# All of it


async def test_zeros_over_all_of_it_are_proved_by_samples(machine: Machine) -> None:
    file = machine.add_disk("sda", 9 * MIB, device=PLAIN)
    fill(file)
    result = await erase(machine)
    assert not any(file.read_bytes())
    assert (result.disks[0].method, result.disks[0].proof) == (
        "overwritten with zeros",
        "256 samples read as zeros",
    )


async def test_a_discard_that_leaves_data_is_followed_by_zeros(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = machine.add_disk("sda", 9 * MIB, device=PLAIN, queue__discard_max_bytes="4294966784")
    fill(file)
    monkeypatch.setattr(BlockDevice, "discard", lambda *_: True)
    done = (await erase(machine)).disks[0]
    assert not any(file.read_bytes())
    assert done.method == "overwritten with zeros"
    assert "the disk still shows data after it" in (done.proof or "")


async def test_a_discard_that_fails_is_followed_by_zeros(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some drives answer EREMOTEIO to a discard of which they say that they take it."""
    file = machine.add_disk("sda", 9 * MIB, device=PLAIN, queue__discard_max_bytes="4294966784")
    fill(file)

    def failing(*_: object) -> int:
        raise OSError(errno.EREMOTEIO, "Remote I/O error")

    monkeypatch.setattr("drivers.linux.block_device.fcntl.ioctl", failing)
    monkeypatch.setattr("drivers.linux.block_device._is_block", lambda path: False)
    monkeypatch.setattr(BlockDevice, "_range", _as_on_a_block_device(BlockDevice._range))
    done = (await erase(machine)).disks[0]
    assert (done.method, any(file.read_bytes())) == ("overwritten with zeros", False)


def _as_on_a_block_device(real: Callable[[BlockDevice, int, int, int], bool]) -> Callable[..., bool]:
    def asked(self: BlockDevice, request: int, offset: int, size: int) -> bool:
        self.is_block = True
        try:
            return real(self, request, offset, size)
        finally:
            self.is_block = False

    return asked


async def test_a_disk_that_does_not_become_zero_is_not_called_erased(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(machine.add_disk("sda", 9 * MIB, device=PLAIN))
    monkeypatch.setattr(BlockDevice, "zero_out", lambda *_: True)
    with pytest.raises(OperationError, match="byte 0 does not read as zero"):
        await erase(machine)


async def test_one_disks_failure_stops_no_other_and_is_told_exactly(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        name: machine.add_disk(name, 5 * MIB, device=f"{PLAIN}/{name}", serial=f"S-{name}") for name in ("vda", "vdb")
    }
    for file in files.values():
        fill(file)
    real = BlockDevice.zero_out

    def failing(self: BlockDevice, offset: int, size: int) -> bool:
        if self.path.endswith("vda"):
            raise OperationError(
                ErrorCode.NOT_APPLIED, f"{self.path} could not be cleared at byte 0: Input/output error"
            )
        return real(self, offset, size)

    monkeypatch.setattr(BlockDevice, "zero_out", failing)
    with pytest.raises(OperationError, match=r"1 of 2 disks were not erased: vda \(S-vda\)") as failed:
        await erase(machine)
    assert failed.value.details["erased"] == [
        {"disk": "vdb", "method": "overwritten with zeros", "proof": "256 samples read as zeros"}
    ]
    told = failed.value.details["failed"]
    assert isinstance(told, list)
    assert told[0]["serial"] == "S-vda"
    assert "Input/output error" in told[0]["reason"]
    assert not any(files["vdb"].read_bytes())


async def test_the_deadline_stops_it_between_two_pieces_and_says_how_far_it_came(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(machine.add_disk("sda", 9 * MIB, device=PLAIN))
    monkeypatch.setattr("drivers.linux.erase._STEP", MIB)
    monkeypatch.setattr("drivers.linux.erase._PROGRESS_SECONDS", 0.02)
    real = BlockDevice.zero_out

    def slow(self: BlockDevice, offset: int, size: int) -> bool:
        pause.wait(0.1)
        return real(self, offset, size)

    pause = threading.Event()
    monkeypatch.setattr(BlockDevice, "zero_out", slow)
    with pytest.raises(OperationError, match="when the time was over") as failed:
        await erase(machine, seconds=0.3)
    assert failed.value.code is ErrorCode.TIMEOUT
    disks = await LinuxDeploy(LinuxConnection(machine.host)).get_disks(Nothing(), call())
    assert disks.disks[0].erasure is not None
    assert disks.disks[0].erasure.stage is DiskStage.FAILED


# ATA

_SECTION = """\
/dev/sda:
Commands/features:
\t   *\tSecurity Mode feature set
Security:
\tMaster password revision code = 65534
\t\tsupported
\t{enabled}\tenabled
\t{locked}\tlocked
\t{frozen}\tfrozen
\tnot\texpired: security count
\t\tsupported: enhanced erase
\t4min for SECURITY ERASE UNIT. 8min for ENHANCED SECURITY ERASE UNIT.
Logical Unit WWN Device Identifier: 5002538d40ff0eea
\tsupported
"""


@dataclass
class AtaDrive:
    """A drive behind hdparm."""

    file: Path
    password: str | None = None
    locked: bool = False
    frozen: bool = False
    erases: bool = True
    asked: list[str] = field(default_factory=list)

    def __call__(self, words: tuple[str, ...]) -> Ran:
        if "-I" in words:
            shown = {"enabled": self.password is not None, "locked": self.locked, "frozen": self.frozen}
            return Ran(0, _SECTION.format(**{key: "" if value else "not" for key, value in shown.items()}), "")
        verb, given = words[3], words[4]
        self.asked.append(verb)
        if verb == "--security-set-pass":
            self.password = given
            return Ran(0, "", "")
        if given != self.password:
            return Ran(5, "", "SECURITY: bad/missing sense data\n")
        if verb == "--security-unlock":
            self.locked = False
        elif verb == "--security-disable":
            self.password = None
        elif self.erases:
            self.file.write_bytes(bytes(self.file.stat().st_size))
            self.password = None
        else:
            return Ran(5, "", "ERASE: Input/output error\n")
        return Ran(0, "", "")


@pytest.fixture
def drive(machine: Machine) -> AtaDrive:
    file = machine.add_disk("sda", 5 * MIB, device=ATA)
    fill(file)
    drive = AtaDrive(file)
    machine.host.programs["hdparm"] = drive
    return drive


async def test_an_ata_drive_erases_itself(machine: Machine, drive: AtaDrive) -> None:
    done = (await erase(machine)).disks[0]
    assert drive.asked == ["--security-set-pass", "--security-erase-enhanced"]
    assert done.method == "ATA secure erase (enhanced)"
    assert done.proof == "the drive says that it is erased, and 256 samples read as zeros"


async def test_a_frozen_drive_is_overwritten_and_the_reason_is_told(machine: Machine, drive: AtaDrive) -> None:
    drive.frozen = True
    done = (await erase(machine)).disks[0]
    assert drive.asked == []
    assert done.method == "overwritten with zeros"
    assert "the firmware has frozen the drive's security" in (done.proof or "")


async def test_a_drive_that_a_broken_off_erasure_left_locked_is_freed_and_erased(
    machine: Machine, drive: AtaDrive
) -> None:
    drive.password, drive.locked = PASSWORD, True
    done = (await erase(machine)).disks[0]
    assert drive.asked[:2] == ["--security-unlock", "--security-disable"]
    assert done.method == "ATA secure erase (enhanced)"
    assert drive.password is None


async def test_a_drive_with_another_password_is_not_touched_and_says_what_to_do(
    machine: Machine, drive: AtaDrive
) -> None:
    drive.password, drive.locked = "somebody else's", True
    with pytest.raises(OperationError, match="PSID") as failed:
        await erase(machine)
    assert failed.value.code is ErrorCode.CONFLICT
    assert any(drive.file.read_bytes())


async def test_a_drive_that_has_not_erased_itself_in_time_is_told_so_and_not_written_to_meanwhile(
    machine: Machine, drive: AtaDrive
) -> None:
    def slow(words: tuple[str, ...]) -> Ran:
        if "--security-erase-enhanced" in words:
            raise OperationError(ErrorCode.TIMEOUT, "hdparm did not end within 50 s and was stopped")
        return drive(words)

    machine.host.programs["hdparm"] = slow
    with pytest.raises(OperationError, match="hdparm did not end") as failed:
        await erase(machine)
    assert failed.value.code is ErrorCode.TIMEOUT
    assert drive.password is None
    assert drive.file.read_bytes() == b"\xa5" * 5 * MIB


async def test_after_a_failed_erasure_the_password_is_taken_off_and_zeros_are_written(
    machine: Machine, drive: AtaDrive
) -> None:
    drive.erases = False
    done = (await erase(machine)).disks[0]
    assert drive.password is None
    assert done.method == "overwritten with zeros"
    assert "Input/output error" in (done.proof or "")


def test_the_recorded_drive_can_erase_itself(shared: Path) -> None:
    """misc/hdparm-I.txt: a Samsung SSD 850 EVO."""
    words = (shared / "mockups/inband/misc/hdparm-I.txt").read_text()
    security = parse_security(words)
    assert security == Security(supported=True, enhanced=True, minutes=2, enhanced_minutes=8)
    assert security.obstacle is None


def test_a_drive_without_the_section_has_no_security() -> None:
    assert parse_security("/dev/sda:\n Model Number: x\n").obstacle == "the drive has no security feature set"


# NVMe


class NvmeDrive:
    """A drive behind the kernel's call. `looks`: how often a sanitize is seen under way."""

    def __init__(self, file: Path, *, sanitize: int = 0, fna: int = 0, oacs: int = 2, looks: int = 2) -> None:
        self.file = file
        self.looks = looks
        self.refuses: set[int] = set()
        self.lies = False
        """It says that it has erased itself, and has not."""
        self.sanitizes = False
        self.controller = bytearray(4096)
        self.controller[256:258] = oacs.to_bytes(2, "little")
        self.controller[328:332] = sanitize.to_bytes(4, "little")
        self.controller[524] = fna
        self.sent: list[nvme.AdminCommand] = []

    def submit(self, path: str, command: nvme.AdminCommand) -> bytes:
        self.sent.append(command)
        if command.opcode in self.refuses:
            raise OperationError(ErrorCode.NOT_APPLIED, f"{path} refused an NVMe command with status 0x4001")
        if command.opcode == 0x06:
            namespace = bytearray(4096)
            namespace[26], namespace[29] = 0x12, 0x09
            return bytes(self.controller) if command.cdw10 == 1 else bytes(namespace)
        if command.opcode == 0x02:
            if not self.sanitizes:
                return bytes(512)
            self.looks -= 1
            state, share = (2, 0x8000) if self.looks > 0 else (1, 0xFFFF)
            if state == 1:
                self.file.write_bytes(bytes(self.file.stat().st_size))
            return share.to_bytes(2, "little") + state.to_bytes(2, "little") + bytes(508)
        if command.opcode == 0x84:
            self.sanitizes = True
        if command.opcode == 0x80 and not self.lies:
            self.file.write_bytes(bytes(self.file.stat().st_size))
        return b""

    @property
    def acts(self) -> list[int]:
        return [command.opcode for command in self.sent if command.opcode in (0x80, 0x84)]


MakeDrive = Callable[..., NvmeDrive]


@pytest.fixture
def nvme_drive(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> MakeDrive:
    file = machine.add_disk("nvme0n1", 5 * MIB, device=NVME, nsid="1")
    fill(file)
    monkeypatch.setattr("drivers.linux.erase._LOOK_SECONDS", 0.01)

    def make(**facts: int) -> NvmeDrive:
        drive = NvmeDrive(file, **facts)
        monkeypatch.setattr(nvme, "submit", drive.submit)
        return drive

    return make


async def test_a_sanitize_is_begun_once_and_waited_for(machine: Machine, nvme_drive: MakeDrive) -> None:
    drive = nvme_drive(sanitize=0b11)
    done = (await erase(machine)).disks[0]
    assert drive.acts == [0x84]
    assert done.method == "NVMe sanitize (block erase)"
    assert "256 samples read as zeros" in (done.proof or "")


async def test_a_sanitize_that_an_earlier_agent_has_begun_is_waited_for(
    machine: Machine, nvme_drive: MakeDrive
) -> None:
    drive = nvme_drive(sanitize=0b11)
    drive.sanitizes = True
    done = (await erase(machine)).disks[0]
    assert drive.acts == []
    assert done.method == "NVMe sanitize (block erase)"


async def test_a_drive_that_says_it_is_erased_and_holds_what_it_held_is_overwritten(
    machine: Machine, nvme_drive: MakeDrive
) -> None:
    drive = nvme_drive()
    drive.lies = True
    drive.file.write_bytes(os.urandom(5 * MIB))
    done = (await erase(machine)).disks[0]
    assert done.method == "overwritten with zeros"
    assert "samples read as before" in (done.proof or "")
    assert not any(drive.file.read_bytes())


async def test_a_format_keeps_the_namespaces_own_format(machine: Machine, nvme_drive: MakeDrive) -> None:
    drive = nvme_drive(fna=4)
    done = (await erase(machine)).disks[0]
    assert done.method == "NVMe format (crypto erase)"
    command = drive.sent[-1]
    # FLBAS 0x12: format 2 with metadata beside the data; DPS 0x09: type 1, in the first bytes; SES 2.
    assert command.cdw10 == 2 | 1 << 4 | 1 << 5 | 1 << 8 | 2 << 9


async def test_a_refused_way_is_followed_by_the_next(machine: Machine, nvme_drive: MakeDrive) -> None:
    drive = nvme_drive(sanitize=0b10)
    drive.refuses = {0x84}
    done = (await erase(machine)).disks[0]
    assert drive.acts == [0x84, 0x80]
    assert done.method == "NVMe format (user data erase)"
    assert "no NVMe sanitize (block erase)" in (done.proof or "")


async def test_a_drive_that_takes_no_such_command_is_overwritten(machine: Machine, nvme_drive: MakeDrive) -> None:
    nvme_drive(oacs=0)
    done = (await erase(machine)).disks[0]
    assert done.method == "overwritten with zeros"


async def test_what_erases_every_namespace_is_not_used_where_there_is_another(
    machine: Machine, nvme_drive: MakeDrive
) -> None:
    fill(machine.add_disk("nvme0n2", 5 * MIB, device=NVME, nsid="2"))
    drive = nvme_drive(sanitize=0b10, fna=0b110)
    done = (await erase(machine, hints=RootDeviceHints(name="nvme0n1"))).disks[0]
    assert drive.acts == []
    assert done.method == "overwritten with zeros"
    assert any(machine.bytes_of("nvme0n2"))


def test_the_recorded_controller_erases_by_its_key(shared: Path) -> None:
    """misc/nvme-id-ctrl.json: a Samsung 980 PRO (oacs 23, fna 4, no sanicap)."""
    told = msgspec.json.decode((shared / "mockups/inband/misc/nvme-id-ctrl.json").read_bytes())
    data = bytearray(4096)
    data[256:258] = told["oacs"].to_bytes(2, "little")
    data[328:332] = told.get("sanicap", 0).to_bytes(4, "little")
    data[516:520] = told["nn"].to_bytes(4, "little")
    data[524] = told["fna"]
    abilities = nvme.parse_controller(bytes(data))
    assert abilities.namespaces == 1
    assert nvme.acts(abilities, alone=True) == [nvme.Act.FORMAT_CRYPTO, nvme.Act.FORMAT_DATA]


async def test_an_erasure_of_hours_takes_no_thread_from_the_rest_of_the_agent(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.add_disk("sda", 9 * MIB, device=PLAIN)
    loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))

    def long(self: BlockDevice, offset: int, size: int) -> bool:
        loop.call_soon_threadsafe(begun.set)
        return go_on.wait(30)

    monkeypatch.setattr(BlockDevice, "zero_out", long)
    erasing = asyncio.create_task(erase(machine))
    await begun.wait()
    try:
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "done"), 10) == "done"
    finally:
        go_on.set()
    assert (await erasing).disks[0].disk == "sda"


async def test_a_cancelled_erasure_has_ended_when_it_says_so(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = machine.add_disk("sda", 9 * MIB, device=PLAIN)
    fill(file)
    monkeypatch.setattr("drivers.linux.erase._STEP", MIB)
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    real, calls = BlockDevice.zero_out, 0

    def counted(self: BlockDevice, offset: int, size: int) -> bool:
        nonlocal calls
        calls += 1
        loop.call_soon_threadsafe(begun.set)
        return real(self, offset, size)

    monkeypatch.setattr(BlockDevice, "zero_out", counted)
    task = asyncio.create_task(erase(machine))
    await begun.wait()
    task.cancel()
    with pytest.raises((asyncio.CancelledError, OperationError)):
        await task
    before = calls
    await asyncio.sleep(0.1)
    assert calls == before


def test_a_disk_tells_what_it_holds(machine: Machine) -> None:
    file = machine.add_disk("sda", 40 * MIB, device=PLAIN)

    def shown() -> list[str]:
        with BlockDevice(str(file)) as device:
            return contents(device)[0]

    assert shown() == []
    file.write_bytes(gpt_image(40 * MIB, [(1, LINUX_ROOT, 2048, 70000)]))
    assert shown() == ["GPT with 1 partitions"]
    data = bytearray(file.read_bytes())
    data[: 2 * MIB] = bytes(2 * MIB)
    file.write_bytes(data)
    assert shown() == ["the backup of a GPT whose beginning is gone"]
    # A mirror's member shows the mirror's own table, and its superblock at the end.
    data = bytearray(gpt_image(40 * MIB, [(1, LINUX_ROOT, 2048, 70000)]))
    data[40 * MIB - 8192 : 40 * MIB - 8188] = b"\xfc\x4e\x2b\xa9"
    file.write_bytes(data)
    assert shown() == ["GPT with 1 partitions", "a member of a Linux software RAID"]
    file.write_bytes(bytes(4096) + b"\xfc\x4e\x2b\xa9" + bytes(40 * MIB - 4100))
    assert shown() == ["a member of a Linux software RAID"]
