"""What every room's tests share: where the recorded material lies, and reports that can be sent."""

import os
from collections.abc import Generator
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escapes what is no text in a test's output: a process of pytest-xdist dies of sending half a surrogate pair."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
