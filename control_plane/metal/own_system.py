"""Whether a machine's own system has come back: a boot of its agent that nobody saw before the ramdisk was seen last.

An agent that is merely connected proves nothing: its connection may be one that nobody has found broken yet.
"""

from typing import NamedTuple

from control_plane.store import Transaction

__all__ = ["OwnSystem", "own_system"]


class OwnSystem(NamedTuple):
    """Of one machine, by its agents' sessions."""

    is_there: bool
    """Its agent is connected now, from a boot of after the ramdisk."""
    has_come: bool
    """It has connected from such a boot, and may be away again."""
    ramdisk_is_last: bool
    """The machine was started with its ramdisk since it was brought into service, and nobody has heard of its own
    system after that."""


def own_system(tx: Transaction, node_id: str, deployed_at: int = 0) -> OwnSystem:
    """`deployed_at`: when the node was last brought into service. Of a system without an agent, the ramdisk that has
    installed it was heard of last for ever; it is not what the machine was left in."""
    rows = tx.all(
        """
        SELECT sessions.role, sessions.boot_id, sessions.connected_at,
            sessions.disconnected_at IS NULL AND sessions.id = agents.session_id AND agents.revoked_at IS NULL
        FROM sessions JOIN agents ON agents.id = sessions.agent_id WHERE agents.node_id = :node
        """,
        {"node": node_id},
    )
    ramdisk_at = max((connected_at for role, _, connected_at, _ in rows if role == "ramdisk"), default=None)
    first_seen: dict[str, int] = {}
    for _, boot_id, connected_at, _ in rows:
        first_seen[boot_id] = min(connected_at, first_seen.get(boot_id, connected_at))
    later = [
        bool(is_open)
        for role, boot_id, _, is_open in rows
        if role == "daemon" and (ramdisk_at is None or first_seen[boot_id] > ramdisk_at)
    ]
    runs_ramdisk = any(is_open for role, _, _, is_open in rows if role == "ramdisk")
    started = ramdisk_at is not None and (runs_ramdisk or ramdisk_at >= deployed_at)
    return OwnSystem(is_there=any(later), has_come=bool(later), ramdisk_is_last=started and not later)
