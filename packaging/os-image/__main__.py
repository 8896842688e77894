"""`make os-image`: a Debian as operators publish one, with our own agent in it; its checksum lies beside it.

A raw disk with GRUB for UEFI and BIOS. Debian's part is fetched once and kept under `build/`; an image is made anew
when our own sources have changed. Exit code 1: it was not made, and why.
"""

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
from raw_disk import PROGRAMS, ImageFault, make_disk, run

REPOSITORY = Path(__file__).resolve().parents[2]
WORK = REPOSITORY / "build" / "os-image"
IMAGE = "debian-12.raw.zst"
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


@click.command()
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("dist/os-image"),
    show_default=True,
    help="Folder for the image and its checksum.",
)
def main(output: Path) -> None:
    """Make an image of Debian 12 with the daemon in it, for virtual machines and for tries."""
    try:
        _need()
        WORK.mkdir(parents=True, exist_ok=True)
        with (WORK / "lock").open("w") as lock:
            # Another process may be making it.
            fcntl.flock(lock, fcntl.LOCK_EX)
            image = _publish(_made(WORK / f"debian-{_digest(_sources())}.raw.zst"), output)
    except (ImageFault, OSError) as error:
        click.echo(f"no image of an operating system was made: {error}", err=True)
        sys.exit(1)
    click.echo(f"{image}  {image.stat().st_size / 1e6:.1f} MB")
    click.echo(f"sha256  {_sums_of(image).read_text().split()[0]}")


def _need() -> None:
    """Raises ImageFault where this host cannot make one."""
    missing = [name for name in ("mmdebstrap", "dpkg-deb", "zstd", *PROGRAMS) if shutil.which(name) is None]
    if missing:
        raise ImageFault(f"{', '.join(missing)} is not installed: `make os-image` as root installs what is needed")
    if os.geteuid():
        raise ImageFault("Debian's packages are installed into it in a chroot: run this as root")


def _made(file: Path) -> Path:
    """The image of these sources, made where it is not there yet."""
    sums = _sums_of(file)
    if not (file.is_file() and sums.is_file()):
        base = _base()
        for old in sorted(WORK.glob("debian-*.zst"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
            _sums_of(old).unlink(missing_ok=True)
            old.unlink()
        with tempfile.TemporaryDirectory(dir=WORK) as folder:
            tree, raw, packed = Path(folder, "tree"), Path(folder, "raw"), Path(folder, "raw.zst")
            tree.mkdir()
            run("tar", "-xpf", base, "-C", tree, "--numeric-owner", "--xattrs", "--exclude=./dev/*")
            _install(tree, _our_packages(Path(folder, "packages")))
            _say("writing the disk")
            make_disk(tree, raw, Path(folder))
            run("zstd", "-q", "-f", "-6", "-T0", raw, "-o", packed)
            with packed.open("rb") as handle:
                digest = hashlib.file_digest(handle, "sha256").hexdigest()
            packed.replace(file)
        sums.write_text(f"{digest}  {IMAGE}\n")
    return file


def _publish(kept: Path, output: Path) -> Path:
    """Puts image and checksum into `output`, under a name that stays; shares the bytes where that is possible.

    A server that still reads the image before is not disturbed.
    """
    output.mkdir(parents=True, exist_ok=True)
    image = output / IMAGE
    for source, target in ((kept, image), (_sums_of(kept), _sums_of(image))):
        fresh = target.with_name(f"{target.name}.new")
        fresh.unlink(missing_ok=True)
        try:
            fresh.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, fresh)
        fresh.replace(target)
        # Two names of one file are left as they are by rename(2).
        fresh.unlink(missing_ok=True)
    return image


def _sums_of(image: Path) -> Path:
    """As `sha256sum --check` reads it."""
    return image.with_name(f"{image.name}.sha256")


def _base() -> Path:
    """Debian alone, as an archive."""
    file = WORK / f"base-{hashlib.sha256(repr((SUITE, PACKAGES, _LEFT_OUT)).encode()).hexdigest()[:16]}.tar"
    if not file.is_file():
        _say("fetching Debian's packages")
        for old in WORK.glob("base-*.tar"):
            old.unlink()
        fresh = file.with_suffix(".new.tar")
        left_out = [f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT]
        options = ("--variant=minbase", "--mode=root", f"--include={','.join(PACKAGES)}", *left_out)
        run("mmdebstrap", "--quiet", *options, SUITE, fresh)
        fresh.rename(file)
    return file


def _our_packages(folder: Path) -> list[Path]:
    """As `make deb` builds them."""
    _say("building our own packages")
    run(REPOSITORY / "packaging" / "deb" / "build.sh", folder)
    return [next(folder.glob(f"{name}_*.deb")) for name in OURS]


def _install(tree: Path, packages: list[Path]) -> None:
    _say("installing them")
    for name, text in FILES.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    (tree / "etc/machine-id").write_text("")
    place = tree / "tmp/packages"
    place.mkdir(parents=True)
    for package in packages:
        shutil.copy(package, place)
    run("chroot", tree, "sh", "-c", "dpkg -i /tmp/packages/*.deb")
    shutil.rmtree(place)
    run("chroot", tree, "systemctl", "enable", "systemd-networkd.service")
    # Nobody logs in there, and nothing is kept fresh in the minutes that it lives.
    for unit in ("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_reap.service"):
        run("chroot", tree, "systemctl", "mask", unit)
    run("chroot", tree, "update-initramfs", "-u")


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
        digest.update(str(path.resolve().relative_to(REPOSITORY)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _say(what: str) -> None:
    click.echo(f"{what} …", err=True)


if __name__ == "__main__":
    main()
