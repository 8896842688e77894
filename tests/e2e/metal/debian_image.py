"""A real Debian as operators publish them, with our own packages in it: what `make os-image` makes."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["OsImage", "debian_image"]

REPOSITORY = Path(__file__).resolve().parents[3]
_NEEDED = ("mmdebstrap", "dpkg-deb", "zstd", "sfdisk", "mke2fs", "mformat", "mmd", "mcopy", "grub-mkimage")


@dataclass(frozen=True)
class OsImage:
    """`sha256` is of the file as it is published: raw.zst."""

    file: Path
    sha256: str


def debian_image(folder: Path) -> OsImage:
    """The image of the present sources, in `folder`. Skips the test where this host cannot make one."""
    missing = [program for program in _NEEDED if shutil.which(program) is None]
    if missing:
        pytest.skip(f"no image of an operating system is made: {', '.join(missing)} is not installed")
    if os.geteuid():
        pytest.skip("no image of an operating system is made: that needs root")
    program = REPOSITORY / "packaging" / "os-image"
    done = subprocess.run(
        [sys.executable, str(program), "--output", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (sums,) = folder.glob("*.sha256")
    sha256, name = sums.read_text().split()
    return OsImage(folder / name, sha256)
