"""Metal's rig: the engine's, with profiles bound to the verbs; on both databases, or on SQLite alone."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from control_plane.store import Store, migrate, open_store
from tests.control_plane.engine.rig import make_rig
from tests.control_plane.ledger import Clock
from tests.control_plane.metal.metal_rig import MetalRig


@pytest.fixture
async def metal(store_url: str) -> AsyncIterator[MetalRig]:
    """A machine, its agents, the engine and metal; each test runs on both kinds of database."""
    async for rig in _made(store_url):
        yield rig


@pytest.fixture
async def sqlite_metal(tmp_path: Path) -> AsyncIterator[MetalRig]:
    """The same on SQLite, where the database makes no difference."""
    async for rig in _made(f"sqlite://{tmp_path}/control.db"):
        yield rig


async def _made(url: str) -> AsyncIterator[MetalRig]:
    clock = Clock()
    store: Store = open_store(url, clock=clock)
    await migrate(store)
    yield MetalRig(await make_rig(store, clock))
    await store.close()
