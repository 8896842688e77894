"""The site's image server: one small ISO image over HTTP, from a thread of the demo itself."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

__all__ = ["ImageServer"]

_SECTOR = 2048


def iso_image() -> bytes:
    """Volume descriptors and nothing in the volume (ECMA-119, 8.3 and 8.4): enough to be taken for an ISO image."""
    primary = b"\x01CD001\x01\x00" + b" " * 32 + b"RACKWRIGHT_DEMO".ljust(32)
    end = b"\xffCD001\x01"
    return bytes(16 * _SECTOR) + primary.ljust(_SECTOR, b"\0") + end.ljust(_SECTOR, b"\0")


class _Handler(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self.wfile.write(self._answer())

    def _answer(self) -> bytes:
        image = iso_image() if self.path == ImageServer.PATH else b""
        self.send_response(200 if image else 404)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(image)))
        self.end_headers()
        return image

    def log_message(self, *words: object) -> None:
        """Says nothing: the demo's own output is the table."""


class ImageServer:
    """Serves while it is entered. Raises OSError where the port cannot be bound."""

    PATH = "/demo.iso"

    def __init__(self, address: str) -> None:
        self._server = ThreadingHTTPServer((address, 0), _Handler)
        self.url = f"http://{address}:{self._server.server_port}{self.PATH}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
