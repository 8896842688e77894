"""A client of the control plane's API, made from its table of verbs; only the standard library speaks HTTP.

    with Client("https://control.example:8440", token) as client:
        node = client.nodes.create(name="r7-u12", site_id="lab", bmc={"address": "https://192.0.2.10"})
        command = client.drivers.invoke(node_id="r7-u12", operation="power.getPower")

Every refusal is a `RequestError`. One thread uses a client at a time; the connection is kept alive between calls.
"""

import hashlib
import http.client
import ipaddress
import select
import ssl
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode, urlsplit

import msgspec

from control_plane.api.verbs import PREFIX, VERBS, Verb, kebab
from protocol.errors import Issue, RequestCode, RequestError
from protocol.ids import new_id
from protocol.secret import Secret

__all__ = ["Client", "NoAnswer", "WebsocketPlace", "refusal"]

_ANSWER_SECONDS = 30.0
_STREAM_SECONDS = 60.0
_BACK_SECONDS = 1.0
_BY_NAMES = {(kebab(verb.group), kebab(verb.method)): verb for verb in VERBS.values()}


class _Error(msgspec.Struct, frozen=True):
    code: str
    message: str
    issues: list[Issue] = []


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _Error


class NoAnswer(RequestError):
    """The request may have arrived; nothing says whether."""


class WebsocketPlace(NamedTuple):
    """A websocket of the API. `headers` hold the token: they are shown nowhere."""

    uri: str
    name: str
    """host:port, for messages."""
    headers: dict[str, str]
    context: ssl.SSLContext | None
    pin: str | None
    """The SHA-256 that the server's certificate must have; to be looked at before the headers are sent."""

    def __repr__(self) -> str:
        return f"WebsocketPlace({self.uri!r})"


class Client:
    """One control plane, as whoever holds the token."""

    def __init__(
        self,
        url: str,
        token: str | Secret,
        *,
        tenant_id: str | None = None,
        ca_file: str | None = None,
        pin: str | None = None,
        allow_http: bool = False,
    ) -> None:
        """`ca_file`: the CA to trust in place of the system's. `pin`: the SHA-256 (hex) of the server's certificate.

        `tenant_id` goes into every request that names none. Plain http:// shows the token to whoever listens, so it
        is taken to a loopback address only, or with `allow_http`. Raises RequestError INVALID_INPUT.
        """
        self._token = token if isinstance(token, Secret) else Secret(token)
        self._tenant_id = tenant_id
        self._tls, self._host, self._port, self._base = _place(url, allow_http)
        self._pin = None if pin is None else pin.removeprefix("sha256:").replace(":", "").lower()
        self._context = _context(ca_file, self._pin) if self._tls else None
        self._connection: http.client.HTTPConnection | None = None
        self._told_now = datetime.now(UTC), time.monotonic()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._host}:{self._port})"

    def __getattr__(self, group: str) -> "_Group":
        name = group.replace("_", "-")
        if any(name == known for known, _ in _BY_NAMES):
            return _Group(self, name)
        raise AttributeError(f"the API has no group {group!r}")

    def now(self) -> datetime:
        """The time at the control plane, by its last answer: this host's clock need not agree with it."""
        then, at = self._told_now
        return then + timedelta(seconds=time.monotonic() - at)

    def close(self) -> None:
        """Lets go of the connection; the next call makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def call(self, group: str, method: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Does `group.method` (`joinTokens.create`); request and answer as JSON values.

        Raises RequestError; of the code UNAVAILABLE when there was no answer. A change that got no answer is not
        sent again, unless a key makes that harmless: look whether it was done.
        """
        verb = VERBS.get(f"{group}.{method}")
        if verb is None:
            raise RequestError(RequestCode.NOT_FOUND, f"there is no {group}.{method}")
        body = dict(request or {})
        if self._tenant_id is not None and not verb.tenantless:
            body.setdefault("tenantId", self._tenant_id)
        if verb.id == "drivers.invoke":
            # With a key of our own a request whose answer was lost can be sent again: it gives the same command.
            body.setdefault("key", new_id("req"))
        repeatable = not verb.mutation or "key" in body
        wait = body.get("waitMs", 30_000 if verb.id == "drivers.invoke" else 0)
        seconds = _ANSWER_SECONDS + (wait / 1000 if isinstance(wait, int) else 0)
        return self._answer(verb, msgspec.json.encode(body), seconds, repeatable)

    def follow_events(self, after: int | None = None) -> Iterator[dict[str, Any]]:
        """The events as they happen, behind the number `after` (None: from now on); comes back after a cut.

        Raises RequestError when it is refused. Ends never by itself.
        """
        began = False
        while True:
            connection = None
            try:
                connection = self._connect(_STREAM_SECONDS)
                for event in self._stream(connection, after):
                    began, after = True, event["seq"]
                    yield event
            except (OSError, http.client.HTTPException):
                time.sleep(_BACK_SECONDS)
            except RequestError as error:
                # One that was followed before is restarting; a wrong address is told at once.
                if not began or error.code is not RequestCode.UNAVAILABLE:
                    raise
                time.sleep(_BACK_SECONDS)
            finally:
                if connection is not None:
                    connection.close()

    def websocket(self, path: str, query: Mapping[str, str]) -> WebsocketPlace:
        """Where a websocket of the API is, and what a client of its own needs: `path` below the API's prefix."""
        words = {**({} if self._tenant_id is None else {"tenantId": self._tenant_id}), **query}
        host = f"[{self._host}]" if ":" in self._host else self._host
        name = f"{host}:{self._port}"
        return WebsocketPlace(
            f"{'wss' if self._tls else 'ws'}://{name}{self._base}{PREFIX}{path}"
            + (f"?{urlencode(words)}" if words else ""),
            name,
            {"Authorization": f"Bearer {self._token.reveal()}"},
            self._context,
            self._pin,
        )

    def _stream(self, connection: http.client.HTTPConnection, after: int | None) -> Iterator[dict[str, Any]]:
        query: dict[str, str] = {} if self._tenant_id is None else {"tenantId": self._tenant_id}
        if after is not None:
            query["after"] = str(after)
        path = f"{self._base}{PREFIX}/events/stream"
        connection.request("GET", f"{path}?{urlencode(query)}" if query else path, headers=self._headers())
        response = connection.getresponse()
        if response.status != 200:
            raise refusal(response.status, response.read())
        for line in response:
            if line.startswith(b"data: "):
                yield msgspec.json.decode(line[6:])

    def _answer(self, verb: Verb, body: bytes, seconds: float, repeatable: bool) -> dict[str, Any]:
        for last in (False, True):
            reused = self._connection is not None and not _stale(self._connection)
            if not reused:
                self.close()
                self._connection = self._connect(seconds)
            assert self._connection is not None
            try:
                return self._exchange(self._connection, verb, body, seconds)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if last or not (repeatable and reused):
                    hint = "" if repeatable else "; it may have been done: look before you repeat it"
                    raise NoAnswer(
                        RequestCode.UNAVAILABLE, f"{self._host}:{self._port} gave no answer ({error}){hint}"
                    ) from error
        raise AssertionError("the second try returns or raises")

    def _exchange(
        self, connection: http.client.HTTPConnection, verb: Verb, body: bytes, seconds: float
    ) -> dict[str, Any]:
        if connection.sock is not None:
            connection.sock.settimeout(seconds)
        connection.request(
            "POST", self._base + verb.path, body, {**self._headers(), "Content-Type": "application/json"}
        )
        response = connection.getresponse()
        answer = response.read()
        self._told_now = _date_of(response), time.monotonic()
        if response.will_close:
            self.close()
        if response.status != 200:
            raise refusal(response.status, answer)
        return cast("dict[str, Any]", msgspec.json.decode(answer))

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token.reveal()}", "User-Agent": "rackwright"}

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        """An open connection to the right server: checked before the token goes over it. Raises RequestError."""
        connection = (
            http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=self._context)
            if self._context is not None
            else http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        )
        try:
            connection.connect()
        except ssl.SSLCertVerificationError as error:
            raise RequestError(
                RequestCode.UNAVAILABLE,
                f"the certificate of {self._host}:{self._port} is not trusted ({error.verify_message}): "
                "name its CA (--ca), or pin it (--pin)",
            ) from error
        except ssl.SSLError as error:
            raise RequestError(
                RequestCode.UNAVAILABLE,
                f"{self._host}:{self._port} does not speak TLS ({error.reason}): is it an http:// address?",
            ) from error
        except OSError as error:
            why = error.strerror or str(error) or type(error).__name__
            raise RequestError(
                RequestCode.UNAVAILABLE,
                f"{self._host}:{self._port} cannot be reached: {why}: is the address right, and does it run?",
            ) from error
        if self._pin is not None and isinstance(connection.sock, ssl.SSLSocket):
            seen = hashlib.sha256(connection.sock.getpeercert(binary_form=True) or b"").hexdigest()
            if seen != self._pin:
                connection.close()
                raise RequestError(
                    RequestCode.UNAVAILABLE,
                    f"{self._host}:{self._port} shows another certificate (sha256:{seen}) than the pinned one",
                )
        return connection


class _Group:
    """`client.nodes`: its methods are the group's verbs."""

    def __init__(self, client: Client, group: str) -> None:
        self._client = client
        self._group = group

    def __getattr__(self, method: str) -> "_Method":
        verb = _BY_NAMES.get((self._group, method.replace("_", "-")))
        if verb is None:
            raise AttributeError(f"{self._group} has no method {method!r}")
        return _Method(self._client, verb)


class _Method:
    """`client.nodes.create`: takes the request's fields by their Python names, gives the typed answer."""

    def __init__(self, client: Client, verb: Verb) -> None:
        self._client = client
        self._verb = verb
        self.__doc__ = verb.summary

    def __call__(self, **fields: Any) -> Any:
        wire = {field.name: field.encode_name for field in msgspec.structs.fields(self._verb.request)}
        request = {wire.get(name, name): msgspec.to_builtins(value) for name, value in fields.items()}
        return msgspec.convert(
            self._client.call(self._verb.group, self._verb.method, request), self._verb.response, strict=False
        )


def _place(url: str, allow_http: bool) -> tuple[bool, str, int, str]:
    """Whether TLS, host, port and the path before the API's. Raises RequestError."""
    parts = urlsplit(url if "://" in url else f"https://{url}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("https", "http") or not parts.hostname or port == -1 or parts.query or parts.username:
        raise RequestError(
            RequestCode.INVALID_INPUT, f"{url!r} is no control plane: write https://host[:port], with nothing else"
        )
    tls = parts.scheme == "https"
    if not tls and not allow_http and not _is_loopback(parts.hostname):
        raise RequestError(
            RequestCode.INVALID_INPUT,
            "http:// shows the token to whoever listens: write https://, or consent with --allow-http",
        )
    return tls, parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _context(ca_file: str | None, pin: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise RequestError(RequestCode.INVALID_INPUT, f"the CA file {ca_file} cannot be used: {error}") from error
    if pin is not None:
        # The certificate itself is compared, so nobody needs to vouch for it.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _stale(connection: http.client.HTTPConnection) -> bool:
    """Whether the other side has closed it since the last answer."""
    if connection.sock is None:
        return True
    poller = select.poll()
    poller.register(connection.sock, select.POLLIN)
    return bool(poller.poll(0))


def _date_of(response: http.client.HTTPResponse) -> datetime:
    """When the answer was given (RFC 9110, Date); this host's time where it does not say."""
    try:
        return parsedate_to_datetime(response.getheader("Date", "")).astimezone(UTC)
    except ValueError:
        return datetime.now(UTC)


def refusal(status: int, body: bytes) -> RequestError:
    """The error that a refused request's answer holds."""
    try:
        error = msgspec.json.decode(body, type=_ErrorBody).error
    except msgspec.DecodeError:
        return RequestError(
            RequestCode.UNAVAILABLE, f"the answer (HTTP {status}) is not a control plane's: check the address"
        )
    try:
        return RequestError(RequestCode(error.code), error.message, error.issues)
    except ValueError:
        return RequestError(RequestCode.INTERNAL, f"{error.code}: {error.message}", error.issues)
