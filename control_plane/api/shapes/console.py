"""A console's websocket: the query that opens it, and the text messages beside the machine's bytes.

`GET /api/compute/console/<node>` (a websocket; the token as everywhere). Binary messages are the console's bytes,
both ways. Text messages are JSON: `opened` first, then `ready`, `writer`, `gap` and `ended` from the control plane;
`take` and `break` from the client.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from control_plane.api.shapes.common import Reference, Request
from protocol.shapes.console import ConsoleKind

__all__ = [
    "CONSOLE_ACTION",
    "BreakMessage",
    "ClientMessage",
    "EndedMessage",
    "GapMessage",
    "OpenConsoleRequest",
    "OpenedMessage",
    "ReadyMessage",
    "ServerMessage",
    "TakeMessage",
    "WriterMessage",
]


CONSOLE_ACTION: Final = "compute:console:open"
"""What a token must be allowed, to read as well as to type: consoles show secrets."""


class OpenConsoleRequest(Request, frozen=True, kw_only=True):
    node_id: Reference
    read_only: bool = False
    """Never be the writer."""
    force: bool = False
    """Be the writer at once; whoever is it now is told."""
    kind: ConsoleKind | None = None
    take_over: bool = False
    """End a session at the BMC that somebody else holds."""
    command: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    """What opens the console on a command line that is not known here (ssh)."""
    replay: Annotated[int, Meta(ge=0)] | None = None
    """How many of the last bytes to begin with; all that are kept by default."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type"):
    pass


class OpenedMessage(_Message, frozen=True, kw_only=True, tag="opened"):
    node_id: str
    node_name: str
    writer: bool
    """Whether this client is the one that types."""
    holder: str | None = None
    """Who types."""
    ready: bool = False
    """The console is open; else a `ready` follows, and keys before it are dropped."""


class ReadyMessage(_Message, frozen=True, kw_only=True, tag="ready"):
    """The console is open: keys are taken."""


class WriterMessage(_Message, frozen=True, kw_only=True, tag="writer"):
    mine: bool
    holder: str | None


class GapMessage(_Message, frozen=True, kw_only=True, tag="gap"):
    bytes: int
    """So many are missing here."""


class EndedMessage(_Message, frozen=True, kw_only=True, tag="ended"):
    reason: str
    """closed, ended, lost: the console; failed: it could not be opened; moved, away, forbidden: this connection."""
    message: str
    code: str | None = None
    """The error's code, where it failed."""


class TakeMessage(_Message, frozen=True, kw_only=True, tag="take"):
    """Be the writer."""


class BreakMessage(_Message, frozen=True, kw_only=True, tag="break"):
    """A serial break."""


ServerMessage = OpenedMessage | ReadyMessage | WriterMessage | GapMessage | EndedMessage
ClientMessage = TakeMessage | BreakMessage
