"""Stands between agents and several workers as a load balancer does: plain TCP, to whichever worker answers.

`cut` is the network that fails: every connection ends at once and none is made until `mend`.
"""

import contextlib
import socket
import threading
from collections.abc import Callable

__all__ = ["LinkProxy"]

_CHUNK = 1 << 16


class LinkProxy:
    """Listens on a loopback port of its own; `targets()` are the ports to try, in order."""

    def __init__(self, targets: Callable[[], list[int]]) -> None:
        self._targets = targets
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._mended = threading.Event()
        self._mended.set()
        threading.Thread(target=self._accept, name="link proxy", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def cut(self) -> None:
        self._mended.clear()
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            _end(connection)

    def mend(self) -> None:
        self._mended.set()

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = self._connect() if self._mended.is_set() else None
            if far is None:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()
            if not self._mended.is_set():
                _end(near)
                _end(far)

    def _connect(self) -> socket.socket | None:
        for port in self._targets():
            with contextlib.suppress(OSError):
                return socket.create_connection(("127.0.0.1", port), timeout=5)
        return None

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            source.settimeout(None)
            while chunk := source.recv(_CHUNK):
                sink.sendall(chunk)
        for connection in (source, sink):
            _end(connection)
        with self._lock:
            self._open -= {source}
        source.close()


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
