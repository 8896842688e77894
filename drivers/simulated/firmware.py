"""Firmware of a simulated machine: the BIOS changes with the next boot, everything else at once."""

import re
from pathlib import PurePosixPath
from typing import NamedTuple

import msgspec

from drivers.driver import Call
from drivers.firmware_components import is_version
from drivers.simulated.machine import SimulatedConnection
from drivers.simulated.state import MachineState, note
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.bios import ApplyTime
from protocol.shapes.firmware import (
    FirmwareComponent,
    FirmwareReading,
    FirmwareUpdate,
    UpdateFirmware,
    UpdateFirmwareResult,
    UpdateOutcome,
)

__all__ = ["COMPONENTS", "SimulatedFirmware", "versions"]

_VERSION = re.compile(r"\d+(?:\.\d+)+")


class _Component(NamedTuple):
    name: str
    version: str


COMPONENTS = {
    "BIOS": _Component("System BIOS", "1.4.2"),
    "BMC": _Component("BMC Firmware", "3.10.0"),
    "NIC.1": _Component("SIM-25G Firmware", "22.31.6"),
    "RAID.1": _Component("SIM-RAID Firmware", "52.16.1"),
}


class SimulatedFirmware:
    def __init__(self, connection: SimulatedConnection) -> None:
        self._connection = connection

    async def get_firmware(self, arguments: Nothing, call: Call) -> FirmwareReading:
        return await self._connection.read(
            call,
            lambda state: FirmwareReading(
                components=[
                    FirmwareComponent(id=key, name=COMPONENTS[key].name, version=version, updateable=True)
                    for key, version in versions(state).items()
                ]
            ),
        )

    async def update_firmware(self, arguments: UpdateFirmware, call: Call) -> UpdateFirmwareResult:
        """The version is the one in the image's name, else the expected one, else the next one.

        Without targets the component whose id is in the image's name is meant, else the BMC. Where the expected
        version is there already, nothing is done. A list ends at the first update whose version is not the expected
        one.
        """
        outcomes = await self._connection.change(
            call,
            arguments,
            lambda state: _update_all(state, arguments),
            ("fetching the image", "writing the firmware", "checking the firmware"),
        )
        for number, (update, outcome) in enumerate(zip(arguments.wanted, outcomes, strict=False)):
            wanted = update.expect_version
            if wanted is not None and not outcome.reset_owed and not _shows(wanted, outcome):
                raise _not_applied(arguments.wanted, outcomes, number)
        return _result(outcomes, of_list=bool(arguments.updates))


def versions(state: MachineState) -> dict[str, str]:
    """What runs now, by component."""
    return {key: state.firmware.get(key, component.version) for key, component in COMPONENTS.items()}


def _update_all(state: MachineState, arguments: UpdateFirmware) -> tuple[bool, list[UpdateOutcome]]:
    unknown = [target for update in arguments.wanted for target in update.targets if target not in COMPONENTS]
    if unknown:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT,
            f"targets: there is no {', '.join(unknown)}; this machine has {', '.join(COMPONENTS)}",
        )
    outcomes = []
    for update in arguments.wanted:
        outcome = _update(state, update, on_reset=arguments.apply_time is ApplyTime.ON_RESET)
        outcomes.append(outcome)
        wanted = update.expect_version
        if wanted is not None and not outcome.reset_owed and not _shows(wanted, outcome):
            break
    return any(outcome.changed for outcome in outcomes), outcomes


def _update(state: MachineState, update: FirmwareUpdate, *, on_reset: bool) -> UpdateOutcome:
    image = PurePosixPath(update.image).name
    targets = update.targets or [next((key for key in COMPONENTS if key.lower() in image.lower()), "BMC")]
    before = {target: versions(state)[target] for target in targets}
    wanted = update.expect_version
    if wanted is not None and all(is_version(wanted, version) for version in before.values()):
        return UpdateOutcome(image=update.image, changed=False, before={**before}, after={**before})
    owed = False
    for target in targets:
        version = _version_of(image.lower().replace(target.lower(), "")) or wanted or _next(before[target])
        if target == "BIOS" or on_reset:
            state.firmware_pending[target] = version
            owed = True
        else:
            state.firmware_pending.pop(target, None)
            state.firmware[target] = version
            note(state, f"{target} was updated to {version}")
    after = versions(state)
    return UpdateOutcome(
        image=update.image, before={**before}, after={target: after[target] for target in targets}, reset_owed=owed
    )


def _shows(wanted: str, outcome: UpdateOutcome) -> bool:
    return all(is_version(wanted, version) for version in outcome.after.values())


def _not_applied(updates: list[FirmwareUpdate], outcomes: list[UpdateOutcome], failed: int) -> OperationError:
    message = f"after the update the version is {outcomes[failed].after}, not {updates[failed].expect_version!r}"
    left = [update.image for update in updates[failed + 1 :]]
    if len(updates) == 1:
        return OperationError(ErrorCode.NOT_APPLIED, message)
    return OperationError(
        ErrorCode.NOT_APPLIED,
        f"update {failed + 1} of {len(updates)} failed: {message}"
        + (f". Not done: {', '.join(left)}" if left else ""),
        details={
            "done": msgspec.to_builtins(outcomes[:failed]),
            "failed": updates[failed].image,
            "notDone": left,
        },
    )


def _result(outcomes: list[UpdateOutcome], *, of_list: bool) -> UpdateFirmwareResult:
    before = {name: version for outcome in reversed(outcomes) for name, version in outcome.before.items()}
    after = {name: version for outcome in outcomes for name, version in outcome.after.items()}
    return UpdateFirmwareResult(
        before=before,
        after=after,
        reset_owed=any(outcome.reset_owed for outcome in outcomes),
        changed=any(outcome.changed for outcome in outcomes),
        updates=outcomes if of_list else [],
    )


def _version_of(image: str) -> str | None:
    match = _VERSION.search(image)
    return match[0] if match else None


def _next(version: str) -> str:
    head, _, last = version.rpartition(".")
    return f"{head}.{int(last) + 1}" if last.isdigit() else f"{version}.1"
