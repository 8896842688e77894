"""A web server that has one image and can be bad at giving it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["Faults", "ImageServer", "serving"]


@dataclass(slots=True)
class Faults:
    """What goes wrong. `drops`: after how many bytes of each answer the connection is cut; the last one lasts.
    `rate`: bytes a second."""

    status: list[int] = field(default_factory=list)
    says: str = ""
    """The text of an answer that is no image."""
    drops: list[int] = field(default_factory=list)
    ranges: bool = True
    length: bool = True
    chunked: bool = False
    short: list[int] = field(default_factory=list)
    damaged: int = 0
    """How many answers have one wrong byte."""
    rate: int = 0
    tags: list[str] = field(default_factory=list)
    tagged: bool = True
    """Whether it says which state of the image it sends."""
    heeds_conditions: bool = True
    """Whether it looks at If-Range."""
    part: int = 0
    """It gives no more bytes than this at once where a range is asked for, and says so."""
    redirect: str = ""


class ImageServer:
    def __init__(self, content: bytes, faults: Faults) -> None:
        self.content = content
        self.faults = faults
        self.asked: list[str | None] = []
        """The Range of each request."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server._answer(self)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/image.raw"

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        faults, content = self.faults, self.content
        asked = request.headers.get("Range")
        self.asked.append(asked)
        request.close_connection = True
        if faults.status and (status := faults.status.pop(0)) != 200:
            said = faults.says.encode()
            request.send_response(status)
            request.send_header("Content-Type", "text/plain; charset=utf-8")
            request.send_header("Content-Length", str(len(said)))
            request.end_headers()
            request.wfile.write(said)
            return
        if faults.redirect and request.path == "/image.raw":
            request.send_response(302)
            request.send_header("Location", faults.redirect)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        if faults.damaged:
            faults.damaged -= 1
            content = content[:-1] + bytes([content[-1] ^ 0xFF])
        if faults.short:
            content = content[: faults.short.pop(0)]
        tag = faults.tags.pop(0) if faults.tags else '"one"'
        start = 0
        end = len(content)
        is_met = not faults.heeds_conditions or request.headers.get("If-Range", tag) == tag
        if asked is not None and faults.ranges and is_met:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            end = min(end, start + faults.part) if faults.part else end
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        else:
            request.send_response(200)
        if faults.tagged:
            request.send_header("ETag", tag)
        body = content[start:end]
        if faults.chunked:
            request.send_header("Transfer-Encoding", "chunked")
        elif faults.length:
            request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        cut = (faults.drops.pop(0) if len(faults.drops) > 1 else faults.drops[0]) if faults.drops else len(body)
        try:
            self._send(request, body, cut)
        except OSError:
            return

    def _send(self, request: BaseHTTPRequestHandler, body: bytes, cut: int) -> None:
        step = max(1, self.faults.rate // 20) if self.faults.rate else 1 << 16
        for place in range(0, min(cut, len(body)), step):
            part = body[place : min(place + step, cut)]
            if self.faults.chunked:
                part = f"{len(part):x}\r\n".encode() + part + b"\r\n"
            request.wfile.write(part)
            if self.faults.rate:
                request.wfile.flush()
                time.sleep(0.05)
        if self.faults.chunked and cut >= len(body):
            request.wfile.write(b"0\r\n\r\n")


@contextmanager
def serving(content: bytes, faults: Faults | None = None) -> Iterator[ImageServer]:
    server = ImageServer(content, faults or Faults())
    thread = threading.Thread(target=server._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server._http.shutdown()
        server._http.server_close()
        thread.join()
