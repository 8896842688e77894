"""Entries of the Boot Loader Specification, systemd-boot's choice among them, and unified kernel images."""

import itertools
import struct
from pathlib import Path

import pytest

from ramdisk.boot_choice import NoChoice, compare_versions
from ramdisk.boot_entries import entries_of, systemd_boot_choice
from ramdisk.unified_image import copy_section, read_section, sections_of
from tests.ramdisk.systems import System

ARCH = """title   Arch Linux
linux   /vmlinuz-linux
initrd  /intel-ucode.img
initrd	/initramfs-linux.img
options root=UUID=1 rw
"""


def unified(**sections: bytes) -> bytes:
    """The smallest PE file with these sections; `_` stands for the dot of their names."""
    place = 0x200
    rows, body = b"", b""
    for name, data in sections.items():
        padded = data.ljust(-(-len(data) // 512) * 512, b"\0")
        row = struct.pack("<8sIIII", name.replace("_", ".").encode(), len(data), 0, len(padded), place)
        rows += row.ljust(40, b"\0")
        body, place = body + padded, place + len(padded)
    head = b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x40)
    coff = b"PE\0\0" + struct.pack("<HHIIIHH", 0x8664, len(sections), 0, 0, 0, 0, 0)
    return (head + coff + rows).ljust(0x200, b"\0") + body


def arch(folder: Path) -> System:
    system = System(folder)
    for name in ("vmlinuz-linux", "intel-ucode.img", "initramfs-linux.img"):
        system.write(f"/boot/efi/{name}")
    system.write("/boot/efi/loader/entries/arch.conf", ARCH)
    return system.write("/boot/efi/EFI/systemd/systemd-bootx64.efi")


def test_arch_starts_the_entry_that_loader_conf_names(tmp_path: Path) -> None:
    system = arch(tmp_path / "s")
    system.write("/boot/efi/loader/entries/arch-fallback.conf", ARCH.replace("Arch Linux", "Arch (fallback)"))
    system.write("/boot/efi/loader/loader.conf", "# a comment\ntimeout 3\ndefault arch.conf\nconsole-mode max\n")
    found = systemd_boot_choice(system.volumes, "systemd-boot")
    assert (found.title, found.loader, found.command_line) == ("Arch Linux", "systemd-boot", "root=UUID=1 rw")
    assert [str(initrd) for initrd in found.initrds] == ["sda1:/intel-ucode.img", "sda1:/initramfs-linux.img"]
    assert found.missing() == []


@pytest.mark.parametrize(
    ("default", "efi", "title"),
    [
        ("arch-fall*", None, "Arch (fallback)"),
        ("gone.conf", None, "Arch Linux"),
        ("@saved", "arch-fallback.conf", "Arch (fallback)"),
        ("arch.conf", "arch-fallback", "Arch (fallback)"),
        (None, None, "Arch Linux"),
    ],
)
def test_the_default_may_be_a_pattern_and_the_firmwares_variable_goes_before_it(
    tmp_path: Path, default: str | None, efi: str | None, title: str
) -> None:
    system = arch(tmp_path / "s")
    system.write("/boot/efi/loader/entries/arch-fallback.conf", ARCH.replace("Arch Linux", "Arch (fallback)"))
    system.write("/boot/efi/loader/entries/zz-arch.conf", ARCH) if default is None else None
    system.write("/boot/efi/loader/loader.conf", f"default {default}\n" if default else "timeout 0\n")
    assert systemd_boot_choice(system.volumes, "systemd-boot", None, efi).title == title


def test_the_newest_version_of_a_machines_own_kernels_is_first_and_bad_ones_are_last(tmp_path: Path) -> None:
    system = System(tmp_path / "s")
    for version, counter in (("6.1.9", ""), ("6.1.57", "+3"), ("6.2.0~rc1", ""), ("6.10.1", "+0-3")):
        text = f"title Debian\nsort-key debian\nversion {version}\nlinux /{version}/linux\noptions root=a\n"
        system.write(f"/boot/efi/loader/entries/debian-{version}{counter}.conf", text)
    system.write("/boot/efi/loader/entries/old.conf", "title Old\nlinux /old\n")
    entries = entries_of(system.volumes.all)
    assert [entry.linux for entry in entries] == [
        "/6.2.0~rc1/linux",
        "/6.1.57/linux",
        "/6.1.9/linux",
        "/old",
        "/6.10.1/linux",
    ]
    assert entries[1].id == "debian-6.1.57"


def test_an_entry_that_is_asked_for_and_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(NoChoice, match="no entry 'suse'; there are Arch Linux"):
        systemd_boot_choice(arch(tmp_path / "s").volumes, "systemd-boot", "suse")


def test_a_system_without_entries_says_where_they_were_looked_for(tmp_path: Path) -> None:
    with pytest.raises(NoChoice, match="/loader/entries"):
        systemd_boot_choice(System(tmp_path / "s").volumes, "bls")


def test_an_entry_that_starts_another_program_is_no_linux(tmp_path: Path) -> None:
    system = System(tmp_path / "s").write("/boot/efi/loader/entries/shell.conf", "title Shell\nefi /shellx64.efi\n")
    with pytest.raises(NoChoice, match="'Shell' starts no Linux"):
        systemd_boot_choice(system.volumes, "systemd-boot")


def test_a_unified_image_is_an_entry_and_holds_its_own_command_line(tmp_path: Path) -> None:
    image = unified(_linux=b"KERNEL" * 100, _initrd=b"INITRD", _cmdline=b"root=UUID=2 quiet\n")
    system = System(tmp_path / "s").write("/boot/efi/EFI/Linux/debian-6.12.efi", image)
    system.write("/boot/efi/EFI/Linux/memtest.efi", unified(_text=b"x"))
    found = systemd_boot_choice(system.volumes, "systemd-boot")
    assert (found.title, found.unified) == ("debian-6.12", True)
    file = found.kernel.file
    assert file is not None
    assert read_section(file, ".cmdline") == b"root=UUID=2 quiet\n"
    assert copy_section(file, ".linux", tmp_path / "kernel")
    assert (tmp_path / "kernel").read_bytes() == b"KERNEL" * 100
    assert not copy_section(file, ".ucode", tmp_path / "ucode")


def test_an_entry_may_name_a_unified_image(tmp_path: Path) -> None:
    system = System(tmp_path / "s").write("/boot/efi/uki.efi", unified(_linux=b"K"))
    system.write("/boot/efi/loader/entries/u.conf", "title U\nefi /uki.efi\noptions root=a\n")
    found = systemd_boot_choice(system.volumes, "systemd-boot")
    assert (found.unified, found.kernel.path, found.command_line) == (True, "/uki.efi", "root=a")


@pytest.mark.parametrize("data", [b"", b"MZ", b"MZ" + b"\xff" * 100, unified(_linux=b"K")[:0x70], b"\x7fELF" * 50])
def test_a_file_that_is_no_unified_image_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)
    with (tmp_path / "f").open("rb") as stream, pytest.raises(ValueError, match="PE file"):
        sections_of(stream)


def test_versions_are_ordered_as_the_specification_says() -> None:
    ordered = ["122.1", "123~rc1-1", "123", "123-a", "123-a.1", "123-1", "123-1.1", "123^post1", "123.a-1", "123.1-1"]
    ordered += ["123a-1", "124-1"]
    for lower, higher in itertools.pairwise(ordered):
        assert compare_versions(lower, higher) < 0, (lower, higher)
        assert compare_versions(higher, lower) > 0, (lower, higher)
    for one, other in (("0_", "0_"), ("1.0", "1.0"), ("2_lowercase", "2_lowercase"), ("01.00", "1.0")):
        assert compare_versions(one, other) == 0
