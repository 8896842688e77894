"""The machine as IPMI sees it: chassis control, boot flags, identity and the console, over the one host."""

import time
from collections.abc import Callable

from simulators.ipmi import Console, Identity, IpmiBmc, PowerTiming, RestartCause, User
from simulators.ipmi.constants import ChassisControl
from simulators.ipmi.identity import SYSTEM_FIRMWARE_VERSION
from simulators.ipmi.inventory import Fru
from simulators.ipmi.machine import Boot, Machine, Order, PowerEvent, WrongState
from simulators.ipmi.sensors import default_sensors
from simulators.machine import host as power
from simulators.machine.boot_override import SharedBootOptions
from simulators.machine.host import Cause, Host, HostState, OrderRefused
from simulators.machine.serial_port import SerialPort
from simulators.machine.spec import MANUFACTURER, PRODUCT, MachineSpec

_ORDERS = {
    ChassisControl.POWER_DOWN: power.Order.STOP,
    ChassisControl.POWER_UP: power.Order.START,
    ChassisControl.POWER_CYCLE: power.Order.CYCLE,
    ChassisControl.HARD_RESET: power.Order.RESET,
    ChassisControl.DIAGNOSTIC_INTERRUPT: power.Order.INTERRUPT,
    ChassisControl.SOFT_SHUTDOWN: power.Order.PRESS_BUTTON,
}
_CAUSES = {
    Cause.ORDER: RestartCause.CHASSIS_CONTROL,
    Cause.RESET: RestartCause.CHASSIS_CONTROL,
    Cause.GUEST_RESET: RestartCause.SOFT_RESET,
    Cause.HAND: RestartCause.POWER_BUTTON,
    Cause.RESTORED: RestartCause.RESTORE_PREVIOUS,
}
_SYSTEM_BOARD = (7, 1)


class HostMachine(Machine):
    """The model's machine with a true host in it: orders go there, and its states come back."""

    def __init__(self, host: Host, clock: Callable[[], float]) -> None:
        self.shared_options = SharedBootOptions()
        super().__init__(clock, powered=False, timing=PowerTiming(), boot_options=self.shared_options)
        self._host = host
        host.on_state.append(self._host_changed)

    def obey(self, action: ChassisControl) -> None:
        """Passes an order on. Raises WrongState where the host cannot take it (IPMI 2.0, table 28-4)."""
        now = self.clock()
        needs_power = action not in (ChassisControl.POWER_DOWN, ChassisControl.POWER_UP)
        accepted = not needs_power or self._host.state in (HostState.ON, HostState.STARTING)
        self.orders.append(Order(now, action, accepted))
        if not accepted:
            raise WrongState(f"{action.name} of a machine that is {self._host.state}")
        self.boot_options.chassis_control_received(now)
        try:
            self._host.order(_ORDERS[action])
        except OrderRefused as error:
            raise WrongState(str(error)) from error

    def starts(self, cause: Cause) -> None:
        """Notes a start that is about to be made, with the override that it obeys."""
        now = self.clock()
        self.restart_cause = _CAUSES.get(cause, RestartCause.UNKNOWN)
        self.turned_on_by_command = cause in (Cause.ORDER, Cause.RESET)
        self.boots.append(Boot(now, self.restart_cause, self.boot_options.override(now)))

    def _host_changed(self, state: HostState, _cause: Cause) -> None:
        if state is HostState.ON:
            self._tell(PowerEvent.RESET if self.powered else PowerEvent.POWERED_ON, powered=True)
        elif state is HostState.OFF and self.powered:
            self._tell(PowerEvent.POWERED_OFF, powered=False)

    def _tell(self, event: PowerEvent, *, powered: bool) -> None:
        self.powered = powered
        for listener in self.listeners:
            listener(event)


def ipmi_bmc(
    spec: MachineSpec, machine: HostMachine, serial: SerialPort, users: dict[str, str], firmware_version: str
) -> IpmiBmc:
    """The IPMI BMC of a machine; its console is the serial port. ValueError for a user name that is too long."""
    identity = spec.identity
    console = Console(lambda text: typed(serial, text))
    serial.listeners.append(console.write)
    return IpmiBmc(
        users=[User(name, password.encode()) for name, password in users.items()],
        identity=Identity(
            guid=identity.uuid.bytes[::-1],
            serial=identity.serial,
            mac=bytes.fromhex(identity.bmc_mac.replace(":", "")),
            system_info={SYSTEM_FIRMWARE_VERSION: firmware_version},
        ),
        sensors=default_sensors(),
        frus=[board(identity.serial)],
        console=console,
        machine=machine,
        clock=time.monotonic,
    )


def typed(serial: SerialPort, text: bytes) -> bytes:
    """Types into the machine; what it answers comes over the port."""
    serial.type(text)
    return b""


def board(serial: str) -> Fru:
    return Fru(
        name="System Board",
        entity=_SYSTEM_BOARD,
        manufacturer=MANUFACTURER,
        product=PRODUCT,
        part_number="RW-VM",
        serial=serial,
        version="1.0",
        chassis_part="RW-VM-CHASSIS",
        chassis_serial=serial,
    )
