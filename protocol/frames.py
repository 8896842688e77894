"""Frames: the messages between an agent and the control plane, as JSON text on one websocket.

The version is agreed twice: by the websocket subprotocol (`rackwright.agent.v1`), and by `hello.protocol` and
`welcome.protocol`, the minor version that each side speaks. Unknown fields are ignored; a frame of an unknown type
is answered with an `error` frame, and the connection goes on. Binary frames carry console bytes: the 26 characters
of the stream's id, then the bytes.

A connection, from the agent's side:

    hello ─►            who I am, and every command that my journal holds
    ◄─ welcome          your session; which held commands are settled and may be forgotten
    ready ─►            my journal has noted this session: commands may come
    ◄─ command          something to do, by an id that is never used again
    accepted ─►         it is durable here; I will do it at most once
    started ─►          I begin (implies accepted)
    progress ─►         how far
    finished ─►         how it ended
    ◄─ settled          I have it, durably: forget it
    ◄─ cancel           stop it if it can be stopped
    ◄─ nodeSpec         what this machine is to be like (to its daemon only)
    nodeSpecApplied ─►  that generation is durable here
    ◄─ watchList        the machines whose power and health to keep an eye on (to a site's agent only)
    observation ─►      what was seen of them; only what has changed
    ticketRequest ─►    a machine is to start: what is it to join with?
    ◄─ ticket           a boot ticket, or why there is none
"""

from typing import Final, Literal

import msgspec

from protocol.commands import Ending, JournalState, TargetRef
from protocol.errors import ProtocolError
from protocol.machine_facts import MachineFacts

__all__ = [
    "JOIN_SUBPROTOCOL",
    "MAX_FRAME_BYTES",
    "PROTOCOL_MINOR",
    "SUBPROTOCOL",
    "Accepted",
    "AgentFrame",
    "Cancel",
    "CertificateIssued",
    "CertificateRequest",
    "Command",
    "ControlFrame",
    "ErrorFrame",
    "Finished",
    "Goodbye",
    "Held",
    "Hello",
    "JoinRefused",
    "JoinRequest",
    "Joined",
    "NodeSpec",
    "NodeSpecApplied",
    "NodeState",
    "Observation",
    "Progress",
    "Ready",
    "Settled",
    "Started",
    "Ticket",
    "TicketRequest",
    "WatchList",
    "WatchedNode",
    "Welcome",
    "decode_agent_frame",
    "decode_control_frame",
    "decode_join_answer",
    "encode",
]

SUBPROTOCOL: Final = "rackwright.agent.v1"
JOIN_SUBPROTOCOL: Final = "rackwright.join.v1"
PROTOCOL_MINOR: Final = 3
"""Grows with each addition to version 1 that the other side should know of. 1: nodeSpec. 2: watchList. 3: tickets."""
MAX_FRAME_BYTES: Final = 1 << 20
"""Larger things go in chunks or over HTTP."""


class _Frame(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", omit_defaults=True):
    pass


# From the agent


class Held(msgspec.Struct, frozen=True, rename="camel"):
    """A command that the agent's journal holds."""

    id: str
    state: JournalState


class Hello(_Frame, frozen=True, kw_only=True, tag="hello"):
    """The first frame of a connection."""

    agent_id: str
    role: str
    """site, ramdisk or daemon."""
    boot_id: str
    """The kernel's boot id: the one proof that a machine really restarted."""
    journal_id: str
    """Made with the journal's file. Another one means that the old journal's knowledge is gone."""
    instance: str = ""
    """Made with each process of the agent."""
    last_session: str = ""
    """The session that the journal noted last. Another one than the control plane's means that this journal is a
    copy, or from before: what was sent since may have been done without its knowledge."""
    version: str
    protocol: int = 0
    """Has to be said: a default is left out on the way, and would be filled in as the other side's own."""
    host_name: str = ""
    drivers: dict[str, list[str]] = {}
    """Each driver, and the operations that this agent's copy of it has."""
    held: list[Held] = []
    node_spec: int = 0
    """The generation of the node spec that a daemon holds; 0: none."""


class Ready(_Frame, frozen=True, kw_only=True, tag="ready"):
    """The journal has noted the session, durably; no command is sent over it before this."""

    session_id: str


class Accepted(_Frame, frozen=True, kw_only=True, tag="accepted"):
    """The command is durable in the journal; or, of a repeated id: still not begun."""

    id: str


class Started(_Frame, frozen=True, kw_only=True, tag="started"):
    """The command is begun; the journal said so first."""

    id: str


class Progress(_Frame, frozen=True, kw_only=True, tag="progress"):
    """How far a command is. May be lost or thinned out; never needed."""

    id: str
    message: str
    percent: float | None = None


class Finished(_Frame, frozen=True, kw_only=True, tag="finished"):
    """How the command ended. Repeated after every reconnect until it is settled."""

    id: str
    ending: Ending


class NodeSpecApplied(_Frame, frozen=True, kw_only=True, tag="nodeSpecApplied"):
    """The node spec of this generation is durable in the daemon."""

    generation: int


class NodeState(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What was last seen of one machine. Words that the other side does not know count as unknown there."""

    node_id: str
    power: str = "unknown"
    """A `PowerState`. Unknown is never off."""
    health: str = "unknown"
    """A `Health`: the machine's own rollup."""
    raw: str | None = None
    """The BMC's own word for the power."""
    trouble: str | None = None
    """Why the machine could not be asked."""
    how: str = "poll"
    """What led to the look: poll, or an event that came by sse or push."""
    age_ms: int = 0
    """How long ago it was seen. Relative, since clocks at sites lie."""


class Observation(_Frame, frozen=True, kw_only=True, tag="observation"):
    """Machines whose state has changed, each once with its latest state; all of them after a watch list."""

    nodes: list[NodeState]


class TicketRequest(_Frame, frozen=True, kw_only=True, tag="ticketRequest"):
    """A boot ticket is wanted: by a site's agent for a machine of its site, or by a ramdisk for the system that it
    has installed. Or, by either, what admits the machine to an image at its site (`protocol.image_admission`)."""

    id: str
    """Comes back in the answer."""
    node_id: str = ""
    """Empty: the machine of `machine`, where it is one of `among`; of a ramdisk its own."""
    purpose: Literal["ramdisk", "daemon", "image"] = "ramdisk"
    """The role to join as; or image."""
    checksum: str = ""
    """The image's."""
    holds: str = ""
    """The id of the join token of a ticket that is at hand. It is kept where it is still good."""
    machine: MachineFacts | None = None
    among: list[str] = []


class CertificateRequest(_Frame, frozen=True, kw_only=True, tag="certificateRequest"):
    """A new key wants a certificate; sent at half the old one's life."""

    csr: str


# From the control plane


class Welcome(_Frame, frozen=True, kw_only=True, tag="welcome"):
    """The answer to hello."""

    session_id: str
    protocol: int = 0
    """As in the hello."""
    settled: list[str] = []
    """Held commands whose ending the control plane has, or that it never knew: forget them."""
    reconnect_spread_ms: int = 5_000
    """How widely to spread a reconnect; grows with the number of agents that would come back at once."""


class Command(_Frame, frozen=True, kw_only=True, tag="command"):
    """Something to do. A repeated id is answered from the journal, never done again."""

    id: str
    kind: str
    payload: dict[str, object]
    remaining_ms: int
    """Time left until it is of no use any more. Relative, since clocks on BMC networks lie."""


class Cancel(_Frame, frozen=True, kw_only=True, tag="cancel"):
    id: str
    reason: str = ""


class Settled(_Frame, frozen=True, kw_only=True, tag="settled"):
    """These endings are durable in the control plane."""

    ids: list[str]


class NodeSpec(_Frame, frozen=True, kw_only=True, tag="nodeSpec"):
    """What the machine is to be like: the host configuration of the profile that was last deployed.

    It stands in place of every one before, whatever their generations were: the control plane's database may have
    been restored. Sent again after each hello that names another generation.
    """

    generation: int
    spec: dict[str, object]


class WatchedNode(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A machine to keep an eye on, and how its BMC is reached."""

    node_id: str
    driver: str
    target: TargetRef


class WatchList(_Frame, frozen=True, kw_only=True, tag="watchList"):
    """Every machine that this agent is to keep an eye on, in place of the list before.

    A long list comes in parts: it holds once the part without `more` is there.
    """

    version: str
    """The same for all parts of one list."""
    nodes: list[WatchedNode]
    more: bool = False


class Ticket(_Frame, frozen=True, kw_only=True, tag="ticket"):
    """The answer to a ticketRequest. Its text form shows no token."""

    id: str
    node_id: str = ""
    ticket: str | None = None
    """The ticket's JSON, see `protocol.boot_ticket`. Null: the one at hand is still good, or there is none. For an
    image: what admits to it."""
    refusal: str | None = None
    """Why there is none."""
    joined: bool = False
    """The machine has joined in the role since the ticket at hand was made: by it, or by another one."""

    def __repr__(self) -> str:
        return f"Ticket(id={self.id!r}, node_id={self.node_id!r}, ticket=***, refusal={self.refusal!r})"


class CertificateIssued(_Frame, frozen=True, kw_only=True, tag="certificateIssued"):
    certificate: str
    """PEM."""
    ca: str
    """PEM of every root to trust from now on."""


class Goodbye(_Frame, frozen=True, kw_only=True, tag="goodbye"):
    """The control plane closes the connection on purpose."""

    reason: str
    retry_after_ms: int | None = None
    """Null: do not come back before an operator acted (a revoked agent)."""


# From either side


class ErrorFrame(_Frame, frozen=True, kw_only=True, tag="error"):
    """The other side sent something that could not be taken."""

    message: str
    about: str = ""
    """The type, or the id, that it is about."""


# Joining, on a connection of its own (JOIN_SUBPROTOCOL)


class JoinRequest(_Frame, frozen=True, kw_only=True, tag="join"):
    """Asked again for the same key, with a token that this key has used up, it is answered as it was."""

    token_id: str
    secret: str
    csr: str
    host_name: str = ""
    version: str = ""
    machine: MachineFacts | None = None
    """Which machine this is, where the token is bound to one."""

    def __repr__(self) -> str:
        return f"JoinRequest(token_id={self.token_id!r}, secret=***)"


class Joined(_Frame, frozen=True, kw_only=True, tag="joined"):
    agent_id: str
    role: str
    site: str
    certificate: str
    ca: str
    node: str = ""
    """The machine that the token was bound to."""


class JoinRefused(_Frame, frozen=True, kw_only=True, tag="refused"):
    message: str
    code: str = ""
    """TOKEN_REFUSED (it is used up, dead or not known), AMBIGUOUS_MACHINE (it was for another machine, and is dead
    now), UNREADABLE, or BUSY: the same request may be taken later."""


AgentFrame = (
    Hello
    | Ready
    | Accepted
    | Started
    | Progress
    | Finished
    | NodeSpecApplied
    | Observation
    | TicketRequest
    | CertificateRequest
    | ErrorFrame
)
ControlFrame = (
    Welcome | Command | Cancel | Settled | NodeSpec | WatchList | Ticket | CertificateIssued | Goodbye | ErrorFrame
)

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What bytes can make of a decoder; the last one by nesting without end."""
_encoder = msgspec.json.Encoder()
_agent_decoder = msgspec.json.Decoder(AgentFrame)
_control_decoder = msgspec.json.Decoder(ControlFrame)
_join_decoder = msgspec.json.Decoder(Joined | JoinRefused)


class _Envelope(msgspec.Struct, frozen=True):
    type: str = ""
    id: str = ""


def encode(frame: msgspec.Struct) -> bytes:
    """UTF-8 JSON, ready for a text frame."""
    return _encoder.encode(frame)


def decode_agent_frame(data: bytes | str) -> AgentFrame:
    """A frame from an agent. Raises ProtocolError that says what was wrong and about which frame."""
    try:
        return _agent_decoder.decode(data)
    except _UNREADABLE as error:
        raise _refusal(data, error) from error


def decode_control_frame(data: bytes | str) -> ControlFrame:
    """A frame from the control plane. Raises ProtocolError as above."""
    try:
        return _control_decoder.decode(data)
    except _UNREADABLE as error:
        raise _refusal(data, error) from error


def decode_join_answer(data: bytes | str) -> Joined | JoinRefused:
    """The answer to a JoinRequest. Raises ProtocolError as above."""
    try:
        return _join_decoder.decode(data)
    except _UNREADABLE as error:
        raise _refusal(data, error) from error


def _refusal(data: bytes | str, error: Exception) -> ProtocolError:
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except _UNREADABLE:
        return ProtocolError(f"the frame is not JSON of the expected shape: {error}")
    about = envelope.id or envelope.type
    if "Invalid value" in str(error) and "$.type" in str(error):
        return ProtocolError(f"this version knows no frame of type {envelope.type!r}", about=about)
    return ProtocolError(f"the {envelope.type or 'untyped'} frame cannot be read: {error}", about=about)
