"""The images that a BMC reads for its machine: a file of the host, or a URL of which it fetches what is read.

A URL is read as the BMCs of servers read it: HEAD for the size, then ranges as the machine asks for them, so that the
machine starts at once and nothing of the image is kept. It is our own reader and not QEMU's, because QEMU would show
the URL (whose path is a secret) to every user of the host, cannot be told a pinned login without showing it too, and
needs a Debian package of its own. From a server without ranges the whole image is fetched first, into a file that has
no name.
"""

import asyncio
import base64
import logging
import os
import re
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from simulators.machine.command_line import HOST_FOR_GUEST

log = logging.getLogger(__name__)

CHUNK = 1 << 20
_KEPT_CHUNKS = 32
_TRIES = 4
_FIRST_PAUSE = 0.25
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=20)
# What may be otherwise when it is asked again; anything else is the server's last word.
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_AS_IT_IS = {"Accept-Encoding": "identity"}


class ImageFault(RuntimeError):
    """The image cannot be read; the text has the cause, without the path of the URL."""


class Image(Protocol):
    """A read-only image. `size` in bytes."""

    size: int

    async def read(self, offset: int, length: int) -> bytes:
        """Exactly these bytes. Raises ImageFault."""
        ...

    async def close(self) -> None:
        """Lets go of it. Idempotent."""
        ...


class FileImage:
    """An open file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size

    async def read(self, offset: int, length: int) -> bytes:
        try:
            data = os.pread(self._file.fileno(), length, offset)
        except (OSError, ValueError) as error:
            raise ImageFault(f"the image cannot be read: {error}") from error
        if len(data) != length:
            raise ImageFault("the image has become shorter")
        return data

    async def close(self) -> None:
        self._file.close()


class HttpImage:
    """An image on an HTTP server that knows ranges. The chunks read last are kept in memory."""

    def __init__(self, client: aiohttp.ClientSession, url: URL, size: int) -> None:
        self._client = client
        self._url = url
        self.size = size
        self.fetched = 0
        self._chunks: OrderedDict[int, bytes] = OrderedDict()

    async def read(self, offset: int, length: int) -> bytes:
        parts = []
        for number in range(offset // CHUNK, -(-(offset + length) // CHUNK)):
            chunk = await self._chunk(number)
            start = number * CHUNK
            parts.append(chunk[max(0, offset - start) : offset + length - start])
        return b"".join(parts)

    async def close(self) -> None:
        self._chunks.clear()
        await self._client.close()

    async def _chunk(self, number: int) -> bytes:
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = await self._fetch(number * CHUNK, min(self.size, (number + 1) * CHUNK))
            self._chunks[number] = chunk
            if len(self._chunks) > _KEPT_CHUNKS:
                self._chunks.popitem(last=False)
        self._chunks.move_to_end(number)
        return chunk

    async def _fetch(self, start: int, end: int) -> bytes:
        """One range, asked for again where that may help."""
        pause = _FIRST_PAUSE
        for attempt in range(1, _TRIES + 1):
            try:
                return await self._fetch_once(start, end)
            except (aiohttp.ClientError, TimeoutError) as error:
                fault = f"{shown(self._url)} broke off: {words(error)}"
            except _Passing as error:
                fault = str(error)
            if attempt < _TRIES:
                log.info("%s; it is asked again", fault)
                await asyncio.sleep(pause)
                pause *= 2
        raise ImageFault(fault)

    async def _fetch_once(self, start: int, end: int) -> bytes:
        headers = {**_AS_IT_IS, "Range": f"bytes={start}-{end - 1}"}
        async with self._client.get(self._url, headers=headers) as answer:
            check_status(answer)
            if answer.status != 206 or range_of(answer) != (start, end, self.size):
                raise ImageFault(f"{shown(self._url)} did not send the range that it was asked for: has it changed?")
            data = await answer.read()
        if len(data) != end - start:
            raise _Passing(f"{shown(self._url)} sent {len(data)} bytes of {end - start}")
        self.fetched += len(data)
        return data


class _Passing(RuntimeError):
    """A refusal that may pass."""


async def open_url(address: str, *, user: str = "", password: str = "", verify: bool = False, spool: Path) -> Image:
    """Opens an image of an HTTP or HTTPS server; `spool` is the folder for one from a server without ranges.

    The machine's network and its BMC's are the same here: 10.0.2.2, as the machine calls the host, is the host for
    the BMC too. `verify` checks the server's certificate. Raises ImageFault with the cause.
    """
    url = host_address(address)
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    client = aiohttp.ClientSession(
        timeout=_TIMEOUT,
        headers={"Authorization": f"Basic {login}"} if user else None,
        connector=aiohttp.TCPConnector(ssl=verify, limit=4),
    )
    try:
        size = await size_with_ranges(client, url)
        if size is not None:
            return HttpImage(client, url, size)
        log.warning("%s knows no ranges: the whole image is fetched first", shown(url))
        image = await fetch_whole(client, url, spool)
    except (aiohttp.ClientError, TimeoutError, _Passing) as error:
        await client.close()
        raise ImageFault(f"{shown(url)} cannot be read: {words(error)}") from error
    except BaseException:
        await client.close()
        raise
    await client.close()
    return image


def host_address(address: str) -> URL:
    """The URL as the BMC asks for it. Raises ImageFault for one that is no HTTP URL."""
    try:
        url = URL(address, encoded=True)
    except ValueError as error:
        raise ImageFault(f"the address of the image is not a URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ImageFault("the address of the image must begin with http:// or https://")
    return url.with_host("127.0.0.1") if url.host == HOST_FOR_GUEST else url


async def size_with_ranges(client: aiohttp.ClientSession, url: URL) -> int | None:
    """The size of an image whose server sends ranges; None where it does not. HEAD first, as BMCs do."""
    async with client.head(url, headers=_AS_IT_IS, allow_redirects=True) as answer:
        if answer.status not in (405, 501):
            check_status(answer)
            if answer.headers.get("Accept-Ranges", "").lower() == "bytes" and answer.content_length:
                return answer.content_length
    async with client.get(url, headers={**_AS_IT_IS, "Range": "bytes=0-0"}) as answer:
        check_status(answer)
        sent = range_of(answer)
        return sent[2] if answer.status == 206 and sent is not None else None


async def fetch_whole(client: aiohttp.ClientSession, url: URL, spool: Path) -> FileImage:
    """The whole image, in a file that is gone as soon as it is closed, also after a crash."""
    file = tempfile.TemporaryFile(dir=spool, prefix="image-")  # noqa: SIM115 - the image closes it
    try:
        async with client.get(url, headers=_AS_IT_IS) as answer:
            check_status(answer)
            async for part in answer.content.iter_chunked(CHUNK):
                file.write(part)
        file.flush()
    except OSError as error:
        file.close()
        raise ImageFault(f"the image finds no room in {spool}: {error.strerror or error}") from error
    except BaseException:
        file.close()
        raise
    return FileImage(file)


def open_file(path: Path) -> FileImage:
    """Opens an image of the host. Raises ImageFault."""
    try:
        return FileImage(path.open("rb"))
    except OSError as error:
        raise ImageFault(f"{path} cannot be read: {error.strerror}") from error


def check_status(answer: aiohttp.ClientResponse) -> None:
    if answer.status in _PASSING:
        raise _Passing(f"{shown(answer.url)} answered {answer.status} {answer.reason}")
    if answer.status >= 300:
        raise ImageFault(f"{shown(answer.url)} answered {answer.status} {answer.reason}")


def range_of(answer: aiohttp.ClientResponse) -> tuple[int, int, int] | None:
    """Start, end (exclusive) and whole size of a partial answer."""
    found = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    return (int(found[1]), int(found[2]) + 1, int(found[3])) if found else None


def shown(url: URL | str) -> str:
    """A URL as it may be told: its path may be what gives the right to read it, so only the file's name is left."""
    parts = urlsplit(str(url))
    name = parts.path.rpartition("/")[2]
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}/…/{name}"


def words(error: BaseException) -> str:
    """What an error says, or its kind where it says nothing, or would say the URL."""
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.InvalidURL):
        return type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError):
        return str(error.os_error)
    return str(error) or type(error).__name__
