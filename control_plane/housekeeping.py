"""What time brings about: commands that are out of time end, and what nobody needs any more is removed."""

import asyncio
import logging

from control_plane.commands import expire
from control_plane.store import Store, StoreError, Transaction
from protocol.commands import TERMINAL

__all__ = ["Housekeeping", "prune"]

_log = logging.getLogger("control_plane.housekeeping")
_EXPIRE_SECONDS = 1.0
_PRUNE_SECONDS = 60.0
_BATCH = 200
_SESSIONS_KEPT_MS = 30 * 86_400_000
_ENDED = [state.value for state in TERMINAL]


class Housekeeping:
    """Runs in every worker: each batch takes rows that no other worker holds."""

    def __init__(self, store: Store, *, events_kept_ms: int, commands_kept_ms: int) -> None:
        self._store = store
        self._events_kept_ms = events_kept_ms
        self._commands_kept_ms = commands_kept_ms

    async def run(self) -> None:
        """For ever. What the store cannot do now is tried again the next time."""
        next_prune = asyncio.get_running_loop().time() + _PRUNE_SECONDS
        failing = False
        while True:
            await asyncio.sleep(_EXPIRE_SECONDS)
            try:
                while await self._store.write(expire, _BATCH) == _BATCH:
                    pass
                if asyncio.get_running_loop().time() >= next_prune:
                    next_prune += _PRUNE_SECONDS
                    await self._prune()
                failing = False
            except StoreError as error:
                if not failing:
                    _log.error("housekeeping waits for the database: %s", error)
                failing = True

    async def _prune(self) -> None:
        removed = _BATCH
        while removed >= _BATCH:
            removed = await self._store.write(prune, self._events_kept_ms, self._commands_kept_ms, _BATCH)


def prune(tx: Transaction, events_kept_ms: int, commands_kept_ms: int, limit: int) -> int:
    """Removes old events, ended commands, closed sessions and dead join tokens; returns how many of the most."""
    now = tx.now()
    events = tx.run(
        "DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE at < :before ORDER BY seq LIMIT :limit)",
        {"before": now - events_kept_ms, "limit": limit},
    )
    commands = tx.run(
        "DELETE FROM commands WHERE id IN (SELECT id FROM commands WHERE state IN EACH(:ended) "
        "AND created_at < :before AND finished_at < :before ORDER BY id LIMIT :limit)",
        {"ended": _ENDED, "before": now - commands_kept_ms, "limit": limit},
    )
    sessions = tx.run(
        """
        DELETE FROM sessions WHERE id IN (
            SELECT sessions.id FROM sessions JOIN agents ON agents.id = sessions.agent_id
            WHERE (agents.session_id IS NULL OR agents.session_id <> sessions.id)
                AND sessions.disconnected_at < :before
            ORDER BY sessions.id LIMIT :limit
        )
        """,
        {"before": now - _SESSIONS_KEPT_MS, "limit": limit},
    )
    tokens = tx.run(
        "DELETE FROM join_tokens WHERE id IN (SELECT id FROM join_tokens WHERE expires_at < :before "
        "ORDER BY id LIMIT :limit)",
        {"before": now - _SESSIONS_KEPT_MS, "limit": limit},
    )
    return max(events, commands, sessions, tokens)
