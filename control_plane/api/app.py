"""The HTTP skin: paths, bodies, tokens, statuses. Everything else is the dispatcher's."""

import asyncio
import difflib
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from control_plane.api import openapi
from control_plane.api.console import CONSOLE, ConsoleDoor
from control_plane.api.dispatch import Dispatcher
from control_plane.api.metrics import CONTENT_TYPE_LATEST
from control_plane.api.shapes.common import TENANT
from control_plane.api.stream import MOST_STREAMS, EventHub, follow
from control_plane.api.verbs import PREFIX, VERBS, Verb
from control_plane.consoles import Consoles
from control_plane.permissions import allows
from control_plane.records import ALL_TENANTS
from control_plane.store import ConstraintViolated, StoreError, StoreMisuse, StoreUnavailable
from control_plane.tokens import Principal
from protocol.errors import Issue, RequestCode, RequestError
from protocol.ids import new_id

__all__ = ["MAX_BODY_BYTES", "build_app"]

MAX_BODY_BYTES = 1 << 20
_log = logging.getLogger("control_plane.api")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_STATUS = {
    RequestCode.INVALID_INPUT: 400,
    RequestCode.UNAUTHENTICATED: 401,
    RequestCode.FORBIDDEN: 403,
    RequestCode.NOT_FOUND: 404,
    RequestCode.CONFLICT: 409,
    RequestCode.INVALID_STATE: 409,
    RequestCode.TOO_LARGE: 413,
    RequestCode.UNAVAILABLE: 503,
    RequestCode.INTERNAL: 500,
}
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()

Authenticate = Callable[[Request], Awaitable[Principal]]
Ready = Callable[[], Awaitable[str | None]]


class _Refused(Exception):
    """A refusal whose status or headers its code does not tell."""

    def __init__(self, error: RequestError, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.status = status
        self.headers = headers or {}


def build_app(
    dispatcher: Dispatcher,
    hub: EventHub,
    *,
    ready: Ready,
    principal: Principal | None = None,
    consoles: Consoles | None = None,
) -> Starlette:
    """The ASGI application. With a `principal` everybody who gets in is that one: for the local socket only.

    `ready` tells why the process cannot serve, or None.
    """
    api = _Api(dispatcher, hub, ready, principal, ConsoleDoor(dispatcher, consoles))
    every = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]
    return Starlette(
        routes=[
            Route(f"{PREFIX}/events/stream", api.only(("GET",), api.stream), methods=every),
            WebSocketRoute(f"{PREFIX}/console/{{node}}", api.console),
            Route(f"{PREFIX}/console/{{node}}", api.only(("GET",), api.not_upgraded), methods=every),
            Route(f"{PREFIX}/{{group}}/{{method}}", api.only(("POST",), api.verb), methods=every),
            Route("/openapi.json", api.only(("GET", "HEAD"), api.document), methods=every),
            Route("/metrics", api.only(("GET", "HEAD"), api.metrics), methods=every),
            Route("/healthz", api.only(("GET", "HEAD"), api.alive), methods=every),
            Route("/readyz", api.only(("GET", "HEAD"), api.ready), methods=every),
        ],
        exception_handlers={HTTPException: api.unrouted},
    )


Endpoint = Callable[[Request], Awaitable[Response]]


class _Api:
    def __init__(
        self, dispatcher: Dispatcher, hub: EventHub, ready: Ready, principal: Principal | None, door: ConsoleDoor
    ) -> None:
        self._door = door
        self._dispatcher = dispatcher
        self._hub = hub
        self._ready = ready
        self._principal = principal

    def only(self, methods: tuple[str, ...], endpoint: Endpoint) -> Endpoint:
        """The endpoint for these methods: others are told which, and whatever it raises becomes an answer."""
        allow = ", ".join((*methods, "OPTIONS"))

        async def guarded(request: Request) -> Response:
            if request.method == "OPTIONS":
                return Response(status_code=204, headers={"Allow": allow})
            if request.method not in methods:
                error = RequestError(RequestCode.INVALID_INPUT, f"this path takes {' and '.join(methods)} only")
                return _refusal(error, _request_id(request), 405, {"Allow": allow})
            return await endpoint(request)

        return guarded

    async def verb(self, request: Request) -> Response:
        """`POST /api/compute/<group>/<method>`."""
        request_id = _request_id(request)
        identifier = f"{request.path_params['group']}.{request.path_params['method']}"
        verb = VERBS.get(identifier)
        started = time.perf_counter()
        if verb is None:
            response = _refusal(_no_verb(identifier), request_id)
        else:
            response = await self._answer(request, request_id, verb)
        label = identifier if verb is not None else "unknown"
        metrics = self._dispatcher.metrics
        metrics.requests.labels(label, str(response.status_code)).inc()
        metrics.request_seconds.labels(label).observe(time.perf_counter() - started)
        return response

    async def _answer(self, request: Request, request_id: str, verb: Verb) -> Response:
        try:
            principal = await self._who(request)
            raw = await _body(request)
            answer = await self._dispatcher.call(verb, raw, principal, request_id)
            body = _encoder.encode(answer)
        except (Exception, asyncio.CancelledError) as error:
            return _response_to(error, request_id, verb.id)
        return Response(body, headers={"X-Request-Id": request_id}, media_type="application/json")

    async def stream(self, request: Request) -> Response:
        """`GET /api/compute/events/stream`."""
        request_id = _request_id(request)
        try:
            principal = await self._who(request)
            verb = VERBS["events.list"]
            await self._dispatcher.permit(verb, {}, principal, request_id)
            tenant_id, after = _stream_place(request, principal)
            if self._hub.closing or self._hub.open >= MOST_STREAMS:
                why = "stopping" if self._hub.closing else f"serving {MOST_STREAMS} event streams already"
                raise RequestError(RequestCode.UNAVAILABLE, f"the control plane is {why}: try again later")
        except Exception as error:
            return _response_to(error, request_id, "events.stream")

        async def still_allowed() -> bool:
            try:
                await self._who(request)
            except RequestError:
                return False
            return True

        return StreamingResponse(
            self._watched(follow(self._hub, tenant_id, after, still_allowed)),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Request-Id": request_id},
        )

    async def console(self, websocket: WebSocket) -> None:
        """`GET /api/compute/console/<node>`, a websocket. A refusal is an HTTP answer, as everywhere."""
        request_id = _request_id(websocket)
        try:
            principal = await self._who(websocket)
            visit = await self._door.admit(websocket, principal, request_id)
        except Exception as error:
            await websocket.send_denial_response(_response_to(error, request_id, CONSOLE.id))
            return

        async def still_allowed() -> bool:
            try:
                now = await self._who(websocket)
            except RequestError:
                return False
            return allows(now.permissions, CONSOLE.action)

        await visit.serve(still_allowed)

    async def not_upgraded(self, request: Request) -> Response:
        """A console's path without a websocket."""
        error = RequestError(RequestCode.INVALID_INPUT, "this path is a websocket: ask for an upgrade to it")
        headers = {"Upgrade": "websocket", "Connection": "Upgrade"}
        return _refusal(error, _request_id(request), 426, headers)

    async def _watched(self, chunks: Any) -> Any:
        gauge = self._dispatcher.metrics.streams
        gauge.inc()
        try:
            async for chunk in chunks:
                yield chunk
        except StoreError as error:
            # The reader comes back with its Last-Event-ID.
            _log.warning("an event stream was cut: %s", error)
        finally:
            gauge.dec()
            await chunks.aclose()

    async def document(self, request: Request) -> Response:
        return Response(openapi.document(), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        return Response(self._dispatcher.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    async def alive(self, request: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def ready(self, request: Request) -> Response:
        why = await self._ready()
        if why is None:
            return Response(b'{"status":"ready"}', media_type="application/json")
        return _refusal(RequestError(RequestCode.UNAVAILABLE, why), _request_id(request), None, {"Retry-After": "2"})

    async def unrouted(self, request: Request, error: Exception) -> Response:
        return _refusal(
            RequestError(RequestCode.NOT_FOUND, "there is nothing at this path: see /openapi.json"),
            _request_id(request),
        )

    async def _who(self, request: HTTPConnection) -> Principal:
        if self._principal is not None:
            return self._principal
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not text:
            raise RequestError(RequestCode.UNAUTHENTICATED, "send a token: Authorization: Bearer rwt_…")
        return await self._dispatcher.principal(text.strip())


async def _body(request: Request) -> object:
    """The JSON value of the body. Raises RequestError, _Refused."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        error = RequestError(
            RequestCode.INVALID_INPUT,
            "send JSON: Content-Type: application/json, and {} where there is nothing to say",
        )
        raise _Refused(error, 415)
    too_large = RequestError(RequestCode.TOO_LARGE, f"the body is larger than {MAX_BODY_BYTES} bytes")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise _Refused(too_large, 413, {"Connection": "close"})
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise _Refused(too_large, 413, {"Connection": "close"})
    try:
        return _decoder.decode(body)
    except RecursionError:
        raise RequestError(RequestCode.INVALID_INPUT, "the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(RequestCode.INVALID_INPUT, f"the body is no JSON: {error}") from None


def _stream_place(request: Request, principal: Principal) -> tuple[str, int | None]:
    """Which tenant's events, and behind which number. Raises RequestError."""
    issues = []
    asked = request.query_params.get("tenantId")
    tenant_id = asked or principal.tenant_id
    if asked is not None and not re.search(TENANT, asked):
        issues.append(Issue("tenantId", "is no tenant's id"))
    elif principal.tenant_id not in (ALL_TENANTS, tenant_id):
        raise RequestError(RequestCode.FORBIDDEN, "this token is for another tenant")
    last = request.headers.get("last-event-id") or request.query_params.get("after")
    if last is not None and not re.fullmatch(r"[0-9]{1,18}", last):
        issues.append(Issue("after", "is the number of an event, as the stream's id lines give it"))
    if issues:
        raise RequestError.invalid(issues)
    return tenant_id, None if last is None else int(last)


def _request_id(request: HTTPConnection) -> str:
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else new_id("req")


def _no_verb(identifier: str) -> RequestError:
    close = difflib.get_close_matches(identifier[:80], VERBS, 3, 0.5)
    hint = f": did you mean {' or '.join(close)}?" if close else ": see /openapi.json"
    return RequestError(RequestCode.NOT_FOUND, f"there is no {identifier[:80]}{hint}")


def _response_to(error: BaseException, request_id: str, verb: str) -> Response:
    """The answer to whatever a verb raised."""
    if isinstance(error, _Refused):
        return _refusal(error.error, request_id, error.status, error.headers)
    if isinstance(error, RequestError):
        return _refusal(error, request_id)
    if isinstance(error, StoreError) and not isinstance(error, StoreMisuse | ConstraintViolated):
        _log.error("%s (%s) failed in the store: %s", verb, request_id, error)
        unavailable = RequestError(
            RequestCode.UNAVAILABLE, f"the control plane's database cannot do it now: {_store_words(error)}"
        )
        return _refusal(unavailable, request_id, None, {"Retry-After": "2"})
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)
    if isinstance(error, asyncio.CancelledError):
        raise error
    _log.error("%s (%s) met a bug", verb, request_id, exc_info=error)
    message = f"something is wrong inside: look for {request_id} in the control plane's log"
    return _refusal(RequestError(RequestCode.INTERNAL, message), request_id)


def _store_words(error: StoreError) -> str:
    return error.what if isinstance(error, StoreUnavailable) else str(error)


def _refusal(
    error: RequestError, request_id: str, status: int | None = None, headers: dict[str, str] | None = None
) -> Response:
    inner: dict[str, object] = {"code": error.code.value, "message": error.message, "requestId": request_id}
    if error.issues:
        inner["issues"] = error.issues
    code = status or _STATUS[error.code]
    extra = {"WWW-Authenticate": "Bearer"} if code == 401 else {}
    return Response(
        _encoder.encode({"error": inner}),
        status_code=code,
        headers={"X-Request-Id": request_id, **extra, **(headers or {})},
        media_type="application/json",
    )
