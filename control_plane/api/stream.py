"""The events as they happen, as server-sent events: resumable by Last-Event-ID, without gap or repeat."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from control_plane.api.handlers.history import event_view
from control_plane.events import EVENTS_CHANNEL, newest, read_from
from control_plane.horizon import Horizon
from control_plane.records import EventRow
from control_plane.store import Store

__all__ = ["MOST_STREAMS", "EventHub", "follow"]

MOST_STREAMS = 200
"""Streams that one process serves at once; each costs a read for every burst of events."""
_BATCH = 100
_POLL_SECONDS = 1.0
_HEARTBEAT_SECONDS = 15.0


class EventHub:
    """Wakes every stream of this process when something was published."""

    def __init__(self, store: Store, horizon: Horizon) -> None:
        self.store = store
        self.horizon = horizon
        self.closing = False
        self.open = 0
        self._event = asyncio.Event()
        self._stop_listening: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._stop_listening = self.store.listen(EVENTS_CHANNEL, lambda _: self._ring())

    def stop(self) -> None:
        """Ends the streams."""
        self.closing = True
        self._stop_listening()
        self._ring()

    async def rung(self) -> None:
        """Until something may have been published. The table is the truth: it is asked each second all the same."""
        event = self._event
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                await event.wait()
        except TimeoutError:
            return

    def _ring(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()


async def follow(
    hub: EventHub,
    tenant_id: str,
    after: int | None,
    still_allowed: Callable[[], Awaitable[bool]],
) -> AsyncIterator[bytes]:
    """The stream's bytes, until the process stops or the token is no longer good. `after` None: from now on."""
    loop = asyncio.get_running_loop()
    quiet_since = checked = loop.time()
    hub.open += 1
    try:
        cursor = await _now(hub, tenant_id) if after is None else after
        yield b": events of Rackwright\nretry: 2000\n\n"
        while not hub.closing:
            waiting = asyncio.ensure_future(hub.rung())
            settled = await hub.horizon.refresh(_POLL_SECONDS)
            rows = await hub.store.read(read_from, tenant_id, cursor, _BATCH, hub.horizon.seq)
            now = loop.time()
            if now - checked >= _POLL_SECONDS:
                checked = now
                if not await still_allowed():
                    waiting.cancel()
                    return
            if rows:
                waiting.cancel()
                cursor, quiet_since = rows[-1].seq, now
                yield b"".join(_message(row) for row in rows)
                continue
            if now - quiet_since >= _HEARTBEAT_SECONDS:
                quiet_since = now
                yield b": still here\n\n"
            if settled:
                await waiting
            else:
                # What an open transaction holds up comes when that ends, and nobody rings then.
                waiting.cancel()
    finally:
        hub.open -= 1


async def _now(hub: EventHub, tenant_id: str) -> int:
    """The place behind all that can be seen now, once nothing more can come before it."""
    place = await hub.store.read(newest, tenant_id)
    while hub.horizon.seq < place and not hub.closing:
        await hub.horizon.refresh(_POLL_SECONDS)
    return place


def _message(row: EventRow) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (row.seq, row.type.encode(), msgspec.json.encode(event_view(row)))
