"""A guest that is as small as can be: Debian's kernel, a shell on the serial port, and the identity of each boot.

It is made from Debian packages once and kept under `build/`, which no repository holds.
"""

import gzip
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "build" / "tiny-guest"
META_PACKAGE = "linux-image-cloud-amd64"
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "grub-mkrescue": "grub-common grub-pc-bin grub-efi-amd64-bin",
    "xorriso": "xorriso",
    "mformat": "mtools",
    "busybox": "busybox-static",
    "cpio": "cpio",
}
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
echo "boot_id=$(cat /proc/sys/kernel/random/boot_id)"
echo "uuid=$(cat /sys/class/dmi/id/product_uuid) serial=$(cat /sys/class/dmi/id/product_serial)"
[ -d /sys/firmware/efi ] && echo firmware=uefi || echo firmware=bios
echo "from=$(sed 's/.*from=//' /proc/cmdline)"
echo "guest-is-ready"
exec setsid cttyhack sh
"""
GRUB = """set timeout=0
serial --unit=0 --speed=115200
terminal_output serial
linux /vmlinuz console=ttyS0,115200 quiet from={name}
initrd /initrd.gz
boot
"""


def tiny_iso(name: str) -> Path:
    """A hybrid ISO for BIOS and UEFI whose guest tells `from={name}`. Skips where it cannot be made."""
    look_for_programs()
    iso = FOLDER / f"{name}.iso"
    if not iso.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as work:
            root = Path(work) / "root"
            (root / "boot" / "grub").mkdir(parents=True)
            shutil.copy(kernel(), root / "vmlinuz")
            (root / "initrd.gz").write_bytes(initrd(Path(work) / "initrd"))
            (root / "boot" / "grub" / "grub.cfg").write_text(GRUB.format(name=name))
            made = Path(work) / "made.iso"
            subprocess.run(["grub-mkrescue", "-o", str(made), str(root)], check=True, capture_output=True)
            made.replace(iso)
    return iso


def tiny_files() -> tuple[Path, Path]:
    """The guest's kernel and its initramfs, for boot loaders that fetch them. Skips where they cannot be made."""
    look_for_programs()
    FOLDER.mkdir(parents=True, exist_ok=True)
    image = FOLDER / "initrd.gz"
    if not image.exists():
        with tempfile.TemporaryDirectory(dir=FOLDER) as work:
            made = Path(work) / "made"
            made.write_bytes(initrd(Path(work) / "initrd"))
            made.replace(image)
    return kernel(), image


def look_for_programs() -> None:
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if missing:
        pytest.skip(f"no tiny guest: install {' '.join(missing)}")


def kernel() -> Path:
    """Debian's kernel for virtual machines, unpacked and not installed."""
    kept = FOLDER / "vmlinuz"
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=FOLDER) as work:
            try:
                facts = output("apt-cache", "depends", META_PACKAGE, folder=work)
                package = next(
                    word for word in facts.split() if word.startswith("linux-image-") and word != META_PACKAGE
                )
                output("apt-get", "download", package, folder=work)
                output("sh", "-c", "dpkg-deb -x *.deb .", folder=work)
            except (OSError, subprocess.CalledProcessError, StopIteration) as error:
                pytest.skip(f"no tiny guest: {META_PACKAGE} cannot be downloaded ({error})")
            next(Path(work).glob("boot/vmlinuz-*")).replace(kept)
    return kept


def initrd(root: Path) -> bytes:
    """The guest's whole file system."""
    for folder in ("bin", "proc", "sys", "dev"):
        (root / folder).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "", root / "bin" / "busybox")
    (root / "init").write_text(INIT)
    (root / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    made = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=names.encode(), check=True, capture_output=True
    )
    return gzip.compress(made.stdout, 1, mtime=0)


def output(*command: str, folder: str) -> str:
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=300)
    return done.stdout
