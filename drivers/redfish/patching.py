"""A PATCH with its entity tag, by one rule for all vendors.

The tag is that of the reading on which the change was decided, else it is read just before. 412: read it again and
send once more, then in its strong form, then (said in the result) without. 428 although no tag was known: read it and
send once more. Nothing is sent again after a lost answer.
Sources: as in `etag`, and Lenovo XCC's 428 (ansible issue 56050).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish import etag
from drivers.redfish.answer import Answer
from drivers.redfish.document import Document
from drivers.redfish.failures import Refused

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["patch"]


async def patch(
    connection: RedfishConnection, path: str, body: Document, call: Call, known: Document | None = None
) -> Answer:
    """Sends the PATCH. Raises Refused, NoAnswer, NotSent.

    `known`: the resource as it was read; where it shows no tag it is read once more. Where the BMC took the change
    only without a tag, `call.observed["patchedWithoutTag"]` names the resource.
    """
    tag = etag.as_sent((), known) or await _tag(connection, path, call)
    attempts = _attempts(tag)
    current = next(attempts)
    refreshed = False
    while True:
        try:
            return await connection.act("PATCH", path, body, call, if_match=current)
        except Refused as refused:
            if refused.status not in (401, 412, 428):
                raise
            if not refreshed:
                refreshed = True
                attempts = _attempts(await _tag(connection, path, call))
                current = next(attempts)
                continue
            following = next(attempts, "")
            if following == "" or refused.status == 401:
                raise
            current = following
            if current is None:
                call.observed["patchedWithoutTag"] = path


def _attempts(tag: str | None) -> Iterator[str | None]:
    """The forms of a tag, in the order in which they are tried."""
    if tag is not None:
        yield tag
        strong = etag.strong(tag)
        if strong is not None:
            yield strong
    yield None


async def _tag(connection: RedfishConnection, path: str, call: Call) -> str | None:
    answer = await connection.read(path, call)
    return etag.as_sent(answer.headers.getall("ETag", ()), answer.document())
