"""The initial ramdisk: what every start reads as a compressed archive, the rest of /usr as a compressed file system.

The archive is unpacked by the kernel in one go, beside its search for devices; reading it afterwards costs nothing.
The file system is read where it lies: a machine neither unpacks nor holds what it does not use. /usr shows both.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ramdisk.image import cpio
from ramdisk.image.cpio import Member
from ramdisk.image.kernel_modules import module_name
from ramdisk.image.lists import read_file
from ramdisk.image.programs import run
from ramdisk.image.system_tree import BUSYBOX, SYSTEM_FILES

__all__ = ["compress_usr", "first_archive", "write_initrd"]

_BLOCK = 256 * 1024
_REST = "early/rest.squashfs"
_FIRST = "early/usr"
_FOLDERS = {
    **dict.fromkeys(("early", "early/rest", "dev", "proc", "sys", "run", "mnt", "usr"), 0o755),
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


def compress_usr(usr: Path, target: Path, *, without: Iterable[str], level: int, time: int) -> None:
    """Everything below `usr` but the files `without`. All belongs to root and is of one time. `level`: 1 to 22, as
    zstd has them. Raises BuildError."""
    target.unlink(missing_ok=True)
    left_out = target.with_suffix(".without")
    left_out.write_text("".join(f"{name}\n" for name in without))
    run(
        [
            *("mksquashfs", usr, target, "-noappend", "-quiet", "-no-progress", "-no-xattrs", "-all-root"),
            *("-comp", "zstd", "-Xcompression-level", str(level), "-b", str(_BLOCK)),
            *("-all-time", str(time), "-mkfs-time", str(time), "-ef", left_out),
        ]
    )
    left_out.unlink()


def first_archive(
    usr: Path, first: Iterable[str], busybox: bytes, modules: Sequence[tuple[str, bytes]], time: int
) -> bytes:
    """All but the rest of /usr. `first`: the files below `usr` that belong here. `modules`: what showing /usr needs,
    in the order of loading; their paths and contents."""
    names = [f"{module_name(path)}.ko" for path, _ in modules]
    members = [
        *(cpio.folder(name, mode) for name, mode in _FOLDERS.items()),
        *(cpio.link(name, target) for name, target in _LINKS.items()),
        *(cpio.file(name, text.encode()) for name, text in SYSTEM_FILES.items()),
        *(cpio.file(f"early/{name}", data) for name, (_, data) in zip(names, modules, strict=True)),
        cpio.file("early/order", "".join(f"{name}\n" for name in names).encode()),
        cpio.file(BUSYBOX.lstrip("/"), busybox, 0o755),
        cpio.file("init", read_file("init").encode(), 0o755),
        *_first_files(usr, first),
        # The kernel opens it before anything is mounted.
        cpio.device("dev/console", 5, 1),
        cpio.device("dev/null", 1, 3, 0o666),
    ]
    return cpio.make_archive(members, time)


def _first_files(usr: Path, names: Iterable[str]) -> Iterator[Member]:
    folders = {_FIRST}
    for name in names:
        folders |= {f"{_FIRST}/{above}" for above in Path(name).parents if above.name}
        yield cpio.file(f"{_FIRST}/{name}", (usr / name).read_bytes(), (usr / name).stat().st_mode & 0o777)
    yield from map(cpio.folder, folders)


def write_initrd(target: Path, rest: Path, first: bytes, *, level: int, time: int) -> None:
    """`rest`: the compressed file system. It stands before the compressed archive, as microcode does: kernels are
    used to that order, and to uncompressed archives behind. Raises BuildError."""
    second = cpio.make_archive([cpio.folder("early"), cpio.file(_REST, rest.read_bytes())], time)
    compressed = target.with_suffix(".first")
    source = target.with_suffix(".cpio")
    source.write_bytes(first)
    try:
        run(["zstd", "-q", "-f", f"-{level}", "--no-check", "-o", compressed, source])
        with target.open("wb") as file:
            file.write(second)
            file.write(bytes(-len(second) % _ALIGNED))
            file.write(compressed.read_bytes())
            file.write(bytes(-file.tell() % _ALIGNED))
    finally:
        source.unlink()
        compressed.unlink(missing_ok=True)
    os.utime(target, (time, time))
