"""JSON documents as a Redfish service holds them, and the exchange of one request for one answer."""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec
from multidict import CIMultiDict, CIMultiDictProxy

JsonObject = dict[str, Any]

encode = msgspec.json.encode
decode = msgspec.json.decode


def path_key(path: str) -> str:
    """The one spelling under which a path is looked up: decoded, lower case, no slash at its end."""
    return unquote(path).rstrip("/").lower()


def parent_path(path: str) -> str:
    """The path one segment up, with no slash at its end."""
    return path.rstrip("/").rpartition("/")[0]


def schema_of(document: JsonObject) -> str:
    """The bare schema name of a resource: `ComputerSystem` for `#ComputerSystem.v1_20_0.ComputerSystem`."""
    odata_type = document.get("@odata.type")
    if not isinstance(odata_type, str):
        return ""
    return odata_type.lstrip("#").partition(".")[0]


def linked_path(holder: Any, *keys: str) -> str | None:
    """The `@odata.id` found by walking `keys` into a document, or None where any step is missing."""
    for key in keys:
        if not isinstance(holder, dict):
            return None
        holder = holder.get(key)
    target = holder.get("@odata.id") if isinstance(holder, dict) else None
    return target if isinstance(target, str) and target else None


def member_paths(collection: JsonObject | None) -> list[str]:
    """The links of a collection, in its own order; entries that are not links are passed over."""
    members = (collection or {}).get("Members")
    if not isinstance(members, list):
        return []
    return [path for member in members if (path := linked_path(member)) is not None]


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that came in with a request, as it was on the wire."""

    name: str
    size: int
    sha256: str


@dataclass(slots=True)
class Request:
    """One HTTP request, free of any transport. `headers` compare without case; `body` is complete."""

    method: str
    path: str
    query: str = ""
    headers: "CIMultiDict[str] | CIMultiDictProxy[str]" = field(default_factory=CIMultiDict)
    body: bytes = b""
    secure: bool = False
    uploads: "tuple[Upload, ...]" = ()
    """What was uploaded, where `body` holds only the beginning of it."""

    def json_object(self) -> JsonObject | None:
        """The body as a JSON object, or None where it is anything else (or not JSON)."""
        try:
            document = decode(self.body)
        except msgspec.DecodeError:
            return None
        return document if isinstance(document, dict) else None


@dataclass(slots=True)
class Answer:
    """One HTTP answer. `headers` may hold a name twice; they belong to the answer once it is altered."""

    status: int
    body: bytes = b""
    headers: "CIMultiDict[str]" = field(default_factory=CIMultiDict)
    closes_connection: bool = False

    @classmethod
    def of(cls, status: int, document: Any, headers: dict[str, str] | None = None) -> "Answer":
        """An answer whose body is `document` as JSON."""
        answer = cls(status, encode(document), CIMultiDict(headers or {}))
        answer.headers.setdefault("Content-Type", JSON_CONTENT)
        return answer

    def with_headers(self, headers: dict[str, str]) -> "Answer":
        """A copy with further headers; the original, which may be shared, stays as it is."""
        merged = CIMultiDict(self.headers)
        merged.update(headers)
        return Answer(self.status, self.body, merged, self.closes_connection)


JSON_CONTENT = "application/json; charset=utf-8"
