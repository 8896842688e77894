"""Bytes over HTTP, as machines ask for them: in parts, first for the head, several times over, on a condition.

What lies in a file goes straight into the connection (`file_sending`), but under TLS. What is read lies in the page
cache nearly always, where it is read without a thread (`RWF_NOWAIT`); a thread reads what is not there.
"""

import asyncio
import contextlib
import errno
import os
import re
from collections.abc import Mapping
from email.utils import formatdate, parsedate_to_datetime
from typing import NamedTuple, Protocol

from aiohttp import web

from agent.file_sending import FileSender

__all__ = ["Content", "FileContent", "Plan", "asked_part", "plan_answer", "read_at", "serve"]

CHUNK = 256 * 1024
"""Of each reader that is read for, so many bytes are in memory at a time, and as many again in its connection."""
_MOST_UNSEEN = 8 << 20
"""After so many bytes the content is asked whether it is still the same."""
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})$")


class Content(Protocol):
    """Something of a known size."""

    @property
    def size(self) -> int: ...

    @property
    def etag(self) -> str:
        """In quotes. Another one for other bytes."""

    @property
    def changed_at(self) -> float:
        """Seconds since 1970."""

    @property
    def media_type(self) -> str: ...

    async def prepare(self, start: int, end: int) -> web.Response | None:
        """Before the answer is begun; another answer in its place where these bytes cannot be had."""

    def file_part(self, position: int) -> tuple[int, int] | None:
        """An open file whose bytes from this position on are the content's, and up to which position they are so;
        None where they have to be read. Raises ConnectionResetError as `read`."""

    async def read(self, start: int, length: int) -> bytes | bytearray | memoryview:
        """Some bytes from there, at least one. Raises ConnectionResetError where they cannot be had: an answer that
        ends early must not look whole."""


class FileContent:
    """An open file, whose handle stays its owner's."""

    def __init__(
        self,
        handle: int,
        size: int,
        changed_at: float,
        *,
        etag: str = "",
        media_type: str = "application/octet-stream",
    ) -> None:
        self.handle = handle
        self.size = size
        self.changed_at = changed_at
        self.etag = etag or f'"{size:x}-{int(changed_at * 1000):x}"'
        self.media_type = media_type

    async def prepare(self, start: int, end: int) -> web.Response | None:
        return None

    def file_part(self, position: int) -> tuple[int, int] | None:
        return self.handle, self.size

    async def read(self, start: int, length: int) -> bytes | bytearray | memoryview:
        return await read_at(self.handle, start, length)


class Plan(NamedTuple):
    """What is answered: the bytes from `start` to before `end` with 200 and 206, none with anything else."""

    status: int
    start: int = 0
    end: int = 0


def plan_answer(headers: Mapping[str, str], size: int, etag: str, changed_at: float) -> Plan:
    """By the conditions and the range that a request names (RFC 9110, 13.2.2 and 14.2)."""
    if "If-Match" in headers and not _names(headers["If-Match"], etag):
        return Plan(412)
    if "If-None-Match" in headers:
        if _names(headers["If-None-Match"], etag):
            return Plan(304)
    elif _is_unchanged_since(headers.get("If-Modified-Since"), changed_at):
        return Plan(304)
    wanted = headers.get("Range")
    if headers.get("If-Range", etag) not in (etag, formatdate(changed_at, usegmt=True)):
        wanted = None
    part = asked_part(wanted, size)
    if part is None:
        return Plan(416)
    return Plan(200 if wanted is None or part == (0, size) else 206, *part)


def asked_part(header: str | None, size: int) -> tuple[int, int] | None:
    """The bytes that a Range header asks for, as [start, end); all of them where it asks for several parts or for
    something else than bytes, which may be ignored (RFC 9110, 14.2). None where there are none of these bytes."""
    match = _RANGE.match(header.strip()) if header is not None else None
    if match is None or not any(match.groups()):
        return 0, size
    first, last = match.groups()
    if not first:
        return (max(0, size - int(last)), size) if int(last) else None
    start, end = int(first), min(int(last) + 1, size) if last else size
    if last and int(last) < start:
        return 0, size
    return (start, end) if start < size else None


async def serve(
    request: web.BaseRequest, content: Content, *, headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """The answer to a GET or HEAD, sent. Raises ConnectionResetError where either side breaks off."""
    if request.method not in ("GET", "HEAD"):
        return web.Response(status=405, headers={"Allow": "GET, HEAD"})
    plan = plan_answer(request.headers, content.size, content.etag, content.changed_at)
    if plan.status in (200, 206) and request.method == "GET":
        instead = await content.prepare(plan.start, plan.end)
        if instead is not None:
            return instead
        # Preparing may have renewed the content: what was conditional on its old state is decided anew.
        plan = plan_answer(request.headers, content.size, content.etag, content.changed_at)
    shown = {
        "Accept-Ranges": "bytes",
        "Cache-Control": "no-store",
        "ETag": content.etag,
        "Last-Modified": formatdate(content.changed_at, usegmt=True),
        **(headers or {}),
    }
    if plan.status == 416:
        return web.Response(status=416, headers={"Content-Range": f"bytes */{content.size}"})
    if plan.status not in (200, 206):
        return web.Response(status=plan.status, headers=shown)
    response = web.StreamResponse(status=plan.status, headers={"Content-Type": content.media_type, **shown})
    if plan.status == 206:
        response.headers["Content-Range"] = f"bytes {plan.start}-{plan.end - 1}/{content.size}"
    response.content_length = plan.end - plan.start
    await response.prepare(request)
    if request.method == "GET":
        await _send(request, response, content, plan)
    return response


async def _send(request: web.BaseRequest, response: web.StreamResponse, content: Content, plan: Plan) -> None:
    position = plan.start
    with contextlib.ExitStack() as stack:
        sender: FileSender | None = None
        while position < plan.end:
            # The first bytes take the head of the answer along.
            part = content.file_part(position) if sender is not None else None
            if sender is not None and part is not None:
                end = min(part[1], plan.end, position + _MOST_UNSEEN)
                await sender.send(part[0], position, end)
                position = end
                continue
            data = await content.read(position, min(CHUNK, plan.end - position))
            position += len(data)
            await response.write(data)
            if sender is None and position < plan.end and (sender := FileSender.of(request)) is not None:
                stack.enter_context(sender)


async def read_at(handle: int, start: int, length: int) -> bytes | bytearray | memoryview:
    """Raises ConnectionResetError where the file ends before `start`."""
    data: bytes | bytearray | memoryview | None = _read_cached(handle, start, length)
    if data is None:
        data = await asyncio.to_thread(os.pread, handle, length, start)
    if not data:
        raise ConnectionResetError("the file became shorter while it was sent")
    return data


def _read_cached(handle: int, start: int, length: int) -> bytearray | memoryview | None:
    """What is in memory of it; None where nothing is, or the file system cannot tell."""
    data = bytearray(length)
    try:
        count = os.preadv(handle, [data], start, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return None
        raise
    return data if count == length else memoryview(data)[:count]


def _names(header: str, etag: str) -> bool:
    return header.strip() == "*" or etag in {part.strip().removeprefix("W/") for part in header.split(",")}


def _is_unchanged_since(header: str | None, changed_at: float) -> bool:
    if header is None:
        return False
    try:
        return int(changed_at) <= parsedate_to_datetime(header).timestamp()
    except (ValueError, TypeError, OverflowError):
        return False
