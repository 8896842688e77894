"""The bytes of an address, each exactly once and in order, however often the connection drops on the way.

By the standard library's client in a thread: it reads from the socket straight into the memory that is hashed and
decompressed, needs nothing that Python does not bring, and the ramdisk has no use for a second HTTP library.
"""

import contextlib
import http.client
import re
import socket
import ssl
import threading
import time
from urllib.parse import urljoin, urlsplit

from drivers.linux.words import gibibytes
from protocol.errors import ErrorCode, OperationError
from protocol.image_admission import ADMISSION

__all__ = ["ImageChangedError", "ImageSource", "shown_address"]

_CONNECT_SECONDS = 15.0
_SILENT_SECONDS = 60.0
"""How long a server may send nothing before the connection is given up and the rest asked for anew."""
_MOST_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_MAY_PASS = (408, 425, 429)
"""Answers below 500 after which the same request may be answered later (RFC 9110, RFC 6585, RFC 8470)."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
_MOST_SAID = 400
"""Bytes of a refusal's text."""
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_ADMITTANCE = re.compile(rf"(?<=/images/)(?:[0-9a-f]{{40}}|{ADMISSION})(?=/[0-9a-f]{{64}})")
"""What admits to an image of a site's boot server, or the word for it: a command has the word, and the record of what
was written to a disk was made with the admission. The checksum behind it tells images apart."""


class ImageChangedError(Exception):
    """The server has another file now than when the reading began: all of it must be read anew."""


class _Dropped(Exception):
    """The connection ended or was refused: it may go on later. The text says what was seen."""


def shown_address(url: str) -> str:
    """For an operator: without what follows a `?`, which may be a password, and without what admits to an image."""
    return _ADMITTANCE.sub("***", url.partition("?")[0].partition("#")[0])


class ImageSource:
    """Reads one address from its beginning. For one thread, except `abort`."""

    def __init__(self, url: str, *, deadline: float, patience: float = 300.0, has_checksum: bool = False) -> None:
        """`deadline`: by `time.monotonic`, for all of it, so that a server which trickles is given up. `patience`:
        seconds for which nothing may come before the server counts as gone. `has_checksum`: whoever reads compares
        it in the end. Without one, only what the server itself can vouch for is put together.

        Raises OperationError INVALID_ARGUMENT for what is no usable address.
        """
        self._url = _checked(url)
        self._shown = shown_address(url)
        self._deadline = deadline
        self._patience = patience
        self._has_checksum = has_checksum
        self._stop = threading.Event()
        self._connection: http.client.HTTPConnection | None = None
        self._response: http.client.HTTPResponse | None = None
        self._socket: socket.socket | None = None
        self._left: int | None = None
        self._validator: str | None = None
        self._begun = time.monotonic()
        self._alive = self._begun
        self._pause = _FIRST_PAUSE
        self._why = ""
        self.position = 0
        self.size: int | None = None
        """All of it in bytes, where the server tells."""
        self.resumed = 0
        """How often it was gone on with after a drop."""

    def read_into(self, target: memoryview) -> int:
        """Fills the target; fewer bytes only at the end, 0 after it.

        Raises OperationError: INVALID_ARGUMENT (the server refuses the request for good: 401, 403, 404 …),
        UNREACHABLE (it stayed away), TIMEOUT (the deadline), CANCELLED (`abort`). Raises ImageChangedError.
        """
        done = 0
        while done < len(target):
            self._check()
            try:
                count = self._some(target[done:])
            except _Dropped as drop:
                self._drop(drop)
                continue
            if not count:
                break
            done += count
            self.position += count
            self._alive, self._pause = time.monotonic(), _FIRST_PAUSE
        return done

    def abort(self) -> None:
        """Wakes a reading thread, and has it read no more; from any thread."""
        self._stop.set()
        # The client lets go of its socket as soon as it knows that no other request will follow.
        handle = self._socket
        if handle is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(handle, socket.SHUT_RDWR)

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        if self._connection is not None:
            self._connection.close()
        self._connection = self._response = self._socket = None

    # One connection

    def _some(self, target: memoryview) -> int:
        """What has come, at least one byte; 0 at the end of the whole."""
        if self._response is None:
            if self.size is not None and self.position >= self.size:
                return 0
            self._response = self._ask()
        response = self._response
        try:
            if self._left is None:
                data = response.read1(min(len(target), 1 << 18))
                count = len(data)
                target[:count] = data
            elif self._left == 0:
                if self.size is not None and self.position < self.size:
                    # A server may send less than was asked for (RFC 9110, 15.3.7): the rest is asked for anew.
                    raise _Dropped("the answer was a part of what was asked for")
                return 0
            else:
                count = response.fp.readinto1(target[: self._left])
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _Dropped(_words(error)) from error
        if self._left is not None:
            if not count:
                raise _Dropped(f"the answer ended {self._left} bytes early")
            self._left -= count
        elif not count and self.size is not None and self.position < self.size:
            raise _Dropped(f"the answer ended {self.size - self.position} bytes early")
        return count

    def _ask(self) -> http.client.HTTPResponse:
        url = self._url
        for _ in range(_MOST_REDIRECTS + 1):
            response = self._request(url)
            location = response.headers.get("Location")
            if response.status not in _REDIRECTS or not location:
                return self._accepted(response)
            self.close()
            url = _checked(urljoin(url, location), before=url)
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT, f"{self._shown} leads from one address to the next without end"
        )

    def _request(self, url: str) -> http.client.HTTPResponse:
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {"Accept-Encoding": "identity", "User-Agent": "rackwright"}
        if self.position:
            headers["Range"] = f"bytes={self.position}-"
            if self._validator is not None:
                headers["If-Range"] = self._validator
        left = max(0.1, self._deadline - time.monotonic())
        connect = min(_CONNECT_SECONDS, left)
        connection = (
            http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=connect, context=ssl.create_default_context()
            )
            if parts.scheme == "https"
            else http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=connect)
        )
        self._connection = connection
        try:
            connection.connect()
            self._socket = connection.sock
            # An abort that came before had no socket to close.
            self._check()
            connection.sock.settimeout(min(_SILENT_SECONDS, left))
            connection.request("GET", path, headers=headers)
            # Known from here on, so that it is closed whatever it says.
            self._response = connection.getresponse()
            return self._response
        except ssl.SSLCertVerificationError as error:
            raise OperationError(
                ErrorCode.TLS_UNTRUSTED, f"the certificate of {self._shown} is not trusted: {error.verify_message}"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise _Dropped(_words(error)) from error

    def _accepted(self, response: http.client.HTTPResponse) -> http.client.HTTPResponse:
        status = response.status
        if status >= 500 or status in _MAY_PASS:
            raise _Dropped(f"the server answers with HTTP {status}")
        if status not in (200, 206) and not (status == 416 and self.position):
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT,
                f"{self._shown} cannot be fetched: its server answers with HTTP {status} {_refusal(response)}",
                details={"status": status},
            )
        validator = _validator(response)
        if response.headers.get("Content-Encoding", "identity").lower() not in ("identity", ""):
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT, f"the server of {self._shown} sends another encoding than was asked for"
            )
        length = _length(response)
        if status == 206:
            self._check_range(response)
            if None not in (self._validator, validator) and validator != self._validator:
                # Its server takes no notice of If-Range.
                raise ImageChangedError(f"{self._shown} was replaced while it was read")
            self._left = length
            return response
        if status == 416 or (self._validator is not None and validator != self._validator):
            raise ImageChangedError(f"{self._shown} was replaced while it was read")
        if self.size is not None and length != self.size:
            raise ImageChangedError(f"{self._shown} has another length now")
        if not self._has_checksum and length is None and not response.chunked:
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT,
                f"the server of {self._shown} does not say how long it is, so that nobody could tell whether all of "
                "it came: name its checksum",
            )
        self._validator, self.size, self._left = validator, length, length
        self._skip()
        return response

    def _check_range(self, response: http.client.HTTPResponse) -> None:
        match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        whole = None if match is None or match[3] == "*" else int(match[3])
        if (
            match is None
            or int(match[1]) != self.position
            or (self.size is not None and whole not in (None, self.size))
        ):
            raise ImageChangedError(f"the server of {self._shown} sends another range than was asked for")
        self.size = whole if self.size is None else self.size

    def _skip(self) -> None:
        """A server without ranges sends all of it again: what is known already is read and let go."""
        left, memory = self.position, memoryview(bytearray(1 << 18))
        while left:
            self._check()
            count = self._some(memory[: min(left, len(memory))])
            if not count:
                raise ImageChangedError(f"{self._shown} is shorter now")
            left -= count
            self._alive = time.monotonic()

    # Going on

    def _drop(self, drop: _Dropped) -> None:
        """Waits a while before the rest is asked for. Raises OperationError UNREACHABLE when patience ends."""
        self._check()
        self.close()
        if self.position and self._validator is None and not self._has_checksum:
            raise ImageChangedError(
                f"{drop}, and the rest may be another image's: its server gives neither ETag nor date, and no "
                "checksum is named"
            )
        self._why = str(drop)
        quiet = time.monotonic() - self._alive
        if quiet + self._pause > self._patience:
            raise OperationError(
                ErrorCode.UNREACHABLE,
                f"{self._shown} could not be read on for {quiet:.0f} s: {drop}. {self._came_so_far()}",
                details={"received": self.position},
            )
        self._stop.wait(min(self._pause, max(0.0, self._deadline - time.monotonic())))
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        self.resumed += 1

    def _check(self) -> None:
        if self._stop.is_set():
            raise OperationError(ErrorCode.CANCELLED, f"the reading of {self._shown} was stopped")
        if time.monotonic() >= self._deadline:
            seconds = max(0.001, time.monotonic() - self._begun)
            why = f" ({self._why})" if self._why else f" ({self.position / seconds / 1024:.4g} KiB/s)"
            raise OperationError(
                ErrorCode.TIMEOUT,
                f"{self._shown} was not read within the time that was given. {self._came_so_far()}{why}",
                details={"received": self.position},
            )

    def _came_so_far(self) -> str:
        of = "" if self.size is None else f" of {gibibytes(self.size)}"
        return f"{gibibytes(self.position)}{of} had come"


def _checked(url: str, before: str | None = None) -> str:
    """Raises OperationError INVALID_ARGUMENT for what is no address of the web. `before`: what it was led on from."""
    try:
        parts = urlsplit(url)
        _ = parts.port, (parts.hostname or "").encode("idna")
    except ValueError:
        parts = urlsplit("")
    readable = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not parts.hostname or not readable:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT, f"{shown_address(url)!r} is no image address: write http://… or https://…"
        )
    if "@" in parts.netloc:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT,
            "the image address holds a user name or password, which would be kept with the command: offer the image "
            "under an address of its own instead",
        )
    if before is not None and urlsplit(before).scheme == "https" and parts.scheme == "http":
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT, f"{shown_address(before)} leads from https to http, which is not followed"
        )
    return url


def _validator(response: http.client.HTTPResponse) -> str | None:
    """What tells one state of the file from another: a strong entity tag, else the date (RFC 9110, 13.1.5)."""
    tag = response.headers.get("ETag", "").strip()
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")


def _refusal(response: http.client.HTTPResponse) -> str:
    """The reason, and what the server says of it in its first line, as far as that is plain text."""
    reason = response.reason
    if not response.headers.get("Content-Type", "").startswith("text/plain"):
        return reason
    with contextlib.suppress(OSError, http.client.HTTPException):
        said = response.read(_MOST_SAID).decode(errors="replace").partition("\n")[0]
        return ": ".join(filter(None, (reason, "".join(filter(str.isprintable, said)).strip())))
    return reason


def _length(response: http.client.HTTPResponse) -> int | None:
    if response.headers.get("Transfer-Encoding", "").lower() == "chunked":
        return None
    length: int | None = response.length
    return length


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "the server is silent"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
