"""Recorded Redfish trees: a folder of `index.json` files in the layout of DMTF mockups, read once and never written.

`<tree>/redfish/v1/Systems/1/index.json` is the answer to `GET /redfish/v1/Systems/1`. A folder beside
`redfish` holds URIs outside `/redfish` (some vendors serve registries there).
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from multidict import CIMultiDict

from simulators.redfish.documents import (
    JSON_CONTENT,
    JsonObject,
    decode,
    encode,
    linked_path,
    path_key,
    schema_of,
)

SCHEMA_HOST = "http://redfish.dmtf.org/schemas/v1"
OWN_TREES = Path(__file__).parent / "trees"
OWN_TREE = OWN_TREES / "rackwright-1u"
SERVICE_ROOT = "/redfish/v1"


class TreeError(ValueError):
    """A folder that cannot be served: the message lists every fault found and says what is expected."""


class Resource:
    """One addressable document with its encoded bytes, made at most once and shared by every reader.

    `document` is None for a file that is not JSON (the metadata document). Treat it as read-only:
    a change goes through `ResourceStore.edit`, which makes a new Resource.
    """

    __slots__ = ("_answers", "_encoded", "content_type", "document", "etag", "path")

    def __init__(
        self, path: str, document: JsonObject | None, etag: str, encoded: bytes | None = None, content_type: str = ""
    ) -> None:
        self.path = path
        self.document = document
        self.etag = etag
        self.content_type = content_type or JSON_CONTENT
        self._encoded = encoded
        self._answers: dict[str, CIMultiDict[str]] = {}

    @property
    def encoded(self) -> bytes:
        if self._encoded is None:
            self._encoded = encode(self.document)
        return self._encoded

    @property
    def schema(self) -> str:
        return schema_of(self.document) if self.document is not None else ""

    def read_headers(self, allow: str) -> "CIMultiDict[str]":
        """The headers of a plain GET; cached, so whoever wants to alter them copies them first."""
        headers = self._answers.get(allow)
        if headers is None:
            headers = CIMultiDict(
                {
                    "Content-Type": self.content_type,
                    "OData-Version": "4.0",
                    "Allow": allow,
                    "Cache-Control": "no-cache",
                }
            )
            if self.document is not None:
                headers["ETag"] = self.etag
                if described_by := schema_link(self.document):
                    headers["Link"] = f"<{described_by}>; rel=describedby"
            self._answers[allow] = headers
        return headers


def schema_link(document: JsonObject) -> str:
    """The JSON schema of a resource, for the `Link: rel=describedby` header (DSP0266, Link header)."""
    odata_type = document.get("@odata.type")
    if not isinstance(odata_type, str):
        return ""
    parts = odata_type.lstrip("#").split(".")
    name = f"{parts[0]}.{parts[1]}" if len(parts) == 3 else parts[0]
    return f"{SCHEMA_HOST}/{name}.json"


def content_etag(document: JsonObject) -> str:
    """The entity tag of a recorded document: its own `@odata.etag`, else a strong tag over its content."""
    recorded = document.get("@odata.etag")
    if isinstance(recorded, str) and recorded:
        return recorded
    return f'"{hashlib.sha256(encode(document)).hexdigest()[:16]}"'


class RecordedTree:
    """All resources of one recorded service, by path; shared by any number of BMCs."""

    def __init__(self, name: str, resources: dict[str, Resource]) -> None:
        self.name = name
        self.resources = resources
        self.action_owners: dict[str, str] = {}
        for key, resource in resources.items():
            if resource.document is not None:
                for _, target in action_targets(resource.document):
                    self.action_owners.setdefault(path_key(target), key)

    @classmethod
    def load(cls, folder: Path) -> "RecordedTree":
        """Reads every resource below `folder`. TreeError names all files that cannot be read at once."""
        if not (folder / "redfish").is_dir():
            raise TreeError(
                f"{folder} is not a recorded Redfish tree: it has no folder 'redfish'. "
                f"Expected {folder}/redfish/v1/index.json, as in a DMTF mockup."
            )
        resources: dict[str, Resource] = {}
        faults: list[str] = []
        for file in sorted(folder.rglob("index.*")):
            path = "/" + file.parent.relative_to(folder).as_posix()
            if file.name == "index.json":
                try:
                    resources[path_key(path)] = read_resource(path, file.read_bytes())
                except TreeError as fault:
                    faults.append(f"{file}: {fault}")
            elif file.name == "index.xml":
                resources[path_key(path)] = Resource(
                    path, None, "", file.read_bytes(), "application/xml; charset=utf-8"
                )
        if path_key(SERVICE_ROOT) not in resources:
            faults.append(f"{folder}/redfish/v1/index.json: the service root is missing")
        if faults:
            raise TreeError(f"{folder} cannot be served:\n  " + "\n  ".join(faults))
        add_standard_documents(resources)
        return cls(folder.name, resources)

    def __iter__(self) -> Iterator[Resource]:
        return iter(self.resources.values())

    def find(self, path: str) -> Resource | None:
        return self.resources.get(path_key(path))

    def document(self, path: str) -> JsonObject:
        """The document at `path`, or an empty one."""
        resource = self.find(path)
        return (resource.document if resource else None) or {}

    @property
    def root(self) -> JsonObject:
        return self.document(SERVICE_ROOT)


def read_resource(path: str, content: bytes) -> Resource:
    try:
        document = decode(content)
    except msgspec.DecodeError as fault:
        raise TreeError(f"not valid JSON ({fault})") from fault
    if not isinstance(document, dict):
        raise TreeError("a resource must be a JSON object")
    return Resource(path, document, content_etag(document), encode(document))


def action_targets(document: JsonObject) -> Iterator[tuple[str, str]]:
    """Every action that a resource offers, as (name without '#', target), the OEM ones included."""
    pending: list[Any] = [document.get("Actions")]
    oem = document.get("Oem")
    if isinstance(oem, dict):
        pending.extend(vendor.get("Actions") for vendor in oem.values() if isinstance(vendor, dict))
    while pending:
        holder = pending.pop()
        if not isinstance(holder, dict):
            continue
        for name, value in holder.items():
            if not isinstance(value, dict):
                continue
            target = value.get("target")
            if name.startswith("#") and isinstance(target, str):
                yield name[1:], target
            elif not name.startswith("#"):
                pending.append(value)


def add_standard_documents(resources: dict[str, Resource]) -> None:
    """Adds the documents that DSP0266 demands of every service, where the recording lacks them."""
    root = resources[path_key(SERVICE_ROOT)].document or {}

    def add(path: str, document: JsonObject) -> None:
        resources.setdefault(path_key(path), Resource(path, document, content_etag(document)))

    add("/redfish", {"v1": f"{SERVICE_ROOT}/"})
    links = [(name, target) for name, value in root.items() if (target := linked_path(value)) is not None]
    add(
        f"{SERVICE_ROOT}/odata",
        {
            "@odata.context": f"{SERVICE_ROOT}/$metadata",
            "value": [
                {"name": "Service", "kind": "Singleton", "url": f"{SERVICE_ROOT}/"},
                *({"name": name, "kind": "Singleton", "url": target} for name, target in links),
            ],
        },
    )
    metadata = f"{SERVICE_ROOT}/$metadata"
    if path_key(metadata) not in resources:
        schemas = sorted({resource.schema for resource in resources.values()} - {""})
        resources[path_key(metadata)] = Resource(
            metadata, None, "", metadata_document(schemas).encode(), "application/xml; charset=utf-8"
        )


def metadata_document(schemas: list[str]) -> str:
    """A minimal OData metadata document: references to the schemas in use, and the service's container."""
    references = "".join(
        f'<edmx:Reference Uri="{SCHEMA_HOST}/{name}_v1.xml"><edmx:Include Namespace="{name}"/></edmx:Reference>'
        for name in schemas
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<edmx:Edmx xmlns:edmx="http://docs.oasis-open.org/odata/ns/edmx" Version="4.0">'
        f"{references}<edmx:DataServices>"
        '<Schema xmlns="http://docs.oasis-open.org/odata/ns/edm" Namespace="Service">'
        '<EntityContainer Name="Service" Extends="ServiceRoot.v1_0_0.ServiceContainer"/>'
        "</Schema></edmx:DataServices></edmx:Edmx>"
    )
