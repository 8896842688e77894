"""Server-sent events: streams that stay open, each with the subscription that it is while it lasts (DSP0266)."""

import secrets
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlparse

from simulators.redfish.documents import JsonObject, Request, encode, parent_path, path_key
from simulators.redfish.errors import Message, RedfishError
from simulators.redfish.store import ResourceStore

KEPT_EVENTS = 100
FORMAT = "EventFormatType eq "
Write = Callable[[bytes | None], None]
"""Takes what is to be sent, and None for the end."""


class EventStreams:
    """The open streams of one event service; `uri` as its document names it, or None where it has none."""

    def __init__(self, store: ResourceStore, collection: str | None, uri: Any) -> None:
        self._store = store
        self._collection = collection
        self._key = path_key(urlparse(uri).path) if isinstance(uri, str) and "/" in uri else None
        self._open: dict[str, Write] = {}
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT_EVENTS)
        self._was_open = False

    @property
    def open(self) -> list[str]:
        """The subscriptions that the open streams are."""
        return list(self._open)

    @property
    def wanted(self) -> bool:
        """Whether anybody has ever listened: from then on events are kept for those who come back."""
        return self._was_open

    def is_stream(self, request: Request) -> bool:
        return request.method == "GET" and self._key is not None and path_key(request.path) == self._key

    def start(self, request: Request, write: Write) -> str:
        """Opens a stream and writes what it missed; the subscription that it is. RedfishError for what is refused."""
        accepted = request.headers.get("Accept", "*/*")
        if not any(kind in accepted for kind in ("text/event-stream", "text/*", "*/*")):
            raise RedfishError(
                406, Message("HeaderInvalid", "This is a stream: accept text/event-stream.", "Critical")
            )
        wanted = dict(parse_qsl(request.query)).get("$filter")
        if wanted is not None and not wanted.strip("()").startswith(FORMAT):
            raise RedfishError(400, Message("QueryParameterValueFormatError", f"The filter {wanted} is not known."))
        identifier = secrets.token_hex(6)
        path = f"{(self._collection or '').rstrip('/')}/{identifier}"
        if self._collection is not None:
            self._store.add_member(self._collection, _subscription(path, identifier))
        self._open[path], self._was_open = write, True
        last = request.headers.get("Last-Event-ID", "")
        write(b": the stream is open\n\n")
        for number, data in self._kept if last.isdecimal() else ():
            if number > int(last):
                write(data)
        return path

    def send(self, number: int, event: JsonObject) -> None:
        data = b"id: %d\ndata: %s\n\n" % (number, encode(event))
        self._kept.append((number, data))
        for write in list(self._open.values()):
            write(data)

    def close(self, path: str) -> None:
        """Ends a stream whose subscription was deleted."""
        write = self._open.pop(path, None)
        if write is not None:
            write(None)

    def close_all(self) -> None:
        for path in self.open:
            self.close(path)

    def ended(self, path: str) -> None:
        """The other end has gone: the subscription goes with it."""
        self._open.pop(path, None)
        if self._store.find(path) is not None:
            self._store.remove_member(parent_path(path), path)


def _subscription(path: str, identifier: str) -> JsonObject:
    return {
        "@odata.type": "#EventDestination.v1_15_0.EventDestination",
        "@odata.id": path,
        "Id": identifier,
        "Name": "Event Stream",
        # Schema: for a stream the destination names the client; nobody can be reached there.
        "Destination": "sse://client",
        "Protocol": "Redfish",
        "Context": identifier,
        "SubscriptionType": "SSE",
        "EventFormatType": "Event",
    }
