"""The rows of as many pages of a list as are wanted."""

from collections.abc import Mapping
from typing import Any

from rackwright.client import Client

__all__ = ["rows_of"]

_PAGE = 100


def rows_of(client: Client, group: str, method: str, request: Mapping[str, Any], most: int | None) -> dict[str, Any]:
    """`items` and the `cursor` behind them. A page may be empty and not be the last one: a search looks a bit
    further with each."""
    items: list[Any] = []
    cursor: str | None = None
    while most is None or len(items) < most:
        size = _PAGE if most is None else min(_PAGE, most - len(items))
        page = client.call(group, method, {**request, "limit": size, **({"cursor": cursor} if cursor else {})})
        items += page["items"]
        stands = page["cursor"] == cursor
        cursor = page["cursor"]
        if cursor is None or stands:
            break
    return {"items": items, "cursor": cursor}
