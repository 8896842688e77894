"""What is kept how long: old rows are removed in small batches, each a transaction of its own.

The cost of a batch follows from what it removes, not from how much is stored: every search begins at the oldest row
of an index and ends at the first that is young enough.
"""

from collections.abc import Callable

import msgspec

from control_plane.store import Store, Transaction
from protocol.commands import TERMINAL

__all__ = [
    "PRUNES",
    "Kept",
    "prune_all",
    "prune_audit",
    "prune_commands",
    "prune_events",
    "prune_join_tokens",
    "prune_sessions",
    "prune_workflows",
]

_DAY_MS = 86_400_000
_ENDED = [state.value for state in TERMINAL]


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """How long each kind of row is kept, in milliseconds since it ended or happened."""

    events_ms: int = 30 * _DAY_MS
    commands_ms: int = 90 * _DAY_MS
    workflows_ms: int = 90 * _DAY_MS
    audit_ms: int = 730 * _DAY_MS
    sessions_ms: int = 30 * _DAY_MS


async def prune_all(store: Store, kept: Kept) -> int:
    """Removes everything that is old, batch after batch; the number of rows. Raises StoreError.

    Several workers may do it at once, and each may die anywhere: what one leaves the next one finds.
    """
    removed = 0
    for prune, batch in PRUNES:
        full = True
        while full:
            gone = await store.write(prune, kept, batch)
            removed += gone
            full = gone >= batch
    return removed


def prune_events(tx: Transaction, kept: Kept, limit: int) -> int:
    return _prune_oldest(tx, "events", tx.now() - kept.events_ms, limit)


def prune_audit(tx: Transaction, kept: Kept, limit: int) -> int:
    return _prune_oldest(tx, "audit", tx.now() - kept.audit_ms, limit)


def prune_commands(tx: Transaction, kept: Kept, limit: int) -> int:
    """Ended commands that belong to no workflow. With one its idempotency key is forgotten."""
    old = tx.all(
        """
        SELECT id FROM commands
        WHERE finished_at IS NOT NULL AND workflow_id IS NULL AND finished_at < :before AND state IN EACH(:ended)
        ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED
        """,
        {"before": tx.now() - kept.commands_ms, "ended": _ENDED, "limit": limit},
    )
    return tx.run("DELETE FROM commands WHERE id IN EACH(:old)", {"old": [row[0] for row in old]}) if old else 0


def prune_workflows(tx: Transaction, kept: Kept, limit: int) -> int:
    """Workflows that ended long ago, with their steps and commands. One with a command that is still open stays.

    A failed one is locked against a retry that comes at the same moment: either it is retried, or it is gone.
    """
    old = tx.all(
        """
        SELECT id FROM workflows
        WHERE finished_at IS NOT NULL AND finished_at < :before AND state IN ('succeeded', 'failed', 'cancelled')
            AND NOT EXISTS (
                SELECT 1 FROM commands WHERE commands.workflow_id = workflows.id
                    AND commands.state IN ('queued', 'delivered', 'running')
            )
        ORDER BY finished_at LIMIT :limit FOR UPDATE OF workflows SKIP LOCKED
        """,
        {"before": tx.now() - kept.workflows_ms, "limit": limit},
    )
    if not old:
        return 0
    ids = {"ids": [row[0] for row in old]}
    tx.run("DELETE FROM commands WHERE workflow_id IS NOT NULL AND workflow_id IN EACH(:ids)", ids)
    tx.run("DELETE FROM step_plans WHERE workflow_id IN EACH(:ids)", ids)
    tx.run("DELETE FROM workflow_documents WHERE workflow_id IN EACH(:ids)", ids)
    tx.run("DELETE FROM workflow_steps WHERE workflow_id IN EACH(:ids)", ids)
    return tx.run("DELETE FROM workflows WHERE id IN EACH(:ids)", ids)


def prune_sessions(tx: Transaction, kept: Kept, limit: int) -> int:
    """Closed connections, but for each agent's last one."""
    return tx.run(
        """
        DELETE FROM sessions WHERE id IN (
            SELECT sessions.id FROM sessions JOIN agents ON agents.id = sessions.agent_id
            WHERE (agents.session_id IS NULL OR agents.session_id <> sessions.id)
                AND sessions.disconnected_at < :before
            ORDER BY sessions.id LIMIT :limit
        )
        """,
        {"before": tx.now() - kept.sessions_ms, "limit": limit},
    )


def prune_join_tokens(tx: Transaction, kept: Kept, limit: int) -> int:
    return tx.run(
        "DELETE FROM join_tokens WHERE id IN (SELECT id FROM join_tokens WHERE expires_at < :before "
        "ORDER BY id LIMIT :limit)",
        {"before": tx.now() - kept.sessions_ms, "limit": limit},
    )


PRUNES: tuple[tuple[Callable[[Transaction, Kept, int], int], int], ...] = (
    # With up to 512 steps each.
    (prune_workflows, 20),
    (prune_commands, 200),
    (prune_events, 500),
    (prune_audit, 500),
    (prune_sessions, 200),
    (prune_join_tokens, 200),
)
"""Each kind of row, and how many are removed in one transaction at the most."""


def _prune_oldest(tx: Transaction, table: str, before: int, limit: int) -> int:
    """Of a table that only grows at its end: the numbers are in the order of the times, so the oldest decide."""
    oldest = tx.all(f"SELECT seq, at FROM {table} ORDER BY seq LIMIT :limit", {"limit": limit})
    old = [seq for seq, at in oldest if at < before]
    return tx.run(f"DELETE FROM {table} WHERE seq IN EACH(:old)", {"old": old}) if old else 0
