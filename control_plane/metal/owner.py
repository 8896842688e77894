"""Metal as the owner of workflows: each end that the engine queues is taken in once, in order, by any worker.

A hint makes it look at once; a slow sweep looks without any. What one worker leaves in the middle, the next one
finds: the queue's row is removed in the transaction that moves the node.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeVarTuple

from control_plane.engine.outcomes import OWNERS_CHANNEL
from control_plane.metal.settling import (
    QueuedEnd,
    fail_left_behind,
    list_left_behind,
    list_queued,
    list_unsettled,
    settle_workflow,
    take_queued,
)
from control_plane.metal.verbs import OWNER, Tools
from control_plane.store import Store, StoreClosed, StoreError, StoreUnavailable, Transaction

__all__ = ["MetalOwner"]

_log = logging.getLogger("control_plane.metal.owner")
_SWEEP_SECONDS = 30.0
_BATCH = 200
_AT_ONCE = 32

Args = TypeVarTuple("Args")


class MetalOwner:
    """One worker's part of it. `run` until cancelled."""

    def __init__(self, store: Store, tools: Tools, *, sweep_seconds: float = _SWEEP_SECONDS) -> None:
        self._store = store
        self._tools = tools
        self._sweep_seconds = sweep_seconds
        self._wake = asyncio.Event()
        self._complained: set[int | str] = set()
        """What could not be taken in, by its number in the queue, or in words: each is told of once."""

    async def run(self) -> None:
        stop_listening = self._store.listen(OWNERS_CHANNEL, self._hint)
        try:
            while True:
                try:
                    await self.take_all()
                    await self.settle_forgotten()
                except StoreError as error:
                    _log.warning("ends of workflows wait for the database: %s", error)
                with contextlib.suppress(TimeoutError):
                    # Spread, so that workers do not all come at the same moment.
                    async with asyncio.timeout(self._sweep_seconds * random.uniform(0.75, 1.25)):
                        await self._wake.wait()
                self._wake.clear()
        finally:
            stop_listening()

    async def take_all(self) -> int:
        """Takes in everything that is queued now; how many ends that were. Raises StoreError."""
        taken = 0
        while True:
            queued = await self._store.read(list_queued, _BATCH)
            progress = await self._take(queued)
            taken += progress
            if not progress or len(queued) < _BATCH:
                return taken

    async def settle_forgotten(self) -> None:
        """Nodes whose workflow has ended, or is gone, without their hearing of it. Raises StoreError."""
        for workflow_id in await self._store.read(list_unsettled, _BATCH):
            ended = f"workflow {workflow_id} has ended and was not queued for its node"
            await self._follow(ended, settle_workflow, self._tools, workflow_id)
        for tenant_id, node_id in await self._store.read(list_left_behind, _BATCH):
            await self._follow(f"the workflow of node {node_id} is gone", fail_left_behind, tenant_id, node_id)

    async def _follow(self, what: str, settle: Callable[[Transaction, *Args], None], *arguments: *Args) -> None:
        """One node's fault keeps no other from being settled."""
        try:
            await self._store.write(settle, *arguments)
        except (StoreUnavailable, StoreClosed):
            raise
        except Exception:
            if what not in self._complained:
                _log.exception("%s, and the node cannot follow", what)
            self._complained.add(what)
        else:
            _log.warning("%s: the node has followed now", what)

    def _hint(self, kind: str) -> None:
        if kind in (OWNER, ""):
            self._wake.set()

    async def _take(self, queued: Sequence[QueuedEnd]) -> int:
        """Nodes beside each other, the ends of one node one after another."""
        by_node = sorted(queued, key=lambda end: (end.key, end.seq))
        room = asyncio.Semaphore(_AT_ONCE)

        async def take_node(ends: list[QueuedEnd]) -> int:
            async with room:
                return await self._take_in_order(ends)

        counts = await asyncio.gather(
            *(take_node(list(ends)) for _, ends in groupby(by_node, key=lambda end: end.key)), return_exceptions=True
        )
        for count in counts:
            if isinstance(count, BaseException):
                raise count
        return sum(count for count in counts if isinstance(count, int))

    async def _take_in_order(self, ends: list[QueuedEnd]) -> int:
        taken = 0
        for end in ends:
            try:
                taken += await self._store.write(take_queued, self._tools, end)
            except (StoreUnavailable, StoreClosed):
                raise
            except Exception:
                # It stays in the queue, with the later ones of its node; the other nodes go on.
                if end.seq not in self._complained:
                    _log.exception("the end of workflow %s could not be taken in", end.workflow_id)
                self._complained.add(end.seq)
                break
            self._complained.discard(end.seq)
        return taken
