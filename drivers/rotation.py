"""Changing the password of a BMC's account without ever losing it: one order for every driver.

    find the account        by its name, logged in with the old password
    begin                   both passwords are kept, durably
    write                   sent to the BMC once
    prove                   a login of its own with the new password
    proven                  the new password is the account's from here on

Where the proof fails, the old password is tried once. Whatever happens in between, even the end of the process,
leaves both passwords kept, so that trying the new one and then the old one tells which it is. Neither is tried twice
for that: BMCs lock an account after a few wrong ones (OpenStack Ironic's password-in-session-cache note, NICo#1292).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from drivers.concealment import conceal
from drivers.target import Target
from protocol.errors import BmcMessage, ErrorCode, OperationError
from protocol.secret import Secret
from protocol.shapes.config import RotatePasswordResult

if TYPE_CHECKING:
    from drivers.driver import Call, Environment

__all__ = ["GivenPassword", "ProvesLogin", "Rotation", "Sent", "Write", "rotate", "takes_login"]

_UNSURE_SECONDS = 5.0
"""How long a change whose answer was lost may still be under way at the BMC."""
_SLOW_SECONDS = 10.0
"""How long a BMC that said yes may go on refusing the new password, before the old one is tried."""
_ASK_AGAIN = (1.0, 2.0, 4.0, 8.0)
_PASSING = frozenset({ErrorCode.UNREACHABLE, ErrorCode.BUSY, ErrorCode.TIMEOUT})
_REFUSED = frozenset({ErrorCode.AUTH_FAILED, ErrorCode.AUTH_BLOCKED})
_endings: set[asyncio.Future[None]] = set()
"""Logouts under way: the event loop itself keeps no hold of them."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The BMC was given the new password. `unsure`: it did not say yes, and may have taken it all the same."""

    unsure: OperationError | None = None
    words: list[BmcMessage] = field(default_factory=list)
    """What it said beside its yes."""

    def __str__(self) -> str:
        return "the BMC said yes" if self.unsure is None else f"it had no proper answer ({self.unsure.message})"

    @property
    def said(self) -> list[BmcMessage]:
        return self.words if self.unsure is None else self.unsure.bmc


Write = Callable[[], Awaitable[Sent]]
"""Gives the BMC the new password, once. Raises OperationError where it was not given."""


class Rotation(Protocol):
    """The new password, and whoever keeps both. What a method has said is durable when it returns.

    Nothing of it is in an operation's arguments, which travel and are stored.
    """

    @property
    def secret(self) -> Secret:
        """The new password."""

    @property
    def version(self) -> str | None:
        """The `credential_version` of a target with the new password."""

    async def begin(self) -> None:
        """From here on both passwords are kept. Raises OperationError, and then the BMC is not asked."""

    async def proven(self) -> None:
        """The BMC takes the new one: it is the account's password from here on."""

    async def withdrawn(self) -> None:
        """The BMC keeps the old one."""


@dataclass(frozen=True, slots=True)
class GivenPassword:
    """A new password from whoever calls the library, and keeps both passwords himself."""

    secret: Secret
    version: str | None = None

    async def begin(self) -> None:
        """The caller has both."""

    async def proven(self) -> None:
        """The caller hears of it by the result."""

    async def withdrawn(self) -> None:
        """The caller hears of it by the error."""


class ProvesLogin(Protocol):
    """A connection that can be asked for a login and nothing else."""

    async def prove_login(self, call: "Call") -> None:
        """Logs in. Raises OperationError; a login that the BMC refused is known to the breaker then."""

    async def aclose(self) -> None: ...


async def takes_login(
    connect: Callable[[Target, "Environment"], ProvesLogin], target: Target, environment: "Environment", call: "Call"
) -> bool:
    """Whether the BMC takes this credential, by one login in a session of its own, which is ended again.

    A credential that the BMC refused before is not shown to it again. Raises OperationError where the BMC cannot be
    asked.
    """
    if environment.breaker.is_blocked(target):
        return False
    connection = connect(target, environment)
    try:
        await connection.prove_login(call)
    except OperationError:
        if environment.breaker.is_blocked(target):
            return False
        raise
    finally:
        # A caller that is cancelled just now leaves no session behind either.
        ending = asyncio.ensure_future(connection.aclose())
        _endings.add(ending)
        ending.add_done_callback(_endings.discard)
        await asyncio.shield(ending)
    return True


async def rotate(
    user: str,
    old: Target,
    connect: Callable[[Target, "Environment"], ProvesLogin],
    environment: "Environment",
    prepare: Callable[[Secret], Awaitable[Write]],
    call: "Call",
    *,
    pause: float = 0.0,
) -> RotatePasswordResult:
    """Gives `user` the password that `call.rotation` holds. `pause`: seconds between the BMC's yes and the proof.

    `prepare` finds the account with the old password, checks what can be checked, and changes nothing.
    Raises OperationError: NOT_APPLIED (the old password still holds), OUTCOME_UNKNOWN (both are kept; the next login
    tells), and whatever the BMC refuses, in its own words but without the password.
    """
    rotation = call.rotation
    if rotation is None:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT,
            "no new password is at hand: ask an agent whose vault holds newCredentialRef, or use "
            "`rackwright bmc rotate-password --new-password-file F`",
        )
    new = replace(old, username=user, password=rotation.secret, credential_version=rotation.version)
    try:
        return await _Change(user, old, new, connect, environment, rotation, call, pause).carry_out(prepare)
    except OperationError as error:
        conceal(error, rotation.secret.reveal(), old.secret.reveal())
        raise


@dataclass(slots=True)
class _Change:
    """One change under way."""

    user: str
    old: Target
    new: Target
    connect: Callable[[Target, "Environment"], ProvesLogin]
    environment: "Environment"
    rotation: Rotation
    call: "Call"
    pause: float

    @property
    def own(self) -> bool:
        """The account is the one that this connection logs in with."""
        return self.user == self.old.username

    async def carry_out(self, prepare: Callable[[Secret], Awaitable[Write]]) -> RotatePasswordResult:
        if self.own and self.old.secret == self.rotation.secret:
            return await self._is_done_already()
        try:
            write = await prepare(self.rotation.secret)
        except OperationError as error:
            if not self.own or error.code not in _REFUSED or not self.environment.breaker.is_blocked(self.old):
                raise
            return await self._was_done_before(error)
        await self.rotation.begin()
        self.call.progress(f"giving {self.user} its new password", None)
        try:
            sent = await write()
        except OperationError as error:
            if not self._old_has_ended(error):
                await self.rotation.withdrawn()
                raise
            sent = Sent(unsure=error)
        # The BMC was given this very password: that it refused it before says nothing any more.
        self.environment.breaker.forgive(self.new)
        await asyncio.sleep(min(self.pause if sent.unsure is None else _UNSURE_SECONDS, self.call.remaining))
        return await self._settle(sent)

    def _old_has_ended(self, error: OperationError) -> bool:
        """Whether the BMC took the old password before the change was sent, and refuses it now: then the change may
        have been done, whatever it was answered (a BMC may end the session that it is answering in)."""
        return self.own and error.code in _REFUSED and self.environment.breaker.is_blocked(self.old)

    async def _settle(self, sent: Sent) -> RotatePasswordResult:
        """The new password, and where it is refused the old one: each is shown to the BMC once."""
        self.call.progress("logging in with the new password", None)
        if await self._takes(self.new, sent):
            if self.own:
                self.environment.breaker.retire(self.old)
            await self.rotation.proven()
            return RotatePasswordResult(user=self.user, proven=True)
        if not self.own:
            raise self._unknown("the BMC refuses a login with the new password", sent)
        await asyncio.sleep(min(_SLOW_SECONDS, self.call.remaining))
        if not await self._takes(self.old, sent):
            raise self._unknown("the BMC refuses both the new password and the old one", sent)
        await self.rotation.withdrawn()
        raise OperationError(
            ErrorCode.NOT_APPLIED,
            f"{self.user} was given the new password: {sent}; the BMC refuses a login with it, and takes the old one",
            bmc=sent.said,
        ) from sent.unsure

    async def _takes(self, target: Target, sent: Sent) -> bool:
        """Whether the BMC takes it; a BMC that cannot be asked is asked again as long as there is time."""
        pauses = iter(_ASK_AGAIN)
        while True:
            try:
                return await takes_login(self.connect, target, self.environment, self.call)
            except OperationError as error:
                pause = next(pauses, _ASK_AGAIN[-1])
                if error.code not in _PASSING or pause >= self.call.remaining:
                    raise self._unknown(f"no login could be tried since ({error.message})", sent) from error
            await asyncio.sleep(pause)

    async def _is_done_already(self) -> RotatePasswordResult:
        if not await takes_login(self.connect, self.old, self.environment, self.call):
            raise OperationError(
                ErrorCode.AUTH_FAILED, f"the new password of {self.user} is the present one, and the BMC refuses it"
            )
        return RotatePasswordResult(user=self.user, proven=True, changed=False)

    async def _was_done_before(self, refusal: OperationError) -> RotatePasswordResult:
        """The old password is refused: maybe since the new one was set already, by hand or by an earlier try."""
        if not await takes_login(self.connect, self.new, self.environment, self.call):
            raise OperationError(
                ErrorCode.AUTH_FAILED,
                f"the BMC takes neither the present password of {self.user} nor the new one: find out which it has, "
                "and set that as its credential",
                bmc=refusal.bmc,
            ) from refusal
        await self.rotation.begin()
        await self.rotation.proven()
        return RotatePasswordResult(user=self.user, proven=True, changed=False)

    def _unknown(self, why: str, sent: Sent) -> OperationError:
        kept = "; both passwords are kept, and the next login tells which one holds" if self.own else ""
        return OperationError(
            ErrorCode.OUTCOME_UNKNOWN,
            f"{self.user} was given the new password: {sent}; but {why}{kept}",
            bmc=sent.said,
        )
