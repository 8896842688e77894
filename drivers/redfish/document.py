"""Reading Redfish documents that keep to no schema: every function takes any JSON value and never raises.

BMCs leave out what is required, send null for lists, objects for lists and numbers for text
(cases B37: stmcginnis/gofish issue 215, nv-redfish's quirk list), so nothing here trusts a type.
"""

import math
import re
from collections.abc import Iterator
from typing import Any, TypeGuard
from urllib.parse import quote

__all__ = [
    "Document",
    "Found",
    "action",
    "action_info_uri",
    "allowed_values",
    "allowed_values_of_action_info",
    "boolean",
    "dig",
    "link",
    "link_target",
    "links",
    "members",
    "next_page",
    "number",
    "path_of",
    "same_path",
    "settings_path",
    "text",
]

Document = dict[str, Any]

Found = tuple[str, Document]
"""A resource after the path that led to it: bodies are known to name another one (NVIDIA BlueField-3)."""

_PLAIN = re.compile(r"[\x21-\x7e]+")
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SAFE = "/%:@!$&'()*+,;=~?-._[]|"
_LONGEST_TEXT = 4096
_LONGEST_LINK = 2048


def dig(value: object, *keys: str) -> Any:
    """What lies at the end of the keys; None where anything on the way is not an object that has the key."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def text(value: object, *keys: str) -> str | None:
    """A text that says something: empty and blank ones count as absent; numbers become text; no text is endless."""
    found = dig(value, *keys)
    if isinstance(found, bool) or not isinstance(found, str | int | float):
        return None
    if isinstance(found, str):
        return found.strip()[:_LONGEST_TEXT] or None
    return str(found) if abs(found) < 1e300 else None


def number(value: object, *keys: str) -> float | None:
    """A finite number; also one that was sent as text."""
    found = dig(value, *keys)
    if isinstance(found, bool) or not isinstance(found, str | int | float):
        return None
    try:
        result = float(found)
    except (ValueError, OverflowError):
        return None
    return result if math.isfinite(result) else None


def boolean(value: object, *keys: str) -> bool | None:
    found = dig(value, *keys)
    return found if isinstance(found, bool) else None


def path_of(uri: str) -> str:
    """The path (and query) of a link; absolute links lose their host, so that no credential goes elsewhere."""
    uri = uri.strip().partition("#")[0]
    if _ABSOLUTE.match(uri):
        # By hand: urlsplit refuses hosts such as `[::1`, and the host is of no interest here.
        uri = f"/{uri.partition('://')[2].partition('/')[2]}"
    if not uri.startswith("/"):
        uri = f"/{uri}"
    return uri if _PLAIN.fullmatch(uri) else quote(uri, safe=_SAFE, errors="replace")


def same_path(one: str, other: str) -> bool:
    """Whether two links lead to one resource: HPE spells them in two cases, with and without a trailing slash."""
    return one.rstrip("/").lower() == other.rstrip("/").lower()


def link(value: object, *keys: str) -> str | None:
    """The path of a link, whether it is `{"@odata.id": …}`, a list of one, `{"href": …}` or bare text."""
    found = dig(value, *keys)
    if isinstance(found, list):
        found = found[0] if found else None
    if isinstance(found, dict):
        found = found.get("@odata.id") or found.get("href")
    return path_of(found) if _leads_somewhere(found) else None


def links(value: object, *keys: str) -> list[str]:
    """The paths of a list of links, each once; empty for null, missing and malformed ones."""
    found = dig(value, *keys)
    listed = found if isinstance(found, list) else [found]
    paths = [path for path in (link(item) for item in listed) if path is not None]
    return list(dict.fromkeys(paths))


def members(collection: object) -> list[str]:
    """The paths of a collection's members; the count property is never asked."""
    return links(collection, "Members")


def next_page(collection: object) -> str | None:
    """The next part of a collection that the BMC sends in parts."""
    return link(collection, "Members@odata.nextLink") or link(collection, "@odata.nextLink")


def settings_path(value: object) -> str | None:
    """Where a resource's settings object is, which takes what its next start will use (DSP0266, settings)."""
    return link(value, "@Redfish.Settings", "SettingsObject")


def action(value: object, name: str) -> Document | None:
    """The action of this name that has a target, such as `ComputerSystem.Reset`."""
    found = dig(value, "Actions", f"#{name}")
    return found if isinstance(found, dict) and link_target(found) else None


def link_target(found: Document) -> str | None:
    """Where an action is sent to."""
    target = found.get("target")
    return path_of(target) if _leads_somewhere(target) else None


def _leads_somewhere(found: object) -> TypeGuard[str]:
    """Whether a value can be a link; none is endless, and errors repeat it."""
    return isinstance(found, str) and bool(found.strip()) and len(found) <= _LONGEST_LINK


def action_info_uri(found: Document) -> str | None:
    """Where an action's parameters are described."""
    return link(found, "@Redfish.ActionInfo")


def allowed_values(value: object, name: str) -> list[str]:
    """The annotation that lists a property's or parameter's values; empty where there is none."""
    found = dig(value, f"{name}@Redfish.AllowableValues")
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []


def allowed_values_of_action_info(info: object, parameter: str) -> list[str]:
    """The same, from an ActionInfo resource."""
    return next((_texts(item.get("AllowableValues")) for item in _parameters(info, parameter)), [])


def _parameters(info: object, name: str) -> Iterator[Document]:
    listed = dig(info, "Parameters")
    for item in listed if isinstance(listed, list) else []:
        if isinstance(item, dict) and item.get("Name") == name:
            yield item


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
