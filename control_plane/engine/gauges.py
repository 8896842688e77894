"""What is under way and how late it is, looked up every few seconds for `/metrics` and for nobody else."""

import asyncio
import logging
from typing import NamedTuple

from control_plane.engine.timing import SHARDS
from control_plane.store import Store, StoreError, Transaction

__all__ = ["EngineGauges", "Sample", "sample"]

_log = logging.getLogger("control_plane.engine.gauges")
_SECONDS = 5.0


class Sample(NamedTuple):
    active: dict[str, int]
    """Active workflows by state, of the whole database; those without a node only while they are not at rest."""
    due_lag_ms: int
    """How long the workflow that has waited longest has been due; 0 when none is."""


class EngineGauges:
    """The last sample, renewed until cancelled."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.last = Sample({}, 0)

    async def run(self) -> None:
        while True:
            try:
                self.last = await self._store.read(sample)
            except StoreError as error:
                _log.debug("no sample of the engine: %s", error)
            await asyncio.sleep(_SECONDS)


def sample(tx: Transaction) -> Sample:
    """Reads the indexes of what is active and due; the number of ended workflows does not matter."""
    counted = tx.all(
        "SELECT state, COUNT(*) FROM workflows WHERE node_id > '' AND node_id IS NOT NULL "
        "AND state IN ('pending', 'running', 'paused') GROUP BY state"
    )
    active = dict.fromkeys(("pending", "running", "paused"), 0) | {str(row[0]): int(row[1]) for row in counted}
    for state, count in tx.all(
        "SELECT state, COUNT(*) FROM workflows WHERE shard IN EACH(:shards) AND wake_at IS NOT NULL "
        "AND node_id IS NULL GROUP BY state",
        {"shards": list(range(SHARDS))},
    ):
        active[str(state)] = active.get(str(state), 0) + int(count)
    earliest = tx.one(
        "SELECT MIN(wake_at) FROM workflows WHERE shard IN EACH(:shards) AND wake_at IS NOT NULL",
        {"shards": list(range(SHARDS))},
    )
    due = None if earliest is None else earliest[0]
    return Sample(active, 0 if due is None else max(0, tx.now() - int(due)))
