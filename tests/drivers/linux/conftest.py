"""What the linux driver's tests share."""

from pathlib import Path

import pytest

from tests.drivers.linux.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")
