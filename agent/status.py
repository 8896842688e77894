"""What `rackwright agent status` shows: a small file that the running agent keeps, and what lies on the disk."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from agent.config import Config
from agent.errors import AgentError, IdentityError
from agent.files import write_durably
from agent.identity import IdentityStore
from agent.link import LinkStatus
from agent.state_lock import SNAPSHOT, is_running
from protocol import VERSION

__all__ = ["Report", "Snapshot", "StatusKeeper", "report"]

_log = structlog.get_logger("agent.status")
_SPACING = 2.0


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


class StatusKeeper:
    """Keeps the file while the agent runs; `take` tells what is to be in it."""

    def __init__(self, state: Path, take: Callable[[], Snapshot]) -> None:
        self._state = state
        self._take = take
        self._due = asyncio.Event()

    def changed(self) -> None:
        """The link has changed: the file is written soon."""
        self._due.set()

    async def keep(self) -> None:
        """Writes the file soon after the link has changed, and within some seconds when anything else has."""
        before: object = None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SPACING):
                    await self._due.wait()
            snapshot = self._take()
            now = (snapshot.held, snapshot.blocked, snapshot.watched)
            if self._due.is_set() or now != before:
                self._due.clear()
                before = now
                self._write(snapshot)
            await asyncio.sleep(_SPACING / 10)

    def write(self) -> None:
        """In one step, not durably: after a power cut nobody needs it. Where it cannot be written the log says so."""
        self._write(self._take())

    def _write(self, snapshot: Snapshot) -> None:
        try:
            write_durably(self._state / SNAPSHOT, msgspec.json.encode(snapshot), 0o600, durable=False)
        except OSError as error:
            _log.warning("status_not_written", reason=str(error))


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
