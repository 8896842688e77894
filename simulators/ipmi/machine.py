"""The machine behind the BMC: its power, its boots, and every order that it was given.

State moves along a plan of timed steps that is brought up to date whenever somebody looks
(`settle`); nothing runs in the background, so a test may hold the clock.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from simulators.ipmi.boot_options import BootOptions, BootOverride
from simulators.ipmi.constants import ChassisControl, RestartCause


class WrongState(RuntimeError):
    """The order cannot be obeyed in the present power state (completion code 0xD5)."""


class PowerEvent(Enum):
    """What happened to the machine."""

    POWERED_ON = auto()
    POWERED_OFF = auto()
    RESET = auto()
    DIAGNOSTIC_INTERRUPT = auto()


@dataclass(frozen=True, slots=True)
class PowerTiming:
    """How long the machine takes to obey, in seconds.

    `soft_shutdown` None is an operating system that ignores the power button for ever.
    """

    power_on: float = 0.0
    power_off: float = 0.0
    cycle_interval: float = 0.0
    soft_shutdown: float | None = 0.0


@dataclass(frozen=True, slots=True)
class Order:
    """One Chassis Control command; `accepted` is False where it was answered 0xD5."""

    at: float
    action: ChassisControl
    accepted: bool


@dataclass(frozen=True, slots=True)
class Boot:
    """One start of the firmware, with the override it obeyed."""

    at: float
    cause: RestartCause
    override: BootOverride | None


@dataclass(slots=True)
class Machine:
    """A server with two power states. `clock` gives monotonic seconds."""

    clock: Callable[[], float]
    powered: bool = True
    timing: PowerTiming = field(default_factory=PowerTiming)
    boot_options: BootOptions = field(default_factory=BootOptions)
    restart_cause: RestartCause = RestartCause.CHASSIS_CONTROL
    orders: list[Order] = field(default_factory=list)
    boots: list[Boot] = field(default_factory=list)
    listeners: list[Callable[[PowerEvent], None]] = field(default_factory=list)
    turned_on_by_command: bool = False
    _plan: list[tuple[float, PowerEvent, RestartCause]] = field(default_factory=list)

    @property
    def is_on(self) -> bool:
        """The power state now."""
        self.settle()
        return self.powered

    def count(self, action: ChassisControl) -> int:
        """How many accepted orders of this kind the machine was given."""
        return sum(1 for order in self.orders if order.accepted and order.action is action)

    def obey(self, action: ChassisControl) -> None:
        """Take a Chassis Control order; it replaces what an earlier order still had to do.

        Raises WrongState for cycle, reset, diagnostic interrupt and soft shutdown of a machine that is off
        (IPMI 2.0, table 28-4 recommends 0xD5). Up when on and down when off are accepted and change nothing.
        """
        self.settle()
        now = self.clock()
        needs_power = action not in (ChassisControl.POWER_DOWN, ChassisControl.POWER_UP)
        accepted = self.powered or not needs_power
        self.orders.append(Order(now, action, accepted))
        if not accepted:
            raise WrongState(f"{action.name} of a machine that is off")
        self.boot_options.chassis_control_received(now)
        self._plan = self._steps(action, now)
        self.settle()

    def _steps(self, action: ChassisControl, now: float) -> list[tuple[float, PowerEvent, RestartCause]]:
        cause, timing = RestartCause.CHASSIS_CONTROL, self.timing
        off = (now + timing.power_off, PowerEvent.POWERED_OFF, cause)
        match action:
            case ChassisControl.POWER_UP:
                return [(now + timing.power_on, PowerEvent.POWERED_ON, cause)]
            case ChassisControl.POWER_DOWN:
                return [off]
            case ChassisControl.POWER_CYCLE:
                again = off[0] + timing.cycle_interval + timing.power_on
                return [off, (again, PowerEvent.POWERED_ON, cause)]
            case ChassisControl.HARD_RESET:
                return [(now, PowerEvent.RESET, cause)]
            case ChassisControl.DIAGNOSTIC_INTERRUPT:
                return [*self._plan, (now, PowerEvent.DIAGNOSTIC_INTERRUPT, cause)]
            case ChassisControl.SOFT_SHUTDOWN:
                if timing.soft_shutdown is None:
                    return self._plan
                return [(now + timing.soft_shutdown, PowerEvent.POWERED_OFF, cause)]

    def press_power_button(self) -> None:
        """Somebody stands before the machine: starts one that is off, shuts down one that is on."""
        self.settle()
        now = self.clock()
        if self.powered:
            self._plan = self._steps(ChassisControl.SOFT_SHUTDOWN, now)
        else:
            self.boot_options.button_pressed()
            self._plan = [(now + self.timing.power_on, PowerEvent.POWERED_ON, RestartCause.POWER_BUTTON)]
        self.settle()

    def next_step(self) -> float | None:
        """When the plan's next step is due, by the clock, or None."""
        return min((due for due, _, _ in self._plan), default=None)

    def settle(self) -> None:
        """Do every step of the plan that is due by now, in the order of time."""
        if not self._plan:
            return
        now = self.clock()
        due = sorted((step for step in self._plan if step[0] <= now), key=lambda step: step[0])
        self._plan = [step for step in self._plan if step[0] > now]
        for at, event, cause in due:
            self._happen(at, event, cause)

    def _happen(self, at: float, event: PowerEvent, cause: RestartCause) -> None:
        if event is PowerEvent.POWERED_ON and self.powered:
            return
        if event is PowerEvent.POWERED_OFF and not self.powered:
            return
        if event is PowerEvent.POWERED_OFF:
            self.powered = False
        elif event in (PowerEvent.POWERED_ON, PowerEvent.RESET):
            self.powered = True
            self.turned_on_by_command = cause is RestartCause.CHASSIS_CONTROL
            self.restart_cause = cause
            self.boots.append(Boot(at, cause, self.boot_options.take(at)))
        for listener in self.listeners:
            listener(event)
