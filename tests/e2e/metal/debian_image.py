"""A real Debian as operators publish them: a raw disk with GRUB for UEFI and BIOS, and our own packages in it.

Debian's part is fetched once and kept under `build/`; an image is made anew when our own sources have changed.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.metal.raw_disk import PROGRAMS, make_disk

__all__ = ["OsImage", "debian_image"]

REPOSITORY = Path(__file__).resolve().parents[3]
WORK = REPOSITORY / "build" / "os-image"
SUITE = "bookworm"
PACKAGES = (
    *("linux-image-cloud-amd64", "initramfs-tools", "zstd", "udev", "kmod", "systemd-sysv", "init-system-helpers"),
    *("python3", "libstdc++6", "ca-certificates", "iproute2", "e2fsprogs", "dbus"),
)
OURS = ("rackwright", "rackwright-daemon")
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_KEPT = 2
FILES = {
    "etc/hostname": "debian\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/fstab": "LABEL=root / ext4 errors=remount-ro 0 1\n",
    "etc/systemd/network/90-dhcp.network": "[Match]\nType=ether\n\n[Network]\nDHCP=ipv4\nLinkLocalAddressing=no\n",
    "etc/initramfs-tools/conf.d/small": "MODULES=list\nCOMPRESS=zstd\nCOMPRESSLEVEL=3\n",
    "etc/initramfs-tools/modules": "virtio_pci\nvirtio_blk\next4\n",
    # What the machine does is seen on its serial port.
    "etc/systemd/journald.conf.d/console.conf": "[Journal]\nForwardToConsole=yes\nMaxLevelConsole=info\n",
}


@dataclass(frozen=True)
class OsImage:
    """`sha256` is of the file as it is published: raw.zst."""

    file: Path
    sha256: str


def debian_image() -> OsImage:
    """The image of the present sources. Skips the test where this host cannot make one."""
    needed = ("mmdebstrap", "dpkg-deb", "zstd", *PROGRAMS)
    missing = [program for program in needed if shutil.which(program) is None]
    if missing:
        pytest.skip(f"no image of an operating system is made: {', '.join(missing)} is not installed")
    if os.geteuid():
        pytest.skip("no image of an operating system is made: that needs root")
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / "lock").open("w") as lock:
        # Another test process may be making it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _made(WORK / f"debian-{_digest(_sources())}.raw.zst")


def _made(file: Path) -> OsImage:
    sums = file.with_suffix(".sha256")
    if not (file.is_file() and sums.is_file()):
        base = _base()
        for old in sorted(WORK.glob("debian-*.zst"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
            old.with_suffix(".sha256").unlink(missing_ok=True)
            old.unlink()
        with tempfile.TemporaryDirectory(dir=WORK) as folder:
            tree, raw = Path(folder, "tree"), Path(folder, "raw")
            tree.mkdir()
            _run("tar", "-xpf", base, "-C", tree, "--numeric-owner", "--xattrs", "--exclude=./dev/*")
            _install(tree, _our_packages(Path(folder, "packages")))
            make_disk(tree, raw, Path(folder))
            _run("zstd", "-q", "-f", "-6", "-T0", raw, "-o", file)
        with file.open("rb") as handle:
            sums.write_text(hashlib.file_digest(handle, "sha256").hexdigest())
    return OsImage(file, sums.read_text())


def _base() -> Path:
    """Debian alone, as an archive."""
    file = WORK / f"base-{hashlib.sha256(repr((SUITE, PACKAGES, _LEFT_OUT)).encode()).hexdigest()[:16]}.tar"
    if not file.is_file():
        for old in WORK.glob("base-*.tar"):
            old.unlink()
        fresh = file.with_suffix(".new.tar")
        left_out = [f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT]
        options = ("--variant=minbase", "--mode=root", f"--include={','.join(PACKAGES)}", *left_out)
        _run("mmdebstrap", "--quiet", *options, SUITE, fresh)
        fresh.rename(file)
    return file


def _our_packages(folder: Path) -> list[Path]:
    """As `make deb` builds them."""
    _run(REPOSITORY / "packaging" / "deb" / "build.sh", folder)
    return [next(folder.glob(f"{name}_*.deb")) for name in OURS]


def _install(tree: Path, packages: list[Path]) -> None:
    for name, text in FILES.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    (tree / "etc/machine-id").write_text("")
    place = tree / "tmp/packages"
    place.mkdir(parents=True)
    for package in packages:
        shutil.copy(package, place)
    _run("chroot", tree, "sh", "-c", "dpkg -i /tmp/packages/*.deb")
    shutil.rmtree(place)
    _run("chroot", tree, "systemctl", "enable", "systemd-networkd.service")
    # Nobody logs in there, and nothing is kept fresh in the minutes that it lives.
    for unit in ("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_reap.service"):
        _run("chroot", tree, "systemctl", "mask", unit)
    _run("chroot", tree, "update-initramfs", "-u")


def _sources() -> Iterator[Path]:
    """All that decides how the image behaves: of our program, what its daemon runs."""
    yield from (Path(__file__), Path(__file__).with_name("raw_disk.py"))
    yield from (REPOSITORY / "pyproject.toml", REPOSITORY / "requirements" / "runtime.txt")
    for room in ("protocol", "drivers", "agent", "rackwright"):
        yield from sorted((REPOSITORY / room).rglob("*.py"))
    for folder in ("packaging/deb", "systemd"):
        yield from sorted(path for path in (REPOSITORY / folder).rglob("*") if path.is_file())


def _digest(paths: Iterator[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(str(path.relative_to(REPOSITORY)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _run(*words: str | Path) -> None:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words[0]} ended {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
