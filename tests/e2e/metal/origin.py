"""A plain HTTP server for images, with ranges, that can do what such servers do on a bad day."""

import contextlib
import re
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Asked", "Origin"]

_CHUNK = 1 << 18
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Asked(NamedTuple):
    method: str
    name: str
    start: int


class Origin:
    """Serves the files of `files` by name. `asked` is what it was asked for.

    `die_at` closes it for everybody once a file has been sent up to that byte, until `come_back`.
    """

    def __init__(self, files: dict[str, Path]) -> None:
        self.files = files
        self.asked: list[Asked] = []
        self.die_at: int | None = None
        self.reached = threading.Event()
        """What `die_at` says has happened."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = int(probe.getsockname()[1])
        self._server: ThreadingHTTPServer | None = None
        self.start()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port}/{name}"

    def start(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), self._handler())
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="origin", daemon=True).start()

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def come_back(self) -> None:
        self.die_at = None
        self.reached.clear()
        if self._server is None:
            self.start()

    def passes(self, at: int) -> bool:
        """Whether the byte at `at` may be sent; what was planned for it happens."""
        if self.die_at is not None and at >= self.die_at:
            threading.Thread(target=self._die, daemon=True).start()
            return False
        return True

    def _die(self) -> None:
        self.stop()
        self.reached.set()

    def _handler(self) -> Callable[..., BaseHTTPRequestHandler]:
        origin = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                _answer(origin, self)

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, *_: Any) -> None:
        """Whoever hangs up is no fault of the server's."""


def _answer(origin: Origin, request: BaseHTTPRequestHandler) -> None:
    name = request.path.lstrip("/")
    file = origin.files.get(name)
    if file is None:
        request.send_error(404)
        return
    size = file.stat().st_size
    found = _RANGE.fullmatch(request.headers.get("Range", ""))
    first = int(found[1]) if found else 0
    last = int(found[2]) if found and found[2] else size - 1
    origin.asked.append(Asked(request.command, name, first))
    request.send_response(206 if found else 200)
    request.send_header("Content-Length", str(last - first + 1))
    request.send_header("Accept-Ranges", "bytes")
    request.send_header("ETag", f'"{size}-{file.stat().st_mtime_ns}"')
    if found:
        request.send_header("Content-Range", f"bytes {first}-{last}/{size}")
    request.end_headers()
    if request.command == "HEAD":
        return
    with file.open("rb") as handle, contextlib.suppress(OSError):
        handle.seek(first)
        at = first
        while at <= last:
            if not origin.passes(at):
                request.close_connection = True
                return
            data = handle.read(min(_CHUNK, last + 1 - at))
            request.wfile.write(data)
            at += len(data)
