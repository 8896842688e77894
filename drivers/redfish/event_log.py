"""The event log: which of a BMC's many logs is the hardware's own, its newest entries, and emptying it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish import messages
from drivers.redfish.answer import Answer
from drivers.redfish.boot import unproven
from drivers.redfish.document import Document, action, link, link_target, text
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.health import severity_of
from drivers.redfish.tasks import words_about
from drivers.redfish.walking import can_expand, each, is_whole, read_collection, read_pages
from drivers.redfish.watching import comes_true
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.management import EventLog, EventLogCleared, GetEventLog, LogRecord

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["clear_event_log", "find_log", "log_among", "moment_of", "rank", "read_event_log", "record_of"]

_MOST_LISTED = 20_000
_CLEARED_SECONDS = 30.0
_CLEAR = "LogService.ClearLog"

_NEVER = re.compile(
    r"audit|security|dump|journal|hostlogger|postcode|debug|token|diag|crash|maintenance|\bxid\b|^sl$|fdr|bios", re.I
)
_RANKS: tuple[tuple[int, re.Pattern[str]], ...] = (
    (0, re.compile(r"^sel$|system event log|ipmi sel|integrated management log|^iml$", re.I)),
    (1, re.compile(r"health event log|^platformlog$", re.I)),
    (2, re.compile(r"^event(log)?$|event log|system log service|^activelog$", re.I)),
    (3, re.compile(r"log", re.I)),
)
_SURE = 1
"""The worst rank that ends the search: from 2 on a log may be the BMC's own."""


def rank(service: Document) -> int | None:
    """How much a log service looks like the hardware's event log: 0 is best; None is another log, or one without
    entries to read (Lenovo XCC's SEL)."""
    names = [name for name in (text(service, "Id"), text(service, "Name")) if name]
    if link(service, "Entries") is None or any(_NEVER.search(name) for name in names):
        return None
    found = [place for place, pattern in _RANKS for name in names if pattern.search(name)]
    best = min(found, default=4)
    return min(best, 1) if text(service, "LogEntryType") == "SEL" and "fault" not in " ".join(names).lower() else best


def moment_of(word: str | None) -> datetime | None:
    """The time that a BMC wrote; None for zeros, for 1970 (its clock was not set) and for what is no time.

    Offsets come as +00:00, -0600 (Dell) and Z; a time without one is taken for UTC.
    """
    if word is None or word.startswith(("0000", "1970-01-01")):
        return None
    match = re.match(r"^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(\.\d+)?\s*(Z|[+-]\d\d:?\d\d)?$", word.strip(), re.I)
    if match is None:
        return None
    day, clock, _, zone = match.groups()
    zone = "+00:00" if zone in (None, "Z", "z") else zone
    zone = zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
    try:
        return datetime.fromisoformat(f"{day}T{clock}{zone}")
    except ValueError:
        return None


def record_of(entry: Document, log: str | None) -> tuple[datetime | None, LogRecord]:
    """One entry, with its time as a time. Entries that say nothing keep at least their id."""
    moment = moment_of(text(entry, "EventTimestamp")) or moment_of(text(entry, "Created"))
    words = [text(entry, key) for key in ("Message", "Description", "Name")]
    return moment, LogRecord(
        id=text(entry, "Id") or text(entry, "RecordId") or text(entry, "EventId") or "?",
        time=moment.isoformat().replace("+00:00", "Z") if moment is not None else None,
        severity=severity_of(text(entry, "Severity") or text(entry, "MessageSeverity")),
        text=next((word for word in words if word), ""),
        source=text(entry, "SensorType") or log,
    )


async def find_log(connection: RedfishConnection, call: Call) -> Document:
    """The log service that is the hardware's event log. Raises OperationError UNSUPPORTED where there is none."""
    return await log_among(connection, _holders(connection, call), call)


async def log_among(connection: RedfishConnection, holders: AsyncIterator[Document | None], call: Call) -> Document:
    """The same among the logs of these resources, the likeliest first; no more of them is read than must be."""
    best: tuple[int, Document] | None = None
    seen: set[str] = set()
    async for holder in holders:
        collection = link(holder, "LogServices")
        if collection is not None and collection not in seen:
            seen.add(collection)
            # A log that is only busy must not make way for another one, which would then be cleared.
            for service in await read_collection(connection, collection, call, patient=True):
                place = rank(service)
                if place is not None and (best is None or place < best[0]):
                    best = (place, service)
        if best is not None and best[0] <= _SURE:
            break
    if best is None:
        raise OperationError(ErrorCode.UNSUPPORTED, "this BMC shows no event log of its hardware")
    return best[1]


async def _holders(connection: RedfishConnection, call: Call) -> AsyncIterator[Document | None]:
    """What may have logs: the system, its managers, its chassis."""
    system = await connection.service.system(call)
    yield system
    for path in await connection.service.managers(call, system):
        yield await connection.find(path, call)
    for path in await connection.service.chassis(call, system):
        yield await connection.find(path, call)


async def read_event_log(connection: RedfishConnection, arguments: GetEventLog, call: Call) -> EventLog:
    """The newest entries, newest first. Raises OperationError INVALID_ARGUMENT for a `since` that is no time."""
    since = moment_of(arguments.since)
    if arguments.since is not None and since is None:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT, "since is an RFC 3339 time, such as 2026-01-31T12:00:00Z", details={}
        )
    service = await find_log(connection, call)
    entries = await _entries(connection, link(service, "Entries") or "", arguments.limit, call)
    log = text(service, "Name") or text(service, "Id")
    records = [record_of(entry, log) for entry in entries]
    kept = [(moment, record) for moment, record in records if since is None or moment is None or moment >= since]
    return EventLog(entries=[record for _, record in _newest_first(kept)][: arguments.limit])


async def clear_event_log(connection: RedfishConnection, call: Call) -> EventLogCleared:
    """Empties the log and counts what is left. Raises OperationError UNSUPPORTED, NOT_APPLIED, OUTCOME_UNKNOWN."""
    service = await find_log(connection, call)
    offered = action(service, _CLEAR)
    target = link_target(offered) if offered is not None else None
    if target is None:
        raise OperationError(ErrorCode.UNSUPPORTED, f"the log {text(service, 'Id')} offers no way to clear it")
    path = link(service, "Entries") or ""
    before = len(await read_pages(connection, path, call, _MOST_LISTED))
    answer: Answer | NoAnswer
    try:
        answer = await _clear(connection, target, path, call)
    except NoAnswer as failure:
        answer = failure
    left = before

    async def is_empty() -> bool:
        nonlocal left
        left = len(await read_pages(connection, path, call, _MOST_LISTED))
        return left < before or left <= 1

    if not await comes_true(is_empty, call, _CLEARED_SECONDS):
        words = await words_about(connection, answer, call)
        raise unproven(answer, "the order to clear the log", f"it still has {left} entries", words)
    return EventLogCleared(cleared=True, remaining=left)


async def _clear(connection: RedfishConnection, target: str, entries: str, call: Call) -> Answer:
    """With an empty body; with the type where the BMC asks for it (LogService 1.4, HPE Cray)."""
    try:
        return await connection.order(target, {}, call, look=entries)
    except Refused as refused:
        if refused.status != 400 or not messages.mentions(refused.notes, "ClearType"):
            raise
        return await connection.order(target, {"ClearType": "ClearAll"}, call, look=entries)


async def _entries(connection: RedfishConnection, path: str, limit: int, call: Call) -> list[Document]:
    """Whole entries, among them the newest `limit`."""
    query = can_expand(await connection.root(call))
    listed: list[Document] = []
    if query is not None:
        try:
            listed = await read_pages(connection, f"{path}?{query}", call, _MOST_LISTED)
        except Refused:
            listed = []
    if not listed:
        listed = await read_pages(connection, path, call, _MOST_LISTED)
    whole = [item for item in listed if is_whole(item)]
    paths = [found for item in listed if not is_whole(item) and (found := link(item)) is not None]
    if len(paths) <= limit:
        return whole + await each(connection, paths, call)
    ends = await each(connection, [paths[0], paths[-1]], call)
    newest_first = len(ends) == 2 and _is_newer(ends[0], ends[1])
    return whole + await each(connection, paths[:limit] if newest_first else paths[-limit:], call)


def _is_newer(one: Document, other: Document) -> bool:
    first, second = record_of(one, None), record_of(other, None)
    if first[0] is not None and second[0] is not None and first[0] != second[0]:
        return first[0] > second[0]
    numbers = [int(record.id) for _, record in (first, second) if _is_number(record.id)]
    return len(numbers) == 2 and numbers[0] > numbers[1]


def _is_number(identifier: str) -> bool:
    return identifier.isdecimal() and len(identifier) < 20


def _newest_first(records: Iterable[tuple[datetime | None, LogRecord]]) -> list[tuple[datetime | None, LogRecord]]:
    """By time; among equal times, and for entries without one, by their number."""
    oldest = datetime.min.replace(tzinfo=UTC)

    def key(item: tuple[datetime | None, LogRecord]) -> tuple[datetime, int]:
        moment, record = item
        return moment or oldest, int(record.id) if _is_number(record.id) else 0

    return sorted(records, key=key, reverse=True)
