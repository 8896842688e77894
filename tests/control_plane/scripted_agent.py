"""An agent that does only what a test tells it: joins, connects over mutual TLS, and speaks single frames."""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError
from websockets.typing import Subprotocol

from protocol.commands import Ending, JournalState, Outcome
from protocol.frames import (
    JOIN_SUBPROTOCOL,
    PROTOCOL_MINOR,
    SUBPROTOCOL,
    Command,
    ControlFrame,
    Finished,
    Held,
    Hello,
    Joined,
    JoinRefused,
    JoinRequest,
    Ready,
    Settled,
    WatchList,
    Welcome,
    decode_control_frame,
    decode_join_answer,
    encode,
)
from protocol.ids import new_id
from protocol.join_token import JoinToken
from protocol.machine_facts import MachineFacts


def key_and_csr() -> tuple[bytes, str]:
    """A new key (PEM) and a request signed by it."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "agent")]))
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem, request.public_bytes(serialization.Encoding.PEM).decode()


async def join(
    port: int,
    ca: str,
    token: JoinToken,
    csr: str,
    machine: MachineFacts | None = None,
    *,
    cut_once: Callable[[], Awaitable[object]] | None = None,
) -> Joined | JoinRefused:
    """One join attempt, the CA verified. `cut_once`: the connection is cut when that has come, the answer unread;
    ConnectionClosed is raised."""
    context = ssl.create_default_context(cadata=ca)
    async with connect(
        f"wss://127.0.0.1:{port}/join",
        ssl=context,
        subprotocols=[Subprotocol(JOIN_SUBPROTOCOL)],
        proxy=None,
    ) as connection:
        request = JoinRequest(
            token_id=token.id, secret=token.secret.reveal(), csr=csr, host_name="stub", version="0", machine=machine
        )
        await connection.send(encode(request), text=True)
        if cut_once is not None:
            await cut_once()
            connection.transport.abort()
            await connection.wait_closed()
            raise ConnectionClosedError(None, None)
        return decode_join_answer(await connection.recv())


@dataclass
class ScriptedAgent:
    """A joined agent. Its journal is `held`: what it tells the control plane in its next hello."""

    port: int
    folder: Path
    id: str
    ca: str
    journal_id: str = field(default_factory=lambda: new_id("jrn"))
    held: dict[str, JournalState] = field(default_factory=dict)
    last_session: str = ""
    role: str = "site"
    boot_id: str = "boot-1"
    connection: ClientConnection | None = None
    welcome: Welcome | None = None
    watch_lists: list[WatchList] = field(default_factory=list)
    """Those that came between the other frames."""

    @classmethod
    async def joined(
        cls, port: int, ca: str, token: JoinToken, folder: Path, machine: MachineFacts | None = None
    ) -> "ScriptedAgent":
        key, csr = key_and_csr()
        answer = await join(port, ca, token, csr, machine)
        assert isinstance(answer, Joined), answer
        (folder / "key.pem").write_bytes(key)
        (folder / "cert.pem").write_text(answer.certificate)
        return cls(port, folder, answer.agent_id, answer.ca, role=answer.role)

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.ca)
        context.load_cert_chain(self.folder / "cert.pem", self.folder / "key.pem")
        return context

    async def open(self) -> ClientConnection:
        """A connection before its hello."""
        self.connection = await connect(
            f"wss://127.0.0.1:{self.port}/agent",
            ssl=self.context(),
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            proxy=None,
            compression=None,
        )
        return self.connection

    async def connect(self) -> ControlFrame:
        """Opens, says hello, and returns the answer, which is a welcome unless something is wrong."""
        await self.open()
        held = [Held(key, state) for key, state in self.held.items()]
        await self.send(
            Hello(
                agent_id=self.id,
                role=self.role,
                boot_id=self.boot_id,
                journal_id=self.journal_id,
                last_session=self.last_session,
                version="0.1.0",
                protocol=PROTOCOL_MINOR,
                held=held,
            )
        )
        answer = await self.receive()
        if isinstance(answer, Welcome):
            self.welcome = answer
            self.last_session = answer.session_id
            await self.send(Ready(session_id=answer.session_id))
        return answer

    async def send(self, frame: msgspec.Struct) -> None:
        assert self.connection is not None
        await self.connection.send(encode(frame), text=True)

    async def receive(self) -> ControlFrame:
        """The next frame that is no watch list."""
        while isinstance(frame := await self.receive_any(), WatchList):
            self.watch_lists.append(frame)
        return frame

    async def receive_any(self) -> ControlFrame:
        assert self.connection is not None
        return decode_control_frame(await self.connection.recv())

    async def receive_command(self) -> Command:
        frame = await self.receive()
        assert isinstance(frame, Command), frame
        return frame

    async def finish(self, command_id: str, ending: Ending | None = None) -> Settled:
        """Reports an ending (success by default) and waits until it is settled."""
        await self.send(Finished(id=command_id, ending=ending or Ending(Outcome.SUCCEEDED, {"state": "on"})))
        frame = await self.receive()
        assert isinstance(frame, Settled), frame
        return frame

    async def cut(self) -> None:
        """The network fails: no closing handshake."""
        assert self.connection is not None
        self.connection.transport.abort()
        await self.connection.wait_closed()

    async def __aenter__(self) -> "ScriptedAgent":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.connection is not None:
            await self.connection.close()
