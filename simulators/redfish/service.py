"""The Redfish service of one simulated BMC, free of any transport: one request in, one answer out, at once.

Nothing here waits. Delays of the machine run on a timeline that is advanced before each request, so
two requests never interleave and a conditional write is atomic.
"""

import logging
import time
from collections.abc import Mapping
from functools import partial

from simulators.redfish.access import Access
from simulators.redfish.accounts import (
    ANONYMOUS,
    AccountBook,
    Principal,
    SessionBook,
)
from simulators.redfish.admission import Admission, same_etag
from simulators.redfish.behaviour import Behaviour
from simulators.redfish.bios import Bios
from simulators.redfish.boot import BootOverride
from simulators.redfish.certificates import Certificates
from simulators.redfish.documents import Answer, JsonObject, Request, linked_path, parent_path, path_key
from simulators.redfish.errors import (
    Message,
    RedfishError,
    malformed_json,
    method_not_allowed,
    not_found,
    recorded_error,
    success_document,
    temporarily_unavailable,
)
from simulators.redfish.events import Events
from simulators.redfish.machine import Machine, merge_properties
from simulators.redfish.manager import ManagerReset
from simulators.redfish.media import VirtualMedia, takes_actions
from simulators.redfish.options import Account, ServiceOptions
from simulators.redfish.power import Power
from simulators.redfish.properties import annotated, is_patchable, split_patch
from simulators.redfish.queries import MemberReader, apply_query
from simulators.redfish.routes import Call, Handler, Routes
from simulators.redfish.server_profile import ServerProfile
from simulators.redfish.storage import Storage
from simulators.redfish.store import ResourceStore
from simulators.redfish.tasks import TaskEngine
from simulators.redfish.timeline import Clock, Timeline
from simulators.redfish.tree import SERVICE_ROOT, RecordedTree, Resource, action_targets
from simulators.redfish.update import Update
from simulators.redfish.vendors import detect_behaviour

log = logging.getLogger(__name__)


class RedfishService:
    """One BMC: a shared tree, its own state, and an answer for each request.

    `answer` raises nothing: whatever goes wrong is an HTTP answer with an extended error.
    """

    def __init__(
        self,
        tree: RecordedTree,
        *,
        users: Mapping[str, str | Account],
        options: ServiceOptions | None = None,
        behaviour: Behaviour | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        options = options or ServiceOptions()
        self.behaviour = behaviour or detect_behaviour(tree)
        self.timeline = Timeline(clock)
        self.store = ResourceStore(tree)
        self.machine = Machine(self.store, self.timeline, options, self.behaviour)
        self.options = options
        self.accounts = AccountBook(self.store, self.timeline, options, users)
        self.sessions = SessionBook(self.store, self.timeline, options, self.accounts)
        self.admission = Admission(options, self.behaviour, self.accounts, self.sessions)
        self.store.on_change = self.behaviour.on_change
        self.routes = Routes()
        self.tasks = TaskEngine(self.machine)
        self.events = Events(self.machine)
        self.power = Power(self.machine)
        self.boot = BootOverride(self.machine)
        self.media = VirtualMedia(self.machine)
        self.access = Access(self.machine, self.accounts, self.sessions)
        self.manager = ManagerReset(self.machine, self.sessions)
        self.certificates = Certificates(self.machine)
        self.update = Update(self.machine, self.tasks, self.manager)
        for concern in (
            self.power,
            self.boot,
            self.media,
            self.access,
            self.manager,
            self.events,
            self.certificates,
            self.tasks,
            Bios(self.machine, self.tasks),
            self.update,
            Storage(self.machine, self.tasks),
            ServerProfile(self.machine, self.tasks),
        ):
            concern.register(self.routes)
        self._allow: dict[str, tuple[Resource, str]] = {}
        features = tree.root.get("ProtocolFeaturesSupported")
        self._features: JsonObject = features if isinstance(features, dict) else {}
        self.member: MemberReader = lambda _request, path: self.store.document(path)

    def answer(self, request: Request) -> tuple[Answer, Principal]:
        """Carries out one request. The principal is ANONYMOUS where the request did not prove any."""
        self.timeline.advance()
        principal = ANONYMOUS
        try:
            if self.manager.down_for:
                raise temporarily_unavailable(max(1, round(self.manager.down_for)))
            principal = self.admission.admit(request)
            return self._dispatch(request, principal), principal
        except RedfishError as error:
            return error.answer(), principal
        except Exception as error:
            log.exception("the simulated service failed on %s %s", request.method, request.path)
            failed = RedfishError(
                500, Message("InternalError", f"The simulator failed: {type(error).__name__}.", "Critical")
            )
            return failed.answer(), principal

    def admit_listener(self, request: Request) -> tuple[Answer | None, Principal]:
        """Whether a stream of events may be opened; else the answer to give in its place."""
        self.timeline.advance()
        try:
            if self.manager.down_for:
                raise temporarily_unavailable(max(1, round(self.manager.down_for)))
            return None, self.admission.admit(request)
        except RedfishError as error:
            return error.answer(), ANONYMOUS

    def _dispatch(self, request: Request, principal: Principal) -> Answer:
        method = request.method
        if method in ("GET", "HEAD"):
            return self._read(request)
        if method == "OPTIONS":
            return self._options(request)
        if method == "POST":
            return self._post(request, principal)
        resource = self._resource(request)
        if method not in self.allow(resource).split(", "):
            raise method_not_allowed(method, self.allow(resource))
        call = Call(request, principal, resource, self._body(request) if method in ("PATCH", "PUT") else {})
        self.admission.check_privilege(call)
        self.admission.check_precondition(request, resource)
        self.behaviour.before_write(call)
        if method == "DELETE":
            return self._finish(call, self.routes.deletions[resource.schema])
        handler = self.routes.patches.get(resource.schema)
        return self._finish(call, handler) if handler else self._patch(call)

    def _resource(self, request: Request) -> Resource:
        resource = self.store.find(request.path)
        if resource is None or (self.options.strict_paths and not is_exact(resource.path, request.path)):
            raise not_found(request.path)
        return resource

    def _read(self, request: Request) -> Answer:
        task = self.tasks.monitor(request.path)
        if task is not None:
            return task
        if self._takes_post_only(request.path):
            raise method_not_allowed(request.method, "POST")
        resource = self._resource(request)
        document = resource.document
        if document is not None and "error" in document and len(document) == 1:
            return recorded_error(document)
        headers = resource.read_headers(self.allow(resource))
        if (
            document is not None
            and "If-None-Match" in request.headers
            and same_etag(request.headers["If-None-Match"], resource.etag)
        ):
            return Answer(304, b"", headers)
        if request.query and document is not None:
            found = apply_query(document, request.query, self._features, partial(self.member, request))
            if found is not document:
                return Answer.of(200, found, dict(headers))
        return Answer(200, resource.encoded, headers)

    def _takes_post_only(self, path: str) -> bool:
        """Whether a path is an action or an upload and no resource besides (iDRAC uploads to a collection)."""
        if self.store.find(path) is not None:
            return False
        return path_key(path) in self.routes.pushes or self._action_at(path) is not None

    def _options(self, request: Request) -> Answer:
        if self._takes_post_only(request.path):
            return Answer(204).with_headers({"Allow": "POST", "OData-Version": "4.0"})
        allow = self.allow(self._resource(request))
        return Answer(204).with_headers({"Allow": allow, "OData-Version": "4.0", "Cache-Control": "no-cache"})

    def _post(self, request: Request, principal: Principal) -> Answer:
        key = path_key(request.path)
        if self.admission.is_sessions(key):
            return self.access.log_in(request)
        if push := self.routes.pushes.get(key):
            service = self.store.find(linked_path(self.store.tree.root, "UpdateService") or "")
            call = Call(request, principal, service or Resource("", {}, ""), {})
            self.admission.check_privilege(call)
            return self._finish(call, push)
        if found := self._action_at(request.path):
            owner, name = found
            call = Call(request, principal, owner, self._body(request, may_be_empty=True), name)
            self.admission.check_privilege(call)
            self.behaviour.before_write(call)
            return self._finish(call, self.routes.actions.get(name, accept_unknown_action))
        return self._create(request, principal)

    def _create(self, request: Request, principal: Principal) -> Answer:
        """POST to a collection, or to its Members property (DSP0266, POST (create))."""
        resource = self.store.find(request.path)
        if resource is None and path_key(request.path).endswith("/members"):
            resource = self.store.find(parent_path(request.path))
        if resource is None:
            raise not_found(request.path)
        creation = self.routes.creations.get(resource.schema)
        if creation is None:
            raise method_not_allowed("POST", self.allow(resource))
        call = Call(request, principal, resource, self._body(request))
        self.admission.check_privilege(call)
        self.behaviour.before_write(call)
        return self._finish(call, creation)

    def _finish(self, call: Call, handler: Handler) -> Answer:
        answer = handler(call)
        if answer is None:
            return Answer(204).with_headers({"OData-Version": "4.0", "Cache-Control": "no-cache"})
        answer.headers.setdefault("OData-Version", "4.0")
        answer.headers.setdefault("Cache-Control", "no-cache")
        changed = self.store.find(call.path)
        if call.request.method in ("PATCH", "PUT") and answer.status == 200 and changed is not None:
            answer.headers.setdefault("ETag", changed.etag)
            answer.headers.setdefault("Allow", self.allow(changed))
        return answer

    def _patch(self, call: Call) -> Answer:
        accepted, messages = split_patch(call.document, call.body, call.resource.schema)
        changed = self.store.edit(call.path, lambda document: merge_properties(document, accepted))
        return Answer.of(200, annotated(changed, messages))

    def _body(self, request: Request, *, may_be_empty: bool = False) -> JsonObject:
        if not request.body and may_be_empty:
            return {}
        content_type = request.headers.get("Content-Type", "application/json").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise RedfishError(
                415, Message("HeaderInvalid", f"The body must be application/json, not {content_type}.", "Critical")
            )
        body = request.json_object()
        if body is None:
            raise malformed_json()
        return body

    def _action_at(self, path: str) -> tuple[Resource, str] | None:
        """The resource that offers the action at `path`, with the action's name; None where none does now."""
        key = path_key(path)
        if "/actions/" not in key and key not in self.store.tree.action_owners:
            return None
        owner_key = self.store.tree.action_owners.get(key) or key.partition("/actions/")[0]
        owner = self.store.find(owner_key)
        if owner is None or owner.document is None:
            return None
        for name, target in action_targets(owner.document):
            if path_key(target) == key:
                return owner, name
        return None

    def allow(self, resource: Resource) -> str:
        """The `Allow` header of a resource, as it is in its present state."""
        cached = self._allow.get(resource.path)
        if cached is not None and cached[0] is resource:
            return cached[1]
        methods = ["GET", "HEAD"]
        schema = resource.schema
        key = path_key(resource.path)
        if schema in self.routes.creations or self.admission.is_sessions(key) or key in self.routes.pushes:
            methods.append("POST")
        media_by_action = schema == "VirtualMedia" and takes_actions(resource.document or {})
        if is_patchable(schema) and not media_by_action:
            methods.append("PATCH")
        if schema in self.routes.deletions:
            methods.append("DELETE")
        allow = ", ".join(methods)
        self._allow[resource.path] = (resource, allow)
        return allow


def accept_unknown_action(call: Call) -> Answer:
    """An action that is offered but has no state to change here (most OEM actions): it is accepted."""
    return Answer.of(200, success_document())


def is_exact(recorded: str, asked: str) -> bool:
    """Whether a path is spelled as recorded; the service root may end in a slash (DSP0266 has it so)."""
    return asked == recorded or (path_key(recorded) == SERVICE_ROOT and asked == f"{SERVICE_ROOT}/")
