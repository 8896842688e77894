"""What `rackwright agent status` shows: a small file that the running agent keeps, and what lies on the disk."""

import contextlib
import sqlite3
import time
from pathlib import Path

import msgspec

from agent.config import Config
from agent.errors import AgentError, IdentityError
from agent.files import write_durably
from agent.identity import IdentityStore
from agent.link import LinkStatus
from agent.state_lock import SNAPSHOT, is_running
from protocol import VERSION

__all__ = ["Report", "Snapshot", "report", "write_snapshot"]


class Snapshot(msgspec.Struct, frozen=True, rename="camel"):
    """What only the running process knows."""

    pid: int
    boot_id: str
    started_at: float
    version: str
    journal_id: str
    link: LinkStatus
    held: dict[str, int]
    blocked: dict[str, list[str]]
    watched: dict[str, int] = {}
    """Machines that are watched: how many, with events, and in trouble."""


class Report(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The whole answer. Times are seconds since 1970."""

    running: bool
    version: str
    state_dir: str
    joined: bool = False
    agent_id: str | None = None
    role: str | None = None
    site: str | None = None
    control_plane: str | None = None
    certificate_ends: float | None = None
    trouble: str | None = None
    """Why the identity cannot be used now, and what to do."""
    pid: int | None = None
    started_at: float | None = None
    link: LinkStatus | None = None
    held: dict[str, int] = {}
    blocked: dict[str, list[str]] = {}
    watched: dict[str, int] = {}


def write_snapshot(state: Path, snapshot: Snapshot) -> None:
    """In one step, not durably: after a power cut nobody needs it."""
    write_durably(state / SNAPSHOT, msgspec.json.encode(snapshot), 0o600, durable=False)


def report(config: Config) -> Report:
    """Reads everything; changes nothing, and needs no running agent. Raises AgentError when it may not read."""
    state = config.state
    try:
        running = is_running(state)
        snapshot = _snapshot(state) if running else None
        identity, trouble = None, None
        try:
            identity = IdentityStore(state / "identity").current()
        except IdentityError as error:
            trouble = str(error)
    except PermissionError as error:
        raise AgentError(f"{error.filename} cannot be read: run this as root or as the agent's user") from error
    if identity is not None:
        trouble = identity.validity.trouble(time.time())
    elif trouble is None:
        trouble = "this agent has not joined: run `rackwright agent join URL TOKEN`"
    facts = identity.facts if identity else None
    return Report(
        running=running,
        version=snapshot.version if snapshot else VERSION,
        state_dir=str(state),
        joined=identity is not None,
        agent_id=facts.agent_id if facts else None,
        role=facts.role if facts else None,
        site=facts.site if facts else None,
        control_plane=config.control_plane.url or (facts.control_plane if facts else None),
        certificate_ends=identity.validity.ends if identity else None,
        trouble=trouble,
        pid=snapshot.pid if snapshot else None,
        started_at=snapshot.started_at if snapshot else None,
        link=snapshot.link if snapshot else None,
        held=snapshot.held if snapshot else _held_on_disk(state),
        blocked=snapshot.blocked if snapshot else _blocked_on_disk(state),
        watched=snapshot.watched if snapshot else {},
    )


def _snapshot(state: Path) -> Snapshot | None:
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
        return msgspec.json.decode((state / SNAPSHOT).read_bytes(), type=Snapshot)
    return None


def _held_on_disk(state: Path) -> dict[str, int]:
    if not (state / "journal.db").exists():
        return {}
    try:
        with contextlib.closing(sqlite3.connect(f"file:{state / 'journal.db'}?mode=ro", uri=True)) as db:
            return dict(db.execute("SELECT state, count(*) FROM commands GROUP BY state"))
    except sqlite3.Error:
        return {}


def _blocked_on_disk(state: Path) -> dict[str, list[str]]:
    class Kept(msgspec.Struct):
        blocked: dict[str, dict[str, str]] = {}

    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
        kept = msgspec.json.decode((state / "bmcs.json").read_bytes(), type=Kept)
        return {endpoint: sorted(set(reasons.values())) for endpoint, reasons in kept.blocked.items() if reasons}
    return {}
