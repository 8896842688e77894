"""Images of operating systems at a site: one download for many machines, whole or not at all."""

import asyncio
import contextlib
import hashlib
import os
import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent import image_cache, image_download
from agent.image_cache import ImageCache
from agent.image_download import Download
from agent.image_logins import ImageLogins
from drivers.image_access import ImageAccess
from drivers.linux.connection import LinuxConnection
from drivers.linux.deploy import LinuxDeploy
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.deploy import Image, ImageFormat, WriteImage
from tests.agent.boot_site import BootSite
from tests.agent.image_origin import Origin
from tests.drivers.linux.machine import Machine, call

IMAGE = random.Random(7).randbytes(2_000_000)
OTHER = random.Random(8).randbytes(2_000_000)


def digest_of(content: bytes) -> str:
    return f"sha256-{hashlib.sha256(content).hexdigest()}"


def admission_of(node: str, digest: str) -> str:
    """As the control plane gives it: always the same, and another one for each machine and image."""
    return hashlib.sha256(f"{node} {digest}".encode()).hexdigest()[:40]


DIGEST = digest_of(IMAGE)
HERE = ImageAccess(["127.0.0.1"])


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_download, "_PAUSES", (0.01, 0.01, 0.01))


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    async with Origin(IMAGE) as origin:
        yield origin


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[BootSite]:
    site = BootSite.make(tmp_path, image=False, cache_bytes=5_000_000)
    yield site
    await site.server.aclose()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as client:
        yield client


async def offered(site: BootSite, origin: Origin, node: str = "node_1", content: bytes = IMAGE) -> str:
    digest = digest_of(content)
    return await site.server.offer_image(node, digest, "debian.raw", origin.url, token=admission_of(node, digest))


async def fetched(client: aiohttp.ClientSession, url: str, **headers: str) -> tuple[int, bytes]:
    async with client.get(url, headers=headers) as answer:
        return answer.status, await answer.read()


def stored(site: BootSite) -> set[str]:
    return {file.name for file in site.config.image_cache_dir.iterdir()}


async def until_stored(site: BootSite, name: str = DIGEST) -> None:
    async with asyncio.timeout(10):
        while name not in stored(site):
            await asyncio.sleep(0.01)


async def test_an_image_is_fetched_once_for_all_machines(
    site: BootSite, origin: Origin, client: aiohttp.ClientSession
) -> None:
    urls = [await offered(site, origin, f"node_{number}") for number in range(10)]
    assert len(set(urls)) == 10, "each machine has its own path"
    for status, data in await asyncio.gather(*(fetched(client, url) for url in urls * 2)):
        assert (status, data) == (200, IMAGE)
    assert origin.asked == [None]
    assert stored(site) == {DIGEST}


async def test_machines_read_along_while_it_is_still_fetched(
    site: BootSite, origin: Origin, client: aiohttp.ClientSession
) -> None:
    origin.before_gate = 1_000_000
    origin.gate.clear()
    url = await offered(site, origin)
    async with client.get(url) as answer:
        first = await answer.content.readexactly(900_000)
        assert origin.sent < len(IMAGE)
        origin.gate.set()
        assert first + await answer.read() == IMAGE


async def test_the_address_names_the_checksum_and_the_file_and_has_no_query(site: BootSite, origin: Origin) -> None:
    parts = (await offered(site, origin)).split("/")
    assert parts[3] == "images"
    assert parts[5:] == [DIGEST.removeprefix("sha256-"), "debian.raw"]


async def test_the_address_is_the_one_that_machines_were_configured_to_reach(tmp_path: Path, origin: Origin) -> None:
    site = BootSite.make(
        tmp_path, image=False, url="http://boot.site.example:80", machines_url="http://10.9.8.7:8446/"
    )
    assert (await offered(site, origin)).startswith("http://10.9.8.7:8446/")
    await site.server.aclose()


async def test_an_offer_that_is_repeated_gives_the_same_address(site: BootSite, origin: Origin) -> None:
    assert await offered(site, origin) == await offered(site, origin)


async def test_an_image_known_by_its_sha512_is_kept_too(
    site: BootSite, origin: Origin, client: aiohttp.ClientSession
) -> None:
    digest = f"sha512-{hashlib.sha512(IMAGE).hexdigest()}"
    admission = admission_of("node_1", digest)
    url = await site.server.offer_image("node_1", digest, "debian.raw", origin.url, token=admission)
    assert await fetched(client, url) == (200, IMAGE)


async def test_parts_of_it_are_given_before_it_is_whole(
    site: BootSite, origin: Origin, client: aiohttp.ClientSession
) -> None:
    origin.before_gate = 1_000_000
    origin.gate.clear()
    url = await offered(site, origin)
    assert await fetched(client, url, Range="bytes=500-999") == (206, IMAGE[500:1000])
    origin.gate.set()
    assert await fetched(client, url, Range="bytes=-1000") == (206, IMAGE[-1000:])


# An origin that fails


async def test_a_download_that_was_cut_goes_on_where_it_was(
    site: BootSite, origin: Origin, client: aiohttp.ClientSession
) -> None:
    origin.breaks_at = [400_000, 1_200_000]
    assert await fetched(client, await offered(site, origin)) == (200, IMAGE)
    assert len(origin.asked) == 3
    assert origin.asked[-1] is not None


async def test_an_origin_that_is_busy_is_asked_again(
    site: BootSite, origin: Origin, client: aiohttp.ClientSession
) -> None:
    origin.statuses = [503, 429]
    assert await fetched(client, await offered(site, origin)) == (200, IMAGE)


@pytest.mark.case("B53")
@pytest.mark.parametrize("status", [401, 403, 404])
async def test_what_the_origin_refuses_is_told_at_once(site: BootSite, origin: Origin, status: int) -> None:
    origin.statuses = [status]
    with pytest.raises(OperationError, match=f"origin answers {status}") as failure:
        await offered(site, origin)
    assert failure.value.code is ErrorCode.INVALID_ARGUMENT
    assert len(origin.asked) == 1


async def test_an_origin_that_is_not_there_is_told(site: BootSite) -> None:
    admission = admission_of("node_1", DIGEST)
    with pytest.raises(OperationError, match="does not give it") as failure:
        await site.server.offer_image(
            "node_1", DIGEST, "debian.raw", "http://127.0.0.1:9/debian.raw", token=admission
        )
    assert failure.value.code is ErrorCode.UNREACHABLE


async def test_a_failed_origin_is_not_asked_by_each_machine(site: BootSite, origin: Origin) -> None:
    origin.statuses = [404]
    for _ in range(5):
        with pytest.raises(OperationError):
            await offered(site, origin)
    assert len(origin.asked) == 1


@pytest.mark.case("B53")
@pytest.mark.parametrize("wrong", [OTHER, IMAGE[:500_000]], ids=["another checksum", "a short body with 200"])
async def test_b53_an_image_that_came_wrong_once_is_fetched_whole_once_more(
    site: BootSite, origin: Origin, client: aiohttp.ClientSession, wrong: bytes
) -> None:
    origin.instead = [wrong]
    url = await offered(site, origin)
    await until_stored(site)
    assert origin.asked == [None, None]
    assert await fetched(client, url) == (200, IMAGE)


@pytest.mark.case("B53")
async def test_b53_a_machine_that_reads_along_while_it_comes_wrong_has_the_right_one_in_the_end(
    site: BootSite, origin: Origin, tmp_path: Path
) -> None:
    origin.instead = [OTHER]
    origin.before_gate = 1_900_000
    origin.gate.clear()
    machine = Machine(tmp_path / "machine")
    disk = machine.add_disk("sda", 4 << 20)
    image = Image(url=await offered(site, origin), sha256=DIGEST.removeprefix("sha256-"), format=ImageFormat.RAW)
    writing = asyncio.create_task(
        LinuxDeploy(LinuxConnection(machine.host)).write_image(WriteImage(image=image, grow_root=False), call())
    )
    async with asyncio.timeout(20):
        while not site.server._cache._readers[DIGEST]:
            await asyncio.sleep(0.01)
    origin.gate.set()
    await writing
    assert disk.read_bytes()[: len(IMAGE)] == IMAGE
    assert origin.asked == [None, None]


@pytest.mark.case("B53")
async def test_b53_an_origin_that_trickles_is_asked_anew_and_given_up(
    site: BootSite, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_download, "_PACE_SECONDS", 0.1)
    origin.pause = 0.02
    with pytest.raises(OperationError, match="does not give it: it has sent") as failure:
        await _offered_for_ever(site, origin)
    assert failure.value.code is ErrorCode.UNREACHABLE
    assert len(origin.asked) == 4
    assert all(origin.asked[1:]), "it goes on where it was"
    assert f"{DIGEST}.part" in stored(site)


@pytest.mark.case("B53")
async def test_an_image_of_another_checksum_never_looks_whole(
    site: BootSite, origin: Origin, client: aiohttp.ClientSession
) -> None:
    origin.content = OTHER
    origin.before_gate = 1_000_000
    origin.gate.clear()
    url = await offered(site, origin)
    async with client.get(url) as answer:
        got = await answer.content.readexactly(900_000)
        origin.gate.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
    assert got == OTHER[:900_000]
    async with asyncio.timeout(10):
        while stored(site):
            await asyncio.sleep(0.01)
    assert origin.asked == [None, None]
    status, words = await fetched(client, url)
    assert status == 409
    assert b"another one than was asked for" in words
    assert stored(site) == set()


async def test_an_image_that_became_another_version_half_way_is_fetched_anew(
    site: BootSite, origin: Origin, client: aiohttp.ClientSession
) -> None:
    origin.content, origin.before_gate = OTHER, 500_000
    origin.breaks_at = [600_000]
    origin.gate.clear()
    url = await offered(site, origin)
    origin.content, origin.etag = IMAGE, '"v2"'
    origin.gate.set()
    await until_stored(site)
    assert await fetched(client, url) == (200, IMAGE)


async def test_an_origin_that_sends_wrong_parts_is_asked_for_all_of_it(
    site: BootSite, origin: Origin, client: aiohttp.ClientSession
) -> None:
    origin.breaks_at, origin.shifted = [400_000], 7
    url = await offered(site, origin)
    await until_stored(site)
    assert await fetched(client, url) == (200, IMAGE)


async def test_an_origin_that_never_gives_all_of_it_is_given_up(site: BootSite, origin: Origin) -> None:
    origin.breaks_at, origin.ranges = [400_000] * 99, False
    with pytest.raises(OperationError, match="does not give it whole"):
        await _offered_for_ever(site, origin)


async def _offered_for_ever(site: BootSite, origin: Origin) -> None:
    async with asyncio.timeout(20):
        while True:
            await offered(site, origin)
            await asyncio.sleep(0.01)


async def test_an_origin_that_does_not_say_the_length_is_refused(site: BootSite, origin: Origin) -> None:
    origin.says_length = False
    with pytest.raises(OperationError, match="does not say how large it is"):
        await offered(site, origin)


# The agent is started anew


async def test_a_download_goes_on_in_the_agents_next_process(
    site: BootSite, origin: Origin, client: aiohttp.ClientSession
) -> None:
    origin.before_gate = 1_000_000
    origin.gate.clear()
    url = await offered(site, origin)
    async with client.get(url) as answer:
        await answer.content.readexactly(900_000)
        again = await site.restarted(url)
        with pytest.raises(aiohttp.ClientError):
            await answer.read()
    try:
        origin.gate.set()
        assert await fetched(client, url, Range="bytes=900000-") == (206, IMAGE[900_000:])
        assert origin.asked[-1] is not None
        assert int(origin.asked[-1].removeprefix("bytes=").rstrip("-")) >= 900_000
    finally:
        await again.server.aclose()


async def test_a_part_that_a_crash_has_damaged_is_fetched_from_its_beginning(
    site: BootSite, origin: Origin, client: aiohttp.ClientSession
) -> None:
    origin.before_gate = 1_000_000
    origin.gate.clear()
    url = await offered(site, origin)
    async with client.get(url) as answer:
        await answer.content.readexactly(900_000)
    part = site.config.image_cache_dir / f"{DIGEST}.part"
    again = await site.restarted(url)
    with part.open("r+b") as file:
        file.write(bytes(4096))
    try:
        origin.gate.set()
        with contextlib.suppress(aiohttp.ClientError):
            await fetched(client, url)
        await until_stored(again)
        assert await fetched(client, url) == (200, IMAGE)
        assert origin.asked[-1] is None
    finally:
        await again.server.aclose()


async def test_an_agent_that_stops_lets_a_write_that_is_under_way_end_before_the_file_is_closed(
    site: BootSite, origin: Origin, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go, store = threading.Event(), threading.Event(), Download._store
    written: list[bool] = []

    def slowly(self: Download, *arguments: Any) -> None:
        entered.set()
        go.wait(30)
        store(self, *arguments)
        written.append(True)

    monkeypatch.setattr(Download, "_store", slowly)
    reading = asyncio.create_task(fetched(client, await offered(site, origin)))
    await asyncio.to_thread(entered.wait, 30)
    closing = asyncio.create_task(site.server.aclose())
    await asyncio.sleep(0.05)
    assert not closing.done()
    go.set()
    await closing
    assert written == [True]
    await asyncio.gather(reading, return_exceptions=True)


async def test_a_whole_image_needs_no_origin_after_a_start(
    site: BootSite, origin: Origin, client: aiohttp.ClientSession
) -> None:
    url = await offered(site, origin)
    await until_stored(site)
    again = await site.restarted(url)
    try:
        assert await fetched(client, url) == (200, IMAGE)
        assert len(origin.asked) == 1
    finally:
        await again.server.aclose()


# Room


async def test_the_least_used_image_is_forgotten_for_a_new_one(tmp_path: Path) -> None:
    cache = ImageCache(tmp_path / "images", 5_000_000, HERE)
    contents = [random.Random(number).randbytes(2_000_000) for number in range(3)]
    for number, content in enumerate(contents):
        async with Origin(content) as origin:
            await cache.prefetch(digest_of(content), origin.url)
            await _until(tmp_path / "images" / digest_of(content))
            os.utime(tmp_path / "images" / digest_of(content), (number, number))
            if number == 1:
                async with cache.open(digest_of(contents[0]), "http://nowhere/"):
                    pass
    assert {file.name for file in (tmp_path / "images").iterdir()} == {digest_of(contents[0]), digest_of(contents[2])}
    await cache.aclose()


async def _until(file: Path) -> None:
    async with asyncio.timeout(10):
        while not file.exists():
            await asyncio.sleep(0.01)


async def test_an_image_that_is_being_read_is_not_forgotten(tmp_path: Path) -> None:
    cache = ImageCache(tmp_path / "images", 3_000_000, HERE)
    async with Origin(IMAGE) as origin, Origin(OTHER) as other:
        await cache.prefetch(DIGEST, origin.url)
        await _until(tmp_path / "images" / DIGEST)
        async with cache.open(DIGEST, origin.url):
            with pytest.raises(OperationError, match="in use"):
                await cache.prefetch(digest_of(OTHER), other.url)
    await cache.aclose()


async def test_an_image_larger_than_the_cache_is_refused_with_what_to_do(tmp_path: Path) -> None:
    cache = ImageCache(tmp_path / "images", 1_500_000, HERE)
    async with Origin(IMAGE) as origin:
        with pytest.raises(OperationError, match=r"raise boot\.cache_bytes"):
            await cache.prefetch(DIGEST, origin.url)
    await cache.aclose()


@pytest.mark.case("B53")
async def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ImageCache(tmp_path / "images", 1 << 40, HERE)
    monkeypatch.setattr(image_cache, "_DISK_RESERVE", 1 << 60)
    async with Origin(IMAGE) as origin:
        with pytest.raises(OperationError, match="its disk is full"):
            await cache.prefetch(DIGEST, origin.url)
    await cache.aclose()


# From where, and with which login


class Logins(ImageLogins):
    def __init__(self) -> None:
        pass

    def header(self, url: str) -> str | None:
        return "Basic cmVhZGVyOndvcmQ=" if url.startswith("http://127.0.0.1:") else None


@pytest.mark.parametrize(
    "target", ["http://169.254.169.254/debian.raw", "http://localhost:1/debian.raw", "file:///etc/passwd"]
)
async def test_an_origin_that_redirects_to_where_images_do_not_come_from_ends_it_at_once(
    target: str, tmp_path: Path
) -> None:
    cache = ImageCache(tmp_path / "images", 5_000_000, ImageAccess(["127.0.0.1"]))
    async with Origin(IMAGE, leads_to=target) as origin:
        if "localhost" in target:
            cache = ImageCache(tmp_path / "images", 5_000_000, ImageAccess([origin.url.split("/")[2]]))
        with pytest.raises(OperationError, match="is not fetched") as failure:
            await cache.prefetch(DIGEST, origin.url)
    await cache.aclose()
    assert failure.value.code is ErrorCode.INVALID_ARGUMENT
    assert len(origin.asked) == 1


async def test_a_login_is_for_its_own_server_and_not_for_where_that_redirects_to(tmp_path: Path) -> None:
    async with Origin(IMAGE) as other, Origin(IMAGE, leads_to=other.url) as origin:
        cache = ImageCache(tmp_path / "images", 5_000_000, HERE, logins=Logins())
        await cache.prefetch(DIGEST, origin.url)
        await _until(tmp_path / "images" / DIGEST)
        await cache.aclose()
    assert origin.logins == ["Basic cmVhZGVyOndvcmQ="]
    assert other.logins == [None]
