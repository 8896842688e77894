"""One HTTP exchange with a BMC: bounded in time and size, sent once, never redirected, its failures told apart."""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from multidict import CIMultiDictProxy
from yarl import URL

from drivers.redfish import tls
from drivers.redfish.clients import Clients
from drivers.redfish.document import Document
from drivers.redfish.failures import NoAnswer, NotSent
from drivers.target import Target
from protocol.addresses import Scheme, TlsMode
from protocol.errors import ErrorCode, OperationError

__all__ = ["LARGEST_BODY", "Answer", "Transport"]

LARGEST_BODY = 16 * 1024 * 1024
"""Bytes of one answer; the largest true ones (attribute registries) are 2 to 3 MiB."""
_CONNECT_SECONDS = 10.0
_KNOWN_URLS = 256
_MOST_DROPS = 3
_CHANGES = frozenset({"POST", "PATCH", "PUT", "DELETE"})
_HALF_A_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the BMC answered."""

    method: str
    path: str
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def document(self) -> Document:
        """The body as a JSON object, whatever its content type says. Raises OperationError BMC_ERROR."""
        value = _parsed(self.body)
        if isinstance(value, dict):
            return value
        raise OperationError(
            ErrorCode.BMC_ERROR,
            f"{self.method} {self.path}: {_what_it_is(self.body, self.headers.get('Content-Type', ''))}",
            details={"status": self.status},
        )

    def said(self) -> object:
        """The body for its messages: JSON where it is JSON, plain text where it is that, None for anything else."""
        value = _parsed(self.body)
        if value is not None or not self.body or _is_markup(self.body):
            return value
        return self.body[:500].decode("utf-8", "replace")


class Transport:
    """Exchanges with one BMC. Knows nothing of logins: the caller gives the headers."""

    def __init__(self, target: Target, endpoint: str, pins: dict[str, str]) -> None:
        address = target.parsed
        self.endpoint = endpoint
        self._host, self._port = address.host, address.port
        self._base = f"{address.scheme}://{address.netloc}"
        self._policy = target.tls if address.scheme is Scheme.HTTPS else None
        self._pins = pins
        self._trust: tls.Trust | None = None
        self._trusted_pin: str | None = None
        self._clients: Clients | None = None
        self._urls: dict[str, URL] = {}
        self._keeps_connections = True
        self._drops = 0

    @property
    def first_use_pin(self) -> str | None:
        """The certificate taken on first use; None under any other policy."""
        if self._policy is not None and self._policy.mode is TlsMode.FIRST_USE:
            return self._pins.get(self.endpoint)
        return None

    async def aclose(self) -> None:
        clients, self._clients = self._clients, None
        if clients is not None:
            await clients.give_back()

    async def exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        timeout: float,
        body: bytes | None = None,
        *,
        fresh: bool = False,
    ) -> Answer:
        """Sends one request once. Raises NotSent, NoAnswer, or OperationError for an answer that is no use.

        A change goes out on a fresh connection, and so does a read when `fresh`.
        """
        if timeout <= 0:
            raise NotSent(ErrorCode.TIMEOUT, f"no time was left for {method} {path}")
        changes = method in _CHANGES
        clock = asyncio.get_running_loop().time
        until = clock() + timeout
        client = await self._client(timeout, fresh=fresh or changes or not self._keeps_connections)
        timeout = max(0.01, until - clock())
        limits = aiohttp.ClientTimeout(
            total=timeout, sock_connect=min(_CONNECT_SECONDS, timeout), sock_read=timeout, ceil_threshold=3600
        )
        try:
            response = await client.request(
                method,
                self._url(path),
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=limits,
                ssl=self._trust if self._trust is not None else True,
            )
        except aiohttp.ServerFingerprintMismatch as error:
            raise tls.changed_pin(self.endpoint, error.expected.hex(), error.got.hex()) from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise await self._untrusted(error, until - clock()) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._failed(error, method, path, timeout) from error
        try:
            content = await _content(response, method, path)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if not changes:
                raise self._failed(error, method, path, timeout, cut=True) from error
            content = b""
        except OperationError:
            if not changes:
                raise
            content = b""
        finally:
            response.release()
        return Answer(method, path, response.status, response.headers, content)

    def note_drop(self) -> None:
        """A kept connection was found closed. A BMC that does this again and again gets a new one each time."""
        self._drops += 1
        if self._drops >= _MOST_DROPS:
            self._keeps_connections = False

    async def _client(self, timeout: float, *, fresh: bool) -> aiohttp.ClientSession:
        if self._clients is None:
            self._clients = Clients.share()
        if self._policy is not None and (self._trust is None or self._trusted_pin != self.first_use_pin):
            await self._settle_trust(timeout)
        return self._clients.fresh if fresh else self._clients.kept

    async def _settle_trust(self, timeout: float) -> None:
        if self._policy is None:
            return
        if self._policy.mode is TlsMode.FIRST_USE and self.endpoint not in self._pins:
            try:
                seen = await tls.certificate_fingerprint(self._host, self._port, min(timeout, _CONNECT_SECONDS))
            except (OSError, TimeoutError) as error:
                raise _unreachable(self.endpoint, error, timeout) from error
            self._pins.setdefault(self.endpoint, seen)
        self._trusted_pin = self.first_use_pin
        self._trust = tls.trust(self._policy, self._trusted_pin)

    async def _untrusted(self, error: aiohttp.ClientConnectorCertificateError, left: float) -> OperationError:
        reason = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
        try:
            seconds = min(max(left, 1.0), _CONNECT_SECONDS)
            seen: str | None = await tls.certificate_fingerprint(self._host, self._port, seconds)
        except (OSError, TimeoutError):
            seen = None
        return tls.untrusted(self.endpoint, reason, seen)

    def _url(self, path: str) -> URL:
        url = self._urls.get(path)
        if url is None:
            if len(self._urls) >= _KNOWN_URLS:
                self._urls.clear()
            url = self._urls[path] = URL(self._base + path, encoded=True)
        return url

    def _failed(
        self, error: Exception, method: str, path: str, timeout: float, *, cut: bool = False
    ) -> OperationError:
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | aiohttp.InvalidURL):
            return _unreachable(self.endpoint, error, timeout)
        change = method in _CHANGES
        if isinstance(error, TimeoutError):
            code = ErrorCode.OUTCOME_UNKNOWN if change else ErrorCode.UNREACHABLE
            return NoAnswer(code, f"{self.endpoint} did not answer {method} {path} within {timeout:.3g} s")
        if isinstance(error, aiohttp.ClientResponseError) and not change:
            return OperationError(
                ErrorCode.BMC_ERROR,
                f"{self.endpoint} does not speak HTTP in its answer to {method} {path}: is it a BMC's web address?",
            )
        how = "cut its answer off" if cut else "closed the connection without an answer"
        code = ErrorCode.OUTCOME_UNKNOWN if change else ErrorCode.UNREACHABLE
        failure = NoAnswer(code, f"{self.endpoint} {how} ({method} {path}): {_words(error)}")
        failure.dropped = True
        return failure


def _unreachable(endpoint: str, error: BaseException, timeout: float) -> NotSent:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        reason = "its name is not known to the DNS"
    elif isinstance(error, aiohttp.ClientConnectorSSLError):
        reason = f"the TLS handshake failed ({_words(error.os_error)}); is it an https address?"
    elif isinstance(error, TimeoutError):
        reason = f"no connection within {min(timeout, _CONNECT_SECONDS):.3g} s: is it powered, and routed from here?"
    elif isinstance(_cause(error), ConnectionRefusedError):
        reason = "the connection was refused: is its web service on, at this port?"
    else:
        reason = _words(error)
    return NotSent(ErrorCode.UNREACHABLE, f"{endpoint} cannot be reached: {reason}")


def _cause(error: BaseException) -> BaseException:
    return error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error


def _words(error: BaseException) -> str:
    cause = _cause(error)
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or type(cause).__name__


async def _content(response: aiohttp.ClientResponse, method: str, path: str) -> bytes:
    """The body, but never more than LARGEST_BODY of it, also when it is compressed."""
    length = response.content_length
    if length is not None and length <= LARGEST_BODY and "Content-Encoding" not in response.headers:
        return await response.read()
    parts: list[bytes] = []
    size = 0
    if length is None or length <= LARGEST_BODY:
        async for part in response.content.iter_chunked(65536):
            parts.append(part)
            size += len(part)
            if size > LARGEST_BODY:
                break
        else:
            return b"".join(parts)
    response.close()
    raise OperationError(
        ErrorCode.BMC_ERROR,
        f"{method} {path}: the answer is larger than {LARGEST_BODY // 1024 // 1024} MiB and was cut off: "
        "is this address a BMC's?",
    )


def _parsed(body: bytes) -> Any:
    """The JSON value, also with a byte order mark, stray bytes or NaN in it; None where it is no JSON."""
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        value = json.loads(body.decode("utf-8-sig", "replace"), strict=False, parse_constant=_nothing)
        if _HALF_A_PAIR.search(body):
            # Half a surrogate pair is no text that could travel on: it becomes a question mark.
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value


def _nothing(_word: str) -> None:
    """NaN and Infinity, which are no JSON, count as absent."""


def _is_markup(body: bytes) -> bool:
    return body[:200].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"<"


def _what_it_is(body: bytes, kind: str) -> str:
    if not body.strip():
        return "the answer is empty"
    if _is_markup(body):
        return (
            "the answer is a web page, not Redfish: is the address a BMC's, its Redfish service on, "
            "and no proxy or login page in between?"
        )
    if body.lstrip()[:1] == b"{":
        return f"the answer is broken or cut-off JSON ({len(body)} bytes)"
    return f"the answer is no JSON object ({kind or 'no content type'}, {len(body)} bytes)"
