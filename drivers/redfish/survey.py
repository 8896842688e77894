"""Reading a whole machine although parts of it cannot be read: each resource once, and why one is missing.

Nothing here makes the whole fail but what makes every further request pointless: a BMC that is gone, a login that is
not taken.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish.document import Document, Found, dig, link, members, next_page
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.walking import expand_query, is_whole, read_pages
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.inspect import Unread

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["Survey"]

_BUSY_SECONDS = 20.0
"""How long a busy BMC is waited for, over all resources together (Dell SYS518 lasts that long)."""
_RESERVE_SECONDS = 3.0
"""What is left of the operation's time when no further resource is asked for."""
_SILENCES = 3
"""So many resources without an answer, one after the other: the BMC is gone."""
_MOST_MEMBERS = 2000
"""More than any machine has of one kind: a list without an end must not keep the BMC busy for as long."""


class Survey:
    """One reading of a machine. `unread` and `incomplete` say what is missing from it."""

    def __init__(self, connection: RedfishConnection, call: Call) -> None:
        self._connection = connection
        self._call = call
        self._patience = _BUSY_SECONDS
        self._silences = 0
        self._unread: dict[str, str] = {}
        self._parts: dict[str, None] = {}

    @property
    def unread(self) -> list[Unread]:
        return [Unread(path=path, reason=reason) for path, reason in self._unread.items()]

    @property
    def incomplete(self) -> list[str]:
        """The parts of which something is missing, in the order in which that showed."""
        return list(self._parts)

    async def read(self, path: str | None, part: str) -> Document | None:
        """The resource; None where there is no link to it, or where it cannot be read, which is noted for `part`."""
        if path is None:
            return None
        found = await self._ask(path, part)
        return found[0] if found is not None else None

    async def members(self, path: str | None, part: str) -> list[Found] | None:
        """A collection's members, in one request where this BMC can; None where the collection cannot be read.

        Members that cannot be read are noted for `part`, and left out.
        """
        if path is None:
            return None
        query = await expand_query(self._connection, self._call)
        listed = await self._ask(f"{path}?{query}", part, note=False) if query is not None else None
        if listed is None:
            listed = await self._ask(path, part)
        if listed is None:
            return None
        found: dict[str, Document] = {}
        items = [item for page in listed for item in _listed(page)]
        if len(items) > _MOST_MEMBERS:
            self.note(path, f"of its {len(items)} members the first {_MOST_MEMBERS} were read", part)
        for item in items[:_MOST_MEMBERS]:
            own = link(item) or f"{path}#{len(found)}"
            if own in found:
                continue
            document = item if is_whole(item) else await self.read(link(item), part)
            if document is not None:
                found[own] = document
        return list(found.items())

    async def each(self, paths: list[str], part: str) -> list[Found]:
        """The resources at these paths; those that cannot be read are noted for `part`, and left out."""
        found = [(path, await self.read(path, part)) for path in dict.fromkeys(paths[:_MOST_MEMBERS])]
        return [(path, document) for path, document in found if document is not None]

    async def first_member(self, path: str | None, part: str) -> Document | None:
        """The first member of a collection, without the others where each would cost a request."""
        if await expand_query(self._connection, self._call) is not None:
            found = await self.members(path, part)
            return found[0][1] if found else None
        listed = members(await self.read(path, part))
        return await self.read(listed[0], part) if listed else None

    def note(self, path: str, reason: str, part: str) -> None:
        """Something that is missing, and why."""
        self._unread.setdefault(path, reason)
        self._parts[part] = None

    def note_failure(self, path: str, failure: OperationError, part: str) -> None:
        """The same from an error, with the BMC's own words."""
        said = "; ".join(dict.fromkeys(message.text or message.id for message in failure.bmc))
        reason = failure.message.removeprefix(f"GET {path}: ")
        self.note(path, f"{reason}; the BMC said: {said}" if said and said not in reason else reason, part)

    async def _ask(self, path: str, part: str, *, note: bool = True) -> list[Document] | None:
        """The document, or the pages of a collection. Raises OperationError where another would do no better."""
        if self._call.remaining <= _RESERVE_SECONDS:
            if note:
                self.note(path, "it was not asked for: the operation's time was nearly over", part)
            return None
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            pages = await self._pages(path, part)
        except (Refused, NoAnswer) as failure:
            if isinstance(failure, Refused) and failure.code is ErrorCode.BUSY:
                self._patience = max(0.0, self._patience - (clock() - began))
            self._silences = self._silences + 1 if isinstance(failure, NoAnswer) else 0
            if self._silences >= _SILENCES:
                raise
            if note:
                self.note_failure(path, failure, part)
            return None
        except OperationError as error:
            if error.code is not ErrorCode.BMC_ERROR:
                raise
            if note:
                self.note_failure(path, error, part)
            return None
        self._silences = 0
        return pages

    async def _pages(self, path: str, part: str) -> list[Document]:
        """The document, and what a collection goes on with; a page that is refused is noted."""
        first = await self._connection.get(path, self._call, patience=self._patience)
        following = next_page(first)
        if following is None:
            return [first]
        try:
            rest = await read_pages(self._connection, following, self._call, _MOST_MEMBERS)
        except Refused as refused:
            self.note_failure(following, refused, part)
            return [first]
        return [first, {"Members": rest}]


def _listed(page: Document) -> list[Document]:
    found = dig(page, "Members")
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
