"""The bootable medium: one image that firmware takes as a CD and as a disk, by UEFI and by BIOS."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from protocol.boot_ticket import AREA_NAME, AREA_SIZE, MEDIUM_LABEL, encode_area
from ramdisk.image.architectures import Architecture
from ramdisk.image.boot_loader import fill_words, make_bios_loader, make_efi_partition
from ramdisk.image.cpio import archive_around
from ramdisk.image.lists import read_file
from ramdisk.image.programs import BuildError, run
from ramdisk.iso9660 import Extent, find_file, volume_label

__all__ = ["find_area", "make_medium"]

_HEAD, _TAIL = "rackwright/ticket.head", "rackwright/ticket.tail"
"""They make an archive of the area for the boot loader."""


def make_medium(
    iso: Path,
    *,
    kernel: Path,
    initrd: Path,
    tree: Path,
    architecture: Architecture,
    words: Mapping[str, str],
    work: Path,
    time: int,
) -> Extent:
    """Writes the image; where its ticket area lies. `tree`: the unpacked packages. Raises BuildError."""
    content = work / "medium"
    shutil.rmtree(content, ignore_errors=True)
    (content / "boot/grub").mkdir(parents=True)
    (content / ".disk").mkdir()
    # The signed GRUB takes the medium that has this file for its own.
    (content / ".disk/info").write_text(f"Rackwright {words['VERSION']} {architecture.name}\n")
    shutil.copyfile(kernel, content / "boot/vmlinuz")
    shutil.copyfile(initrd, content / "boot/initrd.zst")
    names = {"LABEL": MEDIUM_LABEL, "AREA": AREA_NAME, "HEAD": _HEAD, "TAIL": _TAIL}
    (content / "boot/grub/grub.cfg").write_text(fill_words(read_file("grub.cfg"), {**words, **names}))
    (content / AREA_NAME).parent.mkdir()
    for name, data in zip((_HEAD, _TAIL), archive_around(AREA_NAME, AREA_SIZE), strict=True):
        (content / name).write_bytes(data)
    (content / AREA_NAME).write_bytes(encode_area(None))
    make_efi_partition(tree, architecture, work / "efi.img", time)
    bios: list[str | Path] = []
    if architecture.bios:
        beginning = make_bios_loader(tree, content / "boot/grub/bios.img")
        bios = [
            *("--grub2-mbr", beginning, "-c", "boot/grub/boot.cat", "-b", "boot/grub/bios.img", "-no-emul-boot"),
            *("-boot-load-size", "4", "-boot-info-table", "--grub2-boot-info", "-eltorito-alt-boot"),
        ]
    for path in (*content.rglob("*"), content):
        os.utime(path, (time, time))
    run(
        [
            *("xorriso", "-as", "mkisofs", "-quiet", "-r", "-iso-level", "3", "-V", MEDIUM_LABEL, "-o", iso),
            *bios,
            *("-append_partition", "2", "0xef", work / "efi.img", "-appended_part_as_gpt"),
            *("-e", "--interval:appended_partition_2:all::", "-no-emul-boot", content),
        ],
        environment={"SOURCE_DATE_EPOCH": str(time)},
    )
    shutil.rmtree(content)
    return find_area(iso)


def find_area(iso: Path) -> Extent:
    """Where the base image's empty ticket area lies. Raises BuildError where it is not as agents expect it."""
    with iso.open("rb") as image:
        try:
            label, area = volume_label(image), find_file(image, AREA_NAME)
        except ValueError as error:
            raise BuildError(f"{iso} is no boot medium of ours: {error}") from error
        image.seek(area.offset)
        data = image.read(area.size)
    if label != MEDIUM_LABEL or area.size != AREA_SIZE or data != encode_area(None):
        raise BuildError(f"{iso} has no empty ticket area")
    return area
