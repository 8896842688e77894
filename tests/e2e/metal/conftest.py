"""What these tests share: the images, and one machine at a time."""

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramdisk.image.architectures import ARCHITECTURES
from ramdisk.image.build import BuildOptions, built
from ramdisk.image.programs import BuildError
from tests.e2e.metal.debian_image import OsImage, debian_image
from tests.e2e.metal.origin import Origin

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def ramdisk() -> Path:
    """The description beside the ramdisk's ISO."""
    work = REPOSITORY / "build" / "ramdisk"
    options = BuildOptions(ARCHITECTURES["x86_64"], fast=True, reuse=True)
    try:
        return built(work / "images", work, options, lambda _: None)
    except BuildError as error:
        if "apt-get install" in str(error) or "were not unpacked" in str(error):
            pytest.skip(f"no image: {error}")
        raise


@pytest.fixture(scope="session")
def os_image() -> OsImage:
    return debian_image()


@pytest.fixture
def origin(os_image: OsImage) -> Iterator[Origin]:
    server = Origin({"debian.raw.zst": os_image.file})
    yield server
    server.come_back()
    server.stop()


@pytest.fixture
def one_at_a_time() -> Iterator[None]:
    """Software emulation takes a whole core: one machine at a time on a host."""
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("QEMU is not installed: apt-get install qemu-system-x86 seabios ovmf")
    with (Path(tempfile.gettempdir()) / "qemu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
