"""What time brings about: commands that are out of time end, and what nobody needs any more is removed."""

import asyncio
import logging

from control_plane.commands import expire
from control_plane.retention import Kept, prune_all
from control_plane.store import Store, StoreError

__all__ = ["Housekeeping"]

_log = logging.getLogger("control_plane.housekeeping")
_EXPIRE_SECONDS = 1.0
_PRUNE_SECONDS = 60.0
_BATCH = 200


class Housekeeping:
    """Runs in every worker: each batch takes rows that no other worker holds."""

    def __init__(self, store: Store, kept: Kept) -> None:
        self._store = store
        self._kept = kept

    async def run(self) -> None:
        """For ever. What the store cannot do now is tried again the next time."""
        async with asyncio.TaskGroup() as tasks:
            # Beside each other: a command's end must not wait for a long pruning.
            tasks.create_task(self._expire())
            tasks.create_task(self._prune())

    async def _expire(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(_EXPIRE_SECONDS)
            try:
                while await self._store.write(expire, _BATCH) == _BATCH:
                    pass
                failing = False
            except StoreError as error:
                if not failing:
                    _log.error("housekeeping waits for the database: %s", error)
                failing = True

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(_PRUNE_SECONDS)
            try:
                removed = await prune_all(self._store, self._kept)
            except StoreError as error:
                _log.warning("old rows could not be removed, and are tried again: %s", error)
            else:
                if removed:
                    _log.info("removed %d old rows", removed)
