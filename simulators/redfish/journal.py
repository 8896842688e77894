"""The journal of requests: what reached the service, in order, with every secret left out."""

import re
import time
from collections import deque
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from simulators.redfish.documents import Request

HIDDEN = "(hidden)"
SECRET_HEADERS = frozenset({"authorization", "x-auth-token", "cookie", "set-cookie"})
_SECRET_NAME = re.compile(r"pass(word|phrase)|secret|token|privatekey", re.IGNORECASE)


class JournalEntry(msgspec.Struct):
    """One request. `at` is of the monotonic clock, `received` of the wall clock, both in seconds.

    `status` is None while the answer is still to come, and stays None where the connection was cut.
    `executed` is False where a fault rule answered without the service.
    """

    number: int
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: Any
    at: float
    received: float
    session: str = ""
    user: str = ""
    login: str = "none"
    status: int | None = None
    executed: bool = False
    fault: str = ""


class RequestJournal:
    """Keeps the newest `size` requests; `total` counts all of them. Size 0 keeps none."""

    def __init__(self, size: int = 10_000) -> None:
        self._entries: deque[JournalEntry] = deque(maxlen=size)
        self.total = 0

    def record(self, request: Request) -> JournalEntry | None:
        self.total += 1
        if self._entries.maxlen == 0:
            return None
        entry = JournalEntry(
            self.total,
            request.method,
            request.path,
            request.query,
            without_secret_headers(request),
            readable_body(request),
            time.monotonic(),
            time.time(),
        )
        self._entries.append(entry)
        return entry

    def __iter__(self) -> Iterator[JournalEntry]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self, method: str = "*", path: str = "*") -> list[JournalEntry]:
        """The requests whose method is `method` and whose path matches the glob `path` (without case)."""
        return [
            entry
            for entry in self._entries
            if method in ("*", entry.method) and fnmatchcase(entry.path.lower(), path.lower())
        ]

    def count(self, method: str = "*", path: str = "*", *, executed_only: bool = False) -> int:
        return sum(1 for entry in self.entries(method, path) if entry.executed or not executed_only)

    def clear(self) -> None:
        self._entries.clear()
        self.total = 0


def without_secret_headers(request: Request) -> dict[str, str]:
    return {name: HIDDEN if name.lower() in SECRET_HEADERS else value for name, value in request.headers.items()}


def readable_body(request: Request) -> Any:
    """The body as JSON without its secrets, else its length: uploads are not kept."""
    if not request.body:
        return None
    if request.uploads:
        return f"({sum(upload.size for upload in request.uploads)} bytes)"
    document = request.json_object()
    if document is None:
        return f"({len(request.body)} bytes)"
    return without_secrets(document)


def without_secrets(value: Any) -> Any:
    """A copy of JSON data in which every value under a secret's name is hidden."""
    if isinstance(value, dict):
        return {
            name: HIDDEN if _SECRET_NAME.search(name) and inner is not None else without_secrets(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(inner) for inner in value]
    return value
