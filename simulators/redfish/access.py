"""Writes to the account and session services: log in and out, create, change and delete accounts."""

import re
from collections.abc import Iterable

from simulators.redfish.accounts import PREDEFINED_ROLES, AccountBook, Login, SessionBook
from simulators.redfish.documents import Answer, JsonObject, Request, linked_path, parent_path
from simulators.redfish.errors import (
    Message,
    RedfishError,
    insufficient_privilege,
    malformed_json,
    method_not_allowed,
    property_missing,
    property_value_not_in_list,
    property_value_type,
)
from simulators.redfish.machine import Machine, merge_properties
from simulators.redfish.properties import annotated, split_patch
from simulators.redfish.routes import Call, Routes


class Access:
    """Handlers of sessions and accounts."""

    def __init__(self, machine: Machine, accounts: AccountBook, sessions: SessionBook) -> None:
        self.machine = machine
        self.accounts = accounts
        self.sessions = sessions

    def register(self, routes: Routes) -> None:
        routes.deletions["Session"] = self.log_out
        routes.creations["ManagerAccountCollection"] = self.create_account
        routes.patches["ManagerAccount"] = self.change_account
        routes.deletions["ManagerAccount"] = self.delete_account

    def log_in(self, request: Request) -> Answer:
        """POST to the sessions collection: 201 with the token. Needs no login, as it is one."""
        body = request.json_object()
        if body is None:
            raise malformed_json()
        missing = [property_missing(name) for name in ("UserName", "Password") if name not in body]
        if missing:
            raise RedfishError(400, missing)
        user, password = body["UserName"], body["Password"]
        if not isinstance(user, str) or not isinstance(password, str):
            raise RedfishError(400, property_value_type("UserName/Password", "of another type than string"))
        session, document = self.sessions.create(user, password)
        headers = {"Location": session.path, "X-Auth-Token": session.token, "OData-Version": "4.0"}
        return Answer.of(201, document, headers)

    def log_out(self, call: Call) -> Answer:
        own = call.document.get("UserName") == call.principal.user
        if not own and not call.principal.may("ConfigureManager"):
            raise insufficient_privilege()
        if not self.sessions.end(call.path):
            self.machine.store.remove_member(parent_path(call.path), call.path)
        return Answer(204)

    def create_account(self, call: Call) -> Answer:
        """POST to the accounts collection: 201 with the new account."""
        if not call.principal.may("ConfigureUsers"):
            raise insufficient_privilege()
        body = call.body
        missing = [property_missing(name) for name in ("UserName", "Password", "RoleId") if not body.get(name)]
        if missing:
            raise RedfishError(400, missing)
        user = str(body["UserName"])
        if user in self.accounts.logins:
            raise RedfishError(
                400, Message("ResourceAlreadyExists", f"There is an account {user} already.", args=("UserName", user))
            )
        self._check_role(body["RoleId"])
        collection = call.path.rstrip("/")
        path = f"{collection}/{self.machine.store.free_id(collection)}"
        document = self.accounts.account_document(path, user, body["RoleId"])
        document.update({name: body[name] for name in ("Enabled", "AccountTypes") if name in body})
        self.accounts.logins[user] = Login(
            user, str(body["Password"]), body["RoleId"], bool(document["Enabled"]), path
        )
        self._apply_flags(self.accounts.logins[user], body)
        if body.get("PasswordChangeRequired"):
            document["PasswordChangeRequired"] = True
        resource = self.machine.store.add_member(collection, document)
        return Answer.of(201, resource.document, {"Location": path, "OData-Version": "4.0", "ETag": resource.etag})

    def change_account(self, call: Call) -> Answer:
        """PATCH of an account: its password, role, state or name. Everybody may change the own password."""
        login = self.accounts.at(call.path)
        own = login is not None and login.user == call.principal.user
        if not call.principal.may("ConfigureUsers") and not (own and set(call.body) <= {"Password"}):
            raise insufficient_privilege()
        accepted, messages = split_patch(call.document, call.body, "ManagerAccount")
        if "RoleId" in accepted:
            self._check_role(accepted["RoleId"])
        password = accepted.pop("Password", None)
        if password is not None and not isinstance(password, str):
            raise RedfishError(400, property_value_type("Password", "of another type than string"))
        if password is not None:
            self._check_password(password)
        if login is None and accepted.get("UserName") and password:
            login = Login(
                str(accepted["UserName"]), password, str(call.document.get("RoleId") or "ReadOnly"), path=call.path
            )
            self.accounts.logins[login.user] = login
        if login is not None:
            self._apply(login, accepted, password)
            if password is not None and call.document.get("PasswordChangeRequired"):
                accepted["PasswordChangeRequired"] = False
        if accepted or password is None:
            changed = self.machine.store.edit(call.path, lambda document: show_account(document, accepted))
        else:
            # A new password changes nothing that can be read, but the entity tag must tell of the write.
            changed = self.machine.store.edit(call.path, lambda document: None)
        return Answer.of(200, annotated(changed, messages))

    def delete_account(self, call: Call) -> Answer:
        if not call.principal.may("ConfigureUsers"):
            raise insufficient_privilege()
        login = self.accounts.at(call.path)
        if login is not None and login.user == call.principal.user:
            raise method_not_allowed("DELETE", "GET, HEAD, PATCH")
        if login is not None:
            del self.accounts.logins[login.user]
            self.sessions.end_of(login.user)
        self.machine.store.remove_member(parent_path(call.path), call.path)
        return Answer(204)

    def _apply(self, login: Login, accepted: JsonObject, password: str | None) -> None:
        if password is not None:
            login.password, login.must_change_password = password, False
            if self.machine.options.password_change_ends_sessions:
                self.sessions.end_of(login.user)
        name = accepted.get("UserName")
        if isinstance(name, str) and name != login.user:
            self.sessions.end_of(login.user)
            del self.accounts.logins[login.user]
            if not name:
                return
            login.user = name
            self.accounts.logins[name] = login
        self._apply_flags(login, accepted)

    def _apply_flags(self, login: Login, values: JsonObject) -> None:
        login.role = values.get("RoleId", login.role)
        if "Enabled" in values:
            login.enabled = bool(values["Enabled"])
            if not login.enabled:
                self.sessions.end_of(login.user)
        if values.get("Locked") is False:
            login.locked_until = 0.0
        if "PasswordChangeRequired" in values:
            login.must_change_password = bool(values["PasswordChangeRequired"])

    def _check_password(self, password: str) -> None:
        """Refuses what the account service does not take, and repeats it in the message, as real ones do."""
        service = self.machine.store.document(linked_path(self.machine.store.tree.root, "AccountService")) or {}
        least, most = service.get("MinPasswordLength"), service.get("MaxPasswordLength")
        fits = not isinstance(least, int) or len(password) >= least
        fits = fits and (not isinstance(most, int) or most <= 0 or len(password) <= most)
        if not fits or not re.fullmatch(self.machine.options.password_pattern or ".*", password, re.DOTALL):
            raise RedfishError(
                400,
                Message(
                    "PropertyValueFormatError",
                    f"The value '{password}' of property Password does not keep to the rules for passwords.",
                    resolution="Send a longer or less simple password.",
                    args=(password, "Password"),
                    properties=("#/Password",),
                ),
            )

    def _check_role(self, role: object) -> None:
        roles: Iterable[str] = PREDEFINED_ROLES
        if not isinstance(role, str) or role not in PREDEFINED_ROLES:
            raise RedfishError(400, property_value_not_in_list("RoleId", role, roles))


def show_account(document: JsonObject, accepted: JsonObject) -> None:
    """Writes the accepted values, and keeps the link to the role true."""
    merge_properties(document, {name: value for name, value in accepted.items() if name in document or name == "Oem"})
    link = document.get("Links", {}).get("Role") if isinstance(document.get("Links"), dict) else None
    if "RoleId" in accepted and isinstance(link, dict) and isinstance(link.get("@odata.id"), str):
        link["@odata.id"] = link["@odata.id"].rstrip("/").rpartition("/")[0] + "/" + str(accepted["RoleId"])
