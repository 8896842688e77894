"""Who may do what: accounts with their roles and lock-out, sessions with their expiry (DSP0266, Security details)."""

import base64
import binascii
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from simulators.redfish.documents import JsonObject, Request, linked_path, path_key
from simulators.redfish.errors import Message, RedfishError, unauthorized
from simulators.redfish.options import Account, ServiceOptions
from simulators.redfish.store import ResourceStore
from simulators.redfish.timeline import Timeline

SERVICE_ROOT = "/redfish/v1"
DEFAULT_SESSIONS = f"{SERVICE_ROOT}/SessionService/Sessions"
DEFAULT_SESSION_TIMEOUT = 1800.0
PREDEFINED_ROLES = {
    "Administrator": {"Login", "ConfigureManager", "ConfigureUsers", "ConfigureComponents", "ConfigureSelf"},
    "Operator": {"Login", "ConfigureComponents", "ConfigureSelf"},
    "ReadOnly": {"Login", "ConfigureSelf"},
}


class LoginKind(StrEnum):
    """How a request proved who sends it."""

    NONE = "none"
    BASIC = "basic"
    SESSION = "session"


@dataclass(slots=True, frozen=True)
class Principal:
    """Who sends a request. `session` is the session's path where there is one."""

    user: str = ""
    role: str = "None"
    kind: LoginKind = LoginKind.NONE
    session: str = ""
    must_change_password: bool = False

    def may(self, privilege: str) -> bool:
        return privilege in PREDEFINED_ROLES.get(self.role, set())


ANONYMOUS = Principal()


@dataclass(slots=True)
class Login:
    """One account as the service keeps it. `path` is its resource, where the tree has accounts."""

    user: str
    password: str = field(repr=False)
    role: str
    enabled: bool = True
    path: str = ""
    failures: int = 0
    locked_until: float = 0.0
    must_change_password: bool = False


@dataclass(slots=True)
class Session:
    token: str = field(repr=False)
    path: str
    user: str
    last_used: float


class AccountBook:
    """The accounts that can log in. Passwords stay here, and are in no resource."""

    def __init__(
        self, store: ResourceStore, timeline: Timeline, options: ServiceOptions, users: Mapping[str, str | Account]
    ) -> None:
        self.store = store
        self.timeline = timeline
        self.options = options
        self.logins: dict[str, Login] = {}
        self.collection = linked_path(store.document(linked_path(store.tree.root, "AccountService")), "Accounts")
        for user, given in users.items():
            account = given if isinstance(given, Account) else Account(given)
            self.logins[user] = Login(user, account.password, account.role)
            self._show(self.logins[user])

    def check(self, user: str, password: str) -> Login:
        """The login for right credentials; RedfishError 401 otherwise. Counts towards the lock-out."""
        login = self.logins.get(user)
        if login is None or not login.enabled:
            raise unauthorized()
        now = self.timeline.clock()
        if login.locked_until > now:
            raise unauthorized()
        if not hmac.compare_digest(login.password.encode(), password.encode()):
            login.failures += 1
            if self.options.lockout_after and login.failures >= self.options.lockout_after:
                login.locked_until, login.failures = now + self.options.lockout_seconds, 0
            raise unauthorized()
        login.failures = 0
        return login

    def locked(self, user: str) -> bool:
        login = self.logins.get(user)
        return login is not None and login.locked_until > self.timeline.clock()

    def at(self, path: str) -> Login | None:
        """The login whose resource is at `path`."""
        key = path_key(path)
        return next((login for login in self.logins.values() if path_key(login.path) == key), None)

    def account_document(self, path: str, user: str, role: str) -> JsonObject:
        account_service = linked_path(self.store.tree.root, "AccountService") or f"{SERVICE_ROOT}/AccountService"
        return {
            "@odata.type": "#ManagerAccount.v1_12_0.ManagerAccount",
            "@odata.id": path,
            "@odata.etag": "",  # the store writes the tag of each change here
            "Id": path.rpartition("/")[2],
            "Name": f"Account of {user}",
            "UserName": user,
            "Password": None,
            "RoleId": role,
            "Enabled": True,
            "Locked": False,
            "PasswordChangeRequired": False,
            "AccountTypes": ["Redfish"],
            "Links": {"Role": {"@odata.id": f"{account_service}/Roles/{role}"}},
        }

    def _show(self, login: Login) -> None:
        """Gives a login its resource: the one that names it, else an empty slot, else a new member."""
        if self.collection is None or self.store.find(self.collection) is None:
            return
        free_slot = ""
        for path in self.store.members(self.collection):
            document = self.store.document(path) or {}
            if document.get("UserName") == login.user:
                login.path = path
                return
            if not free_slot and document.get("UserName") == "" and not document.get("Enabled", True):
                free_slot = path
        if free_slot:
            self.store.edit(free_slot, lambda body: body.update(UserName=login.user, Enabled=True, RoleId=login.role))
            login.path = free_slot
            return
        login.path = f"{self.collection.rstrip('/')}/{self.store.free_id(self.collection)}"
        self.store.add_member(self.collection, self.account_document(login.path, login.user, login.role))


class SessionBook:
    """The open sessions: made by a login, ended by DELETE, by time, or by a restart of the manager."""

    def __init__(
        self, store: ResourceStore, timeline: Timeline, options: ServiceOptions, accounts: AccountBook
    ) -> None:
        self.store = store
        self.timeline = timeline
        self.options = options
        self.accounts = accounts
        root = store.tree.root
        self.service = linked_path(root, "SessionService")
        self.collection = (
            linked_path(root, "Links", "Sessions")
            or linked_path(store.document(self.service), "Sessions")
            or DEFAULT_SESSIONS
        ).rstrip("/")
        self._by_token: dict[str, Session] = {}
        self.created = 0

    @property
    def open(self) -> list[Session]:
        self.expire()
        return list(self._by_token.values())

    @property
    def timeout(self) -> float:
        """Seconds of silence after which a session ends."""
        if self.options.session_timeout is not None:
            return self.options.session_timeout
        recorded: Any = (self.store.document(self.service) or {}).get("SessionTimeout")
        return float(recorded) if isinstance(recorded, int | float) and recorded > 0 else DEFAULT_SESSION_TIMEOUT

    def create(self, user: str, password: str) -> tuple[Session, JsonObject]:
        """Logs in. Errors: 401 for wrong credentials, 503 where all sessions are taken."""
        login = self.accounts.check(user, password)
        self.expire()
        if len(self._by_token) >= self.options.max_sessions:
            raise session_limit_exceeded()
        self.created += 1
        session_id = f"{self.created}-{secrets.token_hex(4)}"
        session = Session(secrets.token_hex(32), f"{self.collection}/{session_id}", user, self.timeline.clock())
        document: JsonObject = {
            "@odata.type": "#Session.v1_7_0.Session",
            "@odata.id": session.path,
            "Id": session_id,
            "Name": "User Session",
            "UserName": user,
            "Password": None,
            "SessionType": "Redfish",
        }
        self._by_token[session.token] = session
        if self.store.find(self.collection) is not None:
            self.store.add_member(self.collection, document)
        else:
            self.store.put(session.path, document)
        if login.must_change_password:
            told = password_change_required(login.path).messages[0].document()
            document = {**document, "@Message.ExtendedInfo": [told]}
        return session, document

    def end(self, path: str) -> bool:
        """Ends the session at `path`; False where this service never opened it."""
        key = path_key(path)
        for token, session in list(self._by_token.items()):
            if path_key(session.path) == key:
                del self._by_token[token]
                self.store.remove_member(self.collection, session.path)
                return True
        return False

    def end_all(self) -> None:
        for session in list(self._by_token.values()):
            self.end(session.path)

    def end_of(self, user: str) -> None:
        """Ends every session of one user: an account that is deleted or disabled keeps none."""
        for session in list(self._by_token.values()):
            if session.user == user:
                self.end(session.path)

    def expire(self) -> None:
        now, timeout = self.timeline.clock(), self.timeout
        for session in list(self._by_token.values()):
            if now - session.last_used > timeout:
                self.end(session.path)

    def authenticate(self, request: Request) -> Principal:
        """Who sends the request. ANONYMOUS where it carries no proof; RedfishError 401 for a false one."""
        token = request.headers.get("X-Auth-Token")
        if token is not None:
            return self._by_session(token)
        authorization = request.headers.get("Authorization")
        if authorization is None:
            return ANONYMOUS
        user, password = basic_credentials(authorization)
        if not self.options.basic_auth:
            raise unauthorized()
        login = self.accounts.check(user, password)
        return Principal(user, login.role, LoginKind.BASIC, must_change_password=login.must_change_password)

    def _by_session(self, token: str) -> Principal:
        session = self._by_token.get(token)
        now = self.timeline.clock()
        if session is not None and now - session.last_used > self.timeout:
            self.end(session.path)
            session = None
        if session is None:
            raise unauthorized()
        session.last_used = now
        login = self.accounts.logins.get(session.user)
        if login is None:
            raise unauthorized()
        return Principal(
            session.user,
            login.role,
            LoginKind.SESSION,
            session.path,
            must_change_password=login.must_change_password,
        )


def basic_credentials(authorization: str) -> tuple[str, str]:
    """User and password of an `Authorization: Basic` header; RedfishError 401 where it is none."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        raise unauthorized()
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise unauthorized() from None
    if not colon:
        raise unauthorized()
    return user, password


def session_limit_exceeded() -> RedfishError:
    return RedfishError(
        503,
        Message(
            "SessionLimitExceeded",
            "The service has as many sessions as it can hold.",
            "Critical",
            "End a session, then log in again.",
        ),
        {"Retry-After": "30"},
    )


def password_change_required(account: str) -> RedfishError:
    """Names the account's resource, which is all that its user may see until then."""
    return RedfishError(
        403,
        Message(
            "PasswordChangeRequired",
            f"The password of this account must be changed before anything else is allowed: PATCH {account}.",
            "Critical",
            "Change the password of the account.",
            args=(account,),
        ),
    )
