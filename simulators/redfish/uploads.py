"""Uploads as they come in: measured and hashed, and never held in memory whole."""

import hashlib
from collections.abc import AsyncIterable, AsyncIterator
from email.message import Message

from aiohttp import BodyPartReader, web

from simulators.redfish.documents import Upload

__all__ = ["KEPT", "receive"]

KEPT = 64 * 1024
"""Bytes of a part that are kept: all of the parameters, and the beginning of an image."""
_CHUNK = 256 * 1024


async def receive(incoming: web.BaseRequest) -> tuple[bytes, tuple[Upload, ...]]:
    """The body with its files cut off after KEPT bytes, and what the files were.

    A form that cannot be read as one is handed on as it began; the handler refuses it.
    """
    if not incoming.body_exists:
        return b"", ()
    if not incoming.content_type.startswith("multipart/"):
        kept, upload = await _measured("", incoming.content.iter_chunked(_CHUNK))
        return kept, (upload,) if upload.size else ()
    return await _form(incoming)


async def _form(incoming: web.BaseRequest) -> tuple[bytes, tuple[Upload, ...]]:
    uploads: list[Upload] = []
    body = b""
    try:
        reader = await incoming.multipart()
        mark = f"--{_boundary(incoming)}".encode()
        while (part := await reader.next()) is not None:
            if not isinstance(part, BodyPartReader):
                break
            kept, upload = await _measured(part.filename or "", _chunks(part))
            head = b"".join(f"{name}: {value}\r\n".encode() for name, value in part.headers.items())
            body += mark + b"\r\n" + head + b"\r\n" + kept + b"\r\n"
            if part.filename:
                uploads.append(upload)
    except (ValueError, RuntimeError, AssertionError):
        rest, _ = await _measured("", incoming.content.iter_chunked(_CHUNK))
        return body + rest, tuple(uploads)
    return body + mark + b"--\r\n", tuple(uploads)


def _boundary(incoming: web.BaseRequest) -> str:
    head = Message()
    head["Content-Type"] = incoming.headers.get("Content-Type", "")
    return str(head.get_param("boundary") or "")


async def _chunks(part: BodyPartReader) -> AsyncIterator[bytes]:
    while chunk := await part.read_chunk(_CHUNK):
        yield chunk


async def _measured(name: str, chunks: AsyncIterable[bytes]) -> tuple[bytes, Upload]:
    digest, size, kept = hashlib.sha256(), 0, b""
    async for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
        if len(kept) < KEPT:
            kept += bytes(chunk[: KEPT - len(kept)])
    return kept, Upload(name, size, digest.hexdigest())
