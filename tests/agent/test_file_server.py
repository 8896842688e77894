"""Files of the site host: which may be used, and how a BMC fetches one."""

import asyncio
import hashlib
import os
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from agent.bmcs import BmcMemory, Bmcs
from agent.byte_serving import asked_part
from agent.config import load
from agent.errors import ConfigError
from agent.file_offer import SiteFiles
from agent.file_server import FileServer
from agent.vault import Vault, VaultKey
from protocol.errors import ErrorCode, OperationError
from protocol.secret import Secret
from simulators.login import DEFAULT_PASSWORD
from simulators.redfish import RedfishServer, ServiceOptions

CONTENT = bytes(range(256)) * 4000
LARGE = 64 << 20
"""Bytes that do not fit into the connection's buffers."""
LOOPBACK = "127.0.0.1"


@pytest.fixture
async def server() -> AsyncIterator[FileServer]:
    server = FileServer("127.0.0.1:0")
    yield server
    await server.aclose()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as client:
        yield client


@pytest.fixture
def image(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    file = folder / "bmc-2.14.0.bin"
    file.write_bytes(CONTENT)
    return file


def refused(files: SiteFiles, path: str) -> str:
    """Why a path may not be used."""
    with pytest.raises(OperationError) as failure:
        files.open(path)
    assert failure.value.code is ErrorCode.INVALID_ARGUMENT
    return failure.value.message


# Serving


async def test_an_offered_file_is_fetched_whole_by_its_own_name(
    server: FileServer, client: aiohttp.ClientSession, image: Path
) -> None:
    url = await server.offer(image, image.name, 60)
    assert re.fullmatch(rf"http://{re.escape(LOOPBACK)}:\d+/files/[\w-]{{32}}/bmc-2\.14\.0\.bin", url)
    async with client.get(url) as answer:
        assert (answer.status, answer.content_length) == (200, len(CONTENT))
        assert answer.headers["Accept-Ranges"] == "bytes"
        assert await answer.read() == CONTENT


async def test_a_head_tells_the_size_and_sends_nothing(
    server: FileServer, client: aiohttp.ClientSession, image: Path
) -> None:
    url = await server.offer(image, image.name, 60)
    async with client.head(url) as answer:
        assert (answer.status, int(answer.headers["Content-Length"])) == (200, len(CONTENT))
        assert await answer.read() == b""


@pytest.mark.parametrize(
    ("asked", "status", "part"),
    [
        ("bytes=0-9", 206, slice(0, 10)),
        ("bytes=1000-", 206, slice(1000, None)),
        ("bytes=-7", 206, slice(-7, None)),
        ("bytes=10-99999999", 206, slice(10, None)),
        ("bytes=0-", 200, slice(None)),
        ("bytes=0-1,5-6", 200, slice(None)),
        ("lines=1-2", 200, slice(None)),
        ("bytes=9-3", 200, slice(None)),
        ("bytes=99999999-", 416, slice(0, 0)),
        ("bytes=-0", 416, slice(0, 0)),
    ],
)
async def test_parts_are_served_as_they_are_asked_for(
    asked: str, status: int, part: slice, server: FileServer, client: aiohttp.ClientSession, image: Path
) -> None:
    url = await server.offer(image, image.name, 60)
    async with client.get(url, headers={"Range": asked}) as answer:
        assert answer.status == status
        body = await answer.read()
        if status == 416:
            assert answer.headers["Content-Range"] == f"bytes */{len(CONTENT)}"
        else:
            assert body == CONTENT[part]
        if status == 206:
            start = part.indices(len(CONTENT))[0]
            assert answer.headers["Content-Range"] == f"bytes {start}-{start + len(body) - 1}/{len(CONTENT)}"


async def test_a_part_of_another_file_than_the_one_before_is_not_sent(
    server: FileServer, client: aiohttp.ClientSession, image: Path
) -> None:
    url = await server.offer(image, image.name, 60)
    async with client.get(url, headers={"Range": "bytes=0-9", "If-Range": '"another"'}) as answer:
        assert answer.status == 200
        tag = answer.headers["ETag"]
    async with client.get(url, headers={"Range": "bytes=0-9", "If-Range": tag}) as answer:
        assert answer.status == 206


async def test_whoever_does_not_know_the_path_finds_nothing(
    server: FileServer, client: aiohttp.ClientSession, image: Path
) -> None:
    url = await server.offer(image, image.name, 60)
    root = url.partition("/files/")[0]
    other = url.replace(image.name, "other.bin")
    guess = f"{root}/files/{'A' * 32}/{image.name}"
    for path in (root, f"{root}/files/", f"{root}/files/..", f"{root}/etc/passwd", guess, other):
        async with client.get(path) as answer:
            assert (answer.status, await answer.read()) == (404, b"")
    async with client.post(url, data=b"x") as answer:
        assert answer.status == 405
    assert url != await server.offer(image, image.name, 60)


async def test_it_listens_only_while_something_is_offered(
    server: FileServer, client: aiohttp.ClientSession, image: Path
) -> None:
    assert not server.is_up
    first = await server.offer(image, image.name, 60)
    second = await server.offer(image, image.name, 60)
    await server.withdraw(first)
    async with client.get(first) as answer:
        assert answer.status == 404
    async with client.get(second) as answer:
        assert answer.status == 200
    await server.withdraw(second)
    await server.withdraw(second)
    assert not server.is_up
    with pytest.raises(aiohttp.ClientConnectionError):
        await client.get(second)
    assert await server.offer(image, image.name, 60)
    assert server.is_up


async def test_an_offer_ends_by_itself(server: FileServer, image: Path) -> None:
    await server.offer(image, image.name, 0.01)
    while server.is_up:
        await asyncio.sleep(0.01)


async def begun_before_its_end(
    server: FileServer, client: aiohttp.ClientSession, file: Path
) -> aiohttp.ClientResponse:
    """An answer on its way, whose offer has ended meanwhile."""
    with file.open("wb") as opened:
        opened.truncate(LARGE)
    url = await server.offer(file, "large.bin", 0.3)
    answer = await client.get(url)
    assert await answer.content.readexactly(1) == b"\0"
    while await takes(client, url):
        await asyncio.sleep(0.02)
    return answer


async def takes(client: aiohttp.ClientSession, url: str) -> bool:
    """Whether a transfer may begin."""
    try:
        async with client.head(url) as answer:
            return answer.status == 200
    except aiohttp.ClientConnectionError:
        return False


async def test_a_transfer_that_began_before_its_offer_ended_goes_on_and_none_begins_after(
    server: FileServer, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    answer = await begun_before_its_end(server, client, tmp_path / "large.bin")
    assert server.is_up
    assert len(await answer.read()) == LARGE - 1
    while server.is_up:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("another_is_offered", [False, True])
async def test_a_transfer_does_not_outlive_its_offer_without_end(
    server: FileServer,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    image: Path,
    another_is_offered: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent.file_server._LAST_TRANSFER_SECONDS", 0.01)
    if another_is_offered:
        await server.offer(image, image.name, 60)
    answer = await begun_before_its_end(server, client, tmp_path / "large.bin")
    await asyncio.sleep(0.1)
    with pytest.raises(aiohttp.ClientPayloadError):
        await answer.read()
    while server.is_up is not another_is_offered:
        await asyncio.sleep(0.01)


async def test_a_transfer_whose_offer_is_withdrawn_is_cut_off(
    server: FileServer, client: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.file_server._STOP_SECONDS", 0.01)
    file = tmp_path / "large.bin"
    with file.open("wb") as opened:
        opened.truncate(LARGE)
    url = await server.offer(file, "large.bin", 60)
    answer = await client.get(url)
    await server.withdraw(url)
    while server.is_up:
        await asyncio.sleep(0.01)
    with pytest.raises(aiohttp.ClientPayloadError):
        await answer.read()


async def test_what_happens_to_the_path_after_the_offer_does_not_matter(
    server: FileServer, client: aiohttp.ClientSession, image: Path
) -> None:
    url = await server.offer(image, image.name, 60)
    image.unlink()
    image.symlink_to("/etc/hostname")
    async with client.get(url) as answer:
        assert await answer.read() == CONTENT


async def test_a_file_that_becomes_shorter_does_not_look_whole(
    server: FileServer, client: aiohttp.ClientSession, image: Path
) -> None:
    url = await server.offer(image, image.name, 60)
    os.truncate(image, 5000)
    async with client.get(url) as answer:
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()


async def test_a_name_is_made_harmless_and_keeps_its_end(server: FileServer, image: Path) -> None:
    for name, last in (("a b?=.exe", "a_20b_3F_3D.exe"), ("../x.tar.gz", "x.tar.gz"), ("ü.bin", "_C3_BC.bin")):
        assert (await server.offer(image, name, 60)).rpartition("/")[2] == last


async def test_a_port_that_is_taken_is_told_with_what_to_change(image: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        server = FileServer(f"{LOOPBACK}:{taken.getsockname()[1]}")
        with pytest.raises(OperationError, match=r"cannot be listened on.*files\.listen") as failure:
            await server.offer(image, image.name, 60)
    assert failure.value.code is ErrorCode.CONFLICT
    assert not server.is_up


async def test_the_address_is_the_one_that_the_bmc_can_reach(image: Path) -> None:
    everywhere = FileServer(":0")
    url = await everywhere.offer(image, image.name, 60, reached_by="127.0.0.9")
    assert url.startswith("http://127.0.0.1:")
    await everywhere.aclose()
    behind = FileServer("127.0.0.1:0", "https://files.site.example/")
    assert (await behind.offer(image, image.name, 60)).startswith("https://files.site.example/files/")
    await behind.aclose()


def test_a_part_is_never_outside_the_file() -> None:
    for header in (None, "", "bytes=", "bytes=-", "bytes=5", "x", "bytes=0-0", "bytes=4-4", "bytes=-9", "bytes=2-"):
        part = asked_part(header, 5)
        assert part is not None
        assert 0 <= part[0] < part[1] <= 5


# Which files


async def test_only_files_below_the_folder_may_be_used(image: Path, tmp_path: Path, server: FileServer) -> None:
    secret = tmp_path / "vault.key"
    secret.write_text("secret")
    folder = image.parent
    (folder / "link").symlink_to(secret)
    (folder / "up").symlink_to(tmp_path)
    (folder / "latest.bin").symlink_to(image.name)
    (folder / "sub").mkdir()
    (folder / "empty.bin").touch()
    os.mkfifo(folder / "pipe")
    files = SiteFiles(folder, server)
    for path in (str(secret), "../vault.key", "link", "up/vault.key", str(folder / "link"), "/dev/zero", "/etc/x\0y"):
        message = refused(files, path)
        assert "only files below" in message
        assert "files.dir" in message
    # What lies outside is not told, not even whether it is there.
    assert refused(files, "../none") == refused(files, "../vault.key").replace("vault.key", "none")
    assert "no ordinary file" in refused(files, "sub")
    assert "no ordinary file" in refused(files, "pipe")
    assert "is empty" in refused(files, "empty.bin")
    assert "No such file" in refused(files, "none.bin")
    for path in (str(image), image.name, "sub/../bmc-2.14.0.bin", "latest.bin"):
        with files.open(path) as file:
            assert file.read() == CONTENT
    assert "cannot be opened" in refused(SiteFiles(tmp_path / "none", server), "x.bin")


def test_the_configuration_says_where_files_lie(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('state_dir = "/srv/agent"\n')
    assert load(file).files_dir == Path("/srv/agent/files")
    file.write_text('[files]\ndir = "images"\nlisten = "8445"\nurl = "ftp://x"\n')
    with pytest.raises(ConfigError) as failure:
        load(file)
    assert [issue.path for issue in failure.value.issues] == ["files.dir", "files.listen", "files.url"]


# An update by an agent


async def test_an_agent_offers_its_file_to_a_bmc_that_fetches_by_itself(image: Path, folder: Path) -> None:
    vault = Vault(folder / "vault.json", lambda: VaultKey.load(folder / "vault.key", make=True))
    vault.set("bmc/a", "admin", Secret(DEFAULT_PASSWORD))
    server = FileServer("127.0.0.1:0")
    bmcs = Bmcs(vault, BmcMemory(folder / "bmcs.json"), SiteFiles(image.parent, server))
    async with RedfishServer(options=ServiceOptions(task_seconds=0.5)) as bmc:
        payload: dict[str, object] = {
            "driver": "redfish",
            "concern": "firmware",
            "operation": "updateFirmware",
            "args": {
                "image": f"file://{image}",
                "targets": ["BMC"],
                "expectVersion": "2.14.0",
                "transport": "simple",
            },
            "targetNodeId": "n1",
            "target": {"address": bmc.url, "credentialRef": "bmc/a"},
        }
        async with bmcs.turn(payload) as work:
            answer = await work.run(60, lambda _message, _percent: None)
        assert answer.result["after"] == {"BMC": "2.14.0"}
        (upload,) = bmc.state.uploads
        assert (upload.size, upload.sha256) == (len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
        (order,) = bmc.journal.entries("POST", "*SimpleUpdate")
        assert order.body["TransferProtocol"] == "HTTP"
        assert order.body["ImageURI"].endswith("/bmc-2.14.0.bin")
        assert not server.is_up
        outside = {**payload, "args": {"image": "file:///etc/passwd"}}
        with pytest.raises(OperationError, match="only files below"):
            async with bmcs.turn(outside) as work:
                await work.run(60, lambda _message, _percent: None)
    await bmcs.aclose()
