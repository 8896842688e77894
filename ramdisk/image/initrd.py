"""The initial ramdisk: a small start of it as a compressed archive, and /usr as one compressed file system beside it.

/usr is read where it lies, so that a machine that starts neither unpacks nor holds what it does not use.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from ramdisk.image import cpio
from ramdisk.image.kernel_modules import module_name
from ramdisk.image.lists import read_file
from ramdisk.image.programs import run
from ramdisk.image.system_tree import SYSTEM_FILES

__all__ = ["compress_usr", "first_archive", "write_initrd"]

_BLOCK = 256 * 1024
_USR = "early/usr.squashfs"
_FOLDERS = {
    **dict.fromkeys(("early", "dev", "proc", "sys", "run", "mnt", "usr"), 0o755),
    **dict.fromkeys(("etc", "etc/ssl", "etc/ssl/certs", "var", "var/lib", "var/log"), 0o755),
    **dict.fromkeys(("root", "rackwright"), 0o700),
    **dict.fromkeys(("tmp", "var/tmp"), 0o1777),
}
_LINKS = {
    **{name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")},
    "var/run": "../run",
    "var/lock": "../run",
    "etc/mtab": "../proc/self/mounts",
    "etc/ssl/certs/ca-certificates.crt": "/usr/lib/ssl/cert.pem",
}
_ALIGNED = 512
_MOST = 32767
"""The highest rank that mksquashfs knows."""


def compress_usr(usr: Path, target: Path, *, first: Sequence[str], level: int, time: int) -> None:
    """Everything belongs to root and is of one time. `level`: 1 to 22, as zstd has them. Raises BuildError.

    `first`: files below `usr` that every start reads, in that order. Small files share compressed blocks, and the
    kernel keeps three of them: what is read one after the other lies together, and is unpacked once.
    """
    target.unlink(missing_ok=True)
    order = target.with_suffix(".order")
    order.write_text("".join(f"{name} {_MOST - number}\n" for number, name in enumerate(first[:_MOST])))
    run(
        [
            *("mksquashfs", usr, target, "-noappend", "-quiet", "-no-progress", "-no-xattrs", "-all-root"),
            *("-comp", "zstd", "-Xcompression-level", str(level), "-b", str(_BLOCK)),
            *("-all-time", str(time), "-mkfs-time", str(time), "-sort", order),
        ]
    )
    order.unlink()


def first_archive(busybox: bytes, modules: Sequence[tuple[str, bytes]], time: int) -> bytes:
    """All but /usr. `modules`: what reading /usr needs, in the order of loading; their paths and contents."""
    names = [f"{module_name(path)}.ko" for path, _ in modules]
    members = [
        *(cpio.folder(name, mode) for name, mode in _FOLDERS.items()),
        *(cpio.link(name, target) for name, target in _LINKS.items()),
        *(cpio.file(name, text.encode()) for name, text in SYSTEM_FILES.items()),
        *(cpio.file(f"early/{name}", data) for name, (_, data) in zip(names, modules, strict=True)),
        cpio.file("early/order", "".join(f"{name}\n" for name in names).encode()),
        cpio.file("early/busybox", busybox, 0o755),
        cpio.file("init", read_file("init").encode(), 0o755),
        # The kernel opens it before anything is mounted.
        cpio.device("dev/console", 5, 1),
        cpio.device("dev/null", 1, 3, 0o666),
    ]
    return cpio.make_archive(members, time)


def write_initrd(target: Path, usr: Path, first: bytes, time: int) -> None:
    """`usr`: the compressed file system. It stands before the compressed archive, as microcode does: kernels are used
    to that order, and to uncompressed archives behind. Raises BuildError."""
    second = cpio.make_archive([cpio.folder("early"), cpio.file(_USR, usr.read_bytes())], time)
    compressed = target.with_suffix(".first")
    source = target.with_suffix(".cpio")
    source.write_bytes(first)
    try:
        run(["zstd", "-q", "-f", "-19", "--no-check", "-o", compressed, source])
        with target.open("wb") as file:
            file.write(second)
            file.write(bytes(-len(second) % _ALIGNED))
            file.write(compressed.read_bytes())
            file.write(bytes(-file.tell() % _ALIGNED))
    finally:
        source.unlink()
        compressed.unlink(missing_ok=True)
    os.utime(target, (time, time))
