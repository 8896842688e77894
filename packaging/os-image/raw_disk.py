"""A raw disk out of a folder: GPT, a BIOS boot partition, an EFI system partition, an ext4 root. Nothing is mounted.

GRUB is put in place as grub-install does it: a loader on the EFI system partition, and for BIOS its first sector and
its core, each of which is told where the next one lies.
"""

import os
import struct
import subprocess
from pathlib import Path

__all__ = ["PROGRAMS", "ImageFault", "make_disk", "run"]

PROGRAMS = ("sfdisk", "mke2fs", "mformat", "mmd", "mcopy", "grub-mkimage")
GRUB = Path("/usr/lib/grub")
SECTOR, MIB = 512, 1 << 20
ESP_MIB, SPARE_MIB = 8, 160
MODULES = ("part_gpt", "ext2", "fat", "normal", "configfile", "linux", "search", "search_label", "echo", "test")
MENU = """\
set timeout=0
search --no-floppy --label --set=root root
menuentry "Debian GNU/Linux" --class debian {
    linux /vmlinuz root=LABEL=root ro console=ttyS0,115200 net.ifnames=0
    initrd /initrd.img
}
"""
FINDER = "search --no-floppy --label --set=root root\nset prefix=($root)/boot/grub\nconfigfile $prefix/grub.cfg\n"


class ImageFault(Exception):
    """A program that is needed is missing or has failed; the text holds its last words."""


def make_disk(tree: Path, raw: Path, work: Path) -> None:
    """`tree` becomes the root; what is in `work` beside is left there."""
    (tree / "boot/grub").mkdir(parents=True, exist_ok=True)
    (tree / "boot/grub/grub.cfg").write_text(MENU)
    root_mib = _size_mib(tree) + SPARE_MIB
    system, root = work / "esp", work / "root"
    _system_partition(system, work)
    with root.open("wb") as file:
        file.truncate(root_mib * MIB)
    run("mke2fs", "-q", "-t", "ext4", "-L", "root", "-m", "0", "-d", tree, root)
    parts = (
        f"start=2048, size={MIB // SECTOR}, type=21686148-6449-6E6F-744E-656564454649",
        f"start={2 * MIB // SECTOR}, size={ESP_MIB * MIB // SECTOR}, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B",
        f"start={(2 + ESP_MIB) * MIB // SECTOR}, size={root_mib * MIB // SECTOR}, "
        "type=4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709",
    )
    with raw.open("wb") as file:
        file.truncate((3 + ESP_MIB + root_mib) * MIB)
    run("sfdisk", "--quiet", raw, stdin="label: gpt\n" + "\n".join(parts) + "\n")
    for source, at in ((system, 2 * MIB), (root, (2 + ESP_MIB) * MIB)):
        run("dd", f"if={source}", f"of={raw}", "bs=1M", f"seek={at // MIB}", "conv=notrunc,sparse", "status=none")
    _bios_loader(raw, work)


def _system_partition(file: Path, work: Path) -> None:
    loader, menu = work / "grubx64.efi", work / "grub.cfg"
    run("grub-mkimage", "-O", "x86_64-efi", "-p", "/EFI/debian", "-o", loader, *MODULES)
    menu.write_text(FINDER)
    with file.open("wb") as handle:
        handle.truncate(ESP_MIB * MIB)
    run("mformat", "-i", file, "-v", "EFI", "::")
    run("mmd", "-i", file, "::EFI", "::EFI/debian", "::EFI/BOOT")
    run("mcopy", "-i", file, loader, "::EFI/debian/grubx64.efi")
    run("mcopy", "-i", file, menu, "::EFI/debian/grub.cfg")
    run("mcopy", "-i", file, loader, "::EFI/BOOT/BOOTX64.EFI")


def _bios_loader(raw: Path, work: Path) -> None:
    """The first sector leads to the core in the BIOS boot partition, which begins at sector 2048.

    (GRUB: include/grub/i386/pc/boot.h: the core's sector is at 0x5c, the check of the drive at 0x66; the core's first
    sector ends with where its rest lies: sector, count, segment.)
    """
    core = work / "core.img"
    run("grub-mkimage", "-O", "i386-pc", "-p", "(hd0,gpt3)/boot/grub", "-o", core, "biosdisk", *MODULES)
    first = bytearray((GRUB / "i386-pc/boot.img").read_bytes()[:SECTOR])
    first[0x5C:0x64] = struct.pack("<Q", 2048)
    first[0x66:0x68] = b"\x90\x90"
    content = bytearray(core.read_bytes())
    content[0x1F4:0x1FC] = struct.pack("<Q", 2049)
    with raw.open("r+b") as file:
        # The table's own part of the sector stays.
        file.write(first[:0x1B8])
        file.seek(2048 * SECTOR)
        file.write(content)


def _size_mib(tree: Path) -> int:
    """What the files take in blocks of 4 KiB."""
    blocks = 0
    for folder, folders, names in os.walk(tree):
        blocks += len(folders)
        blocks += sum(-(-os.lstat(Path(folder, name)).st_size // 4096) for name in names)
    return blocks * 4096 // MIB + 1


def run(*words: str | Path, stdin: str = "") -> None:
    """Raises ImageFault unless the program succeeds."""
    done = subprocess.run([str(word) for word in words], input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImageFault(f"{words[0]} ended {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
