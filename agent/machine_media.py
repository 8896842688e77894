"""The machines that may start their ramdisk from here, and what each of them gets: media, files, iPXE scripts."""

import asyncio
import re
import secrets
from weakref import WeakValueDictionary

import msgspec
import structlog

from agent.boot_image import BootImage, BootImages
from agent.boot_media import IsoContent, NodeTicket, ipxe_script, local_boot_script
from agent.boot_paths import MachinePath, PathKind, Paths
from agent.byte_serving import Content
from agent.tickets import TicketAnswer, Tickets
from protocol.boot_ticket import RAMDISK_IMAGE, BootTicket, encode_archive
from protocol.errors import ErrorCode, OperationError
from protocol.join_token import JoinToken
from protocol.machine_facts import MachineFacts, Marks, marks_of

__all__ = ["MachineMedia"]

_log = structlog.get_logger("agent.machine_media")
_SCRIPT_SECONDS = 10.0
_MASK = "***"


class MachineMedia:
    """What they may start from. `control_plane`: what the machines call it, where it is not what it calls itself."""

    def __init__(
        self,
        images: BootImages | None,
        paths: Paths,
        tickets: Tickets,
        control_plane: str = "",
    ) -> None:
        self._images = images
        self._paths = paths
        self._tickets = tickets
        self._control_plane = control_plane
        self._instance = secrets.token_hex(4)
        self._held: dict[str, NodeTicket] = {}
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By who asks for a script: one that asks twice is not given two tickets, and none waits for another."""

    # What is offered

    async def medium(self, node_id: str, kind: PathKind, *, once: bool = False) -> str:
        """The path of a new medium, with a ticket at hand, in place of the machine's earlier one of this kind.

        `once`: it is good until the machine's ramdisk has joined. Raises OperationError: CONFLICT with what is
        missing, UNREACHABLE where the control plane gave no ticket.
        """
        image = await self._newest()
        ticket = await self._tickets.request(node_id)
        path = await self._made(node_id, kind, image, _token_id(ticket) if once else "")
        self._ticket(path).keep(ticket)
        _log.info("medium_offered", node=node_id, kind=kind, version=image.version)
        return f"{path.token}/ramdisk.iso"

    async def arm(self, node_id: str) -> None:
        """For a while the machine's request for an iPXE script starts its ramdisk, until that has joined."""
        await self._made(node_id, "pxe", await self._newest())
        _log.info("ipxe_armed", node=node_id)

    async def withdraw(self, node_id: str, *kinds: PathKind) -> None:
        """These paths of the machine are good for nothing any more."""
        try:
            await self._paths.withdraw(node_id, *kinds)
        except OSError as error:
            _log.error("boot_paths_not_written", reason=str(error))

    def hidden(self, node_id: str, text: str) -> str:
        """The text without the address of any medium: the machine's own becomes `rackwright:ramdisk`."""
        for path in self._paths.machines():
            if path.token in text:
                return RAMDISK_IMAGE if path.node_id == node_id else text.replace(path.token, _MASK)
        return text

    def secrets(self) -> list[str]:
        """What admits to each machine's paths."""
        return [path.token for path in self._paths.machines()]

    # What is fetched

    async def content(self, token: str, name: str) -> tuple[str, Content] | None:
        """The machine's id and what it gets under this path; None for what is not there. Raises OperationError."""
        path = self._paths.machine(token)
        image = None if path is None else await self._image_of(path)
        if path is None or image is None:
            return None
        if path.kind != "pxe":
            ticket = self._ticket(path)
            if ticket.is_over:
                await self._over(path)
                return None
            return (path.node_id, IsoContent(image, ticket, self._instance)) if name.endswith(".iso") else None
        if name == "ticket.cpio":
            return path.node_id, _Archive(encode_archive(await self._ticket(path).current()))
        handle = {"vmlinuz": image.kernel, "initrd": image.initrd}.get(name)
        return None if handle is None else (path.node_id, image.file(handle))

    async def script(self, asker: str) -> tuple[str, str]:
        """The id of the machine that has asked by this MAC or UUID, and its iPXE script.

        One that is not to start, is not known, or that nobody can be asked about, goes on to its next boot device.
        """
        marks = _asker_marks(asker)
        if marks is None:
            return "", local_boot_script()
        known_as = marks.uuid or min(marks.macs, default="")
        async with self._asking.setdefault(known_as, asyncio.Lock()):
            try:
                found = await self._find(marks, known_as)
                image = None if found is None else await self._image_of(found[0])
            except OperationError as error:
                _log.warning("ipxe_not_answered", reason=error.message)
                found = image = None
        if found is None or image is None:
            return "", local_boot_script()
        path, ticket = found
        return path.node_id, ipxe_script(path, ticket, image.command_line)

    async def _find(self, marks: Marks, asker: str) -> tuple[MachinePath, BootTicket] | None:
        armed = self._paths.all_of("pxe")
        known = next((path for path in armed if path.asker == asker), None)
        if known is not None:
            return await self._again(known)
        if not armed:
            return None
        facts = MachineFacts(uuid=marks.uuid, macs=sorted(marks.macs))
        nodes = [path.node_id for path in armed]
        answer = await self._tickets.for_machine(facts, nodes, patience=_SCRIPT_SECONDS)
        path = next((path for path in armed if path.node_id == answer.node_id), None)
        if path is None or answer.ticket is None:
            return None
        if path.handed and (await self._renewed(path)).joined:
            await self._over(path)
            return None
        return await self._handed(msgspec.structs.replace(path, asker=asker), answer.ticket)

    async def _again(self, path: MachinePath) -> tuple[MachinePath, BootTicket] | None:
        """A machine that asks once more: its start has failed, or it has started, joined, and started anew since."""
        answer = await self._renewed(path)
        if answer.joined:
            await self._over(path)
            return None
        if answer.ticket is not None:
            # The one that was handed out has run out, and the machine has not joined by it.
            return await self._handed(path, answer.ticket)
        held = self._ticket(path).held
        if held is not None:
            return path, held
        # The agent was started anew, and knew only by its id what it had handed out.
        return await self._handed(path, await self._tickets.request(path.node_id, patience=_SCRIPT_SECONDS))

    async def _renewed(self, path: MachinePath) -> TicketAnswer:
        return await self._tickets.renew(path.node_id, path.handed, patience=_SCRIPT_SECONDS)

    async def _over(self, path: MachinePath) -> None:
        """Its ramdisk has joined: else a machine whose network comes first would start it for ever (case B52)."""
        _log.info("network_boot_done", node=path.node_id, kind=path.kind)
        await self.withdraw(path.node_id, path.kind)

    async def _handed(self, path: MachinePath, ticket: BootTicket) -> tuple[MachinePath, BootTicket]:
        noted = msgspec.structs.replace(path, handed=_token_id(ticket))
        try:
            await self._paths.note(noted)
        except OSError as error:
            _log.error("boot_paths_not_written", reason=str(error))
        return noted, self._ticket(noted).keep(ticket)

    # Parts

    def _ticket(self, path: MachinePath) -> NodeTicket:
        held = self._held.get(path.token)
        if held is None:
            gone = [token for token in self._held if self._paths.machine(token) is None]
            for token in gone:
                del self._held[token]
            first = path.handed if path.kind == "http" else ""
            held = self._held[path.token] = NodeTicket(path.node_id, self._tickets, self._control_plane, first)
        return held

    async def _newest(self) -> BootImage:
        if self._images is None:
            raise OperationError(
                ErrorCode.CONFLICT,
                "this site has no ramdisk to start machines with: build one (rackwright ramdisk build) and name its "
                ".json as boot.image in agent.toml",
            )
        return await asyncio.to_thread(self._images.newest)

    async def _image_of(self, path: MachinePath) -> BootImage | None:
        """Never another one than the path was made for: a machine that is starting would read half of each."""
        if self._images is None:
            return None
        image = await asyncio.to_thread(self._images.of, path.image)
        if image is None:
            _log.warning("image_replaced", node=path.node_id, hint="insert it again: its image is not here any more")
        return image

    async def _made(self, node_id: str, kind: PathKind, image: BootImage, handed: str = "") -> MachinePath:
        try:
            return await self._paths.make(node_id, kind, image.sha256, handed)
        except OSError as error:
            raise OperationError(
                ErrorCode.CONFLICT, f"the path of a boot medium cannot be kept: {error.strerror}; free space"
            ) from error


class _Archive:
    """A machine's ticket as a file for iPXE."""

    media_type = "application/octet-stream"
    changed_at = 0.0

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)
        self.etag = f'"{secrets.token_hex(8)}"'

    async def prepare(self, start: int, end: int) -> None:
        return None

    def file_part(self, position: int) -> None:
        return None

    async def read(self, start: int, length: int) -> bytes:
        return self._data[start : start + length]


def _asker_marks(asker: str) -> Marks | None:
    """The one MAC or UUID that it is; None for nonsense."""
    facts = MachineFacts(uuid=asker) if re.fullmatch(r"[0-9A-Fa-f-]{32,36}", asker) else MachineFacts(macs=[asker])
    marks = marks_of(facts)
    return None if marks.is_empty else marks


def _token_id(ticket: BootTicket) -> str:
    return JoinToken.parse(ticket.token.reveal()).id
