"""A subscription to a BMC's events: the words that this BMC wants for it, and which of those it has is ours. Pure."""

from collections.abc import Iterable

from drivers.redfish import messages
from drivers.redfish.document import Document, boolean, dig, text
from drivers.redfish.manners import Manners
from drivers.redfish.messages import Note
from drivers.signals import Listener

__all__ = ["amended", "first_words", "free_slot", "is_ours", "slot_words", "takes_events", "was_ours"]

_WANTED_TYPES = ("Alert", "StatusChange", "ResourceUpdated", "Other")
_OPTIONAL = ("EventTypes", "EventFormatType", "SubscriptionType", "Context", "HttpHeaders")
_ADDED_LATER: dict[str, object] = {
    "SubscriptionType": "RedfishEvent",
    "EventFormatType": "Event",
    "DeliveryRetryPolicy": "RetryForever",
    "HttpHeaders": [],
    "RegistryPrefixes": [],
    "ResourceTypes": [],
}


def takes_events(service: Document) -> bool:
    """Whether the event service is on. One that does not say so is tried."""
    return boolean(service, "ServiceEnabled") is not False


def first_words(service: Document, listener: Listener) -> Document:
    """The body by what the service tells of itself.

    `EventTypes` where it lists them (they are mandatory before EventService 1.3, and refused by some since:
    stmcginnis/gofish pull request 241). No filter by registry or resource: what it does not send cannot be missed.
    """
    body: Document = {"Destination": listener.url, "Protocol": "Redfish", "Context": listener.context}
    types = dig(service, "EventTypesForSubscription")
    if isinstance(types, list):
        offered = [word for word in _WANTED_TYPES if word in types]
        if offered:
            body["EventTypes"] = offered
    formats = dig(service, "EventFormatTypes")
    if isinstance(formats, list) and "Event" in formats:
        body["EventFormatType"] = "Event"
        body["SubscriptionType"] = "RedfishEvent"
    return body


def amended(body: Document, notes: list[Note], service: Document) -> Document | None:
    """The body without what the BMC does not know, or with what it misses; None where its words name neither."""
    for note in notes:
        refused = note.key in (
            "PropertyUnknown",
            "PropertyNotWritable",
            "PropertyValueNotInList",
            "PropertyValueTypeError",
        )
        missing = note.key in ("PropertyMissing", "CreateFailedMissingReqProperties", "ActionParameterMissing")
        for name in _OPTIONAL if refused else ():
            if name in body and messages.mentions([note], name):
                return {key: value for key, value in body.items() if key != name}
        if missing and "EventTypes" not in body and messages.mentions([note], "EventTypes"):
            types = dig(service, "EventTypesForSubscription")
            return {**body, "EventTypes": types if isinstance(types, list) and types else ["Alert"]}
        for name, value in _ADDED_LATER.items() if missing else ():
            if name not in body and messages.mentions([note], name):
                return {**body, name: value}
    return None


def is_ours(subscription: Document, listener: Listener) -> bool:
    """Whether it leads to this very listener."""
    return text(subscription, "Destination") == listener.url


def was_ours(subscription: Document, listener: Listener) -> bool:
    """Whether it led to a listener of this agent that is no more."""
    return text(subscription, "Context") == listener.context and not is_ours(subscription, listener)


def free_slot(subscriptions: Iterable[tuple[str, Document]]) -> str | None:
    """Where the slots are always there: the first that leads nowhere."""
    for path, slot in subscriptions:
        if _switch(slot) is False and text(slot, "Destination") in (None, "0.0.0.0", "N/A"):  # noqa: S104
            return path
    return None


def slot_words(body: Document | None, manners: Manners) -> Document:
    """What a slot is given: the body, and the vendor's own switch; without a body it is given free."""
    section, switch = manners.subscription_switch or ("", "")
    oem = {section: {switch: body is not None}}
    if body is None:
        return {"Destination": "0.0.0.0", "Context": "", "EventTypes": [], "Oem": oem}  # noqa: S104
    kept = {key: value for key, value in body.items() if key in ("Destination", "Protocol", "Context", "EventTypes")}
    return {**kept, "Oem": oem}


def _switch(slot: Document) -> bool | None:
    sections = dig(slot, "Oem")
    for section in sections.values() if isinstance(sections, dict) else ():
        on = boolean(section, "EnableSubscription")
        if on is not None:
            return on
    return None
