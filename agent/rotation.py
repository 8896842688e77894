"""Rotating a BMC's password from the vault: both are kept from before the BMC is asked until one of them is proven.

    vault                      then a crash           at the next command for the machine
    present                                           nothing was sent: the present one
    present + staged           before or after the    the staged one is tried, then the present one, each once at
                               BMC was asked          most; whichever the BMC takes becomes the present one
    own (the staged one)                              proven before: the new one

A password that was refused is not tried again, whatever restarts: the breaker's memory is on the disk before the next
attempt.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from agent.endings import outcome_unknown
from agent.errors import VaultError
from agent.vault import Credential, Vault
from drivers import Drivers, Target
from protocol.commands import DriverInvoke, Ending, Outcome, TargetRef
from protocol.errors import ErrorCode, Failure, OperationError
from protocol.secret import Secret

__all__ = ["OPERATION", "QUIET_SECONDS", "VaultRotation", "machine_of", "rotation_ending", "settle"]

OPERATION = "config.rotatePassword"
QUIET_SECONDS = 20.0
"""How long a BMC may still be at work on the change that a dead process sent it."""
_LOGIN_SECONDS = 60.0
_log = structlog.get_logger("agent.rotation")


@dataclass(frozen=True, slots=True)
class VaultRotation:
    """One rotation as the driver sees it (`drivers.rotation.Rotation`).

    `kept`: the reference and the machine whose credential is to change; None where another account's password is
    rotated than the one that the agent logs in with, which changes nothing in the vault.
    """

    vault: Vault
    new: Credential
    kept: tuple[str, str] | None

    @classmethod
    def of(cls, vault: Vault, invoke: DriverInvoke, present: Credential | None) -> "VaultRotation":
        """Raises OperationError INVALID_ARGUMENT for what the vault cannot serve with."""
        user, reference = str(invoke.args.get("user")), str(invoke.args.get("newCredentialRef"))
        ref = invoke.target.credential_ref if invoke.target is not None else None
        if ref is None or present is None:
            raise _invalid(
                "the machine has no credential yet: a password can only be rotated by one who is logged in"
            )
        if reference == ref:
            raise _invalid(
                f"newCredentialRef: {reference!r} is the credential in use: store the new password under another name"
            )
        new = vault.lookup(reference)
        if new is None:
            raise _invalid(
                f"newCredentialRef: the vault of this agent has no credential {reference!r}: "
                f"run rackwright agent credentials set {reference} on its host"
            )
        if new.user not in ("", user):
            raise _invalid(f"newCredentialRef: {reference!r} is a password of {new.user!r}, and not of {user!r}")
        own = user == present.user
        return cls(
            vault, replace(new, user=user), (ref, machine_of(invoke.target, invoke.target_node_id)) if own else None
        )

    @property
    def secret(self) -> Secret:
        return self.new.password

    @property
    def version(self) -> str:
        return self.new.version

    async def begin(self) -> None:
        """Stages the new password. Raises OperationError CONFLICT where the vault cannot be written."""
        if self.kept is not None:
            try:
                await asyncio.to_thread(self.vault.stage, *self.kept, self.new)
            except VaultError as error:
                raise OperationError(
                    ErrorCode.CONFLICT, f"the vault cannot keep the new password ({error}); the BMC was not asked"
                ) from error

    async def proven(self) -> None:
        """From here on the reference gives the new password for this machine."""
        await self._settle(self.vault.promote)

    async def withdrawn(self) -> None:
        await self._settle(self.vault.discard)

    async def _settle(self, change: Callable[[str, str], None]) -> None:
        if self.kept is None:
            return
        try:
            await asyncio.to_thread(change, *self.kept)
        except VaultError as error:
            # Both stay kept, and the next command for the machine settles it again.
            _log.error("rotation_not_settled", reason=str(error), ref=self.kept[0])


async def settle(
    vault: Vault, drivers: Drivers, invoke: DriverInvoke, present: Target, saved: Callable[[], Awaitable[None]]
) -> None:
    """Finds out which of two kept passwords the BMC takes, and makes that the machine's. The caller holds its lane.

    `saved` returns when a refused login is on the disk. Raises OperationError where the BMC cannot be asked, or takes
    neither.
    """
    ref, machine = _place(invoke)
    staged = vault.staged(ref, machine)
    if staged is None:
        return
    new = replace(present, username=staged.user, password=staged.password, credential_version=staged.version)
    for target, change, word in ((new, vault.promote, "new"), (present, vault.discard, "old")):
        try:
            taken = await drivers.takes_login(target, timeout=_LOGIN_SECONDS)
        finally:
            await saved()
        if taken:
            try:
                await asyncio.to_thread(change, ref, machine)
            except VaultError as error:
                raise OperationError(ErrorCode.CONFLICT, f"credential {ref!r}: {error}") from error
            _log.info("rotation_settled", ref=ref, node=invoke.target_node_id, holds=word)
            return
    raise OperationError(
        ErrorCode.AUTH_FAILED,
        f"the password of {staged.user!r} was being changed, and {present.endpoint} takes neither the new one nor "
        f"the old one: find out which it has, and run rackwright agent credentials set {ref} on this agent's host",
    )


async def rotation_ending(vault: Vault, drivers: Drivers, invoke: DriverInvoke, present: Target) -> Ending:
    """How a rotation ended that the agent did not live to see; what was staged is settled already."""
    user, reference = str(invoke.args.get("user")), str(invoke.args.get("newCredentialRef"))
    new = vault.lookup(reference)
    begun = f"the agent stopped while the password of {user} was being changed"
    if present.username != user:
        target = None
        if new is not None:
            target = replace(present, username=user, password=new.password, credential_version=new.version)
        if target is not None and await drivers.takes_login(target, timeout=_LOGIN_SECONDS):
            return _done(user, "a login with the new password")
        return outcome_unknown(f"{begun}, and the BMC does not take the new one: it may not have been changed")
    origin = vault.origin(*_place(invoke))
    if origin is not None and new is not None and origin == new.version:
        return _done(user, "the vault, which keeps what a login proved")
    if origin is not None and origin.partition("#")[0] == reference:
        return outcome_unknown(
            f"{begun}; the machine has an earlier password of {reference!r} now, which may be from this or from an "
            "earlier change: log in, or ask again"
        )
    return Ending(
        Outcome.FAILED,
        error=Failure(
            ErrorCode.INTERRUPTED.value,
            f"{begun}, before the BMC took the new one: the old one holds. Asking again is harmless",
            retryable=True,
            details={"mayHaveHappened": False},
        ),
    )


def _done(user: str, by: str) -> Ending:
    return Ending(
        Outcome.SUCCEEDED,
        result={"user": user, "proven": True, "changed": True},
        observed={"settledBy": f"{by}, after the agent was restarted"},
    )


def _place(invoke: DriverInvoke) -> tuple[str, str]:
    ref = invoke.target.credential_ref if invoke.target is not None else None
    return ref or "", machine_of(invoke.target, invoke.target_node_id)


def machine_of(target: TargetRef | None, node_id: str) -> str:
    """What tells machines under one reference apart: the node, or the address of one that is no node."""
    return node_id or (target.address if target is not None else "")


def _invalid(message: str) -> OperationError:
    return OperationError(ErrorCode.INVALID_ARGUMENT, message)
