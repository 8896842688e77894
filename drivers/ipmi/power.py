"""Power over Chassis Control (IPMI 2.0, 28.3), looking first and after.

On, off and soft off ask for a state: they look first and send nothing where it holds already, because BMCs refuse
"off when off" (LP1718794, bmclib#417). Reset, cycle and the diagnostic interrupt are acts: sent once.
"""

import asyncio
from dataclasses import replace
from enum import IntEnum
from typing import Final

from drivers.driver import Call
from drivers.ipmi import commands
from drivers.ipmi.chassis import ChassisStatus, read_chassis_status
from drivers.ipmi.commands import NOT_BEGUN_CODES, refusal
from drivers.ipmi.connection import IpmiConnection
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.power import PowerAction, PowerReading, PowerState, SetPower, SetPowerResult

__all__ = ["ChassisControl", "IpmiPower", "power_of"]

_POLL_SECONDS: Final = (0.2, 0.5, 1.0, 1.0, 2.0)
_BUSY_PAUSES: Final = (0.5, 1.0, 2.0, 4.0)
_RESEND_AFTER: Final = 10.0
"""On and off whose answer was lost, and whose state has not come after so long, are sent a second and last time."""
_WRONG_STATE: Final = 0xD5
_NO_SUCH_CONTROL: Final = dict.fromkeys((0xC1, 0xC9, 0xCC, 0xD6), ErrorCode.UNSUPPORTED)
_LAST_LOOK: Final = 1.0
"""Seconds before the deadline at which waiting ends, so that one more look fits."""


class ChassisControl(IntEnum):
    POWER_DOWN = 0
    POWER_UP = 1
    POWER_CYCLE = 2
    HARD_RESET = 3
    DIAGNOSTIC_INTERRUPT = 4
    SOFT_SHUTDOWN = 5

    @property
    def verb(self) -> str:
        """Its name in the specification, such as `hard reset`."""
        return self.name.replace("_", " ").lower()


class IpmiPower:
    """The power concern. After a crash reading the power settles on, off and soft off; nothing settles an act."""

    def __init__(self, connection: IpmiConnection) -> None:
        self._connection = connection

    async def get_power(self, _arguments: Nothing, call: Call) -> PowerReading:
        """In a session that is there: exactly one command."""
        status = await read_chassis_status(self._connection, call)
        return PowerReading(state=power_of(status), raw=f"{status.raw[0]:#04x}")

    async def set_power(self, arguments: SetPower, call: Call) -> SetPowerResult:
        """See `SetPower`. CONFLICT: reset or interrupt of a machine that is off; nothing was sent then."""
        is_on = (await read_chassis_status(self._connection, call)).is_on
        match arguments.action:
            case PowerAction.ON:
                return await self._converge(ChassisControl.POWER_UP, is_on, arguments.wait, call)
            case PowerAction.OFF:
                return await self._converge(ChassisControl.POWER_DOWN, is_on, arguments.wait, call)
            case PowerAction.SOFT_OFF:
                return await self._soft_off(is_on, arguments, call)
            case PowerAction.CYCLE:
                return await self._cycle(is_on, arguments.wait, call)
            case PowerAction.RESET:
                return await self._act(ChassisControl.HARD_RESET, is_on, call)
            case PowerAction.NMI:
                return await self._act(ChassisControl.DIAGNOSTIC_INTERRUPT, is_on, call)

    async def _converge(self, control: ChassisControl, is_on: bool, wait: bool, call: Call) -> SetPowerResult:
        """Power up or power down until the BMC reports it."""
        wanted = control is ChassisControl.POWER_UP
        if is_on is wanted:
            return SetPowerResult(state=_steady(wanted), changed=False)
        # A lost answer: the state tells. Only where it does not come is the order sent a second and last time.
        doubt = await self._order(control, call, converging=True)
        if doubt is not None:
            await self._wait_for(wanted, _RESEND_AFTER, call)
            if not await self._looks(wanted, call):
                doubt = await self._order(control, call, converging=True)
        left = call.remaining
        if await self._looks(wanted, call) or (wait and await self._wait_for(wanted, left, call)):
            return SetPowerResult(state=_steady(wanted), changed=True, verb_used=control.verb)
        if not wait and doubt is None:
            return SetPowerResult(state=_towards(wanted), changed=True, verb_used=control.verb)
        if doubt is not None and not wait:
            raise doubt
        raise OperationError(
            ErrorCode.NOT_APPLIED,
            f"{self._connection.endpoint} was sent {control.verb}, and still reads {_steady(not wanted).value} after "
            f"{left:.0f} s" + (f" ({doubt.message})" if doubt is not None else ""),
            bmc=doubt.bmc if doubt is not None else (),
        )

    async def _soft_off(self, is_on: bool, arguments: SetPower, call: Call) -> SetPowerResult:
        """Asks the operating system, waits `softTimeout`, then cuts the power. Without `wait` nothing is forced."""
        if not is_on:
            return SetPowerResult(state=PowerState.OFF, changed=False)
        soft = ChassisControl.SOFT_SHUTDOWN
        doubt = await self._order(soft, call, converging=True)
        if not arguments.wait:
            off = await self._looks(False, call)
            if doubt is not None and not off:
                raise doubt
            return SetPowerResult(
                state=PowerState.OFF if off else PowerState.POWERING_OFF, changed=True, verb_used=soft.verb
            )
        call.progress("asked the operating system to shut down", None)
        if await self._wait_for(False, arguments.soft_timeout, call):
            return SetPowerResult(state=PowerState.OFF, changed=True, verb_used=soft.verb)
        if call.remaining <= _LAST_LOOK:
            raise OperationError(
                ErrorCode.TIMEOUT,
                f"the machine of {self._connection.endpoint} was asked to shut down and is still on; the operation's "
                f"time ended before softTimeout ({arguments.soft_timeout:g} s), so the power was not cut",
            )
        call.progress(f"still on after {arguments.soft_timeout:g} s: cutting the power", None)
        forced = await self._converge(ChassisControl.POWER_DOWN, True, True, call)
        return SetPowerResult(state=forced.state, changed=True, verb_used=forced.verb_used, forced=True)

    async def _cycle(self, is_on: bool, wait: bool, call: Call) -> SetPowerResult:
        """A machine that is off is powered on: BMCs refuse to cycle it (0xD5), and on is what was meant (LP1609496).

        Power cycle is optional in the specification; where the BMC has none, it is off, wait, on.
        """
        if not is_on:
            return await self._converge(ChassisControl.POWER_UP, False, wait, call)
        cycle = ChassisControl.POWER_CYCLE
        try:
            await self._order(cycle, call)
        except OperationError as error:
            code = error.details.get("completionCode")
            if code == _WRONG_STATE and await self._looks(False, call):
                return await self._converge(ChassisControl.POWER_UP, False, wait, call)
            if code not in _NO_SUCH_CONTROL:
                raise
            return await self._off_and_on(wait, call)
        return SetPowerResult(state=await self._state_after(call), changed=True, verb_used=cycle.verb)

    async def _off_and_on(self, wait: bool, call: Call) -> SetPowerResult:
        await self._converge(ChassisControl.POWER_DOWN, True, True, call)
        try:
            return await self._converge(ChassisControl.POWER_UP, False, wait, call)
        except OperationError as error:
            raise OperationError(
                ErrorCode.NOT_APPLIED,
                f"the machine was switched off for its power cycle and is not known to be on again: {error.message}",
                bmc=error.bmc,
                details={**error.details, "cause": error.code.value},
            ) from error

    async def _act(self, control: ChassisControl, is_on: bool, call: Call) -> SetPowerResult:
        if not is_on:
            raise OperationError(
                ErrorCode.CONFLICT,
                f"the machine of {self._connection.endpoint} is off, so {control.verb} was not sent: power it on",
            )
        await self._order(control, call)
        return SetPowerResult(state=await self._state_after(call), changed=True, verb_used=control.verb)

    async def _order(self, control: ChassisControl, call: Call, *, converging: bool = False) -> OperationError | None:
        """Sends one Chassis Control, once. A converging one may go unanswered, or come too late: looking tells.

        None where the BMC took it; where it must be looked at, why. Raises OperationError for every refusal else.
        """
        command = replace(commands.CHASSIS_CONTROL, name=f"Chassis Control ({control.verb})", data=bytes((control,)))
        try:
            answer = await self._connection.ask(command, call)
            pauses = iter(_BUSY_PAUSES)
            while converging and answer.completion_code in NOT_BEGUN_CODES:
                pause = next(pauses, None)
                if pause is None or pause >= call.remaining:
                    break
                await call.sleep(pause, "the BMC was busy")
                answer = await self._connection.ask(command, call)
        except OperationError as error:
            if converging and error.code is ErrorCode.OUTCOME_UNKNOWN:
                return error
            raise
        if not answer.completion_code:
            return None
        refused = refusal(command, answer, self._connection.endpoint, _NO_SUCH_CONTROL)
        if converging and (answer.completion_code == _WRONG_STATE or refused.code is ErrorCode.OUTCOME_UNKNOWN):
            return refused
        raise refused

    async def _wait_for(self, wanted: bool, seconds: float, call: Call) -> bool:
        """Whether the state was read within so many seconds and the deadline. Reads that fail meanwhile may pass."""
        until = max(call.remaining - seconds, _LAST_LOOK)
        polls = iter(_POLL_SECONDS)
        while call.remaining > until:
            await asyncio.sleep(min(next(polls, _POLL_SECONDS[-1]), call.remaining - until))
            try:
                if await self._looks(wanted, call):
                    return True
            except OperationError as error:
                if error.code not in (ErrorCode.UNREACHABLE, ErrorCode.BUSY):
                    raise
        return False

    async def _looks(self, wanted: bool, call: Call) -> bool:
        return (await read_chassis_status(self._connection, call)).is_on is wanted

    async def _state_after(self, call: Call) -> PowerState:
        """The state after an act that the BMC took. A failing read must not make the act look failed."""
        try:
            status = await read_chassis_status(self._connection, call)
        except OperationError:
            return PowerState.UNKNOWN
        return PowerState.ON if status.is_on else PowerState.POWERING_ON


def power_of(status: ChassisStatus) -> PowerState:
    return _steady(status.is_on)


def _steady(is_on: bool) -> PowerState:
    return PowerState.ON if is_on else PowerState.OFF


def _towards(wanted: bool) -> PowerState:
    return PowerState.POWERING_ON if wanted else PowerState.POWERING_OFF
