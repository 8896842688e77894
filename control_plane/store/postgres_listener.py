"""The connection that hears NOTIFY: its own, and made again whenever it breaks."""

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

import psycopg

from control_plane.store.errors import StoreUnavailable
from control_plane.store.listeners import Listener, Listeners
from control_plane.store.postgres_server import BackOff, Connection, PostgresServer, execute


class PostgresListener:
    """A thread that listens for this process. It starts with the first listener."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._listeners = Listeners()
        self._fresh: SimpleQueue[Listener] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ending = False
        self._wake_read = self._wake_write = -1

    def listen(self, channel: str, callback: Callable[[str], object]) -> Callable[[], None]:
        """See `port.Store.listen`."""
        listener = self._listeners.add(channel, callback)
        if self._thread is None:
            self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self._thread = threading.Thread(target=self._work, name="store-listener", daemon=True)
            self._thread.start()
        self._fresh.put(listener)
        self._wake()
        return lambda: self._stop(listener)

    def close(self) -> None:
        """End the thread; waits for it."""
        self._ending = True
        if self._thread is not None:
            self._wake()
            self._thread.join()
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._thread = None

    def _stop(self, listener: Listener) -> None:
        self._listeners.remove(listener)
        if self._thread is not None:
            self._wake()

    def _wake(self) -> None:
        # A pipe that is full of earlier wake-ups needs no other.
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"w")

    def _work(self) -> None:
        back_off = BackOff()
        while not self._ending:
            try:
                connection = self._server.connect()
            except StoreUnavailable:
                self._wait(back_off.failed())
                continue
            back_off.succeeded()
            try:
                self._follow(connection)
            except (psycopg.Error, OSError):
                self._wait(back_off.failed())
            finally:
                connection.close()

    def _wait(self, seconds: float) -> None:
        select.select([self._wake_read], [], [], seconds)
        self._drain()

    def _follow(self, connection: Connection) -> None:
        heard: set[str] = set()
        while not self._ending:
            self._adjust(connection, heard)
            connection.pgconn.consume_input()
            while (hint := connection.pgconn.notifies()) is not None:
                self._listeners.tell(hint.relname.decode(), hint.extra.decode())
            readable, _, _ = select.select([connection.fileno(), self._wake_read], [], [])
            if self._wake_read in readable:
                self._drain()

    def _adjust(self, connection: Connection, heard: set[str]) -> None:
        """Make the server's idea of what is listened to the same as ours."""
        fresh = self._take_fresh()
        wanted = set(self._listeners.channels())
        for channel in heard - wanted:
            execute(connection, f"UNLISTEN {channel}".encode())
        new = wanted - heard
        for channel in new:
            execute(connection, f"LISTEN {channel}".encode())
            self._listeners.tell(channel, "")
        for listener in fresh:
            if listener.channel not in new:
                listener.tell("")
        heard.clear()
        heard.update(wanted)

    def _take_fresh(self) -> list[Listener]:
        fresh: list[Listener] = []
        try:
            while True:
                fresh.append(self._fresh.get_nowait())
        except Empty:
            return fresh

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass
