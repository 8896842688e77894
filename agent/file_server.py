"""Files for machines that fetch them by themselves: HTTP, each under a path that nobody can guess, for a while.

It listens only while something is offered, or still on its way. A BMC may ask for parts, first for the head, and
several times over. What it has begun to fetch before an offer ran out it may finish, within a bound; nothing begins
after that.
"""

import asyncio
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import structlog
from aiohttp import web

from agent.byte_serving import FileContent, serve
from agent.http_listener import HttpListener
from protocol.errors import OperationError

__all__ = ["FileServer", "safe_name"]

_log = structlog.get_logger("agent.file_server")
_LAST_TRANSFER_SECONDS = 900.0
"""What was begun before its offer ran out may go on for so long."""
_STOP_SECONDS = 2.0
"""The same, where the offer was withdrawn: whoever offered it has no use for it any more."""


@dataclass(slots=True)
class _Offer:
    """A file that may be fetched. Its handle is its own, so that nothing that happens to the path matters."""

    handle: int
    name: str
    size: int
    changed_at: float
    ends: asyncio.TimerHandle | None = None
    transfers: set[asyncio.Timeout] = field(default_factory=set)
    """One for each answer that is on its way."""


class FileServer:
    """`listen`: `host:port`, or `:port` for all addresses of this host. `url`: how machines reach it, where that is
    not this host's address and the port (behind a proxy, or with a name)."""

    def __init__(self, listen: str, url: str = "") -> None:
        self._listener = HttpListener(listen, self._answer, setting="files")
        self._url = url.rstrip("/")
        self._offers: dict[str, _Offer] = {}
        self._on_their_way = 0
        self._lock = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def is_up(self) -> bool:
        return self._listener.is_up

    async def offer(self, file: Path | BinaryIO, name: str, lifetime: float, *, reached_by: str = "") -> str:
        """An address whose last part is `name`. Transfers may begin for `lifetime` seconds, or until it is withdrawn.

        An open file is taken over as it is and may be closed afterwards. `reached_by`: the host that will fetch it,
        so that an address of ours is given that it can reach. Raises OperationError CONFLICT where nothing can
        listen, OSError for a path that cannot be opened.
        """
        taken = _taken(file, safe_name(name))
        try:
            return await self._offered(taken, lifetime, reached_by)
        except BaseException:
            os.close(taken.handle)
            raise

    async def _offered(self, offer: _Offer, lifetime: float, reached_by: str) -> str:
        async with self._lock:
            await self._listener.start()
            try:
                base = self._url or await self._listener.address(reached_by)
            except OperationError:
                await self._stop_unused()
                raise
            token = secrets.token_urlsafe(24)
            self._offers[token] = offer
            offer.ends = asyncio.get_running_loop().call_later(lifetime, self._end, token, _LAST_TRANSFER_SECONDS)
        _log.info("file_offered", name=offer.name, bytes=offer.size, seconds=round(lifetime))
        return f"{base}/files/{token}/{offer.name}"

    async def withdraw(self, url: str) -> None:
        """Ends an offer; transfers under way end within seconds. Safe to call twice."""
        self._end(url.rpartition("/")[0].rpartition("/")[2], _STOP_SECONDS)
        await self._settled()

    async def aclose(self) -> None:
        """Ends every offer and every transfer."""
        for token in list(self._offers):
            self._end(token, 0.0)
        async with self._lock:
            await self._listener.stop()
        await self._settled()

    def _end(self, token: str, patience: float) -> None:
        """From now on no transfer of it begins; those under way have `patience` seconds left."""
        offer = self._offers.pop(token, None)
        if offer is None:
            return
        if offer.ends is not None:
            offer.ends.cancel()
        os.close(offer.handle)
        until = asyncio.get_running_loop().time() + patience
        for transfer in offer.transfers:
            transfer.reschedule(until)
        self._look_for_use()

    def _look_for_use(self) -> None:
        """Stops listening once nothing is offered and nothing on its way."""
        if not self._offers and not self._on_their_way:
            task = asyncio.get_running_loop().create_task(self._stop_unused_alone())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _stop_unused_alone(self) -> None:
        async with self._lock:
            await self._stop_unused()

    async def _stop_unused(self) -> None:
        if not self._offers and not self._on_their_way:
            await self._listener.stop()

    async def _settled(self) -> None:
        await asyncio.gather(*self._ending)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        _, _, rest = request.path.partition("/files/")
        token, _, name = rest.partition("/")
        offer = self._offers.get(token)
        if offer is None or name != offer.name:
            return web.Response(status=404)
        # A handle of its own: the offer may end while this goes on.
        handle = os.dup(offer.handle)
        self._on_their_way += 1
        try:
            async with asyncio.timeout(None) as transfer:
                offer.transfers.add(transfer)
                response = await serve(request, FileContent(handle, offer.size, offer.changed_at))
        except TimeoutError:
            _log.warning("file_cut_off", name=offer.name, by=request.remote, reason="its offer has ended")
            raise ConnectionResetError("the offer has ended") from None
        finally:
            offer.transfers.discard(transfer)
            os.close(handle)
            self._on_their_way -= 1
            self._look_for_use()
        _log.info(
            "file_fetched", name=offer.name, by=request.remote, method=request.method, bytes=response.content_length
        )
        return response


def _taken(file: Path | BinaryIO, name: str) -> _Offer:
    if isinstance(file, Path):
        with file.open("rb") as opened:
            return _taken(opened, name)
    handle = os.dup(file.fileno())
    status = os.fstat(handle)
    return _Offer(handle, name, status.st_size, status.st_mtime)


def safe_name(name: str) -> str:
    """A name without anything that a BMC's parser may stumble over (Supermicro X12 refuses `?` and `=`); its end, by
    which many know the kind of image, stays."""
    return re.sub(r"%", "_", quote(Path(name).name, safe="+-._()~")) or "file.bin"
