"""What every room's tests share: where the recorded material lies, virtual machines one at a time with the image that
they start from, and reports that can be sent."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recorded BMC trees and schemas; it is not part of the repository.

    `RACKWRIGHT_SHARED` names it, else it lies beside the repository. Tests that need it are skipped
    where it is absent, so that a plain clone passes.
    """
    folder = Path(os.environ.get("RACKWRIGHT_SHARED", REPOSITORY.parent / "shared"))
    if not (folder / "mockups").is_dir():
        pytest.skip(f"no recorded BMC trees at {folder}: set RACKWRIGHT_SHARED to the folder that holds mockups/")
    return folder


@pytest.fixture
def one_at_a_time() -> Iterator[None]:
    """Software emulation takes a whole core: one virtual machine at a time on a host."""
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("QEMU is not installed: apt-get install qemu-system-x86 seabios ovmf ipxe-qemu")
    with (Path(tempfile.gettempdir()) / "qemu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def ramdisk() -> Path:
    """The description beside the ramdisk's ISO, built once for the present sources: half a minute."""
    from ramdisk.image.architectures import ARCHITECTURES
    from ramdisk.image.build import BuildOptions, built
    from ramdisk.image.programs import ToolsMissing

    work = REPOSITORY / "build" / "ramdisk"
    try:
        return built(
            work / "images", work, BuildOptions(ARCHITECTURES["x86_64"], fast=True, reuse=True), lambda _: None
        )
    except ToolsMissing as error:
        pytest.skip(f"no image: {error}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escapes what is no text in a test's output: a process of pytest-xdist dies of sending half a surrogate pair."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
