"""The watch over a Redfish BMC: one cheap look at power and health, and its events by stream or by subscription.

A stream is a network connection of its own in the session of the operations, since session slots are few. A
subscription needs no session between looks. Both only say that a look is worth its while.
"""

import contextlib
from collections.abc import AsyncGenerator

import aiohttp
import msgspec

from drivers.driver import Call
from drivers.redfish.answer import Answer
from drivers.redfish.bmc_events import events_in
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.document import Document, boolean, dig, link, members, path_of, text
from drivers.redfish.event_stream import EventStream, StreamedEvent
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.health import health_of
from drivers.redfish.manners import Manners
from drivers.redfish.reset_types import meaning
from drivers.redfish.subscription import amended, first_words, free_slot, is_ours, slot_words, takes_events, was_ours
from drivers.signals import EventOffer, Glance, Listener, Signal
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.management import Health

__all__ = ["RedfishWatch", "glance_of", "offer_of"]

_EVENT_SERVICE = "/redfish/v1/EventService"
_ACCEPTED = {"Accept": "text/event-stream", "Cache-Control": "no-cache"}
_FILTER = "$filter=EventFormatType%20eq%20Event"
"""Telemetry is a flood, and nobody here drinks of it."""
_MOST_AMENDMENTS = 4
_MOST_SUBSCRIPTIONS = 64
_UNFILTERED = frozenset({400, 404, 405, 406, 414, 501})


class _StatusView(msgspec.Struct, frozen=True, gc=False):
    health: str | None = msgspec.field(name="Health", default=None)
    rollup: str | None = msgspec.field(name="HealthRollup", default=None)


class _SystemView(msgspec.Struct, frozen=True, gc=False):
    """The few properties of a system that a look needs; the rest of the document is skipped unread."""

    power: str | None = msgspec.field(name="PowerState", default=None)
    status: _StatusView | None = msgspec.field(name="Status", default=None)


_decode = msgspec.json.Decoder(_SystemView).decode


class RedfishWatch:
    def __init__(self, connection: RedfishConnection) -> None:
        self._connection = connection

    async def look(self, call: Call) -> Glance:
        """Power and health out of one GET of the system. A BMC that is busy is not asked again: BUSY, and how long it
        wants to be left alone as `retryAfter`."""
        service = self._connection.service
        try:
            if service.system_path is None:
                return glance_of(await service.system(call))
            try:
                answer = await self._connection.read(service.system_path, call, patience=0)
            except Refused as refused:
                if refused.status not in (404, 410):
                    raise
                return glance_of(await service.system(call))
        except Refused as refused:
            if refused.wait is not None:
                refused.details["retryAfter"] = refused.wait
            raise
        return self._glance(answer)

    async def event_offer(self, call: Call) -> EventOffer:
        """What the event service offers; empty where it is off, absent, or cannot be read now."""
        return offer_of(await self._connection.find(await self._service_path(call), call) or {})

    async def listen(self, path: str, last_id: str | None, call: Call) -> AsyncGenerator[Signal, None]:
        """The stream, until the BMC ends it. The first signal is empty: the stream is open.

        Raises UNSUPPORTED where what answers is no stream, UNREACHABLE where the connection breaks.
        """
        headers = dict(_ACCEPTED)
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        async with contextlib.AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(self._connection.streams.open(path, headers, call))
            except Refused as refused:
                if "?" not in path or refused.status not in _UNFILTERED:
                    raise
                # iDRAC 10 wants its filter in other words (dell/iDRAC-Telemetry-Reference-Tools): none will do.
                response = await stack.enter_async_context(
                    self._connection.streams.open(path.partition("?")[0], headers, call)
                )
            if response.content_type != "text/event-stream":
                raise OperationError(
                    ErrorCode.UNSUPPORTED,
                    f"{self._connection.endpoint} answers {path} with {response.content_type} and not with a stream",
                )
            yield Signal((), last_id)
            stream = EventStream()
            async for chunk in self._chunks(response):
                before = stream.last_id if stream.last_id is not None else last_id
                found = stream.feed(chunk)
                if found:
                    yield _signal(found, before, stream.retry)

    async def subscribe(self, listener: Listener, call: Call) -> str:
        """Makes the subscription unless it is there; those of this agent's earlier listeners are taken away.

        Raises OperationError with the BMC's words: all slots taken, events switched off, https wanted.
        """
        service = await self._connection.get(await self._service_path(call), call)
        manners = await self._manners(call)
        if not takes_events(service):
            raise OperationError(ErrorCode.UNSUPPORTED, f"the event service of {self._connection.endpoint} is off")
        if manners.events_by_https_only and not listener.url.startswith("https://"):
            raise OperationError(
                ErrorCode.UNSUPPORTED,
                f"{self._connection.endpoint} sends its events by https only: give the listener a certificate",
            )
        collection = link(service, "Subscriptions") or f"{_EVENT_SERVICE}/Subscriptions"
        known = await self._known(collection, call)
        for path, document in known:
            if is_ours(document, listener):
                return path
        for path, document in known:
            if was_ours(document, listener):
                with contextlib.suppress(Refused):
                    await self.unsubscribe(path, call)
        slot = free_slot(known) if manners.subscription_switch is not None else None
        if slot is not None:
            await self._connection.patch(slot, slot_words(first_words(service, listener), manners), call)
            return slot
        return await self._create(collection, first_words(service, listener), service, listener, call)

    async def is_subscribed(self, path: str, listener: Listener, call: Call) -> bool:
        """Whether the subscription is there and leads to the listener."""
        try:
            document = await self._connection.get(path, call, patience=0)
        except Refused as refused:
            if refused.absent:
                return False
            raise
        return is_ours(document, listener)

    async def unsubscribe(self, path: str, call: Call) -> None:
        """Takes the subscription away, or gives its slot free. One that is gone is as good."""
        manners = await self._manners(call)
        try:
            if manners.subscription_switch is not None and await self._is_slot(path, call):
                await self._connection.patch(path, slot_words(None, manners), call)
            else:
                await self._connection.act("DELETE", path, None, call)
        except Refused as refused:
            if refused.status not in (404, 410):
                raise

    async def _create(
        self, collection: str, body: Document, service: Document, listener: Listener, call: Call
    ) -> str:
        """One subscription, in the words that this BMC takes."""
        for _ in range(_MOST_AMENDMENTS):
            try:
                return _created(await self._connection.order(collection, body, call, look=collection), collection)
            except NoAnswer:
                # It may be there: it is looked for, and not asked for again.
                for path, document in await self._known(collection, call):
                    if is_ours(document, listener):
                        return path
                raise
            except Refused as refused:
                better = amended(body, refused.notes, service) if refused.status == 400 else None
                if better is None or better == body:
                    raise
                body = better
        return _created(await self._connection.order(collection, body, call, look=collection), collection)

    async def _known(self, collection: str, call: Call) -> list[tuple[str, Document]]:
        paths = members(await self._connection.find_patiently(collection, call))[:_MOST_SUBSCRIPTIONS]
        return [
            (path, document) for path in paths if (document := await self._connection.find(path, call)) is not None
        ]

    async def _is_slot(self, path: str, call: Call) -> bool:
        document = await self._connection.find(path, call)
        oem = dig(document, "Oem")
        sections = oem.values() if isinstance(oem, dict) else ()
        return any(boolean(section, "EnableSubscription") is not None for section in sections)

    async def _service_path(self, call: Call) -> str:
        return link(await self._connection.root(call), "EventService") or _EVENT_SERVICE

    async def _manners(self, call: Call) -> Manners:
        if self._connection.service.system_path is None:
            await self._connection.service.system(call)
        return self._connection.service.manners

    def _glance(self, answer: Answer) -> Glance:
        with contextlib.suppress(msgspec.DecodeError):
            view = _decode(answer.body)
            if view.power:
                word = (view.status.rollup or view.status.health) if view.status is not None else None
                health = _HEALTH.get(word.lower()) if word else None
                if health is not None or word is None:
                    return Glance(meaning(view.power), health or Health.UNKNOWN, view.power[:100])
        return glance_of(self._connection.document_of(answer))

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise OperationError(
                ErrorCode.UNREACHABLE,
                f"the event stream of {self._connection.endpoint} broke off: {error or type(error).__name__}",
            ) from error


_HEALTH = {"ok": Health.OK, "warning": Health.WARNING, "critical": Health.CRITICAL}


def glance_of(system: Document) -> Glance:
    """What a system tells of itself; the rollup before its own health."""
    raw = text(system, "PowerState")
    return Glance(meaning(raw), health_of(system, rollup=True), None if raw is None else raw[:100])


def offer_of(service: Document) -> EventOffer:
    """How this event service can be heard; the stream is asked for events alone where it can tell them apart."""
    if not service or not takes_events(service):
        return EventOffer()
    stream = text(service, "ServerSentEventUri")
    path = path_of(stream) if stream is not None and "/" in stream else None
    if path is not None and "?" not in path and boolean(service, "SSEFilterPropertiesSupported", "EventFormatType"):
        path = f"{path}?{_FILTER}"
    return EventOffer(stream=path, subscriptions=link(service, "Subscriptions"))


def _signal(found: list[StreamedEvent], before: str | None, retry: float | None) -> Signal:
    gap = any(event.after_loss for event in found)
    for event in found:
        if before is not None and event.id is not None and before.isdecimal() and event.id.isdecimal():
            gap = gap or int(event.id) > int(before) + 1
        before = event.id
    return Signal(tuple(told for event in found for told in events_in(event.data)), before, gap, retry)


def _created(answer: Answer, collection: str) -> str:
    """Where the new subscription is: by `Location`, else by its body."""
    location = answer.headers.get("Location")
    if location and location.strip():
        return path_of(location)
    with contextlib.suppress(OperationError):
        path = link(answer.document()) or text(answer.document(), "@odata.id")
        if path is not None:
            return path_of(path)
    raise OperationError(
        ErrorCode.BMC_ERROR, f"the BMC took a subscription to {collection} and does not say where it is"
    )
