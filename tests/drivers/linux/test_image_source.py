"""Reading an address over TLS, and without end."""

import asyncio
import datetime
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from drivers.linux.image_source import ImageChangedError, ImageSource, shown_address
from protocol.errors import ErrorCode, OperationError
from tests.drivers.linux.image_server import Faults, serving

CONTENT = bytes(range(256)) * 9000


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A server's own certificate and key for 127.0.0.1, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "images")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path / "server.pem"
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    file.write_bytes(made.public_bytes(pem) + private)
    return file


@pytest.fixture
def secure(certificate: Path) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}/image.raw"
    server.shutdown()
    server.server_close()
    thread.join()


async def read_all(source: ImageSource) -> bytes:
    memory = bytearray(len(CONTENT) + 10)
    try:
        count = await asyncio.to_thread(source.read_into, memoryview(memory))
    finally:
        source.close()
    return bytes(memory[:count])


async def test_a_server_whose_certificate_is_trusted_is_read(
    secure: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert await read_all(ImageSource(secure, deadline=time.monotonic() + 30)) == CONTENT


async def test_a_server_whose_certificate_is_not_trusted_is_refused_at_once(secure: str) -> None:
    with pytest.raises(OperationError, match="is not trusted") as refused:
        await read_all(ImageSource(secure, deadline=time.monotonic() + 30))
    assert refused.value.code is ErrorCode.TLS_UNTRUSTED


async def test_a_refusal_is_told_in_the_servers_own_words_and_is_final() -> None:
    said = "the image of the origin has another checksum\x1b[2J\nsecond line\n" + 1_000 * "x"
    with serving(CONTENT, Faults(status=[409], says=said)) as server:
        with pytest.raises(OperationError) as refused:
            await read_all(ImageSource(server.url, deadline=time.monotonic() + 30))
        assert len(server.asked) == 1
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT
    assert refused.value.message.endswith("HTTP 409 Conflict: the image of the origin has another checksum[2J")


def redirected_to(address: str) -> Callable[[ImageSource, str], SimpleNamespace]:
    """An answer that leads on."""
    return lambda _source, _url: SimpleNamespace(status=302, headers={"Location": address}, close=lambda: None)


async def test_a_redirect_from_https_to_http_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    led_on = pytest.raises(OperationError, match="leads from https to http")
    with serving(CONTENT) as server:
        monkeypatch.setattr(ImageSource, "_request", redirected_to(server.url))
        with led_on as refused:
            await read_all(ImageSource("https://127.0.0.1/image.raw", deadline=time.monotonic() + 30))
        assert server.asked == []
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


async def test_a_redirect_without_end_is_given_up() -> None:
    endless = pytest.raises(OperationError, match="without end")
    with serving(CONTENT, Faults(redirect="/image.raw")) as server, endless:
        await read_all(ImageSource(server.url, deadline=time.monotonic() + 30))


async def test_a_reading_thread_is_woken_by_an_abort() -> None:
    with serving(CONTENT, Faults(rate=1000)) as server:
        source = ImageSource(server.url, deadline=time.monotonic() + 60)
        reading = asyncio.create_task(read_all(source))
        while not server.asked:
            await asyncio.sleep(0.01)
        source.abort()
        with pytest.raises(OperationError) as ended:
            await reading
    assert ended.value.code is ErrorCode.CANCELLED


async def test_an_abort_that_comes_before_the_connection_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    real = HTTPConnection.connect

    with serving(CONTENT) as server:
        source = ImageSource(server.url, deadline=time.monotonic() + 60)

        def connect(connection: HTTPConnection) -> None:
            source.abort()
            real(connection)

        monkeypatch.setattr(HTTPConnection, "connect", connect)
        with pytest.raises(OperationError) as ended:
            await read_all(source)
        assert server.asked == []
    assert ended.value.code is ErrorCode.CANCELLED


@pytest.mark.parametrize("faults", [Faults(tagged=False), Faults(tagged=False, part=1 << 20)], ids=["cut", "parts"])
async def test_what_nothing_vouches_for_is_not_put_together(faults: Faults) -> None:
    faults.drops = [1 << 20, len(CONTENT)]
    with serving(CONTENT, faults) as server:
        with pytest.raises(ImageChangedError, match="the rest may be another image's"):
            await read_all(ImageSource(server.url, deadline=time.monotonic() + 30))
        assert server.asked == [None]


async def test_what_a_checksum_vouches_for_is_gone_on_with() -> None:
    with serving(CONTENT, Faults(tagged=False, drops=[1 << 20, len(CONTENT)])) as server:
        source = ImageSource(server.url, deadline=time.monotonic() + 30, has_checksum=True)
        assert await read_all(source) == CONTENT
        assert server.asked == [None, f"bytes={1 << 20}-"]


async def test_an_answer_whose_end_nobody_can_tell_needs_a_checksum() -> None:
    with serving(CONTENT, Faults(length=False)) as server:
        with pytest.raises(OperationError, match="does not say how long it is") as refused:
            await read_all(ImageSource(server.url, deadline=time.monotonic() + 30))
        assert await read_all(ImageSource(server.url, deadline=time.monotonic() + 30, has_checksum=True)) == CONTENT
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("url", ["http://images..example/a.raw", "http://images.example/ä.raw", "http://x\u2028/a"])
def test_an_address_that_nobody_could_ask_for_is_refused(url: str) -> None:
    with pytest.raises(OperationError, match="is no image address") as refused:
        ImageSource(url, deadline=time.monotonic() + 30)
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


def test_what_may_be_a_password_is_not_shown() -> None:
    assert shown_address("https://h/a.raw?sig=secret#x") == "https://h/a.raw"


def test_what_admits_to_an_image_of_the_site_is_not_shown_and_which_image_it_is_stays() -> None:
    token, digest = "0123456789" * 4, "ab" * 32
    assert (
        shown_address(f"http://site:8446/images/{token}/{digest}/a.raw")
        == f"http://site:8446/images/***/{digest}/a.raw"
    )
    # The same digits in an address of somebody else's are a version.
    assert shown_address(f"https://h/builds/{token}/a.raw") == f"https://h/builds/{token}/a.raw"
