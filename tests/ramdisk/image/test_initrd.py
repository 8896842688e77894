"""The initial ramdisk as a whole: where each file of /usr is, and that a build leaves no trace of who built it."""

import os
import shutil
from pathlib import Path

import pytest

from ramdisk.image.initrd import compress_usr, first_archive, write_initrd
from ramdisk.image.programs import ToolsMissing, need_programs, run
from tests.ramdisk.image.test_cpio import read

TIME = 1_700_000_000
FIRST = ("bin/python3.11", "lib/python3.11/os.py")
REST = ("sbin/mdadm", "lib/python3.11/turtle.py")


@pytest.fixture(autouse=True)
def _programs() -> None:
    try:
        need_programs(["mksquashfs", "zstd"])
    except ToolsMissing as error:
        pytest.skip(str(error))


def make_usr(folder: Path, *, backwards: bool = False) -> Path:
    """The same files, made in this order or the other: a file system lists them as it likes."""
    names = (*FIRST, *REST)
    for name in reversed(names) if backwards else names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 1000)
        path.chmod(0o755)
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    folder.chmod(0o755)
    return folder


def make_initrd(usr: Path, work: Path) -> Path:
    work.mkdir()
    compress_usr(usr, work / "rest.squashfs", without=FIRST, level=3, time=TIME)
    first = first_archive(usr, FIRST, b"busybox", [("kernel/fs/squashfs.ko", b"module")], TIME)
    write_initrd(work / "initrd.zst", work / "rest.squashfs", first, level=3, time=TIME)
    return work / "initrd.zst"


def test_what_every_start_reads_is_unpacked_by_the_kernel_and_the_rest_stays_compressed(tmp_path: Path) -> None:
    usr = make_usr(tmp_path / "usr")
    archive = first_archive(usr, FIRST, b"busybox", [], TIME)
    unpacked = {name: data for name, _, _, data in read(archive) if name.startswith("early/usr/") and data}
    assert unpacked == {f"early/usr/{name}": (usr / name).read_bytes() for name in FIRST}

    compress_usr(usr, tmp_path / "rest.squashfs", without=FIRST, level=3, time=TIME)
    run(["unsquashfs", "-quiet", "-no-progress", "-dest", tmp_path / "rest", tmp_path / "rest.squashfs"])
    files = (
        path.relative_to(tmp_path / "rest").as_posix() for path in (tmp_path / "rest").rglob("*") if path.is_file()
    )
    assert sorted(files) == sorted(REST)


def test_the_same_files_give_the_same_bytes_whoever_builds_them_where_and_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make_initrd(make_usr(tmp_path / "usr"), tmp_path / "one")
    for name, value in (("TZ", "Asia/Tokyo"), ("LC_ALL", "C.UTF-8"), ("LANG", "tr_TR.UTF-8")):
        monkeypatch.setenv(name, value)
    mask = os.umask(0o077)
    try:
        other_usr = make_usr(tmp_path / "another folder" / "usr", backwards=True)
        for path in other_usr.rglob("*"):
            os.utime(path, (TIME + 12_345, TIME + 12_345))
            if os.geteuid() == 0:
                shutil.chown(path, 1000, 1000)
        other = make_initrd(other_usr, tmp_path / "another work folder")
    finally:
        os.umask(mask)
    assert one.read_bytes() == other.read_bytes()
