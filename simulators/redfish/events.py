"""The event service: subscriptions, test events, and events of the machine, pushed to whoever subscribed."""

import secrets
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlparse

from simulators.redfish.documents import Answer, JsonObject, linked_path, parent_path
from simulators.redfish.errors import (
    RedfishError,
    property_missing,
    property_value_error,
    property_value_not_in_list,
    property_value_type,
)
from simulators.redfish.machine import Machine
from simulators.redfish.routes import Call, Routes
from simulators.redfish.tasks import timestamp

PROTOCOLS = ("Redfish", "SNMPv2c", "SyslogTLS", "SyslogTCP", "SyslogUDP", "Kafka", "OEM")
Deliver = Callable[[str, JsonObject, Mapping[str, str]], None]

DEFAULT_MESSAGE = {"PowerStateChanged": "ResourceEvent.1.3.ResourceChanged"}


class Events:
    """Keeps subscriptions. `deliver(destination, event, headers)` is set by whoever can send."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.deliver: Deliver = lambda _destination, _event, _headers: None
        service = linked_path(machine.store.tree.root, "EventService")
        self.collection = linked_path(machine.store.document(service), "Subscriptions")
        self._headers: dict[str, dict[str, str]] = {}
        self._own: set[str] = set()
        machine.emit = self.emit

    def register(self, routes: Routes) -> None:
        routes.creations["EventDestinationCollection"] = self.subscribe
        routes.deletions["EventDestination"] = self.unsubscribe
        routes.actions["EventService.SubmitTestEvent"] = self.submit_test_event

    def subscribe(self, call: Call) -> Answer:
        """POST to the subscriptions: 201, or 400 with everything that is wrong."""
        body = call.body
        faults = [property_missing(name) for name in ("Destination", "Protocol") if not body.get(name)]
        destination, protocol = body.get("Destination"), body.get("Protocol")
        if destination is not None and not isinstance(destination, str):
            faults.append(property_value_type("Destination", destination))
        elif destination and urlparse(destination).scheme not in ("http", "https") and protocol in (None, "Redfish"):
            faults.append(property_value_error("Destination", "it is not an http or https URL"))
        if protocol and protocol not in PROTOCOLS:
            faults.append(property_value_not_in_list("Protocol", protocol, PROTOCOLS))
        if faults:
            raise RedfishError(400, faults)
        collection = call.path.rstrip("/")
        identifier = secrets.token_hex(6)
        path = f"{collection}/{identifier}"
        headers = body.get("HttpHeaders")
        self._headers[path] = flat_headers(headers)
        self._own.add(path)
        document: JsonObject = {
            "@odata.type": "#EventDestination.v1_15_0.EventDestination",
            "@odata.id": path,
            "Id": identifier,
            "Name": "Event Subscription",
            "Destination": destination,
            "Protocol": protocol,
            "Context": body.get("Context"),
            "SubscriptionType": body.get("SubscriptionType", "RedfishEvent"),
            "EventFormatType": body.get("EventFormatType", "Event"),
            "RegistryPrefixes": body.get("RegistryPrefixes", []),
            "ResourceTypes": body.get("ResourceTypes", []),
            "VerifyCertificate": body.get("VerifyCertificate", True),
            "DeliveryRetryPolicy": body.get("DeliveryRetryPolicy", "RetryForever"),
            "HttpHeaders": None,  # they may hold secrets: the schema wants null on read
        }
        resource = self.machine.store.add_member(collection, document)
        return Answer.of(201, resource.document, {"Location": path, "ETag": resource.etag})

    def unsubscribe(self, call: Call) -> Answer:
        self._headers.pop(call.path, None)
        self._own.discard(call.path)
        self.machine.store.remove_member(parent_path(call.path), call.path)
        return Answer(204)

    def submit_test_event(self, call: Call) -> None:
        body = call.body
        message_id = str(body.get("MessageId") or "ResourceEvent.1.3.TestMessage")
        self._send(
            {
                "EventType": str(body.get("EventType") or "Alert"),
                "EventId": str(body.get("EventId") or secrets.token_hex(4)),
                "Severity": str(body.get("Severity") or "OK"),
                "Message": str(body.get("Message") or "This is a test event."),
                "MessageId": message_id,
                "MessageArgs": body.get("MessageArgs", []),
                "OriginOfCondition": {"@odata.id": str(body.get("OriginOfCondition") or call.path)},
            }
        )

    def emit(self, kind: str, origin: str, text: str) -> None:
        """An event of the machine itself; nothing happens where nobody subscribed."""
        if not self._own:
            return
        self._send(
            {
                "EventType": "ResourceUpdated",
                "EventId": secrets.token_hex(4),
                "Severity": "OK",
                "Message": text,
                "MessageId": DEFAULT_MESSAGE.get(kind, "ResourceEvent.1.3.ResourceChanged"),
                "OriginOfCondition": {"@odata.id": origin},
            }
        )

    def _send(self, record: JsonObject) -> None:
        """Pushes to the subscriptions made here; those of the recording belong to machines long gone."""
        record = {"MemberId": "0", "EventTimestamp": timestamp(), **record}
        for path in sorted(self._own):
            subscription = self.machine.store.document(path)
            if subscription is None or subscription.get("Protocol") != "Redfish":
                continue
            event: JsonObject = {
                "@odata.type": "#Event.v1_10_0.Event",
                "Id": record["EventId"],
                "Name": "Event",
                "Context": subscription.get("Context"),
                "Events": [record],
            }
            self.deliver(str(subscription["Destination"]), event, self._headers.get(path, {}))


def flat_headers(headers: Any) -> dict[str, str]:
    """The subscriber's own headers, from the schema's array of objects."""
    entries = headers if isinstance(headers, list) else []
    return {str(name): str(value) for entry in entries if isinstance(entry, dict) for name, value in entry.items()}
