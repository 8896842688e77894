"""Where a BMC sends its events, as an operator sets it: made where missing; only ours are ever taken away."""

from drivers.driver import Call
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.document import Document, link, text
from drivers.redfish.event_service import RedfishWatch
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.subscription import amended, first_words, free_slot, slot_words, takes_events
from drivers.redfish.walking import read_collection
from drivers.signals import Listener
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.config import EventDestination

__all__ = ["OUR_CONTEXT", "apply_destinations", "destinations_of", "is_there", "obsolete", "read_destinations"]

OUR_CONTEXT = "rackwright.config"
"""What tells our subscriptions from everybody else's, the agent's own listener included."""
_MOST_AMENDMENTS = 4


def destinations_of(subscriptions: list[Document]) -> list[EventDestination]:
    """The Redfish destinations; those of SNMP, syslog and mail are none, nor are empty slots."""
    found = []
    for subscription in subscriptions:
        url = text(subscription, "Destination")
        if url is not None and "://" in url and (text(subscription, "Protocol") or "Redfish") == "Redfish":
            found.append(EventDestination(url=url, context=text(subscription, "Context")))
    return found


def is_there(wanted: EventDestination, present: list[EventDestination]) -> bool:
    """Whether a destination is there, with its context where one is wanted."""
    return any(
        found.url.rstrip("/") == wanted.url.rstrip("/") and wanted.context in (None, found.context)
        for found in present
    )


def obsolete(subscriptions: list[Document], wanted: list[EventDestination]) -> list[str]:
    """The paths of ours that are not wanted any more."""
    urls = {destination.url.rstrip("/") for destination in wanted}
    return [
        path
        for subscription in subscriptions
        if text(subscription, "Context") == OUR_CONTEXT
        and (text(subscription, "Destination") or "").rstrip("/") not in urls
        and (path := link(subscription)) is not None
    ]


async def read_destinations(connection: RedfishConnection, call: Call) -> list[EventDestination]:
    """Empty where the BMC has no event service, or it cannot be read now."""
    service = await connection.find(link(await connection.root(call), "EventService"), call)
    return destinations_of(await read_collection(connection, link(service, "Subscriptions"), call))


async def apply_destinations(connection: RedfishConnection, wanted: list[EventDestination], call: Call) -> bool:
    """Brings the BMC's subscriptions to what is wanted; whether anything was changed.

    Raises OperationError with the BMC's words: no slot left, a duplicate, https wanted, events switched off.
    """
    path = link(await connection.root(call), "EventService")
    service = await connection.find_patiently(path, call)
    collection = link(service, "Subscriptions")
    if service is None or collection is None:
        raise OperationError(ErrorCode.UNSUPPORTED, "this BMC has no event service with subscriptions")
    known = await read_collection(connection, collection, call)
    missing = [destination for destination in wanted if not is_there(destination, destinations_of(known))]
    gone = obsolete(known, wanted)
    _check(connection, service, missing)
    for subscription in gone:
        await RedfishWatch(connection).unsubscribe(subscription, call)
    for destination in missing:
        listener = Listener(destination.url, destination.context or OUR_CONTEXT)
        await _subscribe(connection, collection, service, listener, known, call)
    if not missing and not gone:
        return False
    present = destinations_of(await read_collection(connection, collection, call))
    absent = [destination.url for destination in missing if not is_there(destination, present)]
    if absent:
        raise OperationError(
            ErrorCode.NOT_APPLIED, f"the BMC took the subscription, but does not list {', '.join(absent)}"
        )
    return True


def _check(connection: RedfishConnection, service: Document, missing: list[EventDestination]) -> None:
    if missing and not takes_events(service):
        raise OperationError(ErrorCode.UNSUPPORTED, "the event service of this BMC is switched off")
    plain = [destination.url for destination in missing if destination.url.startswith("http://")]
    if plain and connection.service.manners.events_by_https_only:
        raise OperationError(
            ErrorCode.UNSUPPORTED, f"this BMC sends events by https only, and not to {', '.join(plain)}"
        )


async def _subscribe(
    connection: RedfishConnection,
    collection: str,
    service: Document,
    listener: Listener,
    known: list[Document],
    call: Call,
) -> None:
    """Makes one subscription, in the words that this BMC takes; one that is there despite a refusal is as good."""
    body = first_words(service, listener)
    manners = connection.service.manners
    slots = [(path, document) for document in known if (path := link(document)) is not None]
    slot = free_slot(slots) if manners.subscription_switch is not None else None
    if slot is not None:
        known[:] = [document for document in known if link(document) != slot]
        await connection.patch(slot, slot_words(body, manners), call)
        return
    for _ in range(_MOST_AMENDMENTS + 1):
        try:
            await connection.order(collection, body, call, look=collection)
            return
        except (NoAnswer, Refused) as failure:
            present = destinations_of(await read_collection(connection, collection, call))
            if is_there(EventDestination(url=listener.url), present):
                return
            if isinstance(failure, NoAnswer) or failure.status != 400:
                raise
            better = amended(body, failure.notes, service)
            if better is None or better == body:
                raise
            body = better
    raise OperationError(ErrorCode.BMC_ERROR, f"this BMC takes no subscription for {listener.url} in any known form")
