"""RAID of a simulated machine: one controller with two SSDs and six hard disks."""

from drivers.driver import Call
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
    DriveSelector,
    PlanStep,
    RaidDrive,
    RaidLevel,
    RaidReading,
    RaidTask,
    RaidVolume,
    VolumeSpec,
    VolumeTask,
)

__all__ = ["SimulatedRaid", "capacity"]

_GIB = 1 << 30
_FEWEST = {
    RaidLevel.RAID0: 1,
    RaidLevel.RAID1: 2,
    RaidLevel.RAID5: 3,
    RaidLevel.RAID6: 4,
    RaidLevel.RAID10: 4,
    RaidLevel.RAID50: 6,
    RaidLevel.RAID60: 8,
    RaidLevel.JBOD: 1,
}


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
        return await self._connection.change(
            call, arguments, lambda state: _apply(state, self._drives, arguments), ("making the volumes",)
        )

    async def create_volume(self, arguments: CreateVolume, call: Call) -> VolumeTask:
        def deed(state: MachineState) -> tuple[bool, VolumeTask]:
            _check_controller(arguments.controller)
            wanted = VolumeSpec(
                level=arguments.level, name=arguments.name, size_gib=arguments.size_gib, drives=arguments.drives
            )
            made = _make(state, self._drives, wanted)
            return True, VolumeTask(volume=made.id)

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
            return True, RaidTask()

        return await self._connection.change(call, arguments, deed)

    async def clear_raid(self, arguments: ClearRaid, call: Call) -> RaidTask:
        def deed(state: MachineState) -> tuple[bool, RaidTask]:
            _check_controller(arguments.controller)
            changed = bool(state.volumes)
            state.volumes = []
            note(state, "the controller's configuration was cleared", source=CONTROLLER)
            return changed, RaidTask()

        return await self._connection.change(call, arguments, deed)


def capacity(level: RaidLevel, drives: int, smallest: int) -> int:
    """Bytes that a volume of this level offers; `smallest` is the size of its smallest drive."""
    lost = {RaidLevel.RAID5: 1, RaidLevel.RAID6: 2, RaidLevel.RAID50: 2, RaidLevel.RAID60: 4}
    if level is RaidLevel.RAID1:
        return smallest
    if level is RaidLevel.RAID10:
        return drives // 2 * smallest
    return (drives - lost.get(level, 0)) * smallest


def _reading(state: MachineState, drives: list[RaidDrive]) -> RaidReading:
    members = {drive: volume.id for volume in state.volumes for drive in volume.drives}
    return RaidReading(
        controllers=[raid_controller(versions(state)["RAID.1"])],
        drives=[
            RaidDrive(
                id=drive.id,
                controller=drive.controller,
                name=drive.name,
                serial=drive.serial,
                media=drive.media,
                size_bytes=drive.size_bytes,
                enclosure=drive.enclosure,
                state="online" if drive.id in members else "ready",
                volumes=[members[drive.id]] if drive.id in members else [],
            )
            for drive in drives
        ],
        volumes=list(state.volumes),
    )


def _apply(state: MachineState, drives: list[RaidDrive], arguments: ApplyRaid) -> tuple[bool, ApplyRaidResult]:
    _check_controller(arguments.controller, "any")
    unclaimed = list(state.volumes)
    kept: list[RaidVolume] = []
    missing: list[VolumeSpec] = []
    for wanted in arguments.volumes:
        found = next((volume for volume in unclaimed if _fits(volume, wanted, drives)), None)
        if found is None:
            missing.append(wanted)
        else:
            unclaimed.remove(found)
            kept.append(found)
    plan = [PlanStep(act="keep", volume=volume.id, detail=_words(volume)) for volume in kept]
    scratch = MachineState(volumes=list(state.volumes), log_count=state.log_count)
    if arguments.delete_others:
        plan += [PlanStep(act="delete", volume=volume.id, detail=_words(volume)) for volume in unclaimed]
        scratch.volumes = list(kept)
    made = [_make(scratch, drives, wanted) for wanted in missing]
    plan += [PlanStep(act="create", volume=volume.id, detail=_words(volume)) for volume in made]
    if arguments.dry_run:
        return False, ApplyRaidResult(plan=plan, kept=kept)
    changed = state.volumes != scratch.volumes
    state.volumes = scratch.volumes
    if changed:
        note(state, "the volumes were changed", source=CONTROLLER)
    return changed, ApplyRaidResult(plan=plan, made=made, kept=kept)


def _make(state: MachineState, drives: list[RaidDrive], wanted: VolumeSpec) -> RaidVolume:
    members = _choose(state, drives, wanted)
    smallest = min(drive.size_bytes or 0 for drive in members)
    most = capacity(wanted.level, len(members), smallest)
    size = most if wanted.size_gib == "max" else int(wanted.size_gib * _GIB)
    if size > most:
        raise _invalid(
            f"{wanted.level} over {len(members)} drives offers {most // _GIB} GiB, not {wanted.size_gib:g}"
        )
    numbers = {volume.id for volume in state.volumes}
    identifier = next(f"Volume.{number}" for number in range(len(numbers) + 1) if f"Volume.{number}" not in numbers)
    made = RaidVolume(
        id=identifier,
        controller=CONTROLLER,
        name=wanted.name or identifier,
        level=wanted.level,
        size_bytes=size,
        drives=[drive.id for drive in members],
        state="online",
    )
    state.volumes.append(made)
    note(state, f"the volume {identifier} was made", source=CONTROLLER)
    return made


def _choose(state: MachineState, drives: list[RaidDrive], wanted: VolumeSpec) -> list[RaidDrive]:
    used = {drive for volume in state.volumes for drive in volume.drives}
    if isinstance(wanted.drives, DriveSelector):
        matching = [drive for drive in drives if drive.id not in used and _selected(drive, wanted.drives)]
        if len(matching) < wanted.drives.count:
            raise _invalid(f"drives: {wanted.drives.count} are asked for, and {len(matching)} free ones match")
        members = matching[: wanted.drives.count]
    else:
        by_id = {drive.id: drive for drive in drives}
        problems = [f"there is no {name}" for name in wanted.drives if name not in by_id]
        problems += [f"{name} belongs to another volume" for name in wanted.drives if name in used]
        if len(set(wanted.drives)) != len(wanted.drives):
            problems.append("a drive is named twice")
        if problems:
            raise _invalid("drives: " + "; ".join(problems))
        members = [by_id[name] for name in wanted.drives]
    fewest = _FEWEST[wanted.level]
    if len(members) < fewest:
        raise _invalid(f"{wanted.level} needs at least {fewest} drives, and {len(members)} are given")
    return members


def _selected(drive: RaidDrive, selector: DriveSelector) -> bool:
    gib = (drive.size_bytes or 0) / _GIB
    return (
        (selector.media is None or drive.media is selector.media)
        and (selector.min_size_gib is None or gib >= selector.min_size_gib)
        and (selector.max_size_gib is None or gib <= selector.max_size_gib)
        and (selector.enclosure is None or drive.enclosure == selector.enclosure)
    )


def _fits(volume: RaidVolume, wanted: VolumeSpec, drives: list[RaidDrive]) -> bool:
    if volume.level is not wanted.level or (wanted.name is not None and volume.name != wanted.name):
        return False
    if wanted.size_gib != "max" and volume.size_bytes != int(wanted.size_gib * _GIB):
        return False
    members = [drive for drive in drives if drive.id in volume.drives]
    if isinstance(wanted.drives, DriveSelector):
        selector = wanted.drives
        return len(members) == selector.count and all(_selected(drive, selector) for drive in members)
    return sorted(volume.drives) == sorted(wanted.drives)


def _check_controller(name: str, *others: str) -> None:
    if name not in (CONTROLLER, *others):
        raise _invalid(f"controller: there is no {name!r}; this machine has {CONTROLLER}")


def _words(volume: RaidVolume) -> str:
    return f"{volume.name}: {volume.level}, {(volume.size_bytes or 0) // _GIB} GiB on {', '.join(volume.drives)}"


def _invalid(message: str) -> OperationError:
    return OperationError(ErrorCode.INVALID_ARGUMENT, message)
