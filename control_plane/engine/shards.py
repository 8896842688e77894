"""Shards: which worker drives which workflows, with a lease and a fence.

Each workflow belongs to one of a fixed number of shards. A worker holds a shard by a lease that it renews; when it
dies the lease runs out, another worker takes the shard and makes its fence one greater. Every transition checks
worker and fence in its own transaction, so a worker that lost a shard, and does not know it yet, changes nothing.
Fences are not guessed: a process holds what it took itself, so two that were given one name do not share a hold.

Time is the database's own. A worker that cannot renew stops driving before its lease runs out there, and ends the
code that it executes: whoever has the shard next executes it anew.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from time import monotonic

from control_plane.engine.rows import Grip
from control_plane.engine.timing import SHARDS
from control_plane.store import Store, StoreError, Transaction

__all__ = ["LEASE_MS", "ShardHolder", "take_shards"]

_log = logging.getLogger("control_plane.engine.shards")
LEASE_MS = 15_000
_RENEW_SECONDS = LEASE_MS / 1_000 / 3
_SCAN_SECONDS = 1.0
"""How often free shards are looked for: with the lease, what a take-over takes at most."""
_FORGOTTEN_MS = 86_400_000
"""A worker that was not seen for so long is no part of the fleet any more."""
_HELD = "ROWS(:held AS held (shard BIGINT, fence BIGINT))"
_IS_OURS = "shards.shard = held.shard AND shards.fence = held.fence AND worker = :worker AND expires_at > :now"
_OURS = f"FROM {_HELD} WHERE {_IS_OURS}"


class ShardHolder:
    """The shards that this worker holds. `grip(shard)` is good until the lease's time is over by our own clock.

    `on_loss` is called for each shard that was lost or given up, or whose lease could not be renewed in time; then
    `on_gain` for each that was taken, also for one that was held before under an older fence.
    """

    def __init__(
        self,
        store: Store,
        worker: str,
        on_gain: Callable[[int], None],
        on_loss: Callable[[int], None],
        lease_ms: int = LEASE_MS,
    ) -> None:
        self._store = store
        self._worker = worker
        self._on_gain = on_gain
        self._on_loss = on_loss
        self._lease_ms = lease_ms
        self._held: dict[int, int] = {}
        self._good_until = 0.0
        self._lapse: asyncio.TimerHandle | None = None
        self._namesake = False

    @property
    def shards(self) -> list[int]:
        """Held shards; none once the lease could not be renewed in time."""
        return list(self._held) if self._fresh else []

    def grip(self, shard: int) -> Grip | None:
        """The hold on a shard, or None when this worker does not have it."""
        fence = self._held.get(shard)
        return Grip(self._worker, fence) if fence is not None and self._fresh else None

    async def run(self) -> None:
        """Takes, renews and shares out, for ever; gives everything back when it is cancelled."""
        renewed = float("-inf")
        try:
            while True:
                begun = monotonic()
                try:
                    if renewed < 0:
                        held = await self._store.write(take_anew, self._worker, self._lease_ms)
                    else:
                        due = begun - renewed >= self._lease_ms / 3_000
                        held = await self._store.write(take_shards, self._worker, self._held, self._lease_ms, due)
                except StoreError as error:
                    _log.warning("the leases could not be renewed: %s", error)
                else:
                    if begun - renewed >= self._lease_ms / 3_000:
                        renewed = begun
                    # From before the write was asked for: our lease can only end later than that in the database.
                    good_until = renewed + self._lease_ms / 1_000
                    self._note(held)
                    self._keep_until(good_until)
                    await self._look_for_namesake()
                await asyncio.sleep(min(_SCAN_SECONDS, self._lease_ms / 3_000))
        finally:
            held = self._held
            self._note({})
            self._keep_until(float("-inf"))
            with contextlib.suppress(StoreError):
                await self._store.write(give_back, self._worker, held)

    async def _look_for_namesake(self) -> None:
        """Says once, in the log, that another process has this worker's name."""
        if self._held or self._namesake:
            return
        self._namesake = await self._store.read(is_held, self._worker)
        if self._namesake:
            _log.error(
                "another process calls itself %s and drives the workflows; this one drives none: "
                "give each worker of a database a name of its own (worker = …)",
                self._worker,
            )

    def _keep_until(self, good_until: float) -> None:
        self._good_until = good_until
        if self._lapse is not None:
            self._lapse.cancel()
        left = good_until - monotonic()
        self._lapse = asyncio.get_running_loop().call_later(left, self._lapsed) if self._held else None

    def _lapsed(self) -> None:
        """The database could not be reached in time: another worker may take what was held."""
        for shard in self._held:
            self._on_loss(shard)

    def _note(self, held: dict[int, int]) -> None:
        before, self._held = self._held, held
        for shard in before.keys() - {shard for shard, fence in held.items() if before.get(shard) == fence}:
            self._on_loss(shard)
        for shard, fence in held.items():
            if before.get(shard) != fence:
                self._on_gain(shard)

    @property
    def _fresh(self) -> bool:
        return monotonic() < self._good_until


def take_anew(tx: Transaction, worker: str, lease_ms: int) -> dict[int, int]:
    """At a worker's start: what an earlier process of its name still holds is taken under a new fence, and the code
    that it was executing is executed anew."""
    tx.run("UPDATE shards SET expires_at = 0 WHERE worker = :worker", {"worker": worker})
    return take_shards(tx, worker, {}, lease_ms, renew=True)


def take_shards(
    tx: Transaction, worker: str, held_before: Mapping[int, int], lease_ms: int, renew: bool
) -> dict[int, int]:
    """Renews this worker's leases, takes free shards up to its fair share, gives up what is beyond it.

    `held_before` is what the last call returned: shard → fence of what this process holds. Others of the same worker
    were taken by another process of its name, and are not touched.
    """
    now = tx.now()
    if renew:
        tx.run(
            "INSERT INTO workers (name, seen_at) VALUES (:name, :now) "
            "ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at",
            {"name": worker, "now": now},
        )
        ours = _ours(worker, held_before, now)
        tx.run(f"UPDATE shards SET expires_at = :until {_OURS}", {**ours, "until": now + lease_ms})
        tx.run("DELETE FROM workers WHERE seen_at < :long_ago", {"long_ago": now - _FORGOTTEN_MS})
        _make_shards(tx)
    alive = tx.one("SELECT COUNT(*) FROM workers WHERE seen_at > :since", {"since": now - lease_ms})
    share = -(-SHARDS // max(1, alive[0] if alive else 1))
    held = _still_held(tx, worker, held_before, now)
    if len(held) > share:
        beyond = sorted(held)[share:]
        tx.run(
            "UPDATE shards SET expires_at = 0 WHERE worker = :worker AND shard IN EACH(:shards)",
            {"worker": worker, "shards": beyond},
        )
        return {shard: fence for shard, fence in held.items() if shard not in beyond}
    if len(held) < share:
        free = tx.all(
            "SELECT shard FROM shards WHERE expires_at <= :now ORDER BY shard LIMIT :limit FOR UPDATE SKIP LOCKED",
            {"now": now, "limit": share - len(held)},
        )
        if free:
            taken = tx.all(
                "UPDATE shards SET worker = :worker, fence = fence + 1, expires_at = :until "
                "WHERE shard IN EACH(:shards) RETURNING shard, fence",
                {"worker": worker, "until": now + lease_ms, "shards": [row[0] for row in free]},
            )
            return held | {row[0]: row[1] for row in taken}
    return held


def give_back(tx: Transaction, worker: str, held: Mapping[int, int]) -> None:
    """A worker that stops in good order: others may take over at once."""
    tx.run(f"UPDATE shards SET expires_at = 0 {_OURS}", _ours(worker, held, tx.now()))
    tx.run("DELETE FROM workers WHERE name = :worker", {"worker": worker})


def is_held(tx: Transaction, worker: str) -> bool:
    """Whether a process of this name holds a shard."""
    found = tx.one(
        "SELECT COUNT(*) FROM shards WHERE worker = :worker AND expires_at > :now",
        {"worker": worker, "now": tx.now()},
    )
    return found is not None and found[0] > 0


def _ours(worker: str, held: Mapping[int, int], now: int) -> dict[str, object]:
    return {"held": list(held.items()), "worker": worker, "now": now}


def _still_held(tx: Transaction, worker: str, held: Mapping[int, int], now: int) -> dict[int, int]:
    held_still = f"SELECT shards.shard, shards.fence FROM {_HELD} JOIN shards ON {_IS_OURS}"
    rows = tx.all(held_still, _ours(worker, held, now))
    return {row[0]: row[1] for row in rows}


def _make_shards(tx: Transaction) -> None:
    count = tx.one("SELECT COUNT(*) FROM shards")
    if count is not None and count[0] < SHARDS:
        for shard in range(SHARDS):
            tx.run(
                "INSERT INTO shards (shard, worker, fence, expires_at) VALUES (:shard, NULL, 0, 0) "
                "ON CONFLICT DO NOTHING",
                {"shard": shard},
            )
