"""The first start on an installed system: it joins by the ticket that its deployment left there, and removes it.

The ticket lies on the configuration drive (label `cidata`, file `rackwright.json`), or an image or cloud-init has put
it into /etc/rackwright/join.json. It is for one join: what could not be removed is dead all the same.
"""

import asyncio
import contextlib
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import structlog

from agent import systemd
from agent.backoff import Backoff
from agent.errors import JoinFailed
from agent.identity import Identity, IdentityStore
from agent.joining import join
from agent.machine_identity import machine_facts
from drivers.linux.filesystems import mounted
from drivers.linux.host import Host
from protocol.boot_ticket import BootTicket, from_json
from protocol.errors import OperationError

__all__ = ["DRIVE_FILE", "JOIN_FILE", "DriveTicket", "FileTicket", "FirstJoin", "TicketSource"]

_log = structlog.get_logger("agent.first_join")
JOIN_FILE = Path("/etc/rackwright/join.json")
DRIVE_FILE = "rackwright.json"
_DRIVES = ("disk/by-label/cidata", "disk/by-label/CIDATA", "disk/by-partlabel/cidata")
_PASSING = frozenset({"", "BUSY"})
"""Answers after which the same ticket may be taken later."""


class TicketSource(Protocol):
    """A place that may hold a ticket."""

    @property
    def name(self) -> str: ...

    async def read(self) -> bytes | None:
        """None where there is none. Raises OSError or OperationError."""

    async def remove(self) -> None:
        """Raises OSError or OperationError."""


class FileTicket:
    """A file of the installed system."""

    def __init__(self, file: Path = JOIN_FILE) -> None:
        self._file = file

    @property
    def name(self) -> str:
        return str(self._file)

    async def read(self) -> bytes | None:
        try:
            return await asyncio.to_thread(self._file.read_bytes)
        except FileNotFoundError:
            return None

    async def remove(self) -> None:
        await asyncio.to_thread(_erase, self._file)


class DriveTicket:
    """The file on the configuration drive."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @property
    def name(self) -> str:
        return f"{DRIVE_FILE} on the configuration drive"

    async def read(self) -> bytes | None:
        device = self._device()
        if device is None:
            return None
        async with mounted(self._host, device, "vfat") as place:
            try:
                return await asyncio.to_thread((place / DRIVE_FILE).read_bytes)
            except FileNotFoundError:
                return None

    async def remove(self) -> None:
        device = self._device()
        if device is not None:
            async with mounted(self._host, device, "vfat", writable=True) as place:
                await asyncio.to_thread(_erase, place / DRIVE_FILE)

    def _device(self) -> str | None:
        for link in _DRIVES:
            place = self._host.dev / link
            if place.exists():
                return str(place.resolve())
        return None


JoinsBy = Callable[[BootTicket, IdentityStore], Awaitable[Identity]]


async def _join(ticket: BootTicket, store: IdentityStore) -> Identity:
    facts = await asyncio.to_thread(machine_facts, Host())
    return await join(ticket.control_plane, ticket.token.reveal(), store, machine=facts)


class FirstJoin:
    """`sources`: where a ticket may be, the first of them first."""

    def __init__(
        self,
        store: IdentityStore,
        sources: list[TicketSource],
        *,
        join_by: JoinsBy = _join,
        backoff: Backoff | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._store = store
        self._sources = sources
        self._join_by = join_by
        self._backoff = backoff or Backoff(cap=60.0)
        self._chance = chance or random.Random()

    async def run(self) -> Identity | None:
        """Joins, however long the control plane is away. None where no place holds a ticket.

        Raises JoinFailed when the control plane refuses every one for good, and IdentityError when the identity
        cannot be kept.
        """
        refused: JoinFailed | None = None
        for source in self._sources:
            ticket = await self._read(source)
            if ticket is None:
                continue
            _log.info("ticket_found", place=source.name, node=ticket.node_id, control_plane=ticket.control_plane)
            try:
                identity = await self._join(ticket, source)
            except JoinFailed as error:
                # An old one may have come with the image.
                _log.error("ticket_refused", place=source.name, reason=error.message)
                refused = error
                continue
            await self._remove(source)
            return identity
        if refused is not None:
            raise refused
        return None

    async def _read(self, source: TicketSource) -> BootTicket | None:
        try:
            data = await source.read()
            return None if data is None else from_json(data)
        except (OSError, OperationError, ValueError) as error:
            _log.error("ticket_not_read", place=source.name, reason=str(error))
            return None

    async def _join(self, ticket: BootTicket, source: TicketSource) -> Identity:
        failures = 0
        systemd.notify("READY=1", f"STATUS=joining {ticket.control_plane}")
        while True:
            try:
                return await self._join_by(ticket, self._store)
            except JoinFailed as error:
                if error.refusal not in _PASSING:
                    raise JoinFailed(
                        f"{error.message}. The ticket in {source.name} is of no use any more: deploy the machine "
                        "again, or join with a new token (rackwright agent join URL TOKEN)",
                        error.refusal,
                    ) from error
                failures += 1
                _log.warning("cannot_join_yet", reason=error.message, attempt=failures)
                systemd.notify(f"STATUS=cannot join yet: {error.message}")
                await asyncio.sleep(self._backoff.delay(failures, self._chance))

    async def _remove(self, source: TicketSource) -> None:
        try:
            await source.remove()
        except (OSError, OperationError) as error:
            _log.warning("ticket_not_removed", place=source.name, reason=str(error), hint="it was used, and is dead")


def _erase(file: Path) -> None:
    """Over its own bytes first: what is only unlinked can be read from the device."""
    with contextlib.suppress(OSError), file.open("r+b") as handle:
        handle.write(bytes(file.stat().st_size))
        handle.flush()
        os.fsync(handle.fileno())
    file.unlink(missing_ok=True)
