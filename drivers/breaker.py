"""Stops every login to a BMC after one that was refused, until the credential changes.

BMCs lock an account after a few wrong passwords, and a poller makes a few wrong logins in a second
(Ironic's password-in-session-cache note; NICo#1292). So one refusal is enough.
"""

from collections.abc import Callable

from drivers.target import Target
from protocol.errors import ErrorCode, OperationError

__all__ = ["Breaker"]


class Breaker:
    """Blocked credentials, by BMC endpoint (`host:port`).

    `blocked` maps an endpoint to the credential keys that it refused, each with the reason. `on_change` is called
    after each change, so that an agent can keep the blocks over a restart; keys that are made of a
    `credential_version` stay meaningful there.
    """

    def __init__(self, on_change: Callable[[], None] | None = None) -> None:
        self.blocked: dict[str, dict[str, str]] = {}
        self._retired: set[tuple[str, str]] = set()
        self._on_change = on_change

    def check(self, target: Target) -> None:
        """Raises OperationError AUTH_BLOCKED when this credential was refused by this BMC before."""
        reason = self.blocked.get(target.endpoint, {}).get(target.credential_key)
        if (target.endpoint, target.credential_key) in self._retired:
            raise OperationError(
                ErrorCode.AUTH_BLOCKED,
                f"the password of this user was changed at {target.endpoint} a moment ago, and this is the old one: "
                "look the credential up again",
            )
        if reason is not None:
            raise OperationError(
                ErrorCode.AUTH_BLOCKED,
                f"{target.endpoint} refused this user and password before ({reason}); "
                "no login is tried until the credential changes, so that the account is not locked",
            )

    def is_blocked(self, target: Target) -> bool:
        """Whether this BMC has refused this credential."""
        return target.credential_key in self.blocked.get(target.endpoint, {})

    def forgive(self, target: Target) -> None:
        """Takes back a block of this credential: it was made good at the BMC."""
        self._retired.discard((target.endpoint, target.credential_key))
        self.accepted(target)

    def retire(self, target: Target) -> None:
        """This credential was replaced at the BMC: whoever still holds it is not to show it there. Only sessions that
        are open go on. Of use within this process, so it is no block that an operator would have to lift."""
        self._retired.add((target.endpoint, target.credential_key))

    def refused(self, target: Target, reason: str) -> None:
        """Remembers that the BMC refused the login."""
        self.blocked.setdefault(target.endpoint, {})[target.credential_key] = reason
        self._changed()

    def accepted(self, target: Target) -> None:
        """Forgets every block of this BMC for this user's present credential."""
        if self.blocked.get(target.endpoint, {}).pop(target.credential_key, None) is not None:
            self._changed()

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()
