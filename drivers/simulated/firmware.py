"""Firmware of a simulated machine: the BIOS changes with the next boot, everything else at once."""

import re
from pathlib import PurePosixPath
from typing import NamedTuple

from drivers.driver import Call
from drivers.simulated.machine import SimulatedConnection
from drivers.simulated.state import MachineState, note
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.bios import ApplyTime
from protocol.shapes.firmware import FirmwareComponent, FirmwareReading, UpdateFirmware, UpdateFirmwareResult

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

        Without targets the component whose id is in the image's name is meant, else the BMC.
        """
        result = await self._connection.change(
            call,
            arguments,
            lambda state: _update(state, arguments),
            ("fetching the image", "writing the firmware", "checking the firmware"),
        )
        wanted = arguments.expect_version
        if wanted is not None and not result.reset_owed and any(v != wanted for v in result.after.values()):
            raise OperationError(
                ErrorCode.NOT_APPLIED, f"after the update the version is {result.after}, not {wanted!r}"
            )
        return result


def versions(state: MachineState) -> dict[str, str]:
    """What runs now, by component."""
    return {key: state.firmware.get(key, component.version) for key, component in COMPONENTS.items()}


def _update(state: MachineState, arguments: UpdateFirmware) -> tuple[bool, UpdateFirmwareResult]:
    unknown = [target for target in arguments.targets if target not in COMPONENTS]
    if unknown:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT,
            f"targets: there is no {', '.join(unknown)}; this machine has {', '.join(COMPONENTS)}",
        )
    image = PurePosixPath(arguments.image).name
    targets = arguments.targets or [next((key for key in COMPONENTS if key.lower() in image.lower()), "BMC")]
    before = versions(state)
    owed = False
    for target in targets:
        version = _version_of(image.lower().replace(target.lower(), "")) or arguments.expect_version
        version = version or _next(before[target])
        if target == "BIOS" or arguments.apply_time is ApplyTime.ON_RESET:
            state.firmware_pending[target] = version
            owed = True
        else:
            state.firmware_pending.pop(target, None)
            state.firmware[target] = version
            note(state, f"{target} was updated to {version}")
    after = versions(state)
    return True, UpdateFirmwareResult(
        before={target: before[target] for target in targets},
        after={target: after[target] for target in targets},
        reset_owed=owed,
    )


def _version_of(image: str) -> str | None:
    match = _VERSION.search(image)
    return match[0] if match else None


def _next(version: str) -> str:
    head, _, last = version.rpartition(".")
    return f"{head}.{int(last) + 1}" if last.isdigit() else f"{version}.1"
