"""The event service: subscriptions, test events, and events of the machine, pushed to whoever subscribed or streamed
to whoever listens."""

import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlparse

from simulators.redfish.documents import Answer, JsonObject, linked_path, parent_path
from simulators.redfish.errors import (
    Message,
    RedfishError,
    property_missing,
    property_unknown,
    property_value_error,
    property_value_not_in_list,
    property_value_type,
)
from simulators.redfish.event_stream import EventStreams
from simulators.redfish.machine import Machine, merge_properties
from simulators.redfish.properties import annotated, split_patch
from simulators.redfish.routes import Call, Routes
from simulators.redfish.tasks import timestamp

PROTOCOLS = ("Redfish", "SNMPv2c", "SyslogTLS", "SyslogTCP", "SyslogUDP", "Kafka", "OEM")
Deliver = Callable[[str, JsonObject, Mapping[str, str]], None]

_REGISTRY = "ResourceEvent.1.3"
MESSAGES = {
    "PowerOn": ("ResourcePoweredOn", "OK"),
    "PowerOff": ("ResourcePoweredOff", "OK"),
    "PowerPoweringOn": ("ResourcePoweringOn", "OK"),
    "PowerPoweringOff": ("ResourcePoweringOff", "OK"),
    "PowerPaused": ("ResourcePaused", "OK"),
    "HealthOK": ("ResourceStatusChangedOK", "OK"),
    "HealthWarning": ("ResourceStatusChangedWarning", "Warning"),
    "HealthCritical": ("ResourceStatusChangedCritical", "Critical"),
}
"""What the machine tells of itself: the message of DMTF's ResourceEvent registry, and its severity."""
SLOT_PROPERTIES = ("Destination", "Protocol", "Context", "EventTypes", "Oem")


class Events:
    """Keeps subscriptions. `deliver(destination, event, headers)` is set by whoever can send."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.deliver: Deliver = lambda _destination, _event, _headers: None
        service = linked_path(machine.store.tree.root, "EventService")
        document = machine.store.document(service) or {}
        self.service = service
        self.collection = linked_path(document, "Subscriptions")
        self.streams = EventStreams(machine.store, self.collection, document.get("ServerSentEventUri"))
        self._headers: dict[str, dict[str, str]] = {}
        self._own: set[str] = set()
        self._number = 0
        machine.emit = self.emit

    def register(self, routes: Routes) -> None:
        routes.creations["EventDestinationCollection"] = self.subscribe
        routes.patches["EventDestination"] = self.change
        routes.deletions["EventDestination"] = self.unsubscribe
        routes.actions["EventService.SubmitTestEvent"] = self.submit_test_event

    def subscribe(self, call: Call) -> Answer:
        """POST to the subscriptions: 201, or 400 with everything that is wrong; 503 where all places are taken."""
        body = call.body
        faults = [*self._wrong_destination(body), *self._wrong_types(body)]
        if faults:
            raise RedfishError(400, faults)
        if len(self._own) >= self.machine.options.max_subscriptions:
            raise RedfishError(
                503, Message("EventSubscriptionLimitExceeded", "All event subscriptions are taken.", "Critical")
            )
        collection = call.path.rstrip("/")
        identifier = secrets.token_hex(6)
        path = f"{collection}/{identifier}"
        self._headers[path] = flat_headers(body.get("HttpHeaders"))
        self._own.add(path)
        document: JsonObject = {
            "@odata.type": "#EventDestination.v1_15_0.EventDestination",
            "@odata.id": path,
            "Id": identifier,
            "Name": "Event Subscription",
            "Destination": body["Destination"],
            "Protocol": body["Protocol"],
            "Context": body.get("Context"),
            "SubscriptionType": body.get("SubscriptionType", "RedfishEvent"),
            "EventFormatType": body.get("EventFormatType", "Event"),
            "RegistryPrefixes": body.get("RegistryPrefixes", []),
            "ResourceTypes": body.get("ResourceTypes", []),
            "VerifyCertificate": body.get("VerifyCertificate", True),
            "DeliveryRetryPolicy": body.get("DeliveryRetryPolicy", "RetryForever"),
            "HttpHeaders": [],  # they may hold secrets: the schema wants null, or nothing in it, on read
        }
        if "EventTypes" in body:
            document["EventTypes"] = body["EventTypes"]
        resource = self.machine.store.add_member(collection, document)
        return Answer.of(201, resource.document, {"Location": path, "ETag": resource.etag})

    def change(self, call: Call) -> Answer:
        """PATCH of a subscription; a slot that is always there (Supermicro) is filled, switched on and off so."""
        switch = slot_switch(call.document)
        if switch is None:
            accepted, messages = split_patch(call.document, call.body, call.resource.schema)
        else:
            unknown = [property_unknown(name) for name in call.body if name not in SLOT_PROPERTIES]
            if unknown:
                raise RedfishError(400, unknown)
            accepted, messages = dict(call.body), []
        changed = self.machine.store.edit(call.path, lambda document: merge_properties(document, accepted))
        if switch is not None:
            (self._own.add if slot_switch(changed) else self._own.discard)(call.path)
        return Answer.of(200, annotated(changed, messages))

    def _wrong_destination(self, body: JsonObject) -> Iterator[Message]:
        destination, protocol = body.get("Destination"), body.get("Protocol")
        yield from (property_missing(name) for name in ("Destination", "Protocol") if not body.get(name))
        if destination is not None and not isinstance(destination, str):
            yield property_value_type("Destination", destination)
        elif destination and urlparse(destination).scheme not in ("http", "https") and protocol in (None, "Redfish"):
            yield property_value_error("Destination", "it is not an http or https URL")
        if protocol and protocol not in PROTOCOLS:
            yield property_value_not_in_list("Protocol", protocol, PROTOCOLS)

    def _wrong_types(self, body: JsonObject) -> Iterator[Message]:
        """`EventTypes`: asked for where the service lists them, refused where it does not (EventService 1.3)."""
        offered = (self.machine.store.document(self.service) or {}).get("EventTypesForSubscription")
        types = body.get("EventTypes")
        if not isinstance(offered, list):
            if types is not None:
                yield property_unknown("EventTypes")
        elif types is None:
            yield property_missing("EventTypes")
        elif not isinstance(types, list):
            yield property_value_type("EventTypes", types)
        else:
            yield from (
                property_value_not_in_list("EventTypes", word, offered) for word in types if word not in offered
            )

    def unsubscribe(self, call: Call) -> Answer:
        self._headers.pop(call.path, None)
        self._own.discard(call.path)
        self.streams.close(call.path)
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
        """An event of the machine itself; nothing happens where nobody listens."""
        if not self._own and not self.streams.wanted:
            return
        key, severity = MESSAGES.get(kind, ("ResourceChanged", "OK"))
        offered = (self.machine.store.document(self.service) or {}).get("EventTypesForSubscription")
        common = "StatusChange" if kind.startswith("Health") else "ResourceUpdated"
        self._send(
            {
                # iDRAC knows no other kinds than alerts.
                "EventType": common if not isinstance(offered, list) or common in offered else "Alert",
                "EventId": secrets.token_hex(4),
                "Severity": severity,
                "Message": text,
                "MessageId": f"{_REGISTRY}.{key}",
                "OriginOfCondition": {"@odata.id": origin},
            }
        )

    def _send(self, record: JsonObject) -> None:
        """To the streams, and to the subscriptions made here; those of the recording belong to machines long gone."""
        record = {"MemberId": "0", "EventTimestamp": timestamp(), **record}
        self._number += 1
        event: JsonObject = {
            "@odata.type": "#Event.v1_10_0.Event",
            "Id": str(self._number),
            "Name": "Event",
            "Events": [record],
        }
        self.streams.send(self._number, event)
        for path in sorted(self._own):
            subscription = self.machine.store.document(path)
            if subscription is None or subscription.get("Protocol") != "Redfish":
                continue
            types = subscription.get("EventTypes")
            if isinstance(types, list) and types and record["EventType"] not in types:
                continue
            addressed = {**event, "Context": subscription.get("Context")}
            self.deliver(str(subscription["Destination"]), addressed, self._headers.get(path, {}))


def slot_switch(document: JsonObject) -> bool | None:
    """Whether a subscription that is always there is switched on; None for any other one."""
    oem = document.get("Oem")
    for section in oem.values() if isinstance(oem, dict) else ():
        if isinstance(section, dict) and isinstance(section.get("EnableSubscription"), bool):
            return bool(section["EnableSubscription"])
    return None


def flat_headers(headers: Any) -> dict[str, str]:
    """The subscriber's own headers, from the schema's array of objects."""
    entries = headers if isinstance(headers, list) else []
    return {str(name): str(value) for entry in entries if isinstance(entry, dict) for name, value in entry.items()}
