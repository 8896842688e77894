"""One download from an origin, which many may read while it is under way.

It goes on where it was cut, also by the end of an earlier process, and is whole only once its checksum is the
published one. Until then the last bytes are kept back from whoever reads along, so that a half or a wrong image never
looks whole. Bytes that turn out to be of another version, or damaged, are thrown away, and their readers are cut off.
"""

import asyncio
import hashlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import aiohttp
import msgspec
import structlog

from agent.byte_serving import read_at
from agent.files import sync_folder, write_durably
from drivers.image_access import ForbiddenAddress, ImageAccess
from protocol.errors import ErrorCode, OperationError

__all__ = ["Download", "Origin", "Room"]

_log = structlog.get_logger("agent.image_download")
KEPT_BACK = 4096
"""Bytes at the end that are given out only when all is known to be right."""
_PIECE = 1 << 20
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before each attempt that follows one without progress; after the last one it is given up."""
_MOST_BEGINNINGS = 4
"""How often an origin may make us begin anew."""
_CONNECT_SECONDS = 20.0
_SILENCE_SECONDS = 60.0
_PACE_BYTES, _PACE_SECONDS = 1 << 20, 60.0
"""An origin that gives less in that time is asked anew, and given up after some times."""
_FATAL = frozenset({400, 401, 403, 404, 405, 407, 410, 451})
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)$")


class Room(Protocol):
    """Where a cache says whether so many bytes may be stored."""

    async def claim(self, digest: str, size: int) -> None:
        """May be asked again for the same. Raises OperationError CONFLICT, and OSError."""


class _Begun(msgspec.Struct, frozen=True):
    """Beside a part: of which version it is."""

    validator: str
    size: int


class _Again(Exception):
    """What is on the disk is of no use: from the beginning."""


class _Broken(Exception):
    """The attempt came to nothing, and another one may not."""


class _Trickles(_Broken):
    """It gives something, and would take days: that counts as nothing."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an image comes from: `client` leads nowhere but where `access` lets it."""

    client: aiohttp.ClientSession
    url: str
    access: ImageAccess
    login: str | None = field(default=None, repr=False)
    """The header Authorization; it goes to this server, and not to where that redirects."""


class Download:
    """`digest`: `sha256-` or `sha512-` and hexadecimal digits. `target` is there only once all is right. `ended` is
    called once, however it has ended."""

    def __init__(
        self,
        origin: Origin,
        digest: str,
        target: Path,
        room: Room,
        ended: "Callable[[Download], None]",
    ) -> None:
        self.digest = digest
        self.size = -1
        """-1 until the origin has said it."""
        self.generation = 0
        """Grows when the bytes so far are thrown away."""
        self.failure: OperationError | None = None
        self._origin = origin
        self._target = target
        self._part = target.with_name(f"{target.name}.part")
        self._about = target.with_name(f"{target.name}.about")
        self._room = room
        self._ended = ended
        self._handle = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._users = 0
        self._have = 0
        self._verified = False
        self._whole = False
        self._pieced = False
        """What is here came by more than one answer, or from an earlier process."""
        self._validator = ""
        self._pulse: asyncio.Future[None] | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def started(self) -> None:
        """Returns once the size is known. Raises OperationError where it failed before."""
        while self.size < 0 and self.failure is None:
            await self._changed()
        if self.size < 0 and self.failure is not None:
            raise self.failure

    def file_part(self, generation: int, position: int) -> tuple[int, int] | None:
        """The open file, and how far its bytes may be given out; None where those from there on are waited for."""
        if self.generation != generation or self.failure is not None:
            raise ConnectionResetError("the image could not be fetched whole")
        return (self._handle, self._given_out) if position < self._given_out else None

    @property
    def _given_out(self) -> int:
        return self._have if self._verified else min(self._have, self.size - KEPT_BACK)

    async def read(self, generation: int, start: int, length: int) -> bytes | bytearray | memoryview:
        """Waits for bytes from there on. Raises ConnectionResetError where they will not come."""
        while self.generation == generation and self.failure is None:
            there = self._given_out
            if start < there:
                data = await read_at(self._handle, start, min(length, there - start))
                if self.generation != generation:
                    break
                return data
            await self._changed()
        raise ConnectionResetError("the image could not be fetched whole")

    @property
    def is_over(self) -> bool:
        return self._whole or self.failure is not None

    def acquire(self) -> None:
        """Somebody reads along."""
        self._users += 1

    def release(self) -> None:
        self._users -= 1
        self._close_unused()

    async def aclose(self) -> None:
        """Stops; what was fetched so far is gone on with by the next process."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _close_unused(self) -> None:
        if self.is_over and not self._users and self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    async def _changed(self) -> None:
        if self._pulse is None:
            self._pulse = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._pulse)

    def _tell(self) -> None:
        if self._pulse is not None:
            self._pulse.set_result(None)
            self._pulse = None

    async def _run(self) -> None:
        try:
            await self._fetch_whole()
        except OperationError as error:
            self.failure = error
            _log.error("image_not_fetched", digest=self.digest, reason=error.message)
        except OSError as error:
            self.failure = OperationError(
                ErrorCode.CONFLICT,
                f"the image cannot be stored on the site's host: {error.strerror}. Free space, or set boot.cache_dir "
                "to another disk",
            )
            _log.error("image_not_stored", digest=self.digest, reason=str(error))
        except asyncio.CancelledError:
            self.failure = OperationError(ErrorCode.INTERRUPTED, "the site's agent stops")
            raise
        except Exception as error:
            _log.exception("image_download_failed", digest=self.digest)
            failed = f"the image could not be fetched: {type(error).__name__}"
            self.failure = OperationError(ErrorCode.INTERRUPTED, failed)
        finally:
            self._tell()
            self._close_unused()
            self._ended(self)

    async def _fetch_whole(self) -> None:
        hasher = await self._inherit()
        idle = beginnings = 0
        wrong = ""
        while True:
            before = self._have
            try:
                if self._have != self.size:
                    await self._attempt(hasher)
                checksum = hasher.hexdigest()
                if checksum == self.digest.partition("-")[2]:
                    break
                if self._pieced:
                    raise _Again("the parts do not fit together")
                # One answer may be cut short or damaged on its way; the same bytes twice are the origin's own.
                if checksum == wrong:
                    raise await self._other_image(checksum)
                wrong = checksum
                raise _Again(f"it has the checksum {checksum}")
            except _Again as reason:
                beginnings += 1
                if beginnings > _MOST_BEGINNINGS:
                    raise OperationError(
                        ErrorCode.UNREACHABLE, f"the image's origin does not give it whole: {reason}"
                    ) from None
                _log.warning("image_begun_anew", digest=self.digest, reason=str(reason))
                hasher = await self._begin_anew()
            except (_Broken, aiohttp.ClientError, ForbiddenAddress, TimeoutError) as error:
                refused = self._origin.access.refusal(error, "the image of this address")
                if refused is not None:
                    raise refused from None
                idle = 0 if self._have > before and not isinstance(error, _Trickles) else idle + 1
                if idle > len(_PAUSES):
                    raise OperationError(
                        ErrorCode.UNREACHABLE, f"the image's origin does not give it: {_said(error)}"
                    ) from None
                _log.warning("image_download_cut", digest=self.digest, have=self._have, reason=_said(error))
                await asyncio.sleep(_PAUSES[max(0, idle - 1)])
        # Who reads along need not wait for the disk.
        self._verified = True
        self._tell()
        await self._with_file(self._complete)
        self._whole = True
        _log.info("image_fetched", digest=self.digest, bytes=self.size)

    async def _other_image(self, checksum: str) -> OperationError:
        await asyncio.to_thread(self._forget)
        return OperationError(
            ErrorCode.INVALID_ARGUMENT,
            f"the image of the origin has the checksum {checksum}: it is another one than was asked for",
        )

    async def _inherit(self) -> "hashlib._Hash":
        """What an earlier process has fetched, as far as it is known of which version it is."""
        hasher = self._new_hash()
        try:
            about = msgspec.json.decode(self._about.read_bytes(), type=_Begun)
        except (OSError, msgspec.MsgspecError):
            return await self._begin_anew()
        have = min(os.fstat(self._handle).st_size, about.size)
        if have:
            await self._room.claim(self.digest, about.size)
            await self._with_file(_hash_file, hasher, self._handle, have)
            self.size, self._have, self._validator, self._pieced = about.size, have, about.validator, True
            self._tell()
        return hasher

    async def _begin_anew(self) -> "hashlib._Hash":
        self.generation += 1
        self._have, self._pieced, self._validator = 0, False, ""
        await asyncio.to_thread(os.ftruncate, self._handle, 0)
        self._tell()
        return self._new_hash()

    def _new_hash(self) -> "hashlib._Hash":
        return hashlib.new(self.digest.partition("-")[0])

    async def _attempt(self, hasher: "hashlib._Hash") -> None:
        """Fetches what is missing. Raises _Again, _Broken, ClientError, TimeoutError, OSError and OperationError."""
        headers = {"Accept-Encoding": "identity"}
        if self._have:
            headers["Range"] = f"bytes={self._have}-"
            if self._validator:
                headers["If-Range"] = self._validator
            self._pieced = True
        timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS)
        if self._origin.login is not None:
            headers["Authorization"] = self._origin.login
        ask = self._origin.client.get
        async with ask(self._origin.url, headers=headers, timeout=timeout, read_bufsize=_PIECE) as answer:
            _check_status(answer)
            size = self._told_size(answer)
            await self._room.claim(self.digest, size)
            await self._note(answer, size)
            pace = _Pace(self._have)
            async for piece in answer.content.iter_chunked(_PIECE):
                if self._have + len(piece) > size:
                    raise _Broken("it sends more than it has said")
                await self._with_file(self._store, piece, hasher)
                self._have += len(piece)
                self._tell()
                pace.check(self._have)
            if self._have < size:
                raise _Broken(f"it has sent {self._have} of {size} bytes")

    def _told_size(self, answer: aiohttp.ClientResponse) -> int:
        """The whole image's. Raises _Again where the answer does not go on where the part ends."""
        if answer.status == 206:
            match = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
            if match is None or int(match[1]) != self._have or self.size not in (-1, int(match[2])):
                raise _Again("it sends another part than was asked for")
            return int(match[2])
        if self._have:
            raise _Again("it has another version now, or sends no parts")
        if answer.content_length is None:
            raise OperationError(
                ErrorCode.CONFLICT, "the image's origin does not say how large it is, so that it cannot be kept here"
            )
        return answer.content_length

    async def _note(self, answer: aiohttp.ClientResponse, size: int) -> None:
        """Of which version the part is, on the disk before its first byte."""
        etag = answer.headers.get("ETag", "")
        validator = etag if etag and not etag.startswith("W/") else answer.headers.get("Last-Modified", "")
        if size != self.size or validator != self._validator:
            if self.size not in (-1, size):
                self.generation += 1
            self.size, self._validator = size, validator
            about = msgspec.json.encode(_Begun(validator, size))
            await asyncio.to_thread(write_durably, self._about, about, durable=False)
        self._tell()

    async def _with_file(self, function: Callable[..., None], *arguments: object) -> None:
        """In a thread. Who is cancelled meanwhile waits for it: the file is closed next, its number given anew."""
        work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            raise

    def _store(self, piece: bytes, hasher: "hashlib._Hash") -> None:
        written = 0
        view = memoryview(piece)
        while written < len(piece):
            written += os.pwrite(self._handle, view[written:], self._have + written)
        hasher.update(piece)

    def _complete(self) -> None:
        """Under its own name only once every byte is on the disk."""
        os.ftruncate(self._handle, self.size)
        os.fsync(self._handle)
        self._part.replace(self._target)
        sync_folder(self._target.parent)
        self._about.unlink(missing_ok=True)

    def _forget(self) -> None:
        for file in (self._part, self._about):
            file.unlink(missing_ok=True)


class _Pace:
    """Whether it comes fast enough to be waited for."""

    def __init__(self, have: int) -> None:
        self._until = time.monotonic() + _PACE_SECONDS
        self._before = have

    def check(self, have: int) -> None:
        """Raises _Trickles."""
        if time.monotonic() < self._until:
            return
        if have - self._before < _PACE_BYTES:
            raise _Trickles(f"it has sent {have - self._before} bytes in {_PACE_SECONDS:.0f} s")
        self._until, self._before = time.monotonic() + _PACE_SECONDS, have


def _check_status(answer: aiohttp.ClientResponse) -> None:
    if answer.status == 416:
        raise _Again("it has fewer bytes than it had")
    if answer.status in _FATAL:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT, f"the image's origin answers {answer.status} {answer.reason or ''}".rstrip()
        )
    if answer.status not in (200, 206):
        raise _Broken(f"it answers {answer.status}")


def _hash_file(hasher: "hashlib._Hash", handle: int, length: int) -> None:
    position = 0
    while position < length:
        data = os.pread(handle, min(_PIECE, length - position), position)
        hasher.update(data)
        position += len(data)


def _said(error: BaseException) -> str:
    """Without the address, whose query may be a secret."""
    if isinstance(error, aiohttp.InvalidURL | aiohttp.ClientResponseError):
        return type(error).__name__
    return str(error) or type(error).__name__
