"""RAID: what the controllers hold, and how it becomes what is asked: planned, then changed step by step.

A controller is given one change at a time, and the next one only when the one before is seen to be done. Where a
controller does its part at the next reset of the machine, nobody waits for it: the reset is owed, the steps after it
are told, and asking again after the reset goes on from what is there then.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from drivers.driver import Call
from drivers.raid_plan import Make, Plan, Spare, tell_progress
from drivers.raid_planning import ANY, plan
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.raid_change import Change, Controller
from drivers.redfish.raid_pending import pending_change
from drivers.redfish.raid_reading import Shelf
from drivers.redfish.raid_storage import Shelves, read_shelves
from drivers.redfish.watching import comes_true
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
    RaidReading,
    RaidTask,
    RaidVolume,
    VolumeSpec,
    VolumeTask,
)

__all__ = ["RedfishRaid"]

_UNDER_WAY_SECONDS = 3600.0
"""How long a change that was found under way is waited for."""
_ROUNDS = 3
"""How often a plan is made anew because a change was under way while the first was made."""


class RedfishRaid:
    def __init__(self, connection: RedfishConnection) -> None:
        self._connection = connection

    async def get_raid(self, arguments: Nothing, call: Call) -> RaidReading:
        """Every controller that has volumes of its own, with its drives and volumes. What cannot be read is named in
        `unread`. Raises OperationError UNSUPPORTED where the system shows no storage at all."""
        return (await read_shelves(self._connection, call)).reading()

    async def apply_raid(self, arguments: ApplyRaid, call: Call) -> ApplyRaidResult:
        """Plans the way from what is there to what is asked, and goes it; with `dryRun` only the plan is made.

        Repeating it is harmless: what is there is kept, and what an earlier call began is waited for. Raises
        OperationError: INVALID_ARGUMENT with every fault of the request, UNSUPPORTED (no controller makes volumes),
        BUSY (a part could not be read, so nothing is known for certain), or the failure of a step; then `done` and
        `notDone` in its details say how far it went.
        """
        for _ in range(_ROUNDS):
            shelves, way = await self._planned(arguments, call)
            if arguments.dry_run or not way.changes:
                return ApplyRaidResult(plan=way.steps(), kept=[keep.volume for keep in way.keep])
            run = _Run(self._connection, shelves, way, call)
            if await run.is_free():
                return await run.carry_out()
        raise OperationError(
            ErrorCode.CONFLICT, "the controllers were being changed by others all the time: ask again later"
        )

    async def create_volume(self, arguments: CreateVolume, call: Call) -> VolumeTask:
        """Makes one volume on free drives, sent once. Raises OperationError: INVALID_ARGUMENT with every fault,
        CONFLICT (a change of the controller is under way), NOT_APPLIED, BMC_ERROR with the words of a failed task,
        OUTCOME_UNKNOWN (no answer, and no such volume is seen)."""
        shelves = await read_shelves(self._connection, call, only=_one(arguments.controller))
        shelves.check_complete()
        wanted = VolumeSpec(
            level=arguments.level,
            name=arguments.name,
            size_gib=arguments.size_gib,
            drives=arguments.drives,
            spans=arguments.spans,
        )
        way = plan(shelves.reading(), [wanted], controller=arguments.controller, adopt=False)
        way.check(of_one=True)
        make = way.make[0]
        controller = await self._controller(shelves.of(make.controller), call)
        change = await controller.create(make)
        if change.volume is None:
            return VolumeTask(volume=None, task=change.task, reset_owed=True, drives=list(make.drives))
        made = change.volume
        return VolumeTask(volume=made.id, task=change.task, size_bytes=made.size_bytes, drives=made.drives)

    async def delete_volume(self, arguments: DeleteVolume, call: Call) -> RaidTask:
        """Deletes one volume, by its id or name. Raises OperationError: INVALID_ARGUMENT (no such volume), CONFLICT,
        NOT_APPLIED, BMC_ERROR, OUTCOME_UNKNOWN (no answer, and it is still there)."""
        shelves = await read_shelves(self._connection, call, only=_one(arguments.controller))
        shelf = shelves.of(arguments.controller)
        volume = _volume(shelf, arguments.volume, shelves)
        change = await (await self._controller(shelf, call)).delete(volume.id)
        return RaidTask(task=change.task, reset_owed=change.staged, deleted=[volume.id])

    async def clear_raid(self, arguments: ClearRaid, call: Call) -> RaidTask:
        """Has a controller forget its volumes, spares and foreign configurations: by an action of its own where it
        has one, else volume by volume. One that holds nothing is left alone. Raises what `delete_volume` raises."""
        shelves = await read_shelves(self._connection, call, only=_one(arguments.controller))
        shelf = shelves.of(arguments.controller)
        shelves.check_complete()
        volumes = [volume.id for volume in shelf.volumes if not volume.raw]
        if not volumes and not any(drive.spare or drive.state == "foreign" for drive in shelf.drives):
            return RaidTask()
        controller = await self._controller(shelf, call)
        change = await controller.clear_by_reset()
        if change is not None:
            return RaidTask(task=change.task, reset_owed=change.staged, deleted=volumes)
        if not volumes:
            raise OperationError(
                ErrorCode.UNSUPPORTED,
                f"{shelf.id} has no volumes, and offers no action that clears its spares and foreign configurations",
            )
        return await _delete_all(controller, volumes)

    async def _planned(self, arguments: ApplyRaid, call: Call) -> tuple[Shelves, Plan]:
        selectors = [arguments.hot_spares, *(spec.drives for spec in arguments.volumes)]
        shelves = await read_shelves(
            self._connection,
            call,
            only=_one(arguments.controller),
            boot_drives=any(isinstance(one, DriveSelector) and one.not_boot_drive for one in selectors),
        )
        shelves.check_complete()
        way = plan(
            shelves.reading(),
            arguments.volumes,
            arguments.delete_others,
            controller=arguments.controller,
            hot_spares=arguments.hot_spares,
        )
        way.check()
        return shelves, way

    async def _controller(self, shelf: Shelf, call: Call) -> Controller:
        """The controller, free to be changed. Raises OperationError CONFLICT where a change of it has not ended."""
        pending = await pending_change(self._connection, shelf, call)
        if pending is not None:
            until = "after the reset that it waits for" if pending.waits_for_reset else "when it has ended"
            raise OperationError(
                ErrorCode.CONFLICT,
                f"a change of {shelf.id} is under way: the task {pending.path} ({pending.says}). Ask again {until}",
                details={"task": pending.path},
            )
        return Controller(self._connection, shelf, call)


@dataclass(slots=True)
class _Run:
    """A plan that is being carried out: controller by controller, and on each one step after the other."""

    connection: RedfishConnection
    shelves: Shelves
    way: Plan
    call: Call
    made: dict[int, RaidVolume] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    done: list[PlanStep] = field(default_factory=list)
    waiting: list[PlanStep] = field(default_factory=list)
    reset_owed: bool = False

    async def is_free(self) -> bool:
        """Whether the controllers have nothing else under way. One that has is waited for, and then the plan is old;
        one that waits for a reset is left out of this run."""
        for name in self._controllers():
            shelf = self.shelves.of(name)
            pending = await pending_change(self.connection, shelf, self.call)
            if pending is None:
                continue
            if not pending.waits_for_reset:
                self.call.progress(f"waiting for a change of {name} that is under way: {pending.says}", None)

                async def is_over(shelf: Shelf = shelf) -> bool:
                    return await pending_change(self.connection, shelf, self.call) is None

                await comes_true(is_over, self.call, _UNDER_WAY_SECONDS)
                return False
            self.reset_owed = True
            self.tasks.append(pending.path)
            self.waiting += self._steps(name)
        return True

    async def carry_out(self) -> ApplyRaidResult:
        blocked = {step.controller for step in self.waiting}
        for name in self._controllers():
            if name in blocked:
                continue
            try:
                await self._change(name)
            except OperationError as error:
                tell_progress(error, self.way, self.done)
                raise
        return ApplyRaidResult(
            plan=self.way.steps(),
            made=[self.made[index] for index in sorted(self.made)],
            kept=[keep.volume for keep in self.way.keep],
            tasks=self.tasks,
            deleted=self.deleted,
            reset_owed=self.reset_owed,
            waiting=self.waiting,
        )

    def _controllers(self) -> list[str]:
        names = [
            *(volume.controller for volume in self.way.delete),
            *(make.controller for make in self.way.make),
            *(spare.controller for spare in self.way.spare),
        ]
        return list(dict.fromkeys(names))

    def _steps(self, controller: str) -> list[PlanStep]:
        """The changes of one controller, in the order in which they are made."""
        return [step for step in self.way.steps() if step.controller == controller and step.act != "keep"]

    async def _change(self, name: str) -> None:
        """Every step of one controller, until one of them waits for a reset: what comes after it waits too."""
        controller = Controller(self.connection, self.shelves.of(name), self.call)
        acts: list[Callable[[], Awaitable[Change]]] = [
            *(partial(self._delete, controller, volume) for volume in self.way.delete if volume.controller == name),
            *(partial(self._create, controller, make) for make in self.way.make if make.controller == name),
            *(partial(self._set_aside, controller, spare) for spare in self.way.spare if spare.controller == name),
        ]
        steps = self._steps(name)
        for number, (step, act) in enumerate(zip(steps, acts, strict=True), 1):
            change = await act()
            self.done.append(step)
            if change.task is not None:
                self.tasks.append(change.task)
            if change.staged:
                self.reset_owed = True
                self.waiting += steps[number:]
                return

    async def _delete(self, controller: Controller, volume: RaidVolume) -> Change:
        change = await controller.delete(volume.id)
        self.deleted.append(volume.id)
        return change

    async def _create(self, controller: Controller, make: Make) -> Change:
        change = await controller.create(make)
        if change.volume is not None:
            self.made[make.index] = change.volume
        return change

    async def _set_aside(self, controller: Controller, spare: Spare) -> Change:
        kept = next((keep.volume for keep in self.way.keep if keep.index == spare.index), None)
        volume = kept if kept is not None or spare.index is None else self.made[spare.index]
        return await controller.set_aside(spare, None if volume is None else volume.id)


def _one(controller: str) -> str | None:
    """The controller that alone needs to be read; None for all."""
    return None if controller == ANY else controller


def _volume(shelf: Shelf, name: str, shelves: Shelves) -> RaidVolume:
    """The volume of this id, or of this name where only one has it. Raises OperationError INVALID_ARGUMENT."""
    found = [volume for volume in shelf.volumes if volume.id == name]
    found = found or [volume for volume in shelf.volumes if name in shelf.volume_names[volume.id]]
    if len(found) == 1 and not found[0].raw:
        return found[0]
    if found:
        why = (
            "is a drive as it is, and no volume" if len(found) == 1 else "is the name of several volumes: give an id"
        )
        raise OperationError(ErrorCode.INVALID_ARGUMENT, f"volume: {name!r} {why}")
    shelves.check_complete()
    known = ", ".join(volume.id for volume in shelf.volumes if not volume.raw) or "none"
    raise OperationError(ErrorCode.INVALID_ARGUMENT, f"volume: there is no {name!r} on {shelf.id}; there is {known}")


async def _delete_all(controller: Controller, volumes: list[str]) -> RaidTask:
    """Volume by volume; one that waits for a reset keeps the others waiting."""
    task: str | None = None
    for number, name in enumerate(volumes, 1):
        try:
            change = await controller.delete(name)
        except OperationError as error:
            error.details = {**error.details, "deleted": volumes[: number - 1], "notDeleted": volumes[number - 1 :]}
            raise
        task = change.task or task
        if change.staged:
            return RaidTask(task=task, reset_owed=True, deleted=volumes[:number], waiting=volumes[number:])
    return RaidTask(task=task, deleted=volumes)
