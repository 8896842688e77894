"""Reading whole collections: in one request where the BMC can, page by page, and past members that cannot be read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish.document import Document, boolean, dig, members, next_page

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["can_expand", "each", "is_whole", "read_collection", "read_pages"]

_MOST_PAGES = 500
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


async def read_pages(connection: RedfishConnection, path: str, call: Call, most: int) -> list[Document]:
    """The members of a collection as they are listed, links or whole documents, over all its pages; `most` at least
    where there are so many."""
    listed: list[Document] = []
    seen: set[str] = set()
    size = 0
    following: str | None = path
    while following is not None and following not in seen and len(seen) < _MOST_PAGES and len(listed) < most:
        seen.add(following)
        answer = await connection.read(following, call)
        size += len(answer.body)
        if size > _MOST_BYTES:
            break
        page = connection.document_of(answer)
        found = dig(page, "Members")
        listed += [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
        following = next_page(page)
    return listed


async def read_collection(connection: RedfishConnection, path: str | None, call: Call) -> list[Document]:
    """The members themselves; those that cannot be read are left out."""
    if path is None:
        return []
    query = can_expand(await connection.root(call))
    if query is not None:
        expanded = await connection.find(f"{path}?{query}", call)
        listed = dig(expanded, "Members")
        if isinstance(listed, list) and listed and all(is_whole(item) for item in listed):
            return [item for item in listed if isinstance(item, dict)]
    collection = await connection.find(path, call)
    listed = dig(collection, "Members")
    if isinstance(listed, list) and listed and all(is_whole(item) for item in listed):
        return [item for item in listed if isinstance(item, dict)]
    return await each(connection, members(collection), call)


async def each(connection: RedfishConnection, paths: Iterable[str | None], call: Call) -> list[Document]:
    """The resources at these paths; those that cannot be read are left out."""
    return [document for path in paths if (document := await connection.find(path, call)) is not None]


def is_whole(item: object) -> bool:
    """Whether a member came as a document and not as a link."""
    return isinstance(item, dict) and len(item.keys() - {"@odata.id", "@odata.type", "@odata.etag"}) > 0
