"""A request body that is sent while it is read: of known length, in constant memory, once."""

import json
import re
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol
from urllib.parse import quote

from drivers.redfish.document import Document
from protocol.errors import OperationError

__all__ = ["CHUNK", "Content", "Upload", "as_it_is", "ilo_form", "redfish_form"]

CHUNK = 256 * 1024
"""Bytes read at a time."""


class Content(Protocol):
    """The large part of a body: an open file, or an answer that still comes in."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Its bytes, once. Raises OperationError where it ends before its size, or cannot be read any more."""


class Upload:
    """A body in the making. `sent` counts the bytes that the connection has taken, `failure` is why reading ended."""

    def __init__(
        self,
        parts: Sequence[bytes | Content],
        content_type: str,
        *,
        headers: dict[str, str] | None = None,
        told: Callable[[int, int], None] | None = None,
    ) -> None:
        self._parts = parts
        self._told = told
        self.length = sum(len(part) if isinstance(part, bytes) else part.size for part in parts)
        self.headers = {"Content-Type": content_type, "Content-Length": str(self.length), **(headers or {})}
        self.sent = 0
        self._handed = 0
        self.failure: OperationError | None = None
        self.on_progress: Callable[[], None] = _nobody

    @property
    def is_whole(self) -> bool:
        """Whether all of it may have left. The BMC cannot have used a body of which a part never did."""
        return self._handed >= self.length

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes; a chunk counts as sent when the connection asks for the next one."""
        try:
            for part in self._parts:
                async for chunk in _one(part) if isinstance(part, bytes) else part.chunks():
                    self._handed += len(chunk)
                    yield chunk
                    self._took(chunk)
        except OperationError as error:
            self.failure = error
            raise

    def _took(self, chunk: bytes) -> None:
        self.sent += len(chunk)
        self.on_progress()
        if self._told is not None:
            self._told(self.sent, self.length)


def as_it_is(content: Content, told: Callable[[int, int], None] | None = None) -> Upload:
    """The image alone (DSP0266, HttpPushUri)."""
    disposition = {"Content-Disposition": f'attachment; filename="{_quotable(content.name)}"'}
    return Upload([content], "application/octet-stream", headers=disposition, told=told)


def redfish_form(content: Content, parameters: Document, told: Callable[[int, int], None] | None = None) -> Upload:
    """UpdateParameters as JSON, then the image as UpdateFile (DSP0266, MultipartHttpPushUri), in this order."""
    return _form(
        [
            _part("UpdateParameters", json.dumps(parameters).encode(), "application/json"),
            _file("UpdateFile", content),
        ],
        told=told,
    )


def ilo_form(content: Content, session_key: str, told: Callable[[int, int], None] | None = None) -> Upload:
    """HPE's own form for /cgi-bin/uploadFile: the session's key, what to do with the image, the image.

    It is put onto its target, and not into the repository. Source: HPE's python-ilorest-library.
    """
    wanted = {"UpdateRepository": False, "UpdateTarget": True, "ETag": "rackwright", "Section": 0}
    return _form(
        [
            _part("sessionKey", session_key.encode()),
            _part("parameters", json.dumps(wanted).encode()),
            _file("file", content),
        ],
        headers={"Cookie": f"sessionKey={session_key}"},
        told=told,
    )


def _form(
    parts: Sequence[list[bytes | Content]],
    *,
    headers: dict[str, str] | None = None,
    told: Callable[[int, int], None] | None = None,
) -> Upload:
    boundary = f"rackwright-{secrets.token_hex(16)}"
    body: list[bytes | Content] = []
    for part in parts:
        body.append(f"--{boundary}\r\n".encode())
        body += [*part, b"\r\n"]
    body.append(f"--{boundary}--\r\n".encode())
    return Upload(body, f"multipart/form-data; boundary={boundary}", headers=headers, told=told)


def _part(name: str, value: bytes, content_type: str = "") -> list[bytes | Content]:
    kind = f"Content-Type: {content_type}\r\n" if content_type else ""
    return [f'Content-Disposition: form-data; name="{name}"\r\n{kind}\r\n'.encode() + value]


def _file(name: str, content: Content) -> list[bytes | Content]:
    head = (
        f'Content-Disposition: form-data; name="{name}"; filename="{_quotable(content.name)}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    return [head.encode(), content]


def _quotable(name: str) -> str:
    """A file name that no header parser stumbles over: its end tells many BMCs what the image is."""
    return re.sub(r"%", "_", quote(name, safe=" +-._()~")) or "image.bin"


async def _one(chunk: bytes) -> AsyncIterator[bytes]:
    yield chunk


def _nobody() -> None:
    """Progress that nobody waits for."""
