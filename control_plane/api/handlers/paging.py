"""Pages: one row more than asked tells whether there are more; the cursor is the last row's place."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from control_plane.api.shapes.common import PageRequest, decode_cursor, encode_cursor

__all__ = ["page"]


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


RowT = TypeVar("RowT", bound=_HasId)


def page(
    request: PageRequest, read: Callable[[str, int], list[RowT]], *, start: str = ""
) -> tuple[list[RowT], str | None]:
    """The page's rows and the cursor of the next page, if there is one. `read(place, limit)` reads behind a place.

    Places are ids, which never change, so rows that come or go meanwhile make no gap and no repeat.
    """
    place = decode_cursor(request.cursor) if request.cursor is not None else start
    rows = read(place, request.limit + 1)
    if len(rows) <= request.limit:
        return rows, None
    rows = rows[: request.limit]
    return rows, encode_cursor(rows[-1].id)
