"""A firmware image: where it is, how large it is, and its bytes one after the other."""

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit, urlunsplit

import aiohttp

from drivers.driver import FileOffers
from drivers.image_access import ImageAccess
from drivers.redfish.upload import CHUNK
from protocol.errors import ErrorCode, OperationError

__all__ = ["FileContent", "Image", "WebContent", "open_content", "open_file"]

_PROTOCOLS = {
    "http": "HTTP",
    "https": "HTTPS",
    "ftp": "FTP",
    "sftp": "SFTP",
    "tftp": "TFTP",
    "scp": "SCP",
    "nfs": "NFS",
    "cifs": "CIFS",
    "smb": "CIFS",
}
"""Schemes of image addresses, and what TransferProtocol calls them (UpdateService schema)."""
_FORM = "an image is an address such as https://host/file, or a file of this host: file:///path/to/file"
_CONNECT_SECONDS = 15.0
_SILENT_SECONDS = 60.0
_MOST_REDIRECTS = 5


@dataclass(frozen=True, slots=True)
class Image:
    """Where an image is: a file (`path`), or an address without the user and password that it was given with."""

    name: str
    url: str | None = None
    path: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, image: str) -> "Image":
        """Raises ValueError that says what an image looks like."""
        image = image.strip()
        if not image or not image.isprintable():
            raise ValueError(_FORM)
        if "://" not in image:
            return cls(Path(image).name, path=image)
        try:
            parts = urlsplit(image)
            _ = parts.port
        except ValueError:
            raise ValueError(_FORM) from None
        scheme = parts.scheme.lower()
        if scheme == "file":
            if parts.hostname not in (None, "", "localhost") or not parts.path.strip("/"):
                raise ValueError("a file of this host is named with three slashes: file:///path/to/file")
            path = unquote(parts.path)
            return cls(Path(path).name, path=path)
        if scheme not in _PROTOCOLS or not parts.hostname or not parts.path.strip("/") or " " in image:
            raise ValueError(_FORM)
        name = unquote(parts.path.rstrip("/").rpartition("/")[2])
        if parts.username is None:
            return cls(name, url=image)
        bare = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, parts.fragment))
        return cls(name, bare, user=unquote(parts.username), password=unquote(parts.password or ""))

    @property
    def protocol(self) -> str | None:
        """What TransferProtocol calls its scheme; None for a file."""
        return None if self.url is None else _PROTOCOLS[urlsplit(self.url).scheme.lower()]

    @property
    def is_on_the_web(self) -> bool:
        """Whether this program itself can fetch it."""
        return self.protocol in ("HTTP", "HTTPS")

    @property
    def shown(self) -> str:
        """For an operator: without a password, and without what follows a `?`, which may be one."""
        return (self.url or self.path or self.name).partition("?")[0]


class FileContent:
    """An open file's bytes. Reading goes on in a thread, so that a slow disk holds up nobody else."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self.name = name
        self.size = os.fstat(file.fileno()).st_size

    async def chunks(self) -> AsyncIterator[bytes]:
        left = self.size
        while left > 0:
            try:
                chunk = await asyncio.to_thread(self._file.read, min(CHUNK, left))
            except OSError as error:
                raise _ended(self.name, f"cannot be read on: {error.strerror}") from error
            if not chunk:
                raise _ended(self.name, f"became shorter while it was sent ({left} bytes are missing)")
            left -= len(chunk)
            yield chunk


class WebContent:
    """The body of an answer that still comes in."""

    def __init__(self, response: aiohttp.ClientResponse, name: str, size: int) -> None:
        self._response = response
        self.name = name
        self.size = size

    async def chunks(self) -> AsyncIterator[bytes]:
        left = self.size
        try:
            async for chunk in self._response.content.iter_chunked(CHUNK):
                left -= len(chunk)
                if left < 0:
                    raise _ended(self.name, "is longer than its server said")
                yield chunk
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _ended(self.name, f"did not come whole: {_words(error)} ({left} bytes are missing)") from error
        if left:
            raise _ended(self.name, f"ended early ({left} bytes are missing)")


@contextlib.asynccontextmanager
async def open_content(
    image: Image, files: FileOffers | None, access: ImageAccess
) -> AsyncIterator[FileContent | WebContent]:
    """The image's bytes, ready to be sent. Raises OperationError INVALID_ARGUMENT or UNREACHABLE with the reason."""
    if image.path is not None:
        with open_file(image.path, files) as file:
            yield FileContent(file, image.name)
        return
    limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENT_SECONDS)
    headers = {"Accept-Encoding": "identity"}
    if image.user is not None:
        headers["Authorization"] = aiohttp.encode_basic_auth(image.user, image.password or "")
    async with access.session(timeout=limits, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()) as client:
        try:
            response = await client.get(image.url or "", headers=headers, max_redirects=_MOST_REDIRECTS)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            refused = access.refusal(error, f"the image {image.shown}")
            raise refused or OperationError(
                ErrorCode.UNREACHABLE, f"the image {image.shown} cannot be fetched: {_words(error)}"
            ) from None
        async with response:
            yield WebContent(response, image.name, _size_of(response, image))


def open_file(path: str, files: FileOffers | None) -> BinaryIO:
    """A file of this host, where it may be used. Raises OperationError INVALID_ARGUMENT."""
    if files is not None:
        return files.open(path)
    try:
        # Not to wait for a pipe that nobody writes to; a device must not be read either.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise OperationError(ErrorCode.INVALID_ARGUMENT, f"the image {path} cannot be opened: {reason}") from None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        os.close(handle)
        what = "is empty" if stat.S_ISREG(status.st_mode) else "is no ordinary file"
        raise OperationError(ErrorCode.INVALID_ARGUMENT, f"the image {path} {what}")
    return os.fdopen(handle, "rb", buffering=0)


def _size_of(response: aiohttp.ClientResponse, image: Image) -> int:
    if response.status >= 500:
        raise OperationError(
            ErrorCode.UNREACHABLE, f"the image {image.shown} cannot be fetched: its server says {response.status}"
        )
    if response.status != 200:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT,
            f"the image {image.shown} cannot be fetched: its server answers with HTTP {response.status}",
        )
    size = response.content_length
    if not size or response.headers.get("Content-Encoding", "identity") != "identity":
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT,
            f"the server of {image.shown} does not say how long the image is, and a BMC must be told before it is "
            "sent: offer it with a Content-Length, or give a file of the site host",
        )
    return size


def _ended(name: str, why: str) -> OperationError:
    return OperationError(
        ErrorCode.UNREACHABLE, f"the image {name} {why}. The BMC has not got it whole, so nothing was installed"
    )


def _words(error: BaseException) -> str:
    if isinstance(error, aiohttp.TooManyRedirects):
        return "its server redirects again and again"
    if isinstance(error, (aiohttp.InvalidURL, aiohttp.RedirectClientError, aiohttp.NonHttpUrlClientError)):
        # The address itself is not repeated: it may hold a password.
        return "its server redirects to what is no address that can be fetched from"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"its server answers with no proper HTTP ({error.message or error.status})"
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    if isinstance(cause, TimeoutError):
        return "its server is silent"
    return str(cause) or type(cause).__name__
