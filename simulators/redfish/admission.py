"""Who may ask what: method, OData version, login, privilege, and the entity tag of a conditional write.

Nothing here changes anything; each check raises the RedfishError that answers the request.
"""

from simulators.redfish.accounts import (
    ANONYMOUS,
    AccountBook,
    LoginKind,
    Principal,
    SessionBook,
    password_change_required,
)
from simulators.redfish.behaviour import Behaviour
from simulators.redfish.documents import Request, path_key
from simulators.redfish.errors import (
    Message,
    RedfishError,
    insufficient_privilege,
    precondition_failed,
    precondition_required,
    unauthorized,
)
from simulators.redfish.options import ServiceOptions
from simulators.redfish.routes import Call
from simulators.redfish.tree import SERVICE_ROOT, Resource

METHODS = frozenset({"GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"})
OPEN_PATHS = frozenset(
    path_key(path)
    for path in (
        "/redfish",
        SERVICE_ROOT,
        f"{SERVICE_ROOT}/odata",
        f"{SERVICE_ROOT}/$metadata",
        f"{SERVICE_ROOT}/openapi.yaml",
    )
)
# What a change of these schemas asks for; all others ask for ConfigureComponents (DSP0266, Privileges).
MANAGER_SCHEMAS = frozenset(
    {
        "Manager",
        "ManagerNetworkProtocol",
        "EventService",
        "EventDestination",
        "EventDestinationCollection",
        "SessionService",
    }
    | {"TaskService", "CertificateService", "CertificateCollection", "Certificate"}
)
SELF_SCHEMAS = frozenset({"ManagerAccount", "ManagerAccountCollection", "Session"})


class Admission:
    """The checks that a request passes before anything is done for it."""

    def __init__(
        self, options: ServiceOptions, behaviour: Behaviour, accounts: AccountBook, sessions: SessionBook
    ) -> None:
        self.options = options
        self.behaviour = behaviour
        self.accounts = accounts
        self.sessions = sessions

    def admit(self, request: Request) -> Principal:
        """Checks method, OData version and login, in this order. RedfishError for what is refused."""
        if request.method not in METHODS:
            raise RedfishError(
                501, Message("OperationNotAllowed", f"The method {request.method} is not implemented.")
            )
        version = request.headers.get("OData-Version")
        if version is not None and version.strip() != "4.0":
            raise RedfishError(
                412, Message("HeaderInvalid", f"OData-Version {version} is not supported; send 4.0.", "Critical")
            )
        if self._is_open(request):
            # Credentials are not looked at where none are needed: a stale token must not hinder a login.
            return ANONYMOUS
        principal = self.sessions.authenticate(request)
        if principal is ANONYMOUS:
            raise unauthorized()
        if principal.must_change_password and not self._is_own_account(request, principal):
            raise password_change_required(self.accounts.logins[principal.user].path)
        return principal

    def is_sessions(self, key: str) -> bool:
        collection = path_key(self.sessions.collection)
        return key in (collection, f"{collection}/members")

    def _is_open(self, request: Request) -> bool:
        key = path_key(request.path)
        if request.method in ("GET", "HEAD", "OPTIONS"):
            return key in OPEN_PATHS or self.options.open_reads
        if request.method == "POST":
            return self.is_sessions(key)
        return False

    def _is_own_account(self, request: Request, principal: Principal) -> bool:
        own = self.accounts.logins.get(principal.user)
        key = path_key(request.path)
        is_own_session = request.method == "DELETE" and key == path_key(principal.session)
        return is_own_session or (own is not None and bool(own.path) and key == path_key(own.path))

    def check_privilege(self, call: Call) -> None:
        schema = call.resource.schema
        if schema in SELF_SCHEMAS:
            return  # their handlers know whose account or session it is
        needed = "ConfigureManager" if schema in MANAGER_SCHEMAS else "ConfigureComponents"
        if not call.principal.may(needed):
            raise insufficient_privilege()

    def check_precondition(self, request: Request, resource: Resource) -> None:
        wanted = request.headers.get("If-Match")
        if wanted is None:
            needs_one = self.options.require_etag or self.behaviour.requires_if_match(resource)
            if needs_one and request.method != "DELETE":
                raise precondition_required()
            return
        if not same_etag(wanted, resource.etag):
            raise precondition_failed()


def login_kind(request: Request) -> LoginKind:
    """How a request says who sends it, whether or not that is true."""
    if "X-Auth-Token" in request.headers:
        return LoginKind.SESSION
    return LoginKind.BASIC if "Authorization" in request.headers else LoginKind.NONE


def same_etag(header: str, etag: str) -> bool:
    """Whether a list of entity tags names `etag`, by weak comparison, or is `*` (RFC 9110, 13.1)."""
    if header.strip() == "*":
        return True
    present = etag.removeprefix("W/")
    return any(candidate.strip().removeprefix("W/") == present for candidate in header.split(","))
