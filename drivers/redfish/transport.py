"""One HTTP exchange with a BMC: bounded in time and size, sent once, never redirected, its failures told apart."""

import asyncio
import contextlib
import socket
from collections.abc import Mapping

import aiohttp
from yarl import URL

from drivers.pins import follow_pin, pinned_now, return_to_pin
from drivers.redfish import tls
from drivers.redfish.answer import Answer, content_of
from drivers.redfish.clients import Clients
from drivers.redfish.failures import NoAnswer, NotSent
from drivers.redfish.upload import Upload
from drivers.target import Target
from protocol.addresses import Scheme, TlsMode
from protocol.errors import ErrorCode, OperationError

__all__ = ["Transport"]

_CONNECT_SECONDS = 10.0
_KNOWN_URLS = 256
_MOST_DROPS = 3
_STALL_SECONDS = 180.0
"""How long a BMC may take nothing of an upload; flash that is erased meanwhile keeps some busy for a minute."""
_NEVER_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
_CHANGES = frozenset({"POST", "PATCH", "PUT", "DELETE"})


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

    @property
    def pin(self) -> str | None:
        """The certificate that the BMC is known by now, under a pin or after the first use."""
        if self._policy is None:
            return None
        if self._policy.mode is TlsMode.PIN:
            return pinned_now(self._pins, self.endpoint, self._policy.value)
        return self.first_use_pin

    def repin(self, fingerprint: str) -> str | None:
        """Takes the certificate that replaces the known one, and returns that one; None where no pin changes."""
        before = self.pin
        if self._policy is None or before is None or before == fingerprint:
            return None
        if self._policy.mode is TlsMode.PIN:
            follow_pin(self._pins, self.endpoint, self._policy.value, fingerprint)
        else:
            self._pins[self.endpoint] = fingerprint
        return before

    def _is_pinned_one(self, seen: str) -> bool:
        """Whether the BMC shows the pinned certificate itself again, in whose place another one stood since."""
        if self._policy is None or self._policy.mode is not TlsMode.PIN or seen != self._policy.value:
            return False
        return_to_pin(self._pins, self.endpoint, seen)
        return self.pin == seen

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
            if self._is_pinned_one(error.got.hex()):
                # Nothing was sent: the certificate is looked at first.
                return await self.exchange(method, path, headers, max(0.01, until - clock()), body, fresh=fresh)
            raise tls.changed_pin(self.endpoint, error.expected.hex(), error.got.hex()) from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise await self._untrusted(error, until - clock()) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._failed(error, method, path, timeout) from error
        try:
            content = await content_of(response, method, path)
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

    async def open_stream(self, path: str, headers: Mapping[str, str], timeout: float) -> aiohttp.ClientResponse:
        """Asks for an answer that goes on, on a network connection of its own; the caller closes it.

        `timeout` is for the head of the answer. A BMC that is gone is noticed by TCP's keepalive. Raises what
        `exchange` raises.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + timeout
        client = await self._client(timeout, fresh=True)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=min(_CONNECT_SECONDS, timeout), ceil_threshold=3600)
        try:
            async with asyncio.timeout_at(until):
                response = await client.get(
                    self._url(path),
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
            raise self._failed(error, "GET", path, timeout) from error
        _keep_alive(response)
        return response

    async def end_of_stream(self, response: aiohttp.ClientResponse, path: str, timeout: float) -> Answer:
        """What the BMC answered in place of a stream, whole; an empty body where it does not come in time."""
        try:
            async with asyncio.timeout(timeout):
                content = await content_of(response, "GET", path)
        except (aiohttp.ClientError, OSError, TimeoutError, OperationError):
            content = b""
        finally:
            response.close()
        return Answer("GET", path, response.status, response.headers, content)

    async def send(self, path: str, headers: Mapping[str, str], timeout: float, upload: Upload) -> Answer:
        """POSTs a body while it is read, once, and returns the answer.

        Raises what `exchange` raises, and for a body of which a part never left: NotSent, or what ended its reading.
        """
        if timeout <= 0:
            raise NotSent(ErrorCode.TIMEOUT, f"no time was left for POST {path}")
        clock = asyncio.get_running_loop().time
        until = clock() + timeout
        client = await self._client(timeout, fresh=True)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=min(_CONNECT_SECONDS, timeout), ceil_threshold=3600)
        try:
            async with asyncio.timeout_at(min(until, clock() + _CONNECT_SECONDS + _STALL_SECONDS)) as patience:

                def go_on() -> None:
                    if not patience.expired():
                        patience.reschedule(until if upload.is_whole else min(until, clock() + _STALL_SECONDS))

                upload.on_progress = go_on
                response = await client.post(
                    self._url(path),
                    data=upload.chunks(),
                    headers={**headers, **upload.headers},
                    allow_redirects=False,
                    timeout=limits,
                    ssl=self._trust if self._trust is not None else True,
                )
                try:
                    content = await content_of(response, "POST", path)
                except (aiohttp.ClientError, OSError, TimeoutError, OperationError):
                    content = b""
                finally:
                    response.release()
        except aiohttp.ServerFingerprintMismatch as error:
            raise tls.changed_pin(self.endpoint, error.expected.hex(), error.got.hex()) from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise await self._untrusted(error, until - clock()) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if upload.failure is not None:
                # A new one: aiohttp's error has the first as its cause already.
                raise OperationError(upload.failure.code, upload.failure.message) from error
            if not upload.is_whole and not isinstance(error, _NEVER_CONNECTED):
                raise self._cut_short(upload, error, path) from error
            raise self._failed(error, "POST", path, timeout) from error
        finally:
            upload.on_progress = _nobody
        return Answer("POST", path, response.status, response.headers, content)

    def _cut_short(self, upload: Upload, error: Exception, path: str) -> NotSent:
        how = "took no more of it" if isinstance(error, TimeoutError) else f"closed the connection ({_words(error)})"
        return NotSent(
            ErrorCode.UNREACHABLE,
            f"{self.endpoint} {how} after {upload.sent} of {upload.length} bytes of POST {path}: "
            "it has not got the whole body, so it did nothing with it",
        )

    def note_drop(self) -> None:
        """A kept connection was found closed. A BMC that does this again and again gets a new one each time."""
        self._drops += 1
        if self._drops >= _MOST_DROPS:
            self._keeps_connections = False

    async def _client(self, timeout: float, *, fresh: bool) -> aiohttp.ClientSession:
        if self._clients is None:
            self._clients = Clients.share()
        if self._policy is not None and (self._trust is None or self._trusted_pin != self.pin):
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
        self._trusted_pin = self.pin
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
        if isinstance(error, _NEVER_CONNECTED):
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


def _nobody() -> None:
    """Progress that nobody waits for."""


def _keep_alive(response: aiohttp.ClientResponse) -> None:
    """Lets the kernel ask now and then whether the other end is there still: a stream may be silent for days."""
    connection = response.connection
    wire = connection.transport.get_extra_info("socket") if connection is not None and connection.transport else None
    if wire is None:
        return
    with contextlib.suppress(OSError):
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)


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
