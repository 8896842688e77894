"""The boot override, the order and Secure Boot of a simulated machine."""

from drivers.driver import Call
from drivers.simulated.machine import SimulatedConnection
from drivers.simulated.state import BOOT_ENTRIES, MachineState
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.boot import (
    BootDevice,
    BootMode,
    BootReading,
    Override,
    SecureBootReading,
    SetBootDevice,
    SetBootDeviceResult,
    SetBootOrder,
    SetBootOrderResult,
    SetSecureBoot,
)

__all__ = ["SimulatedBoot"]


class SimulatedBoot:
    def __init__(self, connection: SimulatedConnection) -> None:
        self._connection = connection

    async def get_boot(self, arguments: Nothing, call: Call) -> BootReading:
        return await self._connection.read(call, _reading)

    async def set_boot_device(self, arguments: SetBootDevice, call: Call) -> SetBootDeviceResult:
        return await self._connection.change(call, arguments, lambda state: _set_device(state, arguments))

    async def set_boot_order(self, arguments: SetBootOrder, call: Call) -> SetBootOrderResult:
        """Applies with the next boot, as most firmware does it."""
        return await self._connection.change(call, arguments, lambda state: _set_order(state, arguments.order))

    async def get_secure_boot(self, arguments: Nothing, call: Call) -> SecureBootReading:
        return await self._connection.read(
            call, lambda state: SecureBootReading(enabled=state.secure_boot, pending=state.secure_boot_pending)
        )

    async def set_secure_boot(self, arguments: SetSecureBoot, call: Call) -> SecureBootReading:
        """Applies with the next boot."""

        def deed(state: MachineState) -> tuple[bool, SecureBootReading]:
            before = state.secure_boot_pending
            state.secure_boot_pending = arguments.enabled if arguments.enabled != state.secure_boot else None
            reading = SecureBootReading(enabled=state.secure_boot, pending=state.secure_boot_pending)
            return before != state.secure_boot_pending, reading

        return await self._connection.change(call, arguments, deed)


def _reading(state: MachineState) -> BootReading:
    return BootReading(
        target=state.boot.target,
        raw_target=state.boot.target.value,
        enabled=state.boot.enabled,
        mode=state.boot.mode,
        http_boot_uri=state.boot.http_boot_uri,
        order=state.boot_order,
        allowed_targets=[device.value for device in BootDevice],
        allowed_modes=[mode.value for mode in BootMode],
    )


def _set_device(state: MachineState, arguments: SetBootDevice) -> tuple[bool, SetBootDeviceResult]:
    boot = state.boot
    before = (boot.target, boot.enabled, boot.mode, boot.http_boot_uri)
    boot.target = arguments.device
    if arguments.device is BootDevice.NONE:
        boot.enabled = Override.DISABLED
    else:
        boot.enabled = Override.CONTINUOUS if arguments.persistent else Override.ONCE
    boot.mode = arguments.mode or boot.mode
    boot.http_boot_uri = arguments.http_boot_uri if arguments.device is BootDevice.UEFI_HTTP else None
    after = (boot.target, boot.enabled, boot.mode, boot.http_boot_uri)
    return before != after, SetBootDeviceResult(
        target=boot.target,
        raw_target=boot.target.value,
        enabled=boot.enabled,
        mode=boot.mode,
        http_boot_uri=boot.http_boot_uri,
        persistent_supported=True,
    )


def _set_order(state: MachineState, order: list[str]) -> tuple[bool, SetBootOrderResult]:
    known = [*BOOT_ENTRIES, *state.boot.entries]
    if sorted(order) != sorted(known):
        raise OperationError(ErrorCode.INVALID_ARGUMENT, f"the order must name each entry once: {', '.join(known)}")
    before = state.boot.pending_order
    state.boot.pending_order = order if order != state.boot_order else None
    return before != state.boot.pending_order, SetBootOrderResult(
        order=order, pending=state.boot.pending_order is not None
    )
