"""From where the site's host fetches images by itself: by the address that it really connects to."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from drivers.image_access import ForbiddenAddress, ImageAccess, parse_allowed
from protocol.errors import ErrorCode


class Server:
    """One on loopback; `leads_to` is where /moved redirects to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.leads_to = ""
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def answer(self, request: web.BaseRequest) -> web.Response:
        self.asked.append(request.path)
        if request.path == "/moved":
            return web.Response(status=302, headers={"Location": self.leads_to})
        return web.Response(body=b"image")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    runner = web.ServerRunner(web.Server(server.answer, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.port = runner.addresses[0][1]
    yield server
    await runner.cleanup()


async def fetched(access: ImageAccess, url: str, **options: Any) -> bytes:
    async with access.session(**options) as client, client.get(url) as answer:
        return await answer.read()


async def refused(access: ImageAccess, url: str, **options: Any) -> str:
    """What the operator is told."""
    with pytest.raises((aiohttp.ClientError, ForbiddenAddress)) as caught:
        await fetched(access, url, **options)
    refusal = access.refusal(caught.value, "the image x")
    assert refusal is not None, repr(caught.value)
    assert refusal.code is ErrorCode.INVALID_ARGUMENT
    return refusal.message


def resolve(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Names lead to these addresses, one after the other; the last one stays. Returns what was asked."""
    asked: list[str] = []

    async def getaddrinfo(_loop: object, host: str, port: int, **_: object) -> list[Any]:
        asked.append(host)
        address = answers[min(len(asked), len(answers)) - 1]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [(family, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return asked


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "localhost",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "169.254.169.254",
        "[fe80::1]",
        "[::ffff:169.254.169.254]",
    ],
)
async def test_the_hosts_own_services_and_link_local_addresses_are_not_fetched_from(
    host: str, server: Server
) -> None:
    told = await refused(ImageAccess(), f"http://{host}:{server.port}/latest/meta-data")
    assert "the image x is not fetched: " in told
    assert "[images] allow = [" in told
    assert "agent.toml" in told
    assert server.asked == []


async def test_what_the_site_allows_is_fetched_from(server: Server) -> None:
    for allowed in ("127.0.0.1", "127.0.0.0/8", f"127.0.0.1:{server.port}"):
        assert await fetched(ImageAccess([allowed]), f"{server.url}/x") == b"image"
    await refused(ImageAccess(["127.0.0.1:1", "::1", "127.0.0.2"]), f"{server.url}/x")
    assert await fetched(ImageAccess(everywhere=True), f"{server.url}/x") == b"image"


@pytest.mark.parametrize(
    "place",
    ["http://169.254.169.254/latest", "http://localhost:{port}/x", "http://[::1]:{port}/x", "file:///etc/shadow"],
)
async def test_a_redirect_leads_to_nowhere_else(place: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.leads_to = place.format(port=server.port)
    resolve(monkeypatch, "127.0.0.2")
    told = await refused(ImageAccess([f"127.0.0.1:{server.port}"]), f"{server.url}/moved")
    assert "not fetched" in told
    assert server.asked == ["/moved"]


async def test_a_redirect_to_what_may_be_fetched_is_followed(server: Server) -> None:
    server.leads_to = "/x"
    assert await fetched(ImageAccess(["127.0.0.1"]), f"{server.url}/moved") == b"image"


async def test_a_name_counts_by_the_address_that_is_connected_to(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that leads elsewhere when it is asked again (rebinding) gains nothing: no answer is relied on."""
    asked = resolve(monkeypatch, "127.0.0.1", "169.254.169.254")
    access = ImageAccess(["127.0.0.1"])
    url = f"http://images.example:{server.port}/x"
    access.check(url)
    assert asked == []
    assert await fetched(access, url) == b"image"
    assert "169.254.169.254 is a link-local address" in await refused(access, url)
    assert server.asked == ["/x"]


async def test_the_proxies_of_the_environment_are_the_sites_own_choice(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    proxies = {"http": server.url}
    assert await fetched(ImageAccess(), "http://images.example/x", proxies=proxies, trust_env=True) == b"image"
    told = await refused(ImageAccess(), "http://images.example/x", trust_env=True)
    assert "127.0.0.1 is the site host itself" in told


@pytest.mark.parametrize(
    "url", ["ftp://192.0.2.1/x", "file:///etc/shadow", "http://169.254.169.254/x", "gopher://h/"]
)
def test_what_an_address_says_of_itself_is_refused_without_asking_anybody(url: str) -> None:
    with pytest.raises(ForbiddenAddress):
        ImageAccess().check(url)


@pytest.mark.parametrize("url", ["http://192.0.2.1/x", "https://[2001:db8::1]/x", "http://images.example/x"])
def test_other_addresses_are_the_networks_to_guard(url: str) -> None:
    ImageAccess().check(url)


@pytest.mark.parametrize(
    "text", ["", "images.example", "127.0.0.1:0", "127.0.0.1:x", "[::1", "[::1]8080", "1.2.3.4/99"]
)
def test_what_may_be_allowed_is_an_address_or_a_network(text: str) -> None:
    with pytest.raises(ValueError, match=r"write 192\.0\.2\.7"):
        parse_allowed(text)


@pytest.mark.parametrize("text", ["127.0.0.1", "127.0.0.0/8", "::1", "fe80::/10", "[::1]:8080", "192.0.2.7:80"])
def test_the_forms_of_what_is_allowed(text: str) -> None:
    parse_allowed(text)
