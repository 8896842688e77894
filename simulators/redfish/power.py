"""The power of a machine: `ComputerSystem.Reset`, `Chassis.Reset` and the states between off and on."""

from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum

from simulators.redfish.documents import Answer, JsonObject, linked_path
from simulators.redfish.errors import (
    RedfishError,
    action_conflicts,
    action_parameter_missing,
    action_parameter_not_in_list,
    action_parameter_type,
    action_parameter_unknown,
)
from simulators.redfish.history import Reset
from simulators.redfish.machine import Machine
from simulators.redfish.routes import Call, Routes
from simulators.redfish.timeline import Scheduled


class PowerState(StrEnum):
    """`Resource.PowerState` of the Redfish schema."""

    ON = "On"
    OFF = "Off"
    POWERING_ON = "PoweringOn"
    POWERING_OFF = "PoweringOff"
    PAUSED = "Paused"


class ResetType(StrEnum):
    """`Resource.ResetType` of the Redfish schema."""

    ON = "On"
    FORCE_ON = "ForceOn"
    FORCE_OFF = "ForceOff"
    GRACEFUL_SHUTDOWN = "GracefulShutdown"
    FORCE_RESTART = "ForceRestart"
    GRACEFUL_RESTART = "GracefulRestart"
    POWER_CYCLE = "PowerCycle"
    FULL_POWER_CYCLE = "FullPowerCycle"
    PUSH_POWER_BUTTON = "PushPowerButton"
    NMI = "Nmi"
    SUSPEND = "Suspend"
    PAUSE = "Pause"
    RESUME = "Resume"


# What each reset type leads to, from each settled state. A pair that is absent is refused with 409.
_RESTART = "restart"
_NOTHING = "nothing"
TRANSITIONS: dict[tuple[PowerState, ResetType], str] = {
    (PowerState.OFF, ResetType.ON): PowerState.ON,
    (PowerState.OFF, ResetType.FORCE_ON): PowerState.ON,
    (PowerState.OFF, ResetType.PUSH_POWER_BUTTON): PowerState.ON,
    (PowerState.OFF, ResetType.FULL_POWER_CYCLE): _RESTART,
    (PowerState.OFF, ResetType.FORCE_OFF): _NOTHING,
    (PowerState.OFF, ResetType.GRACEFUL_SHUTDOWN): _NOTHING,
    (PowerState.ON, ResetType.ON): _NOTHING,
    (PowerState.ON, ResetType.FORCE_ON): _NOTHING,
    (PowerState.ON, ResetType.FORCE_OFF): PowerState.OFF,
    (PowerState.ON, ResetType.GRACEFUL_SHUTDOWN): PowerState.OFF,
    (PowerState.ON, ResetType.PUSH_POWER_BUTTON): PowerState.OFF,
    (PowerState.ON, ResetType.FORCE_RESTART): _RESTART,
    (PowerState.ON, ResetType.GRACEFUL_RESTART): _RESTART,
    (PowerState.ON, ResetType.POWER_CYCLE): _RESTART,
    (PowerState.ON, ResetType.FULL_POWER_CYCLE): _RESTART,
    (PowerState.ON, ResetType.NMI): _NOTHING,
    (PowerState.ON, ResetType.SUSPEND): PowerState.PAUSED,
    (PowerState.ON, ResetType.PAUSE): PowerState.PAUSED,
    (PowerState.PAUSED, ResetType.RESUME): PowerState.ON,
    (PowerState.PAUSED, ResetType.ON): PowerState.ON,
    (PowerState.PAUSED, ResetType.FORCE_OFF): PowerState.OFF,
    (PowerState.PAUSED, ResetType.FORCE_RESTART): _RESTART,
}
GRACEFUL = {ResetType.GRACEFUL_SHUTDOWN, ResetType.PUSH_POWER_BUTTON}


class Power:
    """Carries out resets and keeps `PowerState` true."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._pending: dict[str, Scheduled] = {}

    def register(self, routes: Routes) -> None:
        routes.actions["ComputerSystem.Reset"] = self.reset_system
        routes.actions["Chassis.Reset"] = self.reset_chassis

    def state(self, system: str) -> PowerState:
        """The power state; a recorded value that the schema does not know counts as on."""
        recorded = self.machine.property(system, "PowerState")
        return PowerState(recorded) if recorded in set(PowerState) else PowerState.ON

    def set_state(self, system: str, state: PowerState) -> None:
        """Sets the state at once, as a hand on the machine's button or plug would."""
        if pending := self._pending.pop(system, None):
            pending.cancel()

        def show(document: JsonObject) -> None:
            document["PowerState"] = state.value

        self.machine.store.edit(system, show)
        self.machine.emit(f"Power{state.value}", system, f"The power state is now {state.value}.")

    def reset_system(self, call: Call) -> Answer | None:
        reset_type = requested_reset(call, allowed_resets(self.machine, call))
        self.carry_out(call.path, reset_type, call.action)
        return None

    def reset_chassis(self, call: Call) -> Answer | None:
        """Resets every system that the chassis links to; a chassis without systems just says yes."""
        reset_type = requested_reset(call, allowed_resets(self.machine, call))
        links = call.document.get("Links")
        systems = links.get("ComputerSystems") if isinstance(links, dict) else None
        for link in systems if isinstance(systems, list) else []:
            system = linked_path(link)
            if system and self.machine.store.find(system):
                self.carry_out(system, reset_type, call.action)
        return None

    def carry_out(self, system: str, reset_type: ResetType, action: str = "ComputerSystem.Reset") -> None:
        """Does one reset. RedfishError 409 where the present state does not allow it."""
        state = self.state(system)
        settled = {PowerState.POWERING_ON: PowerState.ON, PowerState.POWERING_OFF: PowerState.OFF}.get(state, state)
        outcome = TRANSITIONS.get((settled, reset_type))
        if outcome is None:
            raise action_conflicts(action, "ResetType", reset_type.value, state.value)
        if outcome == _NOTHING and reset_type is not ResetType.NMI:
            refusal = self.machine.behaviour.refuse_redundant_reset(action, reset_type.value, state.value)
            if refusal is not None:
                raise refusal
        self.machine.history.resets.append(
            Reset(system, reset_type.value, state.value, self.machine.timeline.clock())
        )
        self.obey(system, reset_type, settled, outcome)

    def obey(self, system: str, reset_type: ResetType, settled: PowerState, outcome: str) -> None:
        """What the host does with a reset that was accepted. The modelled host moves along the timeline."""
        options = self.machine.options
        if outcome == _NOTHING or (
            reset_type in GRACEFUL and outcome == PowerState.OFF and options.ignores_graceful_off
        ):
            return
        if outcome == _RESTART:
            if not options.ignores_restart:
                self._restart(system, reset_type)
        elif outcome == PowerState.OFF:
            seconds = options.graceful_off_seconds if reset_type in GRACEFUL else options.power_off_seconds
            self._move(system, PowerState.POWERING_OFF, PowerState.OFF, seconds)
        elif outcome == PowerState.ON and settled is PowerState.OFF:
            self._start(system)
        else:
            self.set_state(system, PowerState(outcome))

    def _restart(self, system: str, reset_type: ResetType) -> None:
        """A power cycle passes through off; the other restarts never show anything but on."""
        if reset_type in {ResetType.POWER_CYCLE, ResetType.FULL_POWER_CYCLE}:
            self.set_state(system, PowerState.OFF)
            self._later(system, self.machine.options.power_off_seconds, lambda: self._start(system))
        else:
            self._stamp(system)
            self.machine.host_starts(system)

    def _start(self, system: str) -> None:
        def started() -> None:
            self._stamp(system)
            self.machine.host_starts(system)
            self.set_state(system, PowerState.ON)

        seconds = self.machine.options.power_on_seconds
        if seconds > 0:
            self.set_state(system, PowerState.POWERING_ON)
        self._later(system, seconds, started)

    def _move(self, system: str, through: PowerState, to: PowerState, seconds: float) -> None:
        if seconds > 0:
            self.set_state(system, through)
        self._later(system, seconds, lambda: self.set_state(system, to))

    def _later(self, system: str, seconds: float, happen: Callable[[], None]) -> None:
        if pending := self._pending.pop(system, None):
            pending.cancel()
        scheduled = self.machine.timeline.after(seconds, happen)
        if seconds > 0:
            self._pending[system] = scheduled

    def _stamp(self, system: str) -> None:
        if "LastResetTime" in (self.machine.store.document(system) or {}):
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            self.machine.store.edit(system, lambda document: document.update(LastResetTime=now))


def requested_reset(call: Call, allowed: list[str]) -> ResetType:
    """The reset type of an action body, checked against what the resource allows."""
    action = call.action
    unknown = [name for name in call.body if name != "ResetType" and not name.startswith("@")]
    if unknown:
        raise RedfishError(400, [action_parameter_unknown(action, name) for name in unknown])
    value = call.body.get("ResetType")
    if value is None:
        raise action_parameter_missing(action, "ResetType")
    if not isinstance(value, str):
        raise action_parameter_type(action, "ResetType", value)
    known = allowed or [reset.value for reset in ResetType]
    if value not in known or value not in set(ResetType):
        raise action_parameter_not_in_list(action, "ResetType", value, known)
    return ResetType(value)


def allowed_resets(machine: Machine, call: Call) -> list[str]:
    """The reset types that the resource offers: from its annotation, else from its ActionInfo."""
    action = (call.document.get("Actions") or {}).get(f"#{call.action}") or {}
    inline = action.get("ResetType@Redfish.AllowableValues")
    if isinstance(inline, list):
        return [str(value) for value in inline]
    info = machine.store.document(action.get("@Redfish.ActionInfo")) or {}
    for parameter in info.get("Parameters") or []:
        if isinstance(parameter, dict) and parameter.get("Name") == "ResetType":
            return [str(value) for value in parameter.get("AllowableValues") or []]
    return []
