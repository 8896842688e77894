"""Firmware updates: SimpleUpdate and both push URIs, each a task that raises a version at its end."""

import email.policy
import re
from email.parser import BytesParser
from typing import Any
from urllib.parse import urlparse

import msgspec

from simulators.redfish.documents import Answer, JsonObject, decode, linked_path, path_key
from simulators.redfish.errors import (
    Message,
    RedfishError,
    action_parameter_missing,
    action_parameter_unknown,
    malformed_json,
    property_missing,
)
from simulators.redfish.machine import Machine
from simulators.redfish.routes import Call, Routes
from simulators.redfish.tasks import TaskEngine, TaskFailed

SIMPLE_UPDATE = "UpdateService.SimpleUpdate"
PARAMETERS = frozenset({"ImageURI", "Targets", "TransferProtocol", "Username", "Password", "ForceUpdate"})
_VERSION = re.compile(r"\d+(?:\.\d+)+")


class Update:
    """Takes images and shows their version: the one in the file's name (`bmc-2.14.0.bin` is 2.14.0)."""

    def __init__(self, machine: Machine, tasks: TaskEngine) -> None:
        self.machine = machine
        self.tasks = tasks
        self.service = linked_path(machine.store.tree.root, "UpdateService")
        self.document = machine.store.document(self.service) or {}

    def register(self, routes: Routes) -> None:
        routes.actions[SIMPLE_UPDATE] = self.simple_update
        pushes = {
            name: urlparse(str(self.document.get(name) or "")).path
            for name in ("HttpPushUri", "MultipartHttpPushUri")
        }
        for path in pushes.values():
            if path:
                routes.pushes[path_key(path)] = self.push

    def simple_update(self, call: Call) -> Answer:
        unknown = [name for name in call.body if name not in PARAMETERS and not name.startswith("@")]
        if unknown:
            raise RedfishError(400, [action_parameter_unknown(SIMPLE_UPDATE, name) for name in unknown])
        image = call.body.get("ImageURI")
        if not isinstance(image, str) or not image:
            raise action_parameter_missing(SIMPLE_UPDATE, "ImageURI")
        return self._start(urlparse(image).path.rpartition("/")[2], call.body.get("Targets"))

    def push(self, call: Call) -> Answer:
        """A raw upload, or a multipart one with UpdateParameters (DSP0266, Software update)."""
        if not call.request.body:
            raise RedfishError(400, Message("MissingOrMalformedPart", "The upload is empty.", "Critical"))
        content_type = call.request.headers.get("Content-Type", "")
        if not content_type.lower().startswith("multipart/form-data"):
            return self._start(image_name(call.request.headers.get("Content-Disposition", "")), None)
        parts = multipart_parts(content_type, call.request.body)
        if "UpdateFile" not in parts:
            raise RedfishError(400, property_missing("UpdateFile"))
        parameters = update_parameters(parts.get("UpdateParameters"))
        return self._start(parts["UpdateFile"][0], parameters.get("Targets"))

    def _start(self, image: str, targets: Any) -> Answer:
        inventory = self.machine.store.members(linked_path(self.document, "FirmwareInventory"))
        wanted = [target for target in targets if isinstance(target, str)] if isinstance(targets, list) else []
        chosen = (
            wanted or [path for path in inventory if (self.machine.store.document(path) or {}).get("Updateable")][:1]
        )
        version = match.group(0) if (match := _VERSION.search(image)) else None

        def flash() -> None:
            for path in chosen:
                if self.machine.store.find(path) is None:
                    raise TaskFailed(f"There is no firmware target {path}.")
                if version is not None:
                    self.machine.store.edit(path, lambda document: document.update(Version=version))

        return self.tasks.start(f"Update firmware {image}".strip(), flash)


def multipart_parts(content_type: str, body: bytes) -> dict[str, tuple[str, bytes]]:
    """The named parts of a form, as (file name, content). RedfishError 400 where it is no form."""
    head = b"Content-Type: " + content_type.encode() + b"\r\nMIME-Version: 1.0\r\n\r\n"
    form = BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    if not form.is_multipart():
        raise RedfishError(
            400, Message("MissingOrMalformedPart", "The body is not the form it announces.", "Critical")
        )
    parts: dict[str, tuple[str, bytes]] = {}
    for part in form.iter_parts():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes):
            parts[name] = (part.get_filename() or "", content)
    return parts


def update_parameters(part: tuple[str, bytes] | None) -> JsonObject:
    if part is None:
        raise RedfishError(400, property_missing("UpdateParameters"))
    try:
        parameters = decode(part[1])
    except msgspec.DecodeError:
        raise malformed_json() from None
    if not isinstance(parameters, dict):
        raise malformed_json()
    return parameters


def image_name(disposition: str) -> str:
    match = re.search(r'filename="?([^";]+)', disposition)
    return match.group(1) if match else ""
