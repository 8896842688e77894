"""A scripted control plane over real mutual TLS: it takes joins, welcomes agents, and misbehaves on demand."""

import asyncio
import contextlib
import datetime
import hashlib
import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from protocol.frames import (
    JOIN_SUBPROTOCOL,
    SUBPROTOCOL,
    CertificateIssued,
    CertificateRequest,
    ControlFrame,
    Finished,
    Goodbye,
    Hello,
    Joined,
    JoinRefused,
    JoinRequest,
    Settled,
    Welcome,
    decode_agent_frame,
    encode,
)
from protocol.ids import new_id
from protocol.join_token import JoinToken

DAY = datetime.timedelta(days=1)


class Authority:
    """A CA made for one test."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        name = _name("test CA")
        now = datetime.datetime.now(datetime.UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + 365 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .add_extension(_usage(signs=True), critical=True)
            .sign(self.key, hashes.SHA256())
        )

    @property
    def pem(self) -> str:
        return _pem(self.certificate)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.certificate.public_bytes(serialization.Encoding.DER)).hexdigest()

    def issue(
        self,
        key: ec.EllipticCurvePublicKey,
        usage: x509.ObjectIdentifier,
        names: list[x509.GeneralName],
        begins: datetime.timedelta = -DAY,
        ends: datetime.timedelta = 30 * DAY,
    ) -> str:
        now = datetime.datetime.now(datetime.UTC)
        return _pem(
            x509.CertificateBuilder()
            .subject_name(_name("test"))
            .issuer_name(self.certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins)
            .not_valid_after(now + ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .add_extension(_usage(signs=False), critical=True)
            .sign(self.key, hashes.SHA256())
        )


class ControlPlane:
    """What it answers is set by the test before the agent comes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        self.port = 0
        self.hellos: list[Hello] = []
        self.frames: asyncio.Queue[msgspec.Struct] = asyncio.Queue()
        self.connections: list[ServerConnection] = []
        self.serials: list[str] = []
        self.joins: list[JoinRequest] = []
        self.tokens: dict[str, str | None] = {}
        """Id of each token made, and why it is refused."""
        self.joined: dict[str, tuple[bytes, Joined]] = {}
        """Id of each token that was used: the key, and what was answered."""
        self.lost_answers = 0
        """So many joins are cut off after they were taken."""
        self.refuse_status: list[tuple[int, str]] = []
        """HTTP answers to give before one is welcomed."""
        self.refusal_code = ""
        """Of joins."""
        self.refusal_headers: dict[str, str] = {}
        self.goodbye: Goodbye | None = None
        self.subprotocol = SUBPROTOCOL
        self.validity = (-DAY, 30 * DAY)
        self.spread_ms = 0
        self.settles = True
        self.host_in_certificate = "127.0.0.1"
        self.server: Server | None = None

    def token(self, refused: str | None = None, sha256: str | None = None) -> str:
        token = JoinToken.new(sha256 or self.authority.sha256)
        self.tokens[token.id] = refused
        return token.text()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    async def start(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        address = x509.IPAddress(ipaddress.ip_address(self.host_in_certificate))
        certificate = self.authority.issue(key.public_key(), ExtendedKeyUsageOID.SERVER_AUTH, [address])
        (self.folder / "server.pem").write_text(certificate + _key_pem(key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server.pem")
        context.load_verify_locations(cadata=self.authority.pem)
        context.verify_mode = ssl.CERT_OPTIONAL
        self.server = await serve(
            self._serve,
            "127.0.0.1",
            self.port,
            ssl=context,
            process_request=self._process_request,
            subprotocols=[Subprotocol(self.subprotocol), Subprotocol(JOIN_SUBPROTOCOL)],
            select_subprotocol=self._select,
            compression=None,
        )
        self.port = int(next(iter(self.server.sockets)).getsockname()[1])

    async def stop(self) -> None:
        if self.server is not None:
            self.server.close()
            await self.server.wait_closed()

    async def tell(self, frame: ControlFrame) -> None:
        await self.connections[-1].send(encode(frame), text=True)

    async def next(self, kind: type[msgspec.Struct]) -> msgspec.Struct:
        """The next frame of this kind; others before it are passed over."""
        while True:
            frame = await self.frames.get()
            if isinstance(frame, kind):
                return frame

    def _select(self, connection: ServerConnection, offered: object) -> Subprotocol | None:
        names = list(offered) if isinstance(offered, (list, tuple)) else []
        for name in (self.subprotocol, JOIN_SUBPROTOCOL):
            if name in names:
                return Subprotocol(name)
        return None

    def _process_request(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/ca.pem":
            body = self.authority.pem.encode()
            return Response(200, "OK", Headers({"Content-Length": str(len(body))}), body)
        if request.path == "/agent" and self.refuse_status:
            status, text = self.refuse_status.pop(0)
            headers = Headers({"Content-Length": str(len(text)), **self.refusal_headers})
            return Response(status, "No", headers, text.encode())
        return None

    async def _serve(self, connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            if connection.subprotocol == JOIN_SUBPROTOCOL:
                await self._join(connection)
            else:
                await self._agent(connection)

    async def _join(self, connection: ServerConnection) -> None:
        request = msgspec.json.decode(await connection.recv(), type=JoinRequest)
        self.joins.append(request)
        refused = self.tokens.get(request.token_id, "there is no such token")
        key = public_key(request.csr)
        if refused is None:
            self.tokens[request.token_id] = "this token was used already: make a new one"
            joined = Joined(
                agent_id=new_id("agent"),
                role="site",
                site="site-1",
                certificate=self._certificate(request.csr),
                ca=self.authority.pem,
            )
            self.joined[request.token_id] = (key, joined)
        used_by, answer = self.joined.get(request.token_id, (b"", None))
        if self.lost_answers:
            self.lost_answers -= 1
            connection.transport.abort()
        elif answer is not None and used_by == key:
            await connection.send(encode(answer), text=True)
        else:
            await connection.send(encode(JoinRefused(message=refused or "", code=self.refusal_code)), text=True)

    def _certificate(self, csr: str) -> str:
        key = x509.load_pem_x509_csr(csr.encode()).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        uri = x509.UniformResourceIdentifier("spiffe://test/agent/1")
        return self.authority.issue(key, ExtendedKeyUsageOID.CLIENT_AUTH, [uri], *self.validity)

    async def _agent(self, connection: ServerConnection) -> None:
        tls = connection.transport.get_extra_info("ssl_object")
        self.serials.append(str((tls.getpeercert() or {}).get("serialNumber")))
        self.connections.append(connection)
        async for message in connection:
            frame = decode_agent_frame(message)
            self.frames.put_nowait(frame)
            if isinstance(frame, Hello):
                self.hellos.append(frame)
                if self.goodbye is not None:
                    await connection.send(encode(self.goodbye), text=True)
                    return
                welcome = Welcome(session_id=new_id("ses"), reconnect_spread_ms=self.spread_ms)
                await connection.send(encode(welcome), text=True)
            elif isinstance(frame, Finished) and self.settles:
                await connection.send(encode(Settled(ids=[frame.id])), text=True)
            elif isinstance(frame, CertificateRequest):
                self.validity = (-DAY, 30 * DAY)
                issued = CertificateIssued(certificate=self._certificate(frame.csr), ca=self.authority.pem)
                await connection.send(encode(issued), text=True)


@contextlib.asynccontextmanager
async def control_plane(folder: Path, **settings: object) -> AsyncIterator[ControlPlane]:
    plane = ControlPlane(folder)
    for name, value in settings.items():
        setattr(plane, name, value)
    await plane.start()
    try:
        yield plane
    finally:
        await plane.stop()


def public_key(csr: str) -> bytes:
    """The one that a certificate request is for."""
    key = x509.load_pem_x509_csr(csr.encode()).public_key()
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


Condition = Callable[[], bool]
