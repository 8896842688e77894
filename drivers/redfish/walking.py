"""Reading whole collections: in one request where the BMC can, page by page, and past members that cannot be read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish.document import Document, Found, boolean, dig, link, next_page
from drivers.redfish.failures import NoAnswer, NotSent, Refused
from protocol.errors import ErrorCode, OperationError

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = [
    "can_expand",
    "each",
    "expand_query",
    "is_whole",
    "read_collection",
    "read_listing",
    "read_members",
    "read_pages",
]

_BUSY_SECONDS = 60.0
_MOST_PAGES = 500
_MOST_MEMBERS = 2000
"""More than any machine has of one kind."""
_MOST_BYTES = 64 * 1024 * 1024
"""Of all pages together: a collection without an end must not fill the memory."""


def can_expand(root: Document) -> str | None:
    """The query that sends a collection's members with it, where the service offers one (DSP0266, $expand)."""
    query = dig(root, "ProtocolFeaturesSupported", "ExpandQuery")
    if boolean(query, "NoLinks"):
        return "$expand=.($levels=1)" if boolean(query, "Levels") else "$expand=."
    if boolean(query, "ExpandAll"):
        return "$expand=*($levels=1)" if boolean(query, "Levels") else "$expand=*"
    return None


async def expand_query(connection: RedfishConnection, call: Call) -> str | None:
    """The same for this BMC: none where its expanded members are known to lack what the members themselves have."""
    manners = await connection.service.manners_so_far(call)
    return can_expand(await connection.root(call)) if manners.expands_members else None


async def read_pages(
    connection: RedfishConnection, path: str, call: Call, most: int, *, patience: float = _BUSY_SECONDS
) -> list[Document]:
    """The members of a collection as they are listed, links or whole documents, over all its pages; `most` at least
    where there are so many. `patience`: seconds for which a BMC that is busy is asked again."""
    listed: list[Document] = []
    seen: set[str] = set()
    size = 0
    following: str | None = path
    while following is not None and following not in seen and len(seen) < _MOST_PAGES and len(listed) < most:
        seen.add(following)
        answer = await connection.read(following, call, patience=patience)
        size += len(answer.body)
        if size > _MOST_BYTES:
            break
        page = connection.document_of(answer)
        listed += _members_in(page)
        following = next_page(page)
    return listed


async def read_listing(
    connection: RedfishConnection, path: str, call: Call, most: int, *, patience: float = _BUSY_SECONDS
) -> list[Document]:
    """The same in as few requests as can be: whole documents where the BMC sends them with their collection.

    Raises what reading the plain collection raises, and OperationError BUSY.
    """
    query = await expand_query(connection, call)
    if query is not None:
        try:
            listed = await read_pages(connection, f"{path}?{query}", call, most, patience=patience)
        except OperationError as error:
            if not _is_of_the_query(error):
                raise
        else:
            if listed:
                return listed
    return await read_pages(connection, path, call, most, patience=patience)


async def read_collection(
    connection: RedfishConnection, path: str | None, call: Call, *, patient: bool = False
) -> list[Document]:
    """The members themselves, as `read_members` finds them."""
    return [document for _, document in await read_members(connection, path, call, patient=patient)]


async def read_members(
    connection: RedfishConnection, path: str | None, call: Call, *, patient: bool = False
) -> list[Found]:
    """The members of a collection, each after its path, over all pages; those that cannot be read are left out.

    With `patient`, for members whose absence decides something, a busy BMC is waited for: raises OperationError where
    it stays busy or cannot be asked.
    """
    look = connection.find_patiently if patient else connection.find
    found: dict[str, Document] = {}
    for item in await _listed(connection, path, call, patient):
        place = link(item)
        if place is not None and place in found:
            continue
        document = item if is_whole(item) else await look(place, call)
        if document is not None:
            found[place or f"{path}#{len(found)}"] = document
    return list(found.items())


async def _listed(connection: RedfishConnection, path: str | None, call: Call, patient: bool) -> list[Document]:
    """The members as the collection lists them; none where it cannot be read."""
    if path is None:
        return []
    look = connection.find_patiently if patient else connection.find
    query = await expand_query(connection, call)
    first: Document | None = None
    if query is not None:
        try:
            first = await look(f"{path}?{query}", call)
        except NoAnswer as failure:
            if not _is_of_the_query(failure):
                raise
        if first is not None and not _members_in(first) and dig(first, "Members@odata.count") != 0:
            first = None
    first = first if first is not None else await look(path, call)
    following = next_page(first)
    try:
        rest = await read_pages(connection, following, call, _MOST_MEMBERS) if following is not None else []
    except Refused:
        if patient:
            raise
        rest = []
    return _members_in(first) + rest


def _members_in(page: Document | None) -> list[Document]:
    listed = dig(page, "Members")
    return [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []


def _is_of_the_query(error: OperationError) -> bool:
    """Whether a request with `$expand` failed in a way that may be for that: refused, answered by nonsense, or so
    long in the making that no answer came. A BMC that is busy, or gone, is no better without."""
    if isinstance(error, NotSent):
        return False
    return isinstance(error, NoAnswer) or error.code in (
        ErrorCode.BMC_ERROR,
        ErrorCode.UNSUPPORTED,
        ErrorCode.CONFLICT,
        ErrorCode.LICENSE_REQUIRED,
    )


async def each(connection: RedfishConnection, paths: Iterable[str | None], call: Call) -> list[Document]:
    """The resources at these paths; those that cannot be read are left out."""
    return [document for path in paths if (document := await connection.find(path, call)) is not None]


def is_whole(item: object) -> bool:
    """Whether a member came as a document and not as a link."""
    return isinstance(item, dict) and len(item.keys() - {"@odata.id", "@odata.type", "@odata.etag"}) > 0
