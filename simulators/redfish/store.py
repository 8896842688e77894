"""The state of one BMC over a shared recorded tree: a copy-on-write overlay. The tree itself is never changed."""

import copy
import re
from collections.abc import Callable, Iterator
from itertools import count

from simulators.redfish.documents import JsonObject, linked_path, member_paths, path_key
from simulators.redfish.tree import RecordedTree, Resource, content_etag

Edit = Callable[[JsonObject], None]
ChangeHook = Callable[[str, JsonObject], None]

_WEAK = re.compile(r"^W/")


class ResourceStore:
    """Finds, changes, adds and removes resources. Each change gives a resource a fresh entity tag.

    `on_change(path, document)` may still alter a document before it is stored; vendors use it to
    show an action only in some states.
    """

    def __init__(self, tree: RecordedTree, on_change: ChangeHook | None = None) -> None:
        self.tree = tree
        self.on_change = on_change
        self._overlay: dict[str, Resource | None] = {}
        self._revisions = count(1)

    def find(self, path: str) -> Resource | None:
        key = path_key(path)
        if key in self._overlay:
            return self._overlay[key]
        return self.tree.resources.get(key)

    def document(self, path: str | None) -> JsonObject | None:
        """The document at `path` for reading only, or None."""
        resource = self.find(path) if path else None
        return resource.document if resource else None

    def __iter__(self) -> Iterator[Resource]:
        for key, resource in self.tree.resources.items():
            if key not in self._overlay:
                yield resource
        for changed in list(self._overlay.values()):
            if changed is not None:
                yield changed

    def of_schema(self, schema: str) -> Iterator[Resource]:
        """All present resources of one schema, in no promised order."""
        return (resource for resource in self if resource.schema == schema)

    def edit(self, path: str, change: Edit) -> JsonObject:
        """Applies `change` to a private copy of the document and stores it under a fresh entity tag."""
        resource = self.find(path)
        if resource is None or resource.document is None:
            raise LookupError(f"no JSON resource at {path}")
        document = copy.deepcopy(resource.document)
        change(document)
        self.put(resource.path, document)
        return document

    def put(self, path: str, document: JsonObject) -> Resource:
        """Stores `document` at `path`, whether or not there was one. The store owns it from here on."""
        path = path.rstrip("/")
        if self.on_change is not None:
            self.on_change(path, document)
        before = self.find(path)
        etag = self._fresh_etag(before.etag if before else content_etag(document))
        if "@odata.etag" in document:
            document["@odata.etag"] = etag
        resource = Resource(path, document, etag)
        self._overlay[path_key(path)] = resource
        return resource

    def remove(self, path: str) -> None:
        self._overlay[path_key(path)] = None

    def restore(self, path: str) -> None:
        """Forgets every change to `path`: what was recorded shows again."""
        self._overlay.pop(path_key(path), None)

    def add_member(self, collection: str, document: JsonObject) -> Resource:
        """Stores a resource at its own `@odata.id` and lists it in its collection."""
        path: str = document["@odata.id"]
        resource = self.put(path, document)

        def list_it(body: JsonObject) -> None:
            members = [
                member
                for member in body.get("Members") or []
                if path_key(linked_path(member) or "") != path_key(path)
            ]
            members.append({"@odata.id": path})
            set_members(body, members)

        self.edit(collection, list_it)
        return resource

    def remove_member(self, collection: str, path: str) -> None:
        """Removes a resource and its entry in the collection; an absent one is left absent."""
        self.remove(path)

        def unlist(body: JsonObject) -> None:
            members = body.get("Members") or []
            set_members(body, [m for m in members if path_key(linked_path(m) or "") != path_key(path)])

        if self.find(collection) is not None:
            self.edit(collection, unlist)

    def members(self, collection: str | None) -> list[str]:
        return member_paths(self.document(collection))

    def free_id(self, collection: str, prefix: str = "") -> str:
        """The lowest number that no resource of the collection has yet, with a prefix."""
        for number in count(1):
            if self.find(f"{collection.rstrip('/')}/{prefix}{number}") is None:
                return f"{prefix}{number}"
        raise AssertionError("count() ends never")

    def _fresh_etag(self, before: str) -> str:
        weak = "W/" if _WEAK.match(before) else ""
        body = _WEAK.sub("", before).strip('"').partition("-r")[0]
        return f'{weak}"{body}-r{next(self._revisions)}"'


def set_members(collection: JsonObject, members: list[JsonObject]) -> None:
    """Replaces the members, and keeps the count true."""
    collection["Members"] = members
    collection["Members@odata.count"] = len(members)
