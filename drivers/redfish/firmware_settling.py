"""After an update: waits until the BMC is well again, and reads which versions run now.

A BMC that replaces its own firmware goes away for minutes, and flaps when it comes back: its web server is up before
its data is, and shows old resources for a while (Launchpad bug 2092398). So several good looks in a row are needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.firmware_components import show
from drivers.redfish.document import Document, link, text
from drivers.redfish.failures import Refused
from drivers.redfish.firmware_inventory import read_inventory
from drivers.redfish.firmware_verdict import Seen, Verdict, judge
from drivers.redfish.watching import HOPELESS
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.firmware import FirmwareComponent

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["Settling"]

_GOOD_LOOKS = 3
_LOOK_PAUSE, _LONGEST_LOOK_PAUSE = 1.0, 10.0
"""Between two looks: the first until the BMC is known to be well, then ever longer ones; each look is three requests,
and a new version may take a quarter of an hour to show."""
_AWAY_PAUSE = 5.0
_FIRST_READING_PAUSE, _LONGEST_READING_PAUSE = 5.0, 60.0
_LEAST_SECONDS = 2.0
_HOPELESS = HOPELESS - {ErrorCode.UNSUPPORTED}
"""A BMC that starts may show no system at all for a while."""


class Settling:
    """One BMC under watch after an update was given to it. Only reads."""

    def __init__(
        self,
        connection: RedfishConnection,
        before: Sequence[FirmwareComponent],
        targets: Sequence[str],
        expected: str | None,
        call: Call,
        *,
        has_system: bool = True,
    ) -> None:
        self._connection = connection
        self._before = before
        self._targets = targets
        self._expected = expected
        self._call = call
        self._has_system = has_system
        self._clock = asyncio.get_running_loop().time
        self._last: str | None = None
        self._good = 0
        self.away_seconds = 0.0
        """How long the BMC was away, over all its absences."""
        self.verdict: Verdict | None = None
        """What the last reading said."""

    async def wait(self, patience: float) -> Verdict:
        """The verdict: at once when the versions are as wanted or staged, else after `patience` seconds in which the
        BMC was there and nothing came.

        Raises OperationError TIMEOUT where the BMC does not come back, and what makes asking again hopeless.
        """
        well_since = self._clock()
        reading_pause, look_pause = _FIRST_READING_PAUSE, _LOOK_PAUSE
        next_reading = 0.0
        while True:
            now = self._clock()
            if not await self._is_well():
                await self._rest(_AWAY_PAUSE, "the BMC is away")
                self.away_seconds += self._clock() - now
                well_since, next_reading = self._clock(), 0.0
                reading_pause, look_pause = _FIRST_READING_PAUSE, _LOOK_PAUSE
                continue
            if self._good >= _GOOD_LOOKS and now >= next_reading:
                verdict = await self._read()
                took = self._clock() - now
                if verdict is not None and verdict.seen in (Seen.REACHED, Seen.STAGED):
                    return verdict
                if verdict is not None and self._clock() - well_since >= patience:
                    return verdict
                # A reading of a hundred components is work for a BMC that has just been flashed.
                next_reading = self._clock() + max(reading_pause, 2 * took)
                reading_pause = min(reading_pause * 1.5, _LONGEST_READING_PAUSE)
            await self._rest(look_pause, "the BMC is well, the version is not seen yet")
            look_pause = _LOOK_PAUSE if self._good < _GOOD_LOOKS else min(look_pause * 1.5, _LONGEST_LOOK_PAUSE)

    async def _is_well(self) -> bool:
        """Whether this look found the BMC as it was at the last one; counts good looks in a row."""
        signature = await self._look()
        if signature is None:
            if self._last is not None:
                # Its paths may be others when it is back.
                self._connection.service.forget()
            self._last, self._good = None, 0
            return False
        self._good = self._good + 1 if signature == self._last else 1
        self._last = signature
        return True

    async def _look(self) -> str | None:
        """What the BMC says of itself; None where it does not answer well."""
        connection = self._connection
        try:
            manager: Document = {}
            if self._has_system:
                system = connection.service.system_path
                document = await (connection.service.system(self._call) if system is None else self._get(system))
                managers = await connection.service.managers(self._call, document)
                manager = await self._get(managers[0]) if managers else {}
            update = link(await connection.root(self._call), "UpdateService")
            if update is not None:
                await self._get(update)
            elif any(item.path is not None for item in self._before):
                # The root of a BMC that starts may have no links yet (AMI MegaRAC): it is read anew.
                connection.forget_root()
                return None
        except Refused:
            # Whatever a BMC answers while it starts is no answer yet.
            return None
        except OperationError as error:
            if error.code in _HOPELESS:
                raise OperationError(
                    error.code,
                    f"the update was given to the BMC, and it cannot be asked since what runs now: {error.message}",
                    bmc=error.bmc,
                    details=error.details,
                ) from error
            return None
        return text(manager, "FirmwareVersion") or "without a version"

    async def _get(self, path: str) -> Document:
        return await self._connection.get(path, self._call, patience=0)

    async def _read(self) -> Verdict | None:
        try:
            update = link(await self._connection.root(self._call), "UpdateService")
            service = await self._connection.find(update, self._call)
            now = await read_inventory(self._connection, service, self._call)
        except OperationError as error:
            if error.code in _HOPELESS and not isinstance(error, Refused):
                raise
            self._good = 0
            return None
        self.verdict = judge(self._before, now, self._targets, self._expected)
        return self.verdict

    async def _rest(self, seconds: float, doing: str) -> None:
        left = self._call.remaining
        if left <= _LEAST_SECONDS:
            raise self._too_long()
        self._call.progress(doing, None)
        await asyncio.sleep(min(seconds, left - _LEAST_SECONDS / 2))

    def _too_long(self) -> OperationError:
        if self._last is None:
            last = f"the BMC has not come back (it was away for {self.away_seconds:.0f} s)"
        elif self.verdict is None:
            last = "its firmware could not be read"
        else:
            last = f"it was last seen with {show(self.verdict.after)}"
        return OperationError(
            ErrorCode.TIMEOUT,
            f"the time was over before the update could be seen: {last}. Read the versions before repeating it",
            details={"versions": self.verdict.after if self.verdict is not None else {}},
        )
