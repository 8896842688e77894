"""What the BMC of the virtual machine reads for it: files and URLs, by ranges, and as a block device for QEMU."""

import asyncio
import base64
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from simulators.machine import image as image_module
from simulators.machine.image import CHUNK, HttpImage, ImageFault, open_file, open_url, shown
from simulators.machine.nbd import Export
from simulators.redfish import TlsMaterial

CONTENT = os.urandom(3 * CHUNK + 1234)
PADDED = CONTENT.ljust(-(-len(CONTENT) // 512) * 512, b"\0")
NAME = "boot.iso"
QEMU_IMG = shutil.which("qemu-img")
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ImageServer:
    """An HTTP server whose answers a test may spoil. `asked` are the methods and ranges, in order."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.asked: list[tuple[str, str]] = []
        self.spoil: list[Answer] = []
        self.knows_head = True
        self.knows_ranges = True
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/s3cr3t/{NAME}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked_range = request.headers.get("Range", "")
        self.asked.append((request.method, asked_range))
        if request.method == "HEAD" and not self.knows_head:
            return web.Response(status=405)
        if self.spoil and asked_range:
            return await self.spoil.pop(0)(request)
        if not self.knows_ranges:
            return web.Response(body=self.file.read_bytes(), headers={"Accept-Ranges": "none"})
        return web.FileResponse(self.file)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ImageServer]:
    file = tmp_path / NAME
    file.write_bytes(CONTENT)
    server = ImageServer(file)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.port = runner.addresses[0][1]
    yield server
    await runner.cleanup()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_module, "_FIRST_PAUSE", 0.0)


def status(code: int) -> Answer:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=code)

    return answer


async def cut_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(status=206, headers={"Content-Range": f"bytes 0-{CHUNK - 1}/{len(CONTENT)}"})
    response.content_length = CHUNK
    await response.prepare(request)
    await response.write(b"short")
    assert request.transport is not None
    request.transport.abort()
    return response


async def test_nothing_but_what_is_read_is_fetched(server: ImageServer, tmp_path: Path) -> None:
    image = await open_url(server.url, spool=tmp_path)
    assert image.size == len(CONTENT)
    assert server.asked == [("HEAD", "")]

    assert await image.read(CHUNK - 10, 20) == CONTENT[CHUNK - 10 : CHUNK + 10]
    assert await image.read(5, 7) == CONTENT[5:12]
    assert await image.read(len(CONTENT) - 3, 3) == CONTENT[-3:]

    ranges = [asked for _, asked in server.asked[1:]]
    last = f"bytes={3 * CHUNK}-{len(CONTENT) - 1}"
    assert ranges == [f"bytes=0-{CHUNK - 1}", f"bytes={CHUNK}-{2 * CHUNK - 1}", last]
    await image.close()


async def test_a_server_without_head_is_asked_for_the_first_byte(server: ImageServer, tmp_path: Path) -> None:
    server.knows_head = False
    image = await open_url(server.url, spool=tmp_path)

    assert image.size == len(CONTENT)
    assert isinstance(image, HttpImage)
    await image.close()


async def test_from_a_server_without_ranges_the_whole_image_is_fetched_first(
    server: ImageServer, tmp_path: Path
) -> None:
    """The copy has no name: nothing of it is left behind, whatever happens."""
    server.knows_ranges = False
    spool = tmp_path / "spool"
    spool.mkdir()
    image = await open_url(server.url, spool=spool)

    assert await image.read(CHUNK, 100) == CONTENT[CHUNK : CHUNK + 100]
    assert list(spool.iterdir()) == []
    await image.close()


async def test_what_may_pass_is_asked_again(server: ImageServer, tmp_path: Path) -> None:
    image = await open_url(server.url, spool=tmp_path)
    server.spoil = [status(503), cut_off]

    assert await image.read(0, 100) == CONTENT[:100]
    assert len(server.asked) == 4
    await image.close()


@pytest.mark.parametrize("code", [401, 403, 404, 410])
async def test_the_servers_last_word_is_not_asked_again(server: ImageServer, tmp_path: Path, code: int) -> None:
    image = await open_url(server.url, spool=tmp_path)
    server.spoil = [status(code)]

    with pytest.raises(ImageFault, match=f"answered {code}"):
        await image.read(0, 1)
    assert len(server.asked) == 2
    await image.close()


async def test_an_image_that_has_changed_under_its_reader_is_an_error(server: ImageServer, tmp_path: Path) -> None:
    image = await open_url(server.url, spool=tmp_path)
    server.file.write_bytes(CONTENT[: 2 * CHUNK])

    with pytest.raises(ImageFault, match="has it changed"):
        await image.read(0, 1)
    await image.close()


async def test_an_image_that_is_not_there_is_told_without_its_path(server: ImageServer, tmp_path: Path) -> None:
    server.file.unlink()

    with pytest.raises(ImageFault) as failure:
        await open_url(server.url, spool=tmp_path)

    assert "404" in str(failure.value)
    assert "s3cr3t" not in str(failure.value)
    assert shown(server.url) == f"http://127.0.0.1:{server.port}/…/{NAME}"


async def test_a_server_that_leads_round_in_circles_is_told_without_its_path(
    server: ImageServer, tmp_path: Path
) -> None:
    server.knows_head = False

    async def round_in_circles(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(request.path)

    server.spoil = [round_in_circles] * 20
    with pytest.raises(ImageFault, match="TooManyRedirects") as failure:
        await open_url(server.url, spool=tmp_path)
    assert "s3cr3t" not in str(failure.value)


async def test_a_host_that_does_not_answer_is_told_with_its_cause(server: ImageServer, tmp_path: Path) -> None:
    closed = "http://127.0.0.1:1/s3cr3t/x.iso"

    with pytest.raises(ImageFault, match="cannot be read") as failure:
        await open_url(closed, spool=tmp_path)
    assert "s3cr3t" not in str(failure.value)


@pytest.mark.parametrize("address", ["nfs://server/x.iso", "file:///etc/passwd", "x.iso", "http://"])
async def test_addresses_that_no_web_server_has_are_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(ImageFault):
        await open_url(address, spool=tmp_path)


async def test_the_hosts_address_inside_the_machine_is_the_host_for_its_bmc_too(
    server: ImageServer, tmp_path: Path
) -> None:
    image = await open_url(server.url.replace("127.0.0.1", "10.0.2.2"), spool=tmp_path)

    assert await image.read(0, 4) == CONTENT[:4]
    await image.close()


async def test_a_login_goes_with_every_request(server: ImageServer, tmp_path: Path) -> None:
    seen: list[str] = []

    async def look(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers["Authorization"])
        return web.FileResponse(server.file)

    image = await open_url(server.url, user="reader", password="pw", spool=tmp_path)
    server.spoil = [look]
    await image.read(0, 1)

    assert seen == ["Basic " + base64.b64encode(b"reader:pw").decode()]
    await image.close()


async def test_a_certificate_is_checked_where_the_slot_says_so(server: ImageServer, tmp_path: Path) -> None:
    material = TlsMaterial.self_signed()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=material.server_context()).start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}/{NAME}"
    try:
        unchecked = await open_url(url, spool=tmp_path)
        assert await unchecked.read(0, 4) == CONTENT[:4]
        await unchecked.close()
        with pytest.raises(ImageFault, match="certificate"):
            await open_url(url, verify=True, spool=tmp_path)
    finally:
        await runner.cleanup()


async def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ImageFault, match="No such file"):
        open_file(tmp_path / "none.iso")


@pytest.mark.e2e
@pytest.mark.skipif(QEMU_IMG is None, reason="qemu-img is not installed: apt-get install qemu-utils")
async def test_qemu_reads_an_export_whole_and_unchanged(server: ImageServer, tmp_path: Path) -> None:
    """QEMU's own client of the protocol is the judge. The folder's path is longer than a socket's may be."""
    assert QEMU_IMG is not None
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    export = Export(await open_url(server.url, spool=tmp_path), folder, "cd.sock", lambda _text: None)
    await export.start()
    try:
        copied = tmp_path / "copied"
        convert = await asyncio.create_subprocess_exec(
            QEMU_IMG, "convert", "-O", "raw", "nbd+unix:///?socket=cd.sock", str(copied), cwd=folder
        )
        assert await convert.wait() == 0
        data = copied.read_bytes()
        assert data == PADDED
    finally:
        await export.stop()
    assert list(folder.iterdir()) == []


async def test_a_read_that_fails_is_an_input_output_error_and_told_once_with_its_cause(
    server: ImageServer, tmp_path: Path
) -> None:
    faults: list[str] = []
    export = Export(await open_url(server.url, spool=tmp_path), tmp_path, "cd.sock", faults.append)
    await export.start()
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "cd.sock"))
    try:
        assert await greet(reader, writer) == len(PADDED)
        server.spoil = [status(404)]
        assert await request(reader, writer, kind=0, offset=0, length=512) == (5, b"")
        assert "answered 404" in faults[0]
        assert await request(reader, writer, kind=0, offset=0, length=512) == (0, CONTENT[:512])
        assert await request(reader, writer, kind=0, offset=len(PADDED), length=1) == (22, b"")
        assert await request(reader, writer, kind=0, offset=len(PADDED) - 512, length=512) == (0, PADDED[-512:])
        assert await request(reader, writer, kind=1, offset=0, length=3, data=b"abc") == (1, b"")
        assert await request(reader, writer, kind=3, offset=0, length=0) == (0, b"")
    finally:
        writer.close()
        await writer.wait_closed()
        await export.stop()


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """The oldest way in, NBD_OPT_EXPORT_NAME: gives the size of the export."""
    assert await reader.readexactly(18) == b"NBDMAGICIHAVEOPT\x00\x03"
    writer.write(b"\x00\x00\x00\x03" + b"IHAVEOPT" + (1).to_bytes(4, "big") + (0).to_bytes(4, "big"))
    told = await reader.readexactly(10)
    assert told[8:] == b"\x00\x03", "it has flags, and is read-only"
    return int.from_bytes(told[:8], "big")


async def request(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    kind: int,
    offset: int,
    length: int,
    data: bytes = b"",
) -> tuple[int, bytes]:
    """One request; gives the error number and the data."""
    cookie = b"cookie.."
    writer.write(
        b"\x25\x60\x95\x13\x00\x00"
        + kind.to_bytes(2, "big")
        + cookie
        + offset.to_bytes(8, "big")
        + length.to_bytes(4, "big")
        + data
    )
    head = await reader.readexactly(16)
    assert head[:4] == b"\x67\x44\x66\x98"
    assert head[8:] == cookie
    error = int.from_bytes(head[4:8], "big")
    return error, await reader.readexactly(length) if kind == 0 and not error else b""
