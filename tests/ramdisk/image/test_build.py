"""What is decided before an image is built, and what lies beside it."""

import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from drivers.linux.host import Host
from protocol.boot_ticket import AREA_NAME, MEDIUM_LABEL
from ramdisk.cli import ramdisk
from ramdisk.image import build as building
from ramdisk.image.architectures import ARCHITECTURES
from ramdisk.image.boot_loader import fill_words
from ramdisk.image.build import BuildOptions, Description, architecture_named, build, command_line, sources_digest
from ramdisk.image.initrd import first_archive
from ramdisk.image.lists import read_file
from ramdisk.image.programs import BuildError, need_programs, run
from ramdisk.image.python_tree import parse_python_version, room_files

X86 = ARCHITECTURES["x86_64"]
NOT_CALLED = "no step was taken"


def refuse(step: str) -> None:
    pytest.fail(f"{NOT_CALLED}: {step}")


def test_the_kernel_speaks_on_the_serial_port_and_the_screen_and_starts_anew_after_a_panic() -> None:
    assert command_line(X86) == "console=ttyS0,115200 console=tty0 panic=60 loglevel=4"
    assert command_line(ARCHITECTURES["aarch64"]).startswith("console=ttyAMA0,115200 ")


def test_more_words_stand_at_the_end() -> None:
    assert command_line(X86, ("rackwright.shell", "iommu=off")).endswith(" rackwright.shell iommu=off")


@pytest.mark.parametrize("word", ["a b", "$(reboot)", 'x"', "a;reboot", "{", "@LABEL@x|y"])
def test_a_word_that_a_boot_loader_would_obey_is_refused(word: str) -> None:
    with pytest.raises(BuildError, match="command line"):
        command_line(X86, (word,))


def test_the_boot_loader_hands_the_area_over_between_the_two_ends_of_an_archive() -> None:
    words = {"LABEL": MEDIUM_LABEL, "VERSION": "1", "WORDS": "panic=60", "AREA": AREA_NAME, "HEAD": "h", "TAIL": "t"}
    text = fill_words(read_file("grub.cfg"), words)
    assert "@" not in text
    assert f"initrd /boot/initrd.zst /h /{AREA_NAME} /t" in text.splitlines()


def test_the_first_process_is_a_sound_script() -> None:
    # busybox's shell is not everywhere; the scripts keep to what all shells know.
    subprocess.run(["sh", "-n"], input=read_file("init").encode(), check=True)


def test_the_first_process_says_until_when_it_still_looks_for_devices(tmp_path: Path) -> None:
    functions, _, start = read_file("init").partition("\numask 022\n")
    place = Host().devices_settling
    assert {f"STATE={place.parent}", f"SETTLING=$STATE/{place.name}"} <= set(functions.splitlines())
    steps = start.splitlines()
    assert steps.index(": >$SETTLING") < steps.index("find_devices &") < steps.index("keep_agent")

    seen = """
note() { [ -e "$SETTLING" ] && echo "$* settling" || echo "$*"; }
load_modules() { return 1; }
renice() { :; }
mount() { :; }
heed_power_button() { :; }
settle() { note settle "$@"; }
assemble_arrays() { note assemble "$@"; }
limit_log() { note from then on; exit; }
"""
    script = f"{functions}\n{seen}\nNOTES={tmp_path}\nSETTLING={tmp_path}/settling\n: >$SETTLING\nfind_devices\n"
    (tmp_path / "modules").touch()
    ran = subprocess.run(["sh"], input=script, capture_output=True, text=True, check=True, timeout=30)
    assert ran.stdout.splitlines() == [
        "settle 2 settling",
        "assemble --no-degraded settling",
        "settle 10 settling",
        "assemble settling",
        "from then on",
    ]


def test_the_early_modules_are_loaded_in_the_order_in_which_they_need_each_other(tmp_path: Path) -> None:
    modules = [("kernel/z/first.ko", b"1"), ("kernel/a/then-next.ko", b"2")]
    archive = first_archive(tmp_path, [], b"busybox", modules, 0)
    assert b"first.ko\nthen_next.ko\n" in archive
    assert b"early/then_next.ko\0" in archive


def test_the_image_has_the_agents_rooms_and_nothing_that_builds_images() -> None:
    names = [name for name, _ in room_files()]
    assert {"ramdisk/service.py", "agent/service.py", "drivers/linux/__init__.py", "protocol/frames.py"} <= set(names)
    assert not [name for name in names if name.startswith(("ramdisk/image", "control_plane", "simulators"))]
    assert len(names) == len(set(names))


def test_an_image_of_other_options_is_another_image() -> None:
    options = BuildOptions(X86)
    digests = {
        sources_digest(options),
        sources_digest(replace(options, fast=True)),
        sources_digest(replace(options, words=("x",))),
        sources_digest(replace(options, architecture=ARCHITECTURES["aarch64"])),
    }
    assert len(digests) == 4
    assert sources_digest(options) in digests


@pytest.mark.parametrize(("name", "expected"), [("x86_64", "x86_64"), ("amd64", "x86_64"), ("arm64", "aarch64")])
def test_an_architecture_has_the_kernels_name_and_debians(name: str, expected: str) -> None:
    assert architecture_named(name).name == expected


def test_an_unknown_architecture_is_told_with_those_there_are() -> None:
    with pytest.raises(BuildError, match="there is one for x86_64, aarch64"):
        architecture_named("riscv64")


def test_what_agents_read_beside_an_image_has_the_agreed_names() -> None:
    description = Description(
        version="1",
        architecture="x86_64",
        kernel_version="6.1",
        area_offset=1,
        area_size=2,
        iso_size=3,
        iso_sha256="4",
        kernel="vmlinuz",
        kernel_sha256="5",
        initrd="initrd.zst",
        initrd_sha256="6",
        command_line="panic=60",
    )
    assert msgspec.to_builtins(description).items() >= {
        ("format", 1),
        ("version", "1"),
        ("architecture", "x86_64"),
        ("areaOffset", 1),
        ("areaSize", 2),
        ("isoSize", 3),
        ("isoSha256", "4"),
        ("kernel", "vmlinuz"),
        ("initrd", "initrd.zst"),
    }


def test_all_missing_programs_are_named_by_their_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(BuildError, match="apt-get install kmod mmdebstrap xorriso"):
        need_programs(["xorriso", "depmod", "modprobe", "mmdebstrap"])
    with pytest.raises(BuildError, match="squashfs-tools"):
        build(tmp_path / "out", tmp_path / "work", BuildOptions(X86), refuse)
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_fails_is_told_with_its_last_words() -> None:
    with pytest.raises(BuildError, match=r"(?s)sh failed with exit code 3:.*the disk is full"):
        run(["sh", "-c", "echo much >&2; echo the disk is full >&2; exit 3"])


def test_one_python_must_be_among_the_programs() -> None:
    assert parse_python_version(["python3", "bash", "python3.11"]) == "3.11"
    with pytest.raises(BuildError, match="there are 2"):
        parse_python_version(["python3.11", "python3.13"])


def test_a_failed_build_leaves_the_image_that_was_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise BuildError("the mirror is gone")

    monkeypatch.setattr(building, "need_programs", lambda *_: None)
    monkeypatch.setattr(building, "_packages", fail)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/rackwright-ramdisk.iso").write_bytes(b"old")
    with pytest.raises(BuildError, match="the mirror is gone"):
        build(tmp_path / "out", tmp_path / "work", BuildOptions(X86), lambda _: None)
    assert (tmp_path / "out/rackwright-ramdisk.iso").read_bytes() == b"old"


def test_the_command_line_tells_a_faulty_list_of_packages(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("nonsense\n")
    ended = CliRunner().invoke(ramdisk, ["build", "--packages", str(tmp_path / "list"), "--output", str(tmp_path)])
    assert "the list of packages has 1 fault" in str(ended.exception)


def test_the_command_line_lists_what_it_made_with_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def pretend(output: Path, *_: object) -> Path:
        for name, size in (("vmlinuz", 8_250), ("initrd.zst", 1), ("rackwright-ramdisk.iso", 61_544)):
            (output / name).write_bytes(bytes(size))
        (output / "rackwright-ramdisk.iso.packages").touch()
        (output / "rackwright-ramdisk.iso.json").touch()
        return output / "rackwright-ramdisk.iso.json"

    monkeypatch.setattr(building, "build", pretend)
    ended = CliRunner().invoke(ramdisk, ["build", "--output", str(tmp_path)])
    assert [line.split()[1:] for line in ended.output.splitlines()][:2] == [["0.062", "MB"], ["0.008", "MB"]]
    assert {Path(line.split()[0]).name for line in ended.output.splitlines()} == {
        *("rackwright-ramdisk.iso", "rackwright-ramdisk.iso.packages", "rackwright-ramdisk.iso.json"),
        *("vmlinuz", "initrd.zst"),
    }
