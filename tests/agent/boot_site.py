"""A site's boot server on a free port, with a small image of the ramdisk and a control plane that the test plays."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from agent.boot_server import BootServer, site_boot_server
from agent.config import BootSection, Config, ImagesSection
from agent.tickets import Tickets
from protocol.boot_ticket import AREA_SIZE, BootTicket, encode_area, to_json
from protocol.frames import AgentFrame, Ticket, TicketRequest
from protocol.join_token import JoinToken
from protocol.machine_facts import marks_of
from protocol.secret import Secret
from tests.agent.rig import FakeClock

AREA_OFFSET = 300_000
ISO_BYTES = 1_000_000


@dataclass
class TicketGiver:
    """The control plane's side: gives tickets, and knows which were used. Silent while `away`."""

    machines: dict[str, str] = field(default_factory=dict)
    """MAC to node."""
    given: list[BootTicket] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    stale: set[str] = field(default_factory=set)
    """Those that have run out unused."""
    refusal: str | None = None
    away: bool = False
    tickets: Tickets = field(init=False)

    def __post_init__(self) -> None:
        self.tickets = Tickets(self.hear)

    def hear(self, frame: AgentFrame) -> None:
        assert isinstance(frame, TicketRequest)
        if not self.away:
            self.tickets.take(self.answer(frame))

    def answer(self, asked: TicketRequest) -> Ticket:
        if self.refusal is not None:
            return Ticket(id=asked.id, refusal=self.refusal)
        if asked.purpose == "image":
            return Ticket(id=asked.id, node_id=asked.node_id, ticket=self.admission(asked.checksum))
        node = asked.node_id
        if asked.machine is not None:
            found = {self.machines.get(mac, "") for mac in marks_of(asked.machine).macs} & set(asked.among)
            if not found:
                return Ticket(id=asked.id, refusal="no machine that is to start is known so")
            node = found.pop()
        if asked.holds and asked.holds not in self.used | self.stale:
            return Ticket(id=asked.id, node_id=node)
        ticket = BootTicket(
            node_id=node, control_plane="wss://control.example:8443", token=Secret(JoinToken.new("ab" * 32).text())
        )
        self.given.append(ticket)
        joined = asked.holds in self.used
        return Ticket(id=asked.id, node_id=node, ticket=to_json(ticket).decode(), joined=joined)

    @staticmethod
    def admission(checksum: str) -> str:
        return hashlib.sha1(f"image {checksum}".encode()).hexdigest()

    def use(self, ticket: BootTicket) -> None:
        """A machine joins by it."""
        self.used.add(JoinToken.parse(ticket.token.reveal()).id)


def make_image(folder: Path, *, fill: int = 7) -> Path:
    """A built image: its description, whose ISO is bytes with a ticket area in the middle."""
    folder.mkdir(exist_ok=True)
    iso = bytearray(bytes((number * fill) % 251 for number in range(1000)) * (ISO_BYTES // 1000))
    iso[AREA_OFFSET : AREA_OFFSET + AREA_SIZE] = encode_area(None)
    (folder / "ramdisk.iso").write_bytes(iso)
    (folder / "vmlinuz").write_bytes(b"kernel" * 1000)
    (folder / "initrd.zst").write_bytes(b"initrd" * 1000)
    description = {
        "format": 1,
        "version": "0.1.0",
        "architecture": "x86_64",
        "areaOffset": AREA_OFFSET,
        "areaSize": AREA_SIZE,
        "isoSize": len(iso),
        "isoSha256": hashlib.sha256(iso).hexdigest(),
        "kernel": "vmlinuz",
        "initrd": "initrd.zst",
        "commandLine": "console=tty0 console=ttyS0,115200 panic=60",
    }
    path = folder / "ramdisk.iso.json"
    path.write_text(json.dumps(description))
    return path


def expected_iso(image: Path, ticket: BootTicket | None) -> bytes:
    iso = bytearray(image.with_name("ramdisk.iso").read_bytes())
    iso[AREA_OFFSET : AREA_OFFSET + AREA_SIZE] = encode_area(ticket)
    return bytes(iso)


@dataclass
class BootSite:
    """`server`, which a test may start anew on the same state with `restarted`."""

    folder: Path
    giver: TicketGiver
    server: BootServer
    config: Config
    clock: FakeClock

    @classmethod
    def make(cls, folder: Path, *, image: bool = True, **boot_settings: Any) -> "BootSite":
        path = str(make_image(folder / "image")) if image else ""
        boot = BootSection(**{"image": path, "listen": "127.0.0.1:0", **boot_settings})
        config = Config(state_dir=str(folder), boot=boot, images=ImagesSection(allow=("127.0.0.1",)))
        giver, clock = TicketGiver(), FakeClock()
        return cls(folder, giver, site_boot_server(config, clock, giver.tickets), config, clock)

    async def restarted(self, url: str, *, boot: bool = False) -> "BootSite":
        """The agent's process ends and another one begins, under the address of `url`; with `boot` its host too."""
        await self.server.aclose()
        if boot:
            self.clock.reboot()
        giver = TicketGiver(self.giver.machines, used=self.giver.used)
        listen = f"127.0.0.1:{urlsplit(url).port}"
        boot_section = msgspec.structs.replace(self.config.boot, listen=listen)
        config = msgspec.structs.replace(self.config, boot=boot_section)
        server = site_boot_server(config, self.clock, giver.tickets)
        await server.start_for_machines()
        return BootSite(self.folder, giver, server, config, self.clock)

    @property
    def image(self) -> Path:
        return Path(self.config.boot.image)
