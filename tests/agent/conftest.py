"""What the agent's tests share: machines that count, a folder, a clock."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from drivers import registry
from tests.agent.counting_driver import MACHINES, Machines
from tests.agent.rig import FakeClock


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    """Every `simulated://` machine is served by the counting driver."""
    monkeypatch.setitem(registry.INSTALLED, "simulated", "tests.agent.counting_driver")
    registry.load.cache_clear()
    MACHINES.clear()
    yield MACHINES
    MACHINES.clear()
    registry.load.cache_clear()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder
