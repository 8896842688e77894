"""The lists of the API as tables: which columns, under which name, and each cell in words."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from protocol.durations import span_words
from protocol.presentation import Table, printable
from rackwright.command_news import progress_words
from rackwright.time_words import ago, moment

__all__ = ["facts_of", "table_of", "word"]

Json = Mapping[str, Any]
Cell = Callable[[Json, datetime], str]


class _Column(NamedTuple):
    name: str
    cell: Cell


def table_of(verb: str, items: list[dict[str, Any]], now: datetime) -> Table:
    """`verb`: such as nodes.list. `now`: the time at the control plane."""
    if not items:
        return Table("", ["none"], [])
    columns = _COLUMNS.get(verb) or [_plain(name) for name in items[0]]
    rows = [[column.cell(item, now) for column in columns] for item in items]
    return Table("", [column.name for column in columns], rows)


def word(value: Any) -> str:
    """A value in one line. An error is its code, a list inside an object its length."""
    if value is None or value in ({}, []):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        if "code" in value and "message" in value:
            return printable(f"{value['code']}")
        return " ".join(
            f"{name}={len(item) if isinstance(item, list) else word(item)}"
            for name, item in value.items()
            if item is not None
        )
    if isinstance(value, list):
        return " ".join(word(item) for item in value)
    return printable(str(value))


def facts_of(event: Json) -> str:
    """What an event tells beside its subject; of an error its words too."""
    told = {name: value for name, value in event["data"].items() if value != event["subject"].partition("/")[2]}
    return " ".join(f"{name}={_fact(value)}" for name, value in told.items())


def _fact(value: Any) -> str:
    if isinstance(value, dict) and "code" in value and "message" in value:
        return printable(f"{value['code']}: {value['message']}")
    return word(value)


def _plain(name: str, heading: str = "") -> _Column:
    return _Column(heading or name, lambda item, now: word(item.get(name)))


def _ago(name: str, heading: str) -> _Column:
    return _Column(heading, lambda item, now: ago(item.get(name), now))


def _plains(names: Iterable[str]) -> list[_Column]:
    return [_plain(name) for name in names]


def _trouble(item: Json, now: datetime) -> str:
    """What kind of trouble, and for how long; `nodes get` and the doctor tell its words."""
    if item["trouble"] is None:
        return "-"
    since = ago(item["troubleSince"], now).removesuffix(" ago")
    return printable(f"{item['trouble'].partition(':')[0]}{'' if since == 'just now' else ' for'} {since}")


def _took(item: Json, now: datetime) -> str:
    if item["finishedAt"] is None:
        return "-"
    began, ended = (datetime.fromisoformat(item[name]) for name in ("createdAt", "finishedAt"))
    return span_words(int((ended - began).total_seconds() * 1000))


def _error_or_news(item: Json, now: datetime) -> str:
    return word(item["error"]) if item["error"] is not None else progress_words(item["progress"]) or "-"


_COLUMNS: Mapping[str, list[_Column]] = {
    "sites.list": _plains(("name", "id", "agentId")),
    "agents.list": [
        *_plains(("hostName", "id", "siteId", "role", "version", "connected")),
        _ago("revokedAt", "revoked"),
    ],
    "joinTokens.list": [
        *_plains(("id", "siteId", "role")),
        _ago("expiresAt", "expires"),
        _ago("usedAt", "used"),
        _plain("usedBy"),
    ],
    "tokens.list": [
        *_plains(("name", "id", "tenantId", "permissions")),
        _ago("expiresAt", "expires"),
        _ago("revokedAt", "revoked"),
    ],
    "nodes.list": [
        *_plains(("name", "site", "state", "power", "health")),
        _ago("seenAt", "since"),
        _plain("watched"),
        _Column("trouble", _trouble),
        _Column("bmc", lambda item, now: printable(item["bmc"]["address"])),
        *_plains(("labels", "id")),
    ],
    "commands.list": [
        *_plains(("id", "operation", "state")),
        _Column("error or news", _error_or_news),
        _ago("createdAt", "created"),
        _Column("took", _took),
        _plain("nodeId"),
    ],
    "profiles.list": [
        *_plains(("name", "version", "id", "description")),
        _ago("createdAt", "created"),
        _ago("usedAt", "used"),
    ],
    "profiles.versions": [
        *_plains(("version", "description")),
        _ago("createdAt", "created"),
        _plain("createdBy"),
        _ago("usedAt", "used"),
    ],
    "events.list": [
        _Column("at", lambda item, now: moment(item["at"])),
        *_plains(("type", "subject")),
        _Column("data", lambda item, now: facts_of(item)),
        _plain("seq"),
    ],
    "audit.list": [
        _Column("at", lambda item, now: moment(item["at"])),
        *_plains(("actor", "action", "resource", "decision")),
    ],
    "drivers.matrix": _plains(("hostName", "agentId", "siteId", "version", "drivers")),
    "drivers.operations": [
        *_plains(("id", "repeat")),
        _Column("takes at most", lambda item, now: span_words(item["timeoutMs"])),
        _plain("summary"),
    ],
}
"""What matters most stands first: the last columns are left out where a terminal is narrow."""
