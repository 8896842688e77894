"""Awaiting a rejoin: the machine's own session, seen again with another boot id or another role.

The steps that await it end the process that runs them (kexec, reboot, an upgrade of the daemon), so what their
command reports means nothing. Only the machine's return counts, and only the deadline fails it.
"""

from typing import NamedTuple

from control_plane.engine.records import Rejoin
from control_plane.store import Transaction

__all__ = ["Presence", "has_rejoined", "presence_of", "present_boot"]

_PRESENT = """
SELECT sessions.id, sessions.boot_id, sessions.role, sessions.connected_at FROM agents
    JOIN sessions ON sessions.id = agents.session_id
WHERE agents.node_id = :node_id AND agents.revoked_at IS NULL AND sessions.disconnected_at IS NULL
ORDER BY sessions.connected_at DESC LIMIT 1
"""


class Presence(NamedTuple):
    """The machine's own open session: never the site agent's, also where the command goes to the site."""

    session_id: str
    boot_id: str
    role: str
    connected_at: int

    @property
    def as_rejoin(self) -> Rejoin:
        return Rejoin(self.boot_id, self.role)


def presence_of(tx: Transaction, node_id: str | None) -> Presence | None:
    """The machine's open session, the newest where several roles are connected; None when there is none."""
    if node_id is None:
        return None
    row = tx.one(_PRESENT, {"node_id": node_id})
    return None if row is None else Presence(*row)


def present_boot(tx: Transaction, node_id: str | None) -> Rejoin:
    """What is recorded when a command is sent that the machine's return is awaited from."""
    presence = presence_of(tx, node_id)
    return Rejoin(None, None) if presence is None else presence.as_rejoin


def has_rejoined(before: Rejoin, now: Presence | None, deadline: int) -> bool:
    """Whether the machine is back, in time, as another boot or in another role than when the step was sent.

    A machine that was not connected then (both null) is back with any connection. A worker that looks late still
    counts a return that was in time.
    """
    if now is None or now.connected_at > deadline:
        return False
    return now.as_rejoin != before
