"""Restarting the BMC: one order, then waiting until it has been away and answers well several times in a row."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish.document import Document, action, action_info_uri, allowed_values, link, link_target, text
from drivers.redfish.document import allowed_values_of_action_info as listed_in
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.session import ROOT
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.management import ResetBmcResult

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["reset_bmc", "reset_types_for"]

_RESET = "Manager.Reset"
_LEAVES_SECONDS = 90.0
"""How long a BMC may take until it goes away."""
_GOOD_READS = 3
"""A BMC that comes back flaps: its web server is up before its data is (Launchpad bug 2092398)."""
_FATAL = frozenset({ErrorCode.AUTH_BLOCKED, ErrorCode.TLS_UNTRUSTED})


def reset_types_for(force: bool, listed: list[str]) -> list[str]:
    """The reset types to use, best first; without a list the one that all BMCs know."""
    wanted = ["ForceRestart", "GracefulRestart"] if force else ["GracefulRestart", "ForceRestart"]
    return [kind for kind in wanted if kind in listed] if listed else wanted[:1]


async def reset_bmc(connection: RedfishConnection, force: bool, call: Call) -> ResetBmcResult:
    """Restarts the BMC and returns once it serves again.

    Raises OperationError: UNSUPPORTED, NOT_APPLIED (it never went away), TIMEOUT (it did not come back),
    OUTCOME_UNKNOWN (the answer was lost, and it never went away).
    """
    manager = await connection.service.manager(call)
    if manager is None and (paths := await connection.service.managers(call)):
        # Why it cannot be read is the answer.
        manager = await connection.get(paths[0], call)
    offered = action(manager, _RESET)
    target = link_target(offered) if offered is not None else None
    if manager is None or offered is None or target is None:
        raise OperationError(ErrorCode.UNSUPPORTED, "this BMC offers no restart of itself")
    listed = allowed_values(offered, "ResetType") or listed_in(
        await connection.find_patiently(action_info_uri(offered), call), "ResetType"
    )
    kinds = reset_types_for(force, listed)
    if not kinds:
        raise OperationError(ErrorCode.UNSUPPORTED, f"this BMC cannot restart itself; it lists {', '.join(listed)}")
    lost: OperationError | None = None
    try:
        await connection.order(target, {"ResetType": kinds[0]}, call, look=link(manager) or ROOT)
    except NoAnswer as failure:
        lost = failure
    except Refused as refused:
        if refused.certainly_not_done:
            raise
        # A web server whose service goes away under it says 500, 502 or 503 to the order that was carried out.
        lost = refused
    logins = connection.logins
    return await _Return(connection, manager, logins, lost, kinds[0], call).wait()


class _Return:
    """A BMC that is being waited for."""

    def __init__(
        self,
        connection: RedfishConnection,
        before: Document,
        logins: int,
        lost: OperationError | None,
        verb: str,
        call: Call,
    ) -> None:
        self._connection = connection
        self._before = before
        self._logins = logins
        self._lost = lost
        self._verb = verb
        self._call = call
        self._clock = asyncio.get_running_loop().time

    async def wait(self) -> ResetBmcResult:
        started = self._clock()
        left_at: float | None = None
        good, back_at = 0, started
        manager: Document | None = None
        while True:
            manager = await self._manager()
            now = self._clock()
            if manager is None:
                left_at, good = left_at or now, 0
                self._call.progress("the BMC is away", None)
            else:
                good += 1
                back_at = now if good == 1 else back_at
                if left_at is None and self._was_restarted(manager):
                    left_at = started
                if left_at is not None and good >= _GOOD_READS:
                    break
                if left_at is None and now - started > min(_LEAVES_SECONDS, max(1.0, self._call.remaining / 2)):
                    raise self._never_left()
            if self._call.remaining < 1.0:
                raise self._not_back(left_at)
            await asyncio.sleep(min(2.0 if manager is None else 1.0, self._call.remaining))
        self._connection.service.forget()
        return ResetBmcResult(
            seconds_away=round(max(0.0, back_at - left_at), 1), version=text(manager, "FirmwareVersion")
        )

    async def _manager(self) -> Document | None:
        """The manager, where both it and the host's system can be read."""
        try:
            manager = await self._connection.service.manager(self._call)
            system = self._connection.service.system_path
            if manager is not None and system is not None:
                await self._connection.get(system, self._call, patience=0)
        except OperationError as error:
            if error.code in _FATAL:
                raise
            if error.code is ErrorCode.AUTH_FAILED:
                raise OperationError(
                    ErrorCode.AUTH_FAILED, f"the BMC refuses its own credential after the restart: {error.message}"
                ) from error
            return None
        return manager

    def _was_restarted(self, manager: Document) -> bool:
        """Whether the BMC was away between two looks: its sessions are gone, or its own clock says so."""
        before, now = text(self._before, "LastResetTime"), text(manager, "LastResetTime")
        return self._connection.logins != self._logins or (None not in (before, now) and before != now)

    def _never_left(self) -> OperationError:
        details: dict[str, object] = {"verb": self._verb}
        if self._lost is not None:
            return OperationError(
                ErrorCode.OUTCOME_UNKNOWN,
                f"{self._verb} was sent once ({self._lost.message}), and the BMC was not seen to restart",
                bmc=self._lost.bmc,
                details=details,
            )
        return OperationError(
            ErrorCode.NOT_APPLIED, f"the BMC took {self._verb}, but did not restart", details=details
        )

    def _not_back(self, left_at: float | None) -> OperationError:
        if left_at is None:
            return self._never_left()
        away = self._clock() - left_at
        return OperationError(
            ErrorCode.TIMEOUT, f"the BMC went away after {self._verb} and was not well again within {away:.0f} s"
        )
