"""A bare host is asked, without any credential, whether it speaks Redfish or IPMI."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import drivers.detect
from drivers import Target
from drivers.detect import detect
from protocol.errors import ErrorCode, OperationError

SERVICE_ROOT = b'{"@odata.type": "#ServiceRoot.v1_5_0.ServiceRoot", "RedfishVersion": "1.6.0"}'
PONG = bytes.fromhex("0600ff06 000011be 40000010 000011be 00000000 81 00 000000000000")
PONG_WITHOUT_IPMI = bytes.fromhex("0600ff06 000011be 40000010 000011be 00000000 01 00 000000000000")
AUTHENTICATION = bytes.fromhex("0600ff07 00 00000000 00000000 10 81 1c 63 20 00 38 00 0e 80 04 02 00000000 00 14")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers.detect, "_IPMI_SECONDS", 0.05)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Expired and signed by nobody, as BMCs have it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bmc")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=9))
        .not_valid_after(now - timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "bmc.pem"
    file.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return file


@asynccontextmanager
async def web(
    certificate: Path, status: str, body: bytes, headers: str = ""
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """An https server that gives one answer; yields its port and the requests it saw."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}Connection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1], requests


class _Bmc(asyncio.DatagramProtocol):
    def __init__(self, answer: bytes, to: bytes) -> None:
        self.answer = answer
        self.to = to
        self.heard: list[bytes] = []

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.heard.append(data)
        if data[3:4] == self.to:
            self.transport.sendto(self.answer, addr)


@asynccontextmanager
async def ipmi(answer: bytes, to: bytes = b"\x06") -> AsyncIterator[int]:
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Bmc(answer, to), local_addr=("127.0.0.1", 0)
    )
    try:
        yield transport.get_extra_info("sockname")[1]
    finally:
        transport.close()


async def fault(port: int) -> OperationError:
    with pytest.raises(OperationError) as caught:
        await detect(Target(address=f"127.0.0.1:{port}"))
    assert caught.value.code is ErrorCode.UNREACHABLE
    return caught.value


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        ("200 OK", SERVICE_ROOT, ""),
        ("401 Unauthorized", b"", 'WWW-Authenticate: Basic realm="bmc"\r\n'),
        ("308 Permanent Redirect", b"", "Location: /redfish/v1\r\n"),
    ],
)
async def test_a_service_root_is_redfish_whatever_its_certificate(
    certificate: Path, status: str, body: bytes, headers: str
) -> None:
    async with web(certificate, status, body, headers) as (port, requests):
        found = await detect(Target(address=f"127.0.0.1:{port}", username="admin", password="hunter2"))
    assert found == "redfish"
    assert requests[0].startswith(b"GET /redfish/v1/ ")
    assert b"Authorization" not in requests[0]


@pytest.mark.parametrize(("answer", "to"), [(PONG, b"\x06"), (AUTHENTICATION, b"\x07")])
async def test_a_pong_or_an_answer_about_authentication_is_ipmi(answer: bytes, to: bytes) -> None:
    async with ipmi(answer, to) as port:
        assert await detect(Target(address=f"127.0.0.1:{port}")) == "ipmi"


@pytest.mark.parametrize("answer", [PONG_WITHOUT_IPMI, b"hello", b"\x06\x00\xff"])
async def test_other_datagrams_are_not_ipmi(answer: bytes) -> None:
    async with ipmi(answer) as port:
        assert "no answer from UDP port" in (await fault(port)).message


async def test_a_web_server_without_redfish_is_told_as_such(certificate: Path) -> None:
    async with web(certificate, "200 OK", b"<html>Welcome</html>") as (port, _):
        error = await fault(port)
    assert "answered 200 and no service root" in str(error.details["redfish"])


async def test_a_host_that_speaks_neither_gives_both_reasons_and_the_way_out() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        error = await fault(port)
    assert error.details == {
        "redfish": f"https port {port}: Connection refused",
        "ipmi": f"UDP port {port}: Connection refused",
    }
    assert all(form in error.message for form in ("https://", "ipmi://"))


async def test_a_server_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers.detect, "_REDFISH_SECONDS", 0.1)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    async with server:
        error = await fault(server.sockets[0].getsockname()[1])
    assert "within 0.1 s" in str(error.details["redfish"])


async def test_a_name_that_does_not_resolve_is_told() -> None:
    with pytest.raises(OperationError) as caught:
        await detect(Target(address="no-such-host.invalid"))
    assert caught.value.code is ErrorCode.UNREACHABLE
