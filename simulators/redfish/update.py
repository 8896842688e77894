"""Firmware updates: SimpleUpdate and both push URIs, each a task that raises a version at its end.

How it goes on is `ServiceOptions.update`: at once or with the next start of the host, with or without effect, and
with a manager that restarts on the way. What SimpleUpdate names by an http or https address is fetched first, where
a server carries that out; the task fails where it does not come whole.
"""

import email.policy
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from email.parser import BytesParser
from functools import partial
from typing import Any
from urllib.parse import urlparse

import msgspec

from simulators.redfish.documents import Answer, JsonObject, Upload, decode, linked_path, path_key
from simulators.redfish.errors import (
    Message,
    RedfishError,
    action_parameter_format,
    action_parameter_missing,
    action_parameter_not_in_list,
    action_parameter_unknown,
    malformed_json,
    property_missing,
    success_document,
)
from simulators.redfish.image_fetch import FetchFailed, ImageOrder, fetch
from simulators.redfish.machine import Machine
from simulators.redfish.manager import ManagerReset
from simulators.redfish.routes import Call, Routes
from simulators.redfish.tasks import Cancellable, RunningTask, TaskEngine, TaskFailed, TaskStaged

SIMPLE_UPDATE = "UpdateService.SimpleUpdate"
PARAMETERS = frozenset({"ImageURI", "Targets", "TransferProtocol", "Username", "Password", "ForceUpdate"})
FETCHING = 10  # of 100 per cent of its fetching, so many make one of the whole update
_VERSION = re.compile(r"\d+(?:\.\d+)+")


class Update:
    """Takes images and shows their version: the one in the file's name (`bmc-2.14.0.bin` is 2.14.0)."""

    def __init__(self, machine: Machine, tasks: TaskEngine, manager: ManagerReset) -> None:
        self.machine = machine
        self.tasks = tasks
        self.manager = manager
        self.uploads: list[Upload] = []
        """What was pushed, or fetched whole."""
        self.in_background: Callable[[Coroutine[None, None, None]], Cancellable] | None = None
        """Carries out what takes its time on the network; None: nothing is fetched, and images are taken by name."""
        self.service = linked_path(machine.store.tree.root, "UpdateService")

    @property
    def document(self) -> JsonObject:
        return self.machine.store.document(self.service) or {}

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
        allowed = self._protocols()
        protocol = call.body.get("TransferProtocol")
        if protocol is not None and allowed and protocol not in allowed:
            raise action_parameter_not_in_list(SIMPLE_UPDATE, "TransferProtocol", protocol, allowed)
        apply_time = call.body.get("@Redfish.OperationApplyTime")
        try:
            order = ImageOrder.of(image, protocol, call.body.get("Username"), call.body.get("Password"))
        except ValueError:
            raise action_parameter_format(SIMPLE_UPDATE, "ImageURI", image) from None
        if not order.is_fetched or self.in_background is None:
            return self._start(order.name, call.body.get("Targets"), apply_time)
        answer, task = self.tasks.begin(f"Update firmware {order.name}".strip())
        work = self._work(order.name, call.body.get("Targets"), apply_time)
        task.scheduled.append(self.in_background(self._bring(order, task, work)))
        return answer

    async def _bring(self, order: ImageOrder, task: RunningTask, work: Callable[[], None]) -> None:
        """Fetches the image; what is done with it takes the task's time after that."""
        shown = 0

        def progress(percent: int) -> None:
            nonlocal shown
            if percent // FETCHING > shown:
                shown = percent // FETCHING
                self.tasks.progress(task, shown)

        try:
            upload = await fetch(order, progress)
        except FetchFailed as failure:
            self.tasks.fail(task, TaskFailed(str(failure), failure.reason))
            return
        except Exception as error:
            self.tasks.fail(task, TaskFailed(f"The simulator failed: {type(error).__name__}."))
            raise
        self.uploads.append(upload)
        self.tasks.run(task, work)

    def push(self, call: Call) -> Answer:
        """A raw upload, or a multipart one with UpdateParameters (DSP0266, Software update)."""
        if not call.request.body:
            raise RedfishError(400, Message("MissingOrMalformedPart", "The upload is empty.", "Critical"))
        if self.machine.behaviour.claims_updates and self.document.get("HttpPushUriTargetsBusy") is False:
            raise RedfishError(
                400, Message("ServiceInUnknownState", "Set HttpPushUriTargetsBusy before an upload.", "Critical")
            )
        content_type = call.request.headers.get("Content-Type", "")
        if not content_type.lower().startswith("multipart/form-data"):
            return self._push_raw(call)
        parts = multipart_parts(content_type, call.request.body)
        if self.machine.behaviour.update_form == "ilo" and "sessionKey" in parts:
            return self._push_ilo(call, parts)
        if "UpdateFile" not in parts:
            raise RedfishError(400, property_missing("UpdateFile"))
        parameters = update_parameters(parts.get("UpdateParameters"))
        self.uploads += call.request.uploads
        apply_time = parameters.get("@Redfish.OperationApplyTime")
        return self._start(parts["UpdateFile"][0], parameters.get("Targets"), apply_time)

    def _push_raw(self, call: Call) -> Answer:
        if self.machine.behaviour.update_form:
            raise RedfishError(400, Message("UnsupportedMediaType", "The upload is not the form wanted.", "Critical"))
        image = image_name(call.request.headers.get("Content-Disposition", ""))
        self.uploads += [replace(upload, name=image) for upload in call.request.uploads]
        options = self.document.get("HttpPushUriOptions")
        setting = options.get("HttpPushUriApplyTime") if isinstance(options, dict) else None
        apply_time = setting.get("ApplyTime") if isinstance(setting, dict) else None
        return self._start(image, self.document.get("HttpPushUriTargets") or None, apply_time)

    def _push_ilo(self, call: Call, parts: dict[str, tuple[str, bytes]]) -> Answer:
        """HPE's form: taken by the session's key in it and in the cookie; its progress is in the service, no task."""
        key = parts["sessionKey"][1].decode("utf-8", "replace")
        if "file" not in parts or "parameters" not in parts:
            raise RedfishError(400, property_missing("file" if "file" not in parts else "parameters"))
        if f"sessionKey={key}" not in call.request.headers.get("Cookie", ""):
            raise RedfishError(
                400, Message("iLO.2.14.InvalidSessionKey", "The session key is not valid.", "Critical")
            )
        self.uploads += call.request.uploads
        flash = self._flash(parts["file"][0], None)
        self._show_ilo("Writing")

        def end() -> None:
            try:
                flash()
            except TaskFailed as failure:
                self._show_ilo("Error", str(failure))
            else:
                self._show_ilo("Complete")

        self.machine.timeline.after(self.machine.options.task_seconds, end)
        return Answer.of(200, success_document())

    def _show_ilo(self, state: str, text: str = "") -> None:
        def show(document: JsonObject) -> None:
            place = document.setdefault("Oem", {}).setdefault("Hpe", {})
            place["State"] = state
            place["Result"] = {"MessageId": "iLO.2.14.UpdateFailed", "Message": text} if text else None

        if self.service is not None:
            self.machine.store.edit(self.service, show)

    def _protocols(self) -> list[str]:
        offered = (self.document.get("Actions") or {}).get(f"#{SIMPLE_UPDATE}") or {}
        listed = offered.get("TransferProtocol@Redfish.AllowableValues")
        return [word for word in listed if isinstance(word, str)] if isinstance(listed, list) else []

    def _start(self, image: str, targets: Any, apply_time: Any) -> Answer:
        return self.tasks.start(f"Update firmware {image}".strip(), self._work(image, targets, apply_time))

    def _work(self, image: str, targets: Any, apply_time: Any) -> Callable[[], None]:
        """What the task of an update does at its end."""
        flash = self._flash(image, targets)
        manners = self.machine.options.update

        def work() -> None:
            if manners.staged or apply_time == "OnReset":
                raise TaskStaged("The update waits for the next start of the system.", flash)
            flash()

        return work

    def _flash(self, image: str, targets: Any) -> Callable[[], None]:
        """What writes the image, to the targets or to the first component that takes one."""
        inventory = self.machine.store.members(linked_path(self.document, "FirmwareInventory"))
        wanted = [target for target in targets if isinstance(target, str)] if isinstance(targets, list) else []
        chosen = [path for target in wanted for path in self._meant(target, inventory)] or (
            [path for path in inventory if (self.machine.store.document(path) or {}).get("Updateable")][:1]
        )
        version = match.group(0) if (match := _VERSION.search(image)) else None

        def flash() -> None:
            before = {}
            for path in chosen:
                document = self.machine.store.document(path)
                if document is None:
                    raise TaskFailed(f"There is no firmware target {path}.")
                before[path] = document.get("Version")
            if version is not None and not self.machine.options.update.silent:
                self._show(dict.fromkeys(before, version))
            self._restart(before, version)

        return flash

    def _meant(self, target: str, inventory: list[str]) -> list[str]:
        """The entries of the inventory that a target is, or that belong to it."""
        if self.machine.store.find(target) is None:
            return [target]
        related = [
            path
            for path in inventory
            for item in (self.machine.store.document(path) or {}).get("RelatedItem") or []
            if path_key(linked_path(item) or "") == path_key(target)
        ]
        return related[:1] or [target]

    def _restart(self, before: dict[str, Any], version: str | None) -> None:
        manners = self.machine.options.update
        if not manners.restart_seconds:
            return
        self.manager.go_down(manners.restart_seconds)
        if version is None or manners.silent:
            return
        # What a manager that has just started shows: now its old data, now the new.
        for number in range(manners.flaps):
            shown = before if number % 2 == 0 else dict.fromkeys(before, version)
            at = manners.restart_seconds - 0.5 + number * manners.flap_seconds
            self.machine.timeline.after(at, partial(self._show, shown))
        at = manners.restart_seconds - 0.5 + manners.flaps * manners.flap_seconds
        self.machine.timeline.after(at, partial(self._show, dict.fromkeys(before, version)))

    def _show(self, versions: Mapping[str, Any]) -> None:
        for path, version in versions.items():
            self.machine.store.edit(path, lambda document, v=version: document.update(Version=v))  # type: ignore[misc]
            for item in (self.machine.store.document(path) or {}).get("RelatedItem") or []:
                manager = linked_path(item)
                if "FirmwareVersion" in (self.machine.store.document(manager) or {}) and manager is not None:
                    self.machine.store.edit(
                        manager,
                        lambda document, v=version: document.update(FirmwareVersion=v),  # type: ignore[misc]
                    )


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
