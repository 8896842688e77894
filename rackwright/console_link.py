"""A console behind the control plane's API: a websocket that comes back after a cut."""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from control_plane.api.shapes.console import (
    BreakMessage,
    EndedMessage,
    GapMessage,
    OpenedMessage,
    ReadyMessage,
    ServerMessage,
    TakeMessage,
    WriterMessage,
)
from protocol.errors import ErrorCode, OperationError, RackwrightError, RequestCode, RequestError
from rackwright.client import Client, WebsocketPlace, refusal
from rackwright.console_session import Bytes, Closed, Note, Notice

__all__ = ["ConsoleLink"]

_LARGEST: Final = 1 << 20
_OPEN_SECONDS: Final = 20.0
_PATIENCE_SECONDS: Final = 120.0
"""How long a control plane that is away is waited for."""
_DELAYS: Final = (0.5, 1.0, 2.0, 5.0)
_AGAIN_BYTES: Final = 4_096
"""Of the output so far, shown once more after a cut: what came meanwhile is among it, as a rule."""
_PIECE: Final = 16_384
_quiet = logging.getLogger("rackwright.websocket")
# At its debug level the library logs headers, and one of them is the token.
_quiet.setLevel(logging.WARNING)


class _NoRedirects(connect):
    """The token is for this control plane alone."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class ConsoleLink:
    """`async with ConsoleLink(client, node, query) as far:`; raises RequestError when it is refused at once."""

    def __init__(self, client: Client, node: str, query: Mapping[str, str]) -> None:
        self._client = client
        self._node = node
        self._query = dict(query)
        self._connection: ClientConnection | None = None
        self._is_writer = False
        self._holder: str | None = None
        self._told_read_only = False
        self._notes: list[Notice] = []
        self._changed = asyncio.Event()
        self._ready = asyncio.Event()

    async def __aenter__(self) -> "ConsoleLink":
        self._connection = await self._dial(self._query)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def next(self) -> Notice:
        while True:
            if self._notes:
                return self._notes.pop(0)
            connection = self._connection
            assert connection is not None
            receiving = asyncio.ensure_future(connection.recv())
            noted = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait((receiving, noted), return_when=asyncio.FIRST_COMPLETED)
                if not receiving.done():
                    self._changed.clear()
                    continue
                notice = self._taken(receiving.result())
            except ConnectionClosed as error:
                notice = await self._come_back(_reason(error))
            finally:
                receiving.cancel()
                noted.cancel()
            if notice is not None:
                return notice

    async def type(self, keys: bytes) -> None:
        """What is typed before the console is open waits for it."""
        if self._query.get("readOnly") != "true":
            await self._ready.wait()
        if not self._is_writer:
            if not self._told_read_only and self._query.get("readOnly") != "true":
                self._told_read_only = True
                self._note(f"only {self._holder or 'nobody'} types here: the escape key and w make it you")
            return
        for start in range(0, len(keys), _PIECE):
            await self._send(keys[start : start + _PIECE])

    async def send_break(self) -> None:
        await self._send(msgspec.json.encode(BreakMessage()).decode())

    async def take_writer(self) -> None:
        if self._query.get("readOnly") == "true":
            self._note("this session is read-only: start it without --read-only to type")
        else:
            await self._send(msgspec.json.encode(TakeMessage()).decode())

    def _note(self, text: str) -> None:
        self._notes.append(Note(text))
        self._changed.set()

    async def _send(self, message: str | bytes) -> None:
        try:
            if self._connection is not None:
                await self._connection.send(message)
        except ConnectionClosed:
            # Keys that were pressed before a cut must not be obeyed after it; `next` tells of the cut.
            return

    def _taken(self, message: str | bytes) -> Notice | None:
        if isinstance(message, bytes):
            return Bytes(message)
        try:
            news = msgspec.json.decode(message, type=ServerMessage)
        except msgspec.DecodeError:
            # A newer control plane's word, which this version need not know.
            return None
        match news:
            case OpenedMessage():
                self._is_writer, self._holder = news.writer, news.holder
                if news.ready:
                    self._ready.set()
                if not news.writer and self._query.get("readOnly") != "true":
                    return Note(f"{news.holder} types here; you read along (the escape key and w make it you)")
            case ReadyMessage():
                self._ready.set()
            case WriterMessage():
                self._is_writer, self._holder, self._told_read_only = news.mine, news.holder, False
                return Note("you type now" if news.mine else f"{news.holder} types now; you read along")
            case GapMessage():
                return Note(f"{news.bytes} bytes are missing here: this connection was too slow")
            case EndedMessage():
                if news.reason == "away":
                    return None
                return Closed(_error_of(news))
        return None

    async def _come_back(self, reason: str) -> Notice:
        """Connects again, for some minutes. What is typed meanwhile is dropped."""
        self._is_writer = False
        loop = asyncio.get_running_loop()
        until, delays = loop.time() + _PATIENCE_SECONDS, iter(_DELAYS)
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
        while True:
            await asyncio.sleep(next(delays, _DELAYS[-1]))
            try:
                self._connection = await self._dial({**self._query, "force": "false", "replay": str(_AGAIN_BYTES)})
            except RequestError as error:
                if error.code is not RequestCode.UNAVAILABLE or loop.time() > until:
                    return Closed(error)
                continue
            return Note(f"the connection was cut ({reason}) and is back; the last output follows once more")

    async def _dial(self, query: Mapping[str, str]) -> ClientConnection:
        """Raises RequestError."""
        place = self._client.websocket(f"/console/{self._node}", query)
        wrong: list[str] = []
        options: dict[str, Any] = {
            "additional_headers": place.headers,
            "ssl": place.context,
            "create_connection": lambda *words, **more: _Pinned(*words, pin=place.pin, wrong=wrong, **more),
            "proxy": None,
            "compression": None,
            "max_size": _LARGEST,
            "open_timeout": _OPEN_SECONDS,
            "close_timeout": 2,
            "user_agent_header": "rackwright",
            "logger": _quiet,
        }
        try:
            return await _NoRedirects(place.uri, **options)
        except InvalidStatus as error:
            raise refusal(error.response.status_code, bytes(error.response.body or b"")) from error
        except (OSError, InvalidHandshake, TimeoutError, EOFError) as error:
            raise _unreachable(error, place, wrong) from error


class _Pinned(ClientConnection):
    """Looks at the server's certificate before anything is sent to it, the token least of all."""

    def __init__(self, *words: Any, pin: str | None, wrong: list[str], **more: Any) -> None:
        super().__init__(*words, **more)
        self._pin = pin
        self._wrong = wrong

    def connection_made(self, transport: Any) -> None:
        tls = transport.get_extra_info("ssl_object")
        if self._pin is not None and tls is not None:
            seen = hashlib.sha256(tls.getpeercert(binary_form=True) or b"").hexdigest()
            if seen != self._pin:
                self._wrong.append(seen)
                transport.abort()
        super().connection_made(transport)


def _unreachable(error: Exception, place: WebsocketPlace, wrong: list[str]) -> RequestError:
    if wrong:
        return RequestError(
            RequestCode.UNAVAILABLE,
            f"{place.name} shows another certificate (sha256:{wrong[0]}) than the pinned one",
        )
    words = getattr(error, "verify_message", None)
    if words:
        return RequestError(
            RequestCode.UNAVAILABLE,
            f"the certificate of {place.name} is not trusted ({words}): name its CA (--ca), or pin it (--pin)",
        )
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return RequestError(
        RequestCode.UNAVAILABLE, f"{place.name} cannot be reached: {why}: is the address right, and does it run?"
    )


def _error_of(news: EndedMessage) -> RackwrightError:
    """What the command fails with when the console ends by itself."""
    code = news.code or ""
    if code in ErrorCode.__members__:
        return OperationError(ErrorCode(code), news.message)
    if code in RequestCode.__members__:
        return RequestError(RequestCode(code), news.message)
    return OperationError(ErrorCode.INTERRUPTED, f"the console is over: {news.message}")


def _reason(error: ConnectionClosed) -> str:
    return error.rcvd.reason if error.rcvd is not None and error.rcvd.reason else "no word came"
