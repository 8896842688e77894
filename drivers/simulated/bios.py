"""BIOS attributes of a simulated machine: a change waits for the next boot."""

from typing import NamedTuple

from drivers.driver import Call
from drivers.simulated.machine import SimulatedConnection
from drivers.simulated.state import MachineState, note
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.bios import (
    ApplyTime,
    BiosAttribute,
    BiosReading,
    BiosValue,
    GetBios,
    ResetBiosResult,
    SetBios,
    SetBiosResult,
)

__all__ = ["SimulatedBios", "attribute_faults", "queue_attributes"]


class _Attribute(NamedTuple):
    kind: str
    default: BiosValue
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    read_only: bool = False


_SWITCH = ("Enabled", "Disabled")
_CATALOGUE = {
    "SystemProfile": _Attribute("enumeration", "Balanced", ("Balanced", "Performance", "PowerSaver")),
    "ProcessorVirtualization": _Attribute("enumeration", "Enabled", _SWITCH),
    "HyperThreading": _Attribute("enumeration", "Enabled", _SWITCH),
    "SriovGlobal": _Attribute("enumeration", "Disabled", _SWITCH),
    "SerialConsole": _Attribute("enumeration", "Enabled", _SWITCH),
    "WatchdogMinutes": _Attribute("integer", 0, minimum=0, maximum=60),
    "QuietBoot": _Attribute("boolean", False),
    "AssetTag": _Attribute("string", ""),
    "BiosVendor": _Attribute("string", "Simulated", read_only=True),
}


class SimulatedBios:
    def __init__(self, connection: SimulatedConnection) -> None:
        self._connection = connection

    async def get_bios(self, arguments: GetBios, call: Call) -> BiosReading:
        """With `pending` only the attributes that wait for a boot."""
        return await self._connection.read(call, lambda state: _reading(state, arguments.pending))

    async def set_bios(self, arguments: SetBios, call: Call) -> SetBiosResult:
        """Every fault of the attributes is told at once, and then none is changed."""
        return await self._connection.change(call, arguments, lambda state: _set(state, arguments))

    async def reset_bios(self, arguments: Nothing, call: Call) -> ResetBiosResult:
        def deed(state: MachineState) -> tuple[bool, ResetBiosResult]:
            state.bios_reset_pending, state.bios_pending = True, {}
            note(state, "the BIOS goes back to its defaults with the next boot")
            return True, ResetBiosResult(pending=True)

        return await self._connection.change(call, arguments, deed)


def attribute_faults(attributes: dict[str, BiosValue]) -> list[str]:
    """Every reason for which the firmware refuses these values."""
    return [fault for name, value in attributes.items() if (fault := _fault(name, value))]


def queue_attributes(state: MachineState, attributes: dict[str, BiosValue]) -> dict[str, BiosValue]:
    """Lets values wait for the next boot; gives those that differ from the present ones."""
    waiting = {name: value for name, value in attributes.items() if _value(state, name) != value}
    for name in attributes:
        state.bios_pending.pop(name, None)
    state.bios_pending.update(waiting)
    return waiting


def _reading(state: MachineState, only_pending: bool) -> BiosReading:
    return BiosReading(
        registry="SimulatedBios.v1_0_0",
        defaults_pending=state.bios_reset_pending,
        attributes=[
            BiosAttribute(
                name=name,
                value=_value(state, name),
                kind=attribute.kind,
                minimum=attribute.minimum,
                maximum=attribute.maximum,
                choices=list(attribute.choices),
                default=attribute.default,
                read_only=attribute.read_only,
                pending=_pending(state, name),
            )
            for name, attribute in _CATALOGUE.items()
            if not only_pending or _pending(state, name) is not None
        ],
    )


def _value(state: MachineState, name: str) -> BiosValue:
    return state.bios.get(name, _CATALOGUE[name].default)


def _pending(state: MachineState, name: str) -> BiosValue:
    if name in state.bios_pending:
        return state.bios_pending[name]
    default = _CATALOGUE[name].default
    return default if state.bios_reset_pending and _value(state, name) != default else None


def _set(state: MachineState, arguments: SetBios) -> tuple[bool, SetBiosResult]:
    problems = attribute_faults(arguments.attributes)
    if problems:
        raise OperationError(ErrorCode.INVALID_ARGUMENT, "; ".join(problems))
    if arguments.apply_time is ApplyTime.IMMEDIATE:
        raise OperationError(
            ErrorCode.UNSUPPORTED, "this firmware applies BIOS attributes with a boot only: use applyTime=onReset"
        )
    before = dict(state.bios_pending)
    waiting = queue_attributes(state, arguments.attributes)
    return before != state.bios_pending, SetBiosResult(changed=waiting, pending=dict(state.bios_pending))


def _fault(name: str, value: BiosValue) -> str | None:
    attribute = _CATALOGUE.get(name)
    if attribute is None:
        return f"attributes.{name}: there is no such attribute; known: {', '.join(_CATALOGUE)}"
    if attribute.read_only:
        return f"attributes.{name}: is read-only"
    if attribute.choices:
        return None if value in attribute.choices else f"attributes.{name}: must be {' or '.join(attribute.choices)}"
    if attribute.kind == "integer":
        low, high = attribute.minimum or 0, attribute.maximum or 0
        sound = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return None if sound else f"attributes.{name}: must be a whole number from {low} to {high}"
    expected = bool if attribute.kind == "boolean" else str
    return None if isinstance(value, expected) else f"attributes.{name}: must be a {attribute.kind}"
