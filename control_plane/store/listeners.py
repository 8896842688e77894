"""Who listens to which channel in this process, and the rules for channels and payloads."""

import asyncio
import re
import threading
from collections.abc import Callable

from control_plane.store.errors import StoreMisuse

_CHANNEL = re.compile(r"[a-z_][a-z0-9_]{0,62}")
LONGEST_PAYLOAD = 4000
"""Bytes. PostgreSQL takes under 8,000; a hint names a row, it does not carry it."""


def check_hint(channel: str, payload: str) -> None:
    """Raise `StoreMisuse` for a channel or payload that one of the databases would refuse."""
    if not _CHANNEL.fullmatch(channel):
        raise StoreMisuse(f"not a channel: {channel!r}; use up to 63 small letters, digits and underscores")
    if len(payload.encode()) > LONGEST_PAYLOAD:
        raise StoreMisuse(f"the hint is longer than {LONGEST_PAYLOAD} bytes: send the row's id, not the row")


class Listener:
    """One `listen`: called in its own event loop."""

    def __init__(self, channel: str, callback: Callable[[str], object], loop: asyncio.AbstractEventLoop) -> None:
        self.channel = channel
        self.callback = callback
        self.loop = loop
        self.active = True

    def tell(self, payload: str) -> None:
        """Call back in the listener's loop; from any thread."""
        try:
            self.loop.call_soon_threadsafe(self._call, payload)
        except RuntimeError:
            self.active = False

    def _call(self, payload: str) -> None:
        if not self.active:
            return
        try:
            self.callback(payload)
        except Exception as error:
            message = f"a listener of channel {self.channel} failed"
            self.loop.call_exception_handler({"message": message, "exception": error})


class Listeners:
    """The listeners of this process, by channel. Used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_channel: dict[str, tuple[Listener, ...]] = {}

    def add(self, channel: str, callback: Callable[[str], object]) -> Listener:
        """Add a listener that calls back in the running event loop."""
        check_hint(channel, "")
        listener = Listener(channel, callback, asyncio.get_running_loop())
        with self._lock:
            self._by_channel[channel] = (*self._by_channel.get(channel, ()), listener)
        return listener

    def remove(self, listener: Listener) -> None:
        listener.active = False
        with self._lock:
            left = tuple(other for other in self._by_channel.get(listener.channel, ()) if other is not listener)
            if left:
                self._by_channel[listener.channel] = left
            else:
                self._by_channel.pop(listener.channel, None)

    def channels(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._by_channel)

    def tell(self, channel: str, payload: str) -> None:
        """Call every listener of a channel."""
        for listener in self._by_channel.get(channel, ()):
            listener.tell(payload)
