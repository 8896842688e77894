"""How firmware gets from the medium to the kernel: by Debian's signed loaders on UEFI, by GRUB's own on BIOS."""

import os
from collections.abc import Mapping
from pathlib import Path

from ramdisk.image.architectures import Architecture
from ramdisk.image.programs import BuildError, run

__all__ = ["fill_words", "make_bios_loader", "make_efi_partition"]

_BIOS = Path("usr/lib/grub/i386-pc")
_BIOS_MODULES = (
    *("biosdisk", "iso9660", "part_msdos", "part_gpt", "search", "search_label", "search_fs_file"),
    *("normal", "configfile", "linux", "serial", "terminal", "echo", "test", "minicmd", "reboot", "ls", "cat"),
)
_SERIAL_NUMBER = "52575244"
"""Of the EFI partition: always the same."""
_FREE = 256 * 1024
_SECTOR = 512


def fill_words(text: str, words: Mapping[str, str]) -> str:
    """Puts the words into a text that has them as `@NAME@`. Pure."""
    for name, word in words.items():
        text = text.replace(f"@{name}@", word)
    return text


def make_efi_partition(tree: Path, architecture: Architecture, image: Path, time: int) -> None:
    """A FAT file system with the signed loaders, where firmware looks for them. Raises BuildError.

    The first one (shim) is signed by Microsoft, the second (GRUB) and the kernel by Debian: Secure Boot may stay on.
    """
    files = {architecture.efi_name: tree / architecture.shim, architecture.grub_name: tree / architecture.grub}
    for file in files.values():
        if not file.is_file():
            raise BuildError(f"the boot loader {file.relative_to(tree)} is not among the packages")
    size = sum(file.stat().st_size for file in files.values()) + _FREE
    sectors = -(-size // (64 * 1024)) * 128
    at_that_time = {"SOURCE_DATE_EPOCH": str(time), "MTOOLS_SKIP_CHECK": "1", "MTOOLSRC": os.devnull}
    image.unlink(missing_ok=True)
    run(["mformat", "-i", image, "-C", "-T", str(sectors), "-h", "2", "-s", "32", "-N", _SERIAL_NUMBER, "::"])
    run(["mmd", "-i", image, "::/EFI", "::/EFI/BOOT"], environment=at_that_time)
    for name, file in files.items():
        os.utime(file, (time, time))
        run(["mcopy", "-i", image, "-m", file, f"::/EFI/BOOT/{name}"], environment=at_that_time)


def make_bios_loader(tree: Path, loader: Path) -> Path:
    """GRUB for a CD's boot record, with all its parts in it; where the beginning of a disk that starts it lies.

    Raises BuildError.
    """
    run(
        [
            *("grub-mkimage", "--directory", tree / _BIOS, "--format", "i386-pc-eltorito"),
            *("--prefix", "/boot/grub", "--output", loader, *_BIOS_MODULES),
        ]
    )
    return tree / _BIOS / "boot_hybrid.img"
