"""`boot.kexec`: asked first whether it may, loaded by file first, the disk made the firmware's choice, told, jumped.

Case B52. Programs are the test's own: no kernel of the machine that runs the tests is ever loaded or left.
"""

import asyncio
import os
import shutil
import struct
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.departure import Departure, Departures, Means
from agent.handlers import CURRENT_COMMAND, Answer
from agent.own_machine import OwnMachine
from agent.reboot import Kernel
from drivers import Drivers
from drivers.linux.efi_variables import BootEntry, EfiVariables, encode_entry
from drivers.linux.host import Ran
from protocol.errors import ErrorCode, OperationError
from ramdisk import kexec
from ramdisk.disk_boot import reordered
from ramdisk.kexec import Kexec, jump
from ramdisk.kexec_support import kexec_support
from tests.agent.rig import FakeClock
from tests.drivers.linux.disk_images import DISK, LINUX_ROOT, SYSTEM, gpt_image
from tests.drivers.linux.machine import Machine
from tests.ramdisk.systems import System
from tests.ramdisk.test_grub import STUB, debian_menu

MIB = 1 << 20
GUID = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
HINTS = {"rootDevice": {"name": "sda"}}


def ext4_head(identity: str) -> bytes:
    head = bytearray(70 << 10)
    head[1080:1082] = b"\x53\xef"
    head[0x468:0x478] = uuid.UUID(identity).bytes
    return bytes(head)


def fat_head() -> bytes:
    head = bytearray(70 << 10)
    head[510:512], head[82:90], head[67:71] = b"\x55\xaa", b"FAT32   ", struct.pack("<I", 0x7B1E4C2A)
    return bytes(head)


class Installed:
    """A machine whose disk has a written system, and whose kernel takes another one."""

    def __init__(self, machine: Machine, system: System) -> None:
        self.machine = machine
        self.host = machine.host
        self.system = system
        self.loaded: list[tuple[str, ...]] = []
        self.contents: list[bytes] = []
        self.mounts: list[str] = []
        self.takes: Callable[[tuple[str, ...]], Ran] = lambda _words: Ran(0, "", "")
        machine.add_disk("sda", 40 * MIB).write_bytes(
            gpt_image(40 * MIB, [(1, SYSTEM, 2048, 6143), (3, LINUX_ROOT, 6144, 70000)], fill=False)
        )
        for number, head, start in ((1, fat_head(), 2048), (3, ext4_head(System.ROOT), 6144)):
            base = f"block/sda/sda{number}"
            machine.write(f"{base}/partition", str(number))
            machine.write(f"{base}/start", str(start))
            machine.write(f"{base}/size", "4096")
            (self.host.dev / f"sda{number}").write_bytes(head)
        machine.write("kernel/kexec_loaded", "0")
        self.host.programs.update({"mount": self._mount, "umount": self._umount, "kexec": self._kexec})

    def firmware(self, *order: int) -> EfiVariables:
        folder = self.host.sys / "firmware" / "efi" / "efivars"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"BootOrder-{GUID}").write_bytes(b"\7\0\0\0" + struct.pack(f"<{len(order)}H", *order))
        return EfiVariables(folder)

    def _mount(self, words: tuple[str, ...]) -> Ran:
        _, _, _, _, options, device, folder = words
        self.mounts.append(f"{Path(device).name} {options}")
        tree = self.system.folder / {"sda1": "esp", "sda3": "root"}[Path(device).name]
        os.rmdir(folder)
        Path(folder).symlink_to(tree)
        return Ran(0, "", "")

    def _umount(self, words: tuple[str, ...]) -> Ran:
        Path(words[-1]).unlink()
        Path(words[-1]).mkdir()
        self.mounts.append("umount")
        return Ran(0, "", "")

    def _kexec(self, words: tuple[str, ...]) -> Ran:
        self.loaded.append(words)
        if words[1] in ("-s", "-c"):
            ran = self.takes(words)
            if not ran.code:
                self.machine.write("kernel/kexec_loaded", "1")
                initrd = next(word for word in words if word.startswith("--initrd=")).partition("=")[2]
                self.contents = [Path(words[3]).read_bytes(), Path(initrd).read_bytes()]
            return ran
        if words[1] == "-u":
            self.machine.write("kernel/kexec_loaded", "0")
        return Ran(0, "", "")


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    system = System(tmp_path / "system").kernels("6.1.0-57-amd64", "6.1.0-9-amd64")
    system.write("/boot/efi/EFI/debian/grub.cfg", STUB % (System.ROOT, "/boot"))
    system.write("/boot/grub/grub.cfg", debian_menu())
    return Installed(Machine(tmp_path / "machine"), system)


@pytest.fixture
def own(installed: Installed, tmp_path: Path) -> OwnMachine:
    async def told(_command: str, _seconds: float) -> bool:
        return True

    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    departures = Departures(state / "departure.json", FakeClock(), told=told, stop=lambda: None)
    return OwnMachine(Drivers(), departures, state, installed.host)


async def run(own: OwnMachine, seconds: float = 60.0, **payload: object) -> Answer:
    CURRENT_COMMAND.set("cmd_1")
    handler = Kexec(own)
    asked = {**HINTS, **payload}
    assert handler.faults(asked) == []
    async with handler.turn(asked) as work:
        return await work.run(seconds, lambda _message, _percent: None)


async def failure_of(own: OwnMachine, seconds: float = 60.0, **payload: object) -> OperationError:
    with pytest.raises(OperationError) as failure:
        await run(own, seconds, **payload)
    assert not own.departures.is_leaving
    return failure.value


@pytest.mark.case("B52")
async def test_b52_the_installed_kernel_is_loaded_by_file_and_the_disk_is_first_in_the_firmwares_order(
    installed: Installed, own: OwnMachine
) -> None:
    variables = installed.firmware(0, 1)
    path = uuid.uuid5(DISK, "1").bytes_le
    variables.write_entry(0, encode_entry("UEFI PXE", b"\x7f\xff\4\0"))
    variables.write_entry(1, encode_entry("debian", b"xx" + path + b"yy"))
    answer = await run(own, append="console=ttyS0")
    assert installed.contents == [b"kernel 6.1.0-57-amd64", b"initrd 6.1.0-57-amd64".ljust(24, b"\0")]
    (words,) = installed.loaded
    assert words[:3] == ("kexec", "-s", "-l")
    assert words[4] == f"--command-line=root=UUID={System.ROOT} ro quiet console=ttyS0"
    assert (answer.result["method"], answer.result["bootEntry"]) == ("kexec_file_load", "Boot0001")
    assert answer.result["kernel"] == "sda3:/boot/vmlinuz-6.1.0-57-amd64"
    assert variables.order() == [1, 0]
    assert own.departures.is_leaving
    await own.departures.aclose()


async def test_the_disk_is_mounted_read_only_without_its_journal_and_let_go_of_before_the_jump(
    installed: Installed, own: OwnMachine, tmp_path: Path
) -> None:
    await run(own)
    assert installed.mounts == [
        "sda1 ro,nodev,noexec,nosuid",
        "sda3 ro,nodev,noexec,nosuid,noload",
        "umount",
        "umount",
    ]
    assert not (tmp_path / "state" / "kexec").exists()
    await own.departures.aclose()


@pytest.mark.case("B52")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda machine: shutil.rmtree(machine.host.sys / "kernel"), "built without kexec"),
        (
            lambda machine: _put(machine.host.proc / "sys" / "kernel" / "kexec_load_disabled", "1\n"),
            "switched off in this kernel",
        ),
        (lambda machine: machine.host.programs.pop("kexec"), "not installed here"),
    ],
)
async def test_b52_support_is_probed_before_the_disk_is_touched(
    installed: Installed, own: OwnMachine, change: Callable[[Machine], object], said: str
) -> None:
    change(installed.machine)
    error = await failure_of(own)
    assert error.code is ErrorCode.UNSUPPORTED
    assert said in error.message
    assert "power.setPower" in error.message
    assert installed.mounts == []


async def test_no_disk_is_chosen_before_the_machine_has_shown_all_of_them(
    installed: Installed, own: OwnMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drivers.linux.devices._LOOK_SECONDS", 0.001)
    installed.host.devices_settling.touch()
    error = await failure_of(own, 0.02)
    assert error.code is ErrorCode.TIMEOUT
    assert "waiting until the machine has shown all its devices" in error.message
    assert installed.mounts == []


@pytest.mark.case("B52")
async def test_b52_a_kernel_that_cannot_load_by_file_is_loaded_the_older_way(
    installed: Installed, own: OwnMachine
) -> None:
    installed.takes = lambda words: (
        Ran(255, "", "syscall kexec_file_load not available.") if "-s" in words else Ran(0, "", "")
    )
    answer = await run(own)
    assert answer.result["method"] == "kexec_load"
    assert [words[1] for words in installed.loaded] == ["-s", "-c"]
    await own.departures.aclose()


@pytest.mark.case("B52")
async def test_b52_under_lockdown_an_unsigned_kernel_is_refused_and_no_other_way_is_tried(
    installed: Installed, own: OwnMachine
) -> None:
    installed.machine.write("kernel/security/lockdown", "none [integrity] confidentiality")
    installed.takes = lambda _words: Ran(255, "", "kexec_file_load failed: Operation not permitted")
    error = await failure_of(own)
    assert error.code is ErrorCode.NOT_APPLIED
    assert "Operation not permitted" in error.message
    assert "Secure Boot" in error.message
    assert [words[1] for words in installed.loaded] == ["-s"]


async def test_a_disk_without_a_kernel_says_where_it_was_looked_for(installed: Installed, own: OwnMachine) -> None:
    shutil.rmtree(installed.system.folder / "root" / "boot")
    shutil.rmtree(installed.system.folder / "esp" / "EFI")
    error = await failure_of(own)
    assert error.code is ErrorCode.CONFLICT
    assert "/boot/grub/grub.cfg" in error.message
    assert "/loader/entries" in error.message


async def test_without_hints_and_without_a_written_image_no_disk_is_guessed(
    installed: Installed, own: OwnMachine
) -> None:
    error = await failure_of(own, rootDevice=None)
    assert error.code is ErrorCode.CONFLICT
    assert "no image was written" in error.message


async def test_a_bios_has_no_order_and_that_is_noted(installed: Installed, own: OwnMachine) -> None:
    answer = await run(own)
    assert answer.result["bootEntry"] is None
    assert "started by a BIOS" in str(answer.result["notes"])
    await own.departures.aclose()


async def test_an_entry_that_is_asked_for_is_the_one_that_is_loaded(installed: Installed, own: OwnMachine) -> None:
    answer = await run(own, entry="gnulinux-6.1.0-9")
    assert answer.result["title"] == "Debian GNU/Linux, with Linux 6.1.0-9-amd64"
    await own.departures.aclose()


async def test_what_cannot_be_recorded_is_not_done_and_the_kernel_is_unloaded(
    installed: Installed, own: OwnMachine, tmp_path: Path
) -> None:
    (tmp_path / "state" / "departure.json").mkdir()
    error = await failure_of(own)
    assert "nothing was done" in error.message
    assert installed.loaded[-1] == ("kexec", "-u")


class _Stays(Kernel):
    def leave(self, means: Means) -> None:
        raise PermissionError(1, "Operation not permitted")


async def test_a_jump_that_comes_back_says_so_and_unloads(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kexec, "Kernel", _Stays)
    installed.machine.write("kernel/kexec_loaded", "1")
    departure = Departure(command="c", boot_id="b", means=Means.KEXEC, until_ms=0, result={})
    with pytest.raises(OperationError, match=r"did not jump.*Operation not permitted"):
        await jump(departure, installed.host)
    assert [words[1] for words in installed.loaded] == ["-e", "-u"]


async def test_nothing_is_jumped_into_when_nothing_is_loaded(installed: Installed) -> None:
    departure = Departure(command="c", boot_id="b", means=Means.KEXEC, until_ms=0, result={})
    with pytest.raises(OperationError, match="no kernel is loaded"):
        await jump(departure, installed.host)
    assert installed.loaded == []


@pytest.mark.parametrize(
    ("word", "classic"), [("[none] integrity", True), ("none [confidentiality]", False), ("", True)]
)
def test_lockdown_leaves_only_signed_kernels(installed: Installed, word: str, classic: bool) -> None:
    installed.machine.write("kernel/security/lockdown", word)
    assert kexec_support(installed.host).classic is classic


def test_faults_of_a_kexec_are_told_before_it_is_taken_in(own: OwnMachine) -> None:
    issues = Kexec(own).faults({"append": "a\nb", "rootDevice": {"nme": "sda"}})
    assert [issue.path for issue in issues] == ["payload.rootDevice.nme", "payload.append"]


def test_of_the_entries_that_lead_to_the_disk_the_one_that_comes_first_already_is_kept() -> None:
    variables = [
        (0, b"other"),
        (4, b"--" + DISK.bytes_le),
        (2, DISK.bytes_le),
    ]
    entries = [BootEntry(number, "x", path) for number, path in variables]
    assert reordered(entries, [0, 2, 4], DISK) == [2, 0, 4]
    assert reordered(entries, [0], DISK) == [2, 0]
    assert reordered(entries[:1], [0], DISK) is None
    passed_over = [replace(entry, attributes=0) for entry in entries]
    assert reordered(passed_over, [0, 2, 4], DISK) is None


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


async def test_the_lane_is_held_until_the_machine_has_gone(installed: Installed, own: OwnMachine) -> None:
    await run(own)
    waiting = asyncio.create_task(run(own))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await own.departures.aclose()
