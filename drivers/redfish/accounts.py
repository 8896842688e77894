"""Accounts of a BMC: found by their user name, never by their place, and given a new password.

Dell has 16 fixed slots, the first of which is nobody's (recorded trees dell-r750-*); OpenBMC names the resource after
the user. A BMC that wants a factory password changed lets nobody see the accounts but their owner, and names the one
account itself in its refusal (DSP0266, "Password change required handling").
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish import messages
from drivers.redfish.document import Document, boolean, link, members, number, path_of, text
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.tasks import words_about
from drivers.rotation import Sent, Write
from protocol.errors import ErrorCode, OperationError
from protocol.secret import Secret

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["account_faults", "account_named_in", "find_account", "in_likely_order", "password_writer"]

_ACCOUNT_PATH = re.compile(r"/redfish/v1/[\w./:-]*?Accounts/[\w.:%@-]*[\w@%]", re.IGNORECASE)


def in_likely_order(paths: list[str], user: str) -> list[str]:
    """The accounts with the one named after the user first, and slot 1 last, which is nobody's on Dell and IPMI."""

    def likelihood(path: str) -> int:
        name = path.rstrip("/").rpartition("/")[2]
        return 0 if name.lower() == user.lower() else 2 if name == "1" and len(paths) > 2 else 1

    return sorted(paths, key=likelihood)


def account_named_in(refused: Refused) -> str | None:
    """The account whose password must be changed first, as the refusal names it (its message's first argument)."""
    for note in refused.notes:
        if note.key == "PasswordChangeRequired":
            for words in (*note.properties, note.text, note.resolution):
                found = _ACCOUNT_PATH.search(words)
                if found is not None:
                    return path_of(found.group())
    return None


def account_faults(account: Document, service: Document, user: str, secret: Secret) -> list[str]:
    """What makes it pointless to send the new password, all of it. The password itself is not in the words."""
    faults = []
    if boolean(account, "Enabled") is False:
        faults.append(f"the account {user} is disabled at the BMC, so that no login could prove the new password")
    if boolean(account, "Locked") is True:
        faults.append(f"the account {user} is locked at the BMC: unlock it, or wait until the BMC does")
    least, most = number(service, "MinPasswordLength"), number(service, "MaxPasswordLength")
    length = len(secret.reveal())
    if least is not None and length < least:
        faults.append(f"the new password is shorter than the {least:g} characters that this BMC asks for")
    if most is not None and 0 < most < length:
        faults.append(f"the new password is longer than the {most:g} characters that this BMC takes")
    return faults


async def find_account(connection: RedfishConnection, user: str, call: Call) -> tuple[str, Document, Document]:
    """The path of the user's account, the account, and the account service (empty where it may not be read).

    Raises OperationError: INVALID_ARGUMENT where there is no such user, UNSUPPORTED without an account service.
    """
    try:
        root = await connection.root(call)
        service = await connection.get(link(root, "AccountService") or "/redfish/v1/AccountService", call)
        collection = link(service, "Accounts")
        if collection is None:
            raise OperationError(ErrorCode.UNSUPPORTED, "this BMC's account service lists no accounts")
        paths = in_likely_order(members(await connection.get(collection, call)), user)
    except Refused as refused:
        own = account_named_in(refused) if messages.is_password_change(refused.notes) else None
        if own is None or user != connection.target.username:
            raise
        return own, await connection.get(own, call), {}
    others = []
    for path in paths:
        account = await connection.find_patiently(path, call)
        name = text(account, "UserName")
        if account is not None and name == user:
            return path, account, service
        if name is not None:
            others.append(name)
    raise OperationError(
        ErrorCode.INVALID_ARGUMENT, f"user: this BMC has no account {user!r}; it has {', '.join(others) or 'none'}"
    )


async def password_writer(connection: RedfishConnection, user: str, secret: Secret, call: Call) -> Write:
    """Finds the user's account, looks for what speaks against it, and returns how the password is written.

    Raises OperationError; nothing is changed yet.
    """
    path, account, service = await find_account(connection, user, call)
    faults = account_faults(account, service, user, secret)
    if faults:
        raise OperationError(ErrorCode.INVALID_ARGUMENT, "; ".join(faults))

    async def write() -> Sent:
        try:
            answer = await connection.patch(path, {"Password": secret.reveal()}, call)
        except NoAnswer as failure:
            return Sent(unsure=failure)
        except Refused as refused:
            if refused.certainly_not_done:
                raise
            return Sent(unsure=refused)
        return Sent(words=await words_about(connection, answer, call))

    return write
