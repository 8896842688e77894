"""RAID of a simulated machine: one controller with two SSDs and six hard disks."""

import msgspec

from drivers.driver import Call
from drivers.raid_layout import capacity
from drivers.raid_plan import Make, Plan
from drivers.raid_planning import plan
from drivers.simulated.firmware import versions
from drivers.simulated.identity import CONTROLLER, raid_controller
from drivers.simulated.machine import SimulatedConnection
from drivers.simulated.state import MachineState, note
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.raid import (
    ApplyRaid,
    ApplyRaidResult,
    ClearRaid,
    CreateVolume,
    DeleteVolume,
    RaidDrive,
    RaidReading,
    RaidTask,
    RaidVolume,
    SpareKind,
    VolumeSpec,
    VolumeTask,
)

__all__ = ["SimulatedRaid"]


class SimulatedRaid:
    def __init__(self, connection: SimulatedConnection) -> None:
        self._connection = connection

    @property
    def _drives(self) -> list[RaidDrive]:
        return self._connection.identity.raid_drives

    async def get_raid(self, arguments: Nothing, call: Call) -> RaidReading:
        return await self._connection.read(call, lambda state: _reading(state, self._drives))

    async def apply_raid(self, arguments: ApplyRaid, call: Call) -> ApplyRaidResult:
        """A volume that fits what is asked is kept; nothing is begun unless all of it can be done."""

        def deed(state: MachineState) -> tuple[bool, ApplyRaidResult]:
            way = plan(
                _reading(state, self._drives),
                arguments.volumes,
                arguments.delete_others,
                controller=arguments.controller,
                hot_spares=arguments.hot_spares,
            )
            way.check()
            kept = [keep.volume for keep in way.keep]
            if arguments.dry_run:
                return False, ApplyRaidResult(plan=way.steps(), kept=kept)
            made = _carry_out(state, way, self._drives)
            deleted = [volume.id for volume in way.delete]
            return way.changes, ApplyRaidResult(plan=way.steps(), made=made, kept=kept, deleted=deleted)

        return await self._connection.change(call, arguments, deed, ("making the volumes",))

    async def create_volume(self, arguments: CreateVolume, call: Call) -> VolumeTask:
        def deed(state: MachineState) -> tuple[bool, VolumeTask]:
            wanted = VolumeSpec(
                level=arguments.level,
                name=arguments.name,
                size_gib=arguments.size_gib,
                drives=arguments.drives,
                spans=arguments.spans,
            )
            reading = _reading(state, self._drives)
            way = plan(reading, [wanted], controller=arguments.controller, adopt=False)
            way.check(of_one=True)
            (made,) = _carry_out(state, way, self._drives)
            return True, VolumeTask(volume=made.id, size_bytes=made.size_bytes, drives=made.drives)

        return await self._connection.change(call, arguments, deed, ("making the volume",))

    async def delete_volume(self, arguments: DeleteVolume, call: Call) -> RaidTask:
        def deed(state: MachineState) -> tuple[bool, RaidTask]:
            _check_controller(arguments.controller)
            kept = [volume for volume in state.volumes if volume.id != arguments.volume]
            if len(kept) == len(state.volumes):
                known = ", ".join(volume.id for volume in state.volumes) or "none"
                raise OperationError(
                    ErrorCode.INVALID_ARGUMENT, f"volume: there is no {arguments.volume!r}; there is {known}"
                )
            state.volumes = kept
            note(state, f"the volume {arguments.volume} was deleted", source=CONTROLLER)
            return True, RaidTask(deleted=[arguments.volume])

        return await self._connection.change(call, arguments, deed)

    async def clear_raid(self, arguments: ClearRaid, call: Call) -> RaidTask:
        def deed(state: MachineState) -> tuple[bool, RaidTask]:
            _check_controller(arguments.controller)
            changed = bool(state.volumes or state.hot_spares)
            deleted = [volume.id for volume in state.volumes]
            state.volumes, state.hot_spares = [], []
            note(state, "the controller's configuration was cleared", source=CONTROLLER)
            return changed, RaidTask(deleted=deleted)

        return await self._connection.change(call, arguments, deed)


def _reading(state: MachineState, drives: list[RaidDrive]) -> RaidReading:
    return RaidReading(
        controllers=[raid_controller(versions(state)["RAID.1"])],
        drives=[_shown(drive, state) for drive in drives],
        volumes=list(state.volumes),
    )


def _shown(drive: RaidDrive, state: MachineState) -> RaidDrive:
    volumes = [volume.id for volume in state.volumes if drive.id in volume.drives]
    spare = SpareKind.GLOBAL if drive.id in state.hot_spares else None
    if any(drive.id in volume.spares for volume in state.volumes):
        spare = SpareKind.DEDICATED
    shown = "online" if volumes else "spare" if spare is not None else "ready"
    return msgspec.structs.replace(drive, volumes=volumes, spare=spare, state=shown)


def _carry_out(state: MachineState, way: Plan, drives: list[RaidDrive]) -> list[RaidVolume]:
    """Deletes and makes what the plan says; what was made."""
    gone = {volume.id for volume in way.delete}
    state.volumes = [volume for volume in state.volumes if volume.id not in gone]
    for name in sorted(gone):
        note(state, f"the volume {name} was deleted", source=CONTROLLER)
    spares: dict[int | None, list[str]] = {}
    for spare in way.spare:
        spares.setdefault(spare.index, []).append(spare.drive)
    made = [_make(state, make, drives, spares.get(make.index, [])) for make in way.make]
    for keep in way.keep:
        added = spares.get(keep.index, [])
        state.volumes = [
            msgspec.structs.replace(volume, spares=[*volume.spares, *added])
            if volume.id == keep.volume.id
            else volume
            for volume in state.volumes
        ]
    state.hot_spares = [*state.hot_spares, *spares.get(None, [])]
    return made


def _make(state: MachineState, make: Make, drives: list[RaidDrive], spares: list[str]) -> RaidVolume:
    smallest = min(drive.size_bytes or 0 for drive in drives if drive.id in make.drives)
    numbers = {volume.id for volume in state.volumes}
    identifier = next(f"Volume.{number}" for number in range(len(numbers) + 1) if f"Volume.{number}" not in numbers)
    made = RaidVolume(
        id=identifier,
        controller=CONTROLLER,
        name=make.name or identifier,
        level=make.level,
        size_bytes=make.size_bytes or capacity(make.level, len(make.drives), smallest, make.spans),
        drives=list(make.drives),
        state="online",
        spares=spares,
    )
    state.volumes.append(made)
    note(state, f"the volume {identifier} was made", source=CONTROLLER)
    return made


def _check_controller(name: str) -> None:
    if name != CONTROLLER:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT, f"controller: there is no {name!r}; this machine has {CONTROLLER}"
        )
