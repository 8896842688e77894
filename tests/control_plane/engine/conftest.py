"""The engine's rig, on both databases or, where they make no difference, on SQLite alone."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from control_plane.store import migrate, open_store
from tests.control_plane.engine.rig import Rig, make_rig
from tests.control_plane.ledger import Clock


@pytest.fixture
async def rig(store_url: str) -> AsyncIterator[Rig]:
    """An engine with one machine; each test runs on both kinds of database."""
    clock = Clock()
    store = open_store(store_url, clock=clock)
    await migrate(store)
    yield await make_rig(store, clock)
    await store.close()


@pytest.fixture
async def sqlite_rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """An engine with one machine, on SQLite."""
    clock = Clock()
    store = open_store(f"sqlite://{tmp_path}/control.db", clock=clock)
    await migrate(store)
    yield await make_rig(store, clock)
    await store.close()
