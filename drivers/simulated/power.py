"""Power of a simulated machine."""

import asyncio

from drivers.driver import Call
from drivers.simulated.machine import SimulatedConnection
from drivers.simulated.state import MachineState, boot, cut_power, note
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.management import Health
from protocol.shapes.power import PowerAction, PowerReading, PowerState, SetPower, SetPowerResult

__all__ = ["SimulatedPower"]

_VERBS = {
    PowerAction.ON: "On",
    PowerAction.OFF: "ForceOff",
    PowerAction.SOFT_OFF: "GracefulShutdown",
    PowerAction.RESET: "ForceRestart",
    PowerAction.CYCLE: "PowerCycle",
    PowerAction.NMI: "Nmi",
}


class SimulatedPower:
    def __init__(self, connection: SimulatedConnection) -> None:
        self._connection = connection

    async def get_power(self, arguments: Nothing, call: Call) -> PowerReading:
        return await self._connection.read(call, lambda state: PowerReading(state=state.power, raw=state.power.value))

    async def set_power(self, arguments: SetPower, call: Call) -> SetPowerResult:
        """A `cycle` of a machine that is off starts it; `reset` and `nmi` of one are a CONFLICT."""
        forced = False
        if arguments.action is PowerAction.SOFT_OFF:
            forced = await self._connection.read(call, _ignores_soft_off)
            if forced and arguments.wait:
                call.progress("waiting for the operating system", None)
                await asyncio.sleep(min(arguments.soft_timeout, call.remaining))
                call.check("waiting for the operating system to shut down")

        def deed(state: MachineState) -> tuple[bool, SetPowerResult]:
            return _set_power(state, arguments, forced)

        return await self._connection.change(call, arguments, deed)


def _ignores_soft_off(state: MachineState) -> bool:
    return state.power is not PowerState.OFF and not state.os_responds


def _set_power(state: MachineState, arguments: SetPower, forced: bool) -> tuple[bool, SetPowerResult]:
    action, was_on = arguments.action, state.power is not PowerState.OFF
    wants_off = action in (PowerAction.OFF, PowerAction.SOFT_OFF)
    if (action is PowerAction.ON and state.power is PowerState.ON) or (wants_off and not was_on):
        return False, SetPowerResult(state=state.power, changed=False)
    if action in (PowerAction.RESET, PowerAction.NMI) and not was_on:
        raise OperationError(ErrorCode.CONFLICT, f"the machine is off, and {action} needs it on: use action=on")
    if wants_off:
        if forced and not arguments.wait:
            note(state, "the operating system ignored the request to shut down", Health.WARNING)
            return True, SetPowerResult(state=state.power, changed=True, verb_used=_VERBS[action])
        cut_power(state)
    elif action is PowerAction.NMI:
        note(state, "a non-maskable interrupt was sent to the host", Health.WARNING)
    else:
        boot(state)
    verb = _VERBS[PowerAction.OFF if forced else action]
    return True, SetPowerResult(state=state.power, changed=True, verb_used=verb, forced=forced)
