"""HTTP as aiohttp speaks it, bent to what Redfish demands and to what fault rules ask for."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod

from simulators.redfish.documents import Answer
from simulators.redfish.errors import Message, RedfishError
from simulators.redfish.faults import RawAnswer

log = logging.getLogger(__name__)
# The journal keeps the requests; aiohttp's own access log would only cost time.
NO_ACCESS_LOG = logging.getLogger(f"{__name__}.access")
NO_ACCESS_LOG.setLevel(logging.WARNING)

LARGEST_BODY = 512 * 1024 * 1024
MEBIBYTE = b" " * 1024 * 1024


class RedfishProtocol(web.RequestHandler):
    """The server's side of one connection; what cannot be read as HTTP is answered as Redfish, too.

    `on_lost` is called when the connection is gone: a stream that is silent would not notice.
    """

    on_lost: Callable[[], None] | None = None

    def connection_lost(self, exc: BaseException | None) -> None:
        if self.on_lost is not None:
            self.on_lost()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """An extended error; 501 for a method that the parser does not know (DSP0266, HTTP methods)."""
        if isinstance(exc, BadHttpMethod):
            status, text = 501, "The method is not implemented."
        else:
            text = "The request cannot be read."
            log.warning("unreadable request from %s: %s", request.remote, type(exc).__name__)
        if request.writer is not None and request.writer.output_size > 0:
            raise ConnectionError("a part of the answer has left already")
        response = http_response(RedfishError(status, Message("GeneralError", text, "Critical")).answer())
        response.force_close()
        return response


def make_request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    """aiohttp's request with room for a firmware image in its body."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=LARGEST_BODY)


def http_response(answer: Answer) -> web.Response:
    response = web.Response(status=answer.status, body=answer.body or None, headers=answer.headers)
    if not answer.body and answer.status != 304:
        response.headers.popall("Content-Type", None)
    if answer.closes_connection:
        response.force_close()
    return response


def cut(incoming: web.BaseRequest) -> web.Response:
    """Cuts the TCP connection without an answer; the response returned is never sent."""
    if incoming.transport is not None:
        incoming.transport.abort()
    response = web.Response()
    response.force_close()
    return response


async def send_raw(incoming: web.BaseRequest, raw: RawAnswer, answer: Answer) -> web.StreamResponse:
    """Sends what a raw fault asks for: fixed bytes, a stream without an end in sight, or a cut answer."""
    if raw.truncate_at is not None:
        response = web.StreamResponse(status=answer.status, headers=answer.headers)
        response.content_length = len(answer.body)
        response.force_close()
        await response.prepare(incoming)
        await response.write(answer.body[: raw.truncate_at])
        if incoming.transport is not None:
            incoming.transport.close()
        return response
    if not raw.megabytes:
        content = raw.body()
        return web.Response(
            status=answer.status, body=content, headers={**answer.headers, "Content-Type": raw.content_type}
        )
    stream = web.StreamResponse(status=answer.status, headers={"Content-Type": raw.content_type})
    stream.force_close()
    try:
        await stream.prepare(incoming)
        await stream.write(raw.body())
        for _ in range(raw.megabytes):
            await stream.write(MEBIBYTE)
            await asyncio.sleep(raw.pause)
        await stream.write_eof()
    except ConnectionError:
        log.debug("the client left before the stream's end")
    return stream
