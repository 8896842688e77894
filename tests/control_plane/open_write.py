"""A transaction that stays open for as long as a test wants, while others begin and end."""

import asyncio
import threading

from control_plane.events import publish
from control_plane.store import Store, Transaction

__all__ = ["OpenWrite", "publish_named"]

_LONGEST_SECONDS = 10


def publish_named(tx: Transaction, name: str) -> None:
    publish(tx, "acme", f"test/{name}", "test.happened", {})


class OpenWrite:
    """A write that is under way inside its `async with` block, or until `end`, which returns once it is durable."""

    def __init__(self, store: Store, before: str | None = None, after: str | None = None) -> None:
        """`before` and `after`: the events that it publishes at once, and when it is told to end."""
        self._store = store
        self._before = before
        self._after = after
        self._begun = threading.Event()
        self._go = threading.Event()
        self._writing: asyncio.Future[None]

    async def __aenter__(self) -> "OpenWrite":
        self._writing = asyncio.ensure_future(self._store.write(self._work))
        assert await asyncio.to_thread(self._begun.wait, _LONGEST_SECONDS)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._go.set()
        await asyncio.gather(self._writing, return_exceptions=True)

    async def end(self) -> None:
        self._go.set()
        await self._writing

    def _work(self, tx: Transaction) -> None:
        if self._before is not None:
            publish_named(tx, self._before)
        self._begun.set()
        assert self._go.wait(_LONGEST_SECONDS)
        if self._after is not None:
            publish_named(tx, self._after)
