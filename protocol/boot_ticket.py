"""The boot ticket: what a machine needs to join when its system is started, on whichever carrier it comes. Pure.

One ticket is for one machine, one role and one join. Three carriers bring it: a small archive beside the initial
ramdisk, a fixed area of the boot medium that is overwritten while it is streamed, and a word on the kernel's command
line for set-ups that are made by hand.

The area is 65,536 bytes: `RACKWRIGHT TICKET 1` and a line feed, eight decimal digits and a line feed that say how
long the JSON is, its SHA-256 in hexadecimal and a line feed, the JSON, and zero bytes. Length 0: there is no ticket.
"""

import base64
import binascii
import hashlib
import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from protocol.join_token import JoinToken
from protocol.secret import Secret

__all__ = [
    "AREA_NAME",
    "AREA_SIZE",
    "MEDIUM_LABEL",
    "RAMDISK_IMAGE",
    "TICKET_NAME",
    "TICKET_WORD",
    "BootTicket",
    "TicketInterface",
    "TicketNetwork",
    "decode_area",
    "decode_word",
    "encode_archive",
    "encode_area",
    "encode_word",
    "from_json",
    "to_json",
]

AREA_SIZE = 65_536
MEDIUM_LABEL = "RACKWRIGHT"
"""The volume label of the boot medium."""
AREA_NAME = "rackwright/ticket.area"
"""The area's file on the boot medium."""
TICKET_NAME = "rackwright/ticket.json"
"""The ticket's file in an initial ramdisk."""
TICKET_WORD = "rackwright.ticket"
"""The word on the kernel's command line: `rackwright.ticket=` and what `encode_word` gives."""
RAMDISK_IMAGE = "rackwright:ramdisk"
"""The address that stands for the node's own ramdisk: the site's agent puts a real one in its place."""
_MAGIC = b"RACKWRIGHT TICKET 1\n"
_HEAD = len(_MAGIC) + 9 + 65


class TicketInterface(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One port's settings. Without addresses it asks by DHCP."""

    mac: Annotated[str, Meta(pattern=r"^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$")]
    vlan: Annotated[int, Meta(ge=1, le=4094)] | None = None
    addresses: list[str] = []
    """With their prefix: 192.0.2.5/24."""
    gateway: str | None = None
    dns: list[str] = []


class TicketNetwork(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """No interfaces: DHCP on every port that has a link."""

    interfaces: list[TicketInterface] = []


class BootTicket(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the machine is told. Its text forms do not show the token."""

    version: int = 1
    node_id: str
    control_plane: str
    """The agents' address, as in a join."""
    token: Secret
    """The text of a `JoinToken`."""
    network: TicketNetwork = TicketNetwork()
    serial_console: str = "ttyS0,115200"
    expires_at: int = 0
    """Milliseconds since 1970, for messages only: clocks lie."""


def to_json(ticket: BootTicket) -> bytes:
    """The one form of which all carriers are made. It holds the token in clear."""
    return _encoder.encode(ticket)


def from_json(data: bytes | str) -> BootTicket:
    """Raises ValueError that says what is wrong without repeating the ticket."""
    try:
        ticket = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"this is no boot ticket: {error}") from None
    if ticket.version != 1:
        raise ValueError(f"this boot ticket has version {ticket.version}, and this program reads version 1: renew it")
    JoinToken.parse(ticket.token.reveal())
    return ticket


def encode_area(ticket: BootTicket | None) -> bytes:
    """The whole area; without a ticket the empty one of the base image. Raises ValueError for a ticket too long."""
    if ticket is None:
        return (_MAGIC + b"00000000\n").ljust(AREA_SIZE, b"\0")
    data = to_json(ticket)
    if len(data) > AREA_SIZE - _HEAD:
        raise ValueError(f"the boot ticket has {len(data)} bytes, and {AREA_SIZE - _HEAD} are the most")
    head = _MAGIC + b"%08d\n" % len(data) + hashlib.sha256(data).hexdigest().encode() + b"\n"
    return (head + data).ljust(AREA_SIZE, b"\0")


def decode_area(data: bytes) -> BootTicket | None:
    """The ticket; None where the area is empty. Raises ValueError where it is none, or damaged."""
    if not data.startswith(_MAGIC):
        raise ValueError("this is no ticket area: its first line is another one")
    length = data[len(_MAGIC) : len(_MAGIC) + 9]
    if not re.fullmatch(rb"\d{8}\n", length):
        raise ValueError("the ticket area is damaged: it does not say how long the ticket is")
    size = int(length)
    if size == 0:
        return None
    json = data[_HEAD : _HEAD + size]
    if len(json) != size or data[len(_MAGIC) + 9 : _HEAD] != hashlib.sha256(json).hexdigest().encode() + b"\n":
        raise ValueError("the ticket area is damaged: its checksum is another one")
    return from_json(json)


def encode_word(ticket: BootTicket) -> str:
    """For the kernel's command line, which everybody on the machine can read: it is dead once it was used."""
    return base64.urlsafe_b64encode(to_json(ticket)).decode().rstrip("=")


def decode_word(word: str) -> BootTicket:
    """Raises ValueError as `from_json` does."""
    try:
        data = base64.b64decode(word.strip() + "=" * (-len(word.strip()) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{TICKET_WORD} is damaged: copy the whole of it") from None
    return from_json(data)


def encode_archive(ticket: BootTicket) -> bytes:
    """A cpio archive with the ticket alone, to be loaded behind the initial ramdisk.

    The format is `newc` (Linux: Documentation/driver-api/early-userspace/buffer-format.rst), uncompressed, and padded
    so that it may stand anywhere in a row of archives.
    """
    folder = TICKET_NAME.rpartition("/")[0]
    members = _member(1, folder, 0o040700, b"") + _member(2, TICKET_NAME, 0o100600, to_json(ticket))
    archive = members + _member(0, "TRAILER!!!", 0, b"")
    return archive.ljust(-(-len(archive) // 512) * 512, b"\0")


def _member(inode: int, name: str, mode: int, data: bytes) -> bytes:
    links = 2 if mode & 0o040000 else 1
    fields = (inode, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data.ljust(-(-len(data) // 4) * 4, b"\0")


def _shown(value: object) -> object:
    if isinstance(value, Secret):
        return value.reveal()
    raise TypeError(type(value).__name__)


def _hidden(kind: type, value: Any) -> object:
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    raise msgspec.ValidationError("Expected a text")


_encoder = msgspec.json.Encoder(enc_hook=_shown)
_decoder = msgspec.json.Decoder(BootTicket, dec_hook=_hidden)
