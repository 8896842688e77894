"""Images of operating systems on the site's host: fetched once, given to many machines, and the least used forgotten.

    <folder>/sha256-<hex>           whole, and its checksum was right when it was stored
    <folder>/sha256-<hex>.part      under way, or cut off; gone on with when it is asked for again
    <folder>/sha256-<hex>.about     of which version the part is

When a file was last used is its time of change, so that it is known after a restart too.
"""

import asyncio
import contextlib
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Set
from pathlib import Path
from typing import NamedTuple
from urllib.request import getproxies

import aiohttp
import structlog
from aiohttp import web

from agent.byte_serving import FileContent
from agent.files import make_private_folder
from agent.image_download import Download, Origin
from agent.image_logins import ImageLogins
from drivers.image_access import ImageAccess
from protocol.errors import ErrorCode, OperationError

__all__ = ["ImageCache", "OpenImage"]

_log = structlog.get_logger("agent.image_cache")
_DIGEST = re.compile(r"sha256-[0-9a-f]{64}|sha512-[0-9a-f]{128}")
_FAILED_SECONDS = 5.0
"""How long a failed download is remembered, so that many readers do not ask its origin in vain."""
_DISK_RESERVE = 256 << 20
"""Bytes of the disk that are left to others."""


class OpenImage:
    """An image that somebody reads: it is not forgotten meanwhile."""

    media_type = "application/octet-stream"
    changed_at = 0.0
    """Under one checksum there are never other bytes."""

    def __init__(self, digest: str, source: FileContent | Download) -> None:
        self.size = source.size
        self.etag = f'"{digest}"'
        self._source = source
        self._generation = source.generation if isinstance(source, Download) else 0

    async def prepare(self, start: int, end: int) -> web.Response | None:
        return None

    def file_part(self, position: int) -> tuple[int, int] | None:
        if isinstance(self._source, Download):
            return self._source.file_part(self._generation, position)
        return self._source.file_part(position)

    async def read(self, start: int, length: int) -> bytes | bytearray | memoryview:
        if isinstance(self._source, Download):
            return await self._source.read(self._generation, start, length)
        return await self._source.read(start, length)


class ImageCache:
    """At most `limit` bytes in `folder`; what is under way counts with its full size. `access`: from where images may
    come; `logins`: with which ones they are fetched."""

    def __init__(self, folder: Path, limit: int, access: ImageAccess, *, logins: "ImageLogins | None" = None) -> None:
        self._folder = folder
        self._limit = limit
        self._access = access
        self._logins = logins
        self._client: aiohttp.ClientSession | None = None
        self._downloads: dict[str, Download] = {}
        self._claimed: dict[str, int] = {}
        self._readers: Counter[str] = Counter()
        self._failed: dict[str, tuple[float, OperationError]] = {}
        self._making_room = asyncio.Lock()

    async def prefetch(self, digest: str, url: str) -> int:
        """Begins to fetch it where it is not there; its size. Raises OperationError where that is not possible."""
        async with self.open(digest, url) as image:
            return image.size

    @contextlib.asynccontextmanager
    async def open(self, digest: str, url: str) -> AsyncIterator[OpenImage]:
        """To be read, as far as it is there, and along with its download. Raises OperationError."""
        self._readers[digest] += 1
        try:
            # Nothing is waited for between this look and the download: it could be over meanwhile, and begun again.
            handle = self._open_whole(digest)
            if handle is not None:
                try:
                    yield OpenImage(digest, FileContent(handle, os.fstat(handle).st_size, 0.0))
                finally:
                    os.close(handle)
                return
            download = self._download(digest, url)
            download.acquire()
            try:
                await download.started()
                yield OpenImage(digest, download)
            finally:
                download.release()
        finally:
            self._readers[digest] -= 1

    async def claim(self, digest: str, size: int) -> None:
        """Makes room by forgetting what was not used for the longest time. Raises OperationError CONFLICT."""
        if size > self._limit:
            raise OperationError(
                ErrorCode.CONFLICT,
                f"the image has {size} bytes, and the site's cache may hold {self._limit}: raise boot.cache_bytes",
            )
        async with self._making_room:
            if self._claimed.get(digest) == size:
                return
            kept = {key for key, readers in self._readers.items() if readers} | set(self._downloads)
            others = sum(self._claimed.values()) - self._claimed.get(digest, 0)
            await asyncio.to_thread(self._make_room, digest, size, others, kept)
            self._claimed[digest] = size

    async def aclose(self) -> None:
        """Stops what is under way; it is gone on with by the next process. Its readers are cut off."""
        await asyncio.gather(*(download.aclose() for download in list(self._downloads.values())))
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _open_whole(self, digest: str) -> int | None:
        file = self._folder / digest
        try:
            handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with contextlib.suppress(OSError):
            os.utime(file)
        return handle

    def _download(self, digest: str, url: str) -> Download:
        """The one under way, or a new one."""
        known = self._downloads.get(digest)
        if known is not None:
            return known
        failed = self._failed.get(digest)
        if failed is not None and time.monotonic() < failed[0]:
            raise failed[1]
        if self._client is None:
            self._client = self._access.session(proxies=getproxies(), auto_decompress=False, trust_env=True)
        login = self._logins.header(url) if self._logins is not None else None
        try:
            make_private_folder(self._folder)
            origin = Origin(self._client, url, self._access, login)
            download = Download(origin, digest, self._folder / digest, self, self._over)
        except OSError as error:
            raise OperationError(
                ErrorCode.CONFLICT, f"the site's cache {self._folder} cannot be used: {error.strerror}"
            ) from error
        self._downloads[digest] = download
        return download

    def _over(self, download: Download) -> None:
        self._downloads.pop(download.digest, None)
        self._claimed.pop(download.digest, None)
        if download.failure is not None:
            self._failed[download.digest] = (time.monotonic() + _FAILED_SECONDS, download.failure)

    def _make_room(self, digest: str, size: int, others: int, kept: Set[str]) -> None:
        stored = self._stored()
        own = stored.pop(digest, None)
        # What is under way counts with its full size already.
        counted = sum(entry.size for key, entry in stored.items() if key not in self._claimed)
        over = counted + others + size - self._limit
        missing = size - (own.size if own is not None else 0) + _DISK_RESERVE - shutil.disk_usage(self._folder).free
        for key, entry in sorted(stored.items(), key=lambda item: item[1].used_at):
            if over <= 0 and missing <= 0:
                return
            if key not in kept:
                for file in entry.files:
                    file.unlink(missing_ok=True)
                _log.info("image_forgotten", digest=key, bytes=entry.size)
                over, missing = over - entry.size, missing - entry.size
        if over > 0 or missing > 0:
            raise OperationError(
                ErrorCode.CONFLICT,
                f"the site's cache has no room for an image of {size} bytes: "
                + ("its disk is full" if missing > 0 else "the others are in use; raise boot.cache_bytes"),
            )

    def _stored(self) -> dict[str, "_Stored"]:
        """By digest, the parts among them."""
        found: dict[str, _Stored] = {}
        for file in self._folder.iterdir():
            digest = file.name.partition(".")[0]
            if _DIGEST.fullmatch(digest) is None:
                continue
            with contextlib.suppress(FileNotFoundError):
                status = file.stat()
                before = found.get(digest, _Stored(0, 0.0, ()))
                found[digest] = _Stored(
                    before.size + status.st_size, max(before.used_at, status.st_mtime), (*before.files, file)
                )
        return found


class _Stored(NamedTuple):
    size: int
    used_at: float
    files: tuple[Path, ...]
