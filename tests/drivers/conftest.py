"""What the driver tests share."""

from collections.abc import Iterator

import pytest

from drivers import simulated


@pytest.fixture(autouse=True)
def _fresh_simulated_machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No machine, script or file of one test is seen by the next."""
    monkeypatch.delenv(simulated.SCRIPT_VARIABLE, raising=False)
    monkeypatch.delenv(simulated.STATE_VARIABLE, raising=False)
    simulated.clear()
    yield
    simulated.clear()
