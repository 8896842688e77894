"""A machine's boot media: the image with the machine's own ticket in it, and the same as files for iPXE.

A ticket is asked for when a path is made, and looked at again whenever its bytes are read after a pause, which is a
new start of the machine: one that was used meanwhile is replaced (case B47: somebody else has switched the machine
off and on). While it is being read it stays the same. Tickets are in memory alone: after a restart of the agent the
first read asks for another one. Under a path that is for one start alone there is none any more once the machine has
joined.
"""

import asyncio
import time

import msgspec
import structlog
from aiohttp import web

from agent.boot_image import BootImage, overlaid
from agent.boot_paths import MachinePath
from agent.byte_serving import read_at
from agent.tickets import TicketAnswer, Tickets
from protocol.boot_ticket import AREA_SIZE, BootTicket, encode_area
from protocol.errors import ErrorCode, OperationError
from protocol.join_token import JoinToken

__all__ = ["HasJoined", "IsoContent", "NodeTicket", "ipxe_script", "local_boot_script"]

_log = structlog.get_logger("agent.boot_media")
QUIET_SECONDS = 15.0
"""A ticket that nobody has read for so long is read by another start of the machine."""
_RENEW_SECONDS = 5.0
_RETRY_AFTER = 5


class HasJoined(Exception):
    """The machine has joined, and the path was for one start."""


class NodeTicket:
    """The ticket under one path. `control_plane`: what the machines of this site call it; empty where it is called as
    it calls itself. `first`: the id of the first one's token, where the path is for one start alone."""

    def __init__(self, node_id: str, tickets: Tickets, control_plane: str = "", first: str = "") -> None:
        self.generation = 0
        """Grows with each ticket."""
        self.is_over = False
        """The machine has joined, and gets no other one."""
        self._node_id = node_id
        self._tickets = tickets
        self._control_plane = control_plane
        self._first = first
        self._held: BootTicket | None = None
        self._read_at = 0.0
        self._lock = asyncio.Lock()

    @property
    def held(self) -> BootTicket | None:
        return self._held

    def keep(self, ticket: BootTicket) -> BootTicket:
        """This one from now on."""
        if self._control_plane:
            ticket = msgspec.structs.replace(ticket, control_plane=self._control_plane)
        self._held, self._read_at = ticket, time.monotonic()
        self.generation += 1
        return self._held

    async def current(self) -> BootTicket:
        """The ticket to be read now. Raises HasJoined, and OperationError where there is none and none is to be
        had."""
        async with self._lock:
            if self._held is None:
                await self._begin_anew()
            elif time.monotonic() - self._read_at > QUIET_SECONDS:
                await self._look_again(self._held)
            self._read_at = time.monotonic()
            if self.is_over:
                raise HasJoined
            if self._held is None:
                raise OperationError(ErrorCode.CONFLICT, "the machine has no boot ticket")
            return self._held

    async def _begin_anew(self) -> None:
        if self._first:
            self._take(await self._tickets.renew(self._node_id, self._first))
        if self._held is None and not self.is_over:
            self.keep(await self._tickets.request(self._node_id))

    async def _look_again(self, held: BootTicket) -> None:
        try:
            token = JoinToken.parse(held.token.reveal())
            answer = await self._tickets.renew(self._node_id, token.id, patience=_RENEW_SECONDS)
        except OperationError as error:
            # It may have been used, and the machine is told so then; it is more likely that it was not.
            _log.warning("ticket_not_looked_at", node=self._node_id, reason=error.message)
            return
        self._take(answer)

    def _take(self, answer: TicketAnswer) -> None:
        if self._first and answer.joined:
            self.is_over = True
        elif answer.ticket is not None:
            self.keep(answer.ticket)


class IsoContent:
    """The base image's bytes, but for the ticket's area."""

    media_type = "application/octet-stream"

    def __init__(self, image: BootImage, ticket: NodeTicket, instance: str) -> None:
        self.size = image.size
        self.changed_at = image.changed_at
        self._image = image
        self._ticket = ticket
        self._instance = instance
        self._area = b""

    @property
    def etag(self) -> str:
        """Another one with each ticket, and with each process, which does not know the tickets of the one before."""
        return f'"{self._image.sha256[:16]}-{self._instance}-{self._ticket.generation}"'

    async def prepare(self, start: int, end: int) -> web.Response | None:
        offset = self._image.area_offset
        if end <= offset or start >= offset + AREA_SIZE:
            return None
        try:
            self._area = encode_area(await self._ticket.current())
        except HasJoined:
            return web.Response(status=404)
        except (OperationError, ValueError) as error:
            _log.error("ticket_not_served", reason=str(error))
            return web.Response(status=503, headers={"Retry-After": str(_RETRY_AFTER)})
        return None

    def file_part(self, position: int) -> tuple[int, int] | None:
        offset = self._image.area_offset
        if position < offset:
            return self._image.iso, offset
        return None if position < offset + AREA_SIZE else (self._image.iso, self.size)

    async def read(self, start: int, length: int) -> bytes | bytearray | memoryview:
        return overlaid(await read_at(self._image.iso, start, length), start, self._area, self._image.area_offset)


def ipxe_script(path: MachinePath, ticket: BootTicket, command_line: str) -> str:
    """Kernel, initial ramdisk, and the ticket as a second archive. The addresses count from the script's own.

    Linux's EFI stub of before 5.8 takes its ramdisks by the names on the command line; everything later, and BIOS,
    takes them as iPXE hands them over.
    """
    words = [word for word in command_line.split() if not word.startswith("console=ttyS")]
    words += [f"console={ticket.serial_console}", "initrd=initrd", "initrd=ticket"]
    return (
        "#!ipxe\n"
        f"kernel /{path.token}/vmlinuz {' '.join(words)} || goto failed\n"
        f"initrd --name initrd /{path.token}/initrd || goto failed\n"
        f"initrd --name ticket /{path.token}/ticket.cpio || goto failed\n"
        "boot\n"
        ":failed\n"
        "imgfree\n"
        "echo Rackwright: the ramdisk could not be loaded, and is tried again in 10 seconds\n"
        "sleep 10\n"
        f"chain --replace /ipxe/{path.asker}\n"
    )


def local_boot_script() -> str:
    """For every machine that is not to start its ramdisk, known or not: its firmware goes on to its next device."""
    return "#!ipxe\necho Rackwright: nothing to start here, on to the next device\nexit\n"
