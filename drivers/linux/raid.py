"""RAID by the kernel itself (md), made with mdadm from whole disks.

A RAID1 keeps its superblock at the members' end (version 1.0), so that firmware finds a partition table and starts
from either of them; the other levels have it near the beginning (1.2), and no firmware starts from them.
"""

import asyncio
import uuid
from dataclasses import dataclass, field

from drivers.driver import Call
from drivers.linux.block_device import BlockDevice
from drivers.linux.connection import LinuxConnection
from drivers.linux.contents import clear_places
from drivers.linux.devices import settled
from drivers.linux.disks import read_disks, require_same
from drivers.linux.host import Host
from drivers.linux.kernel_partitions import forget_partitions
from drivers.linux.raid_reading import CONTROLLER, Array, MdReading, read_arrays, reading_of
from drivers.raid_plan import Make, Plan, Spare, tell_progress
from drivers.raid_planning import plan
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.raid import (
    ApplyRaid,
    ApplyRaidResult,
    ClearRaid,
    CreateVolume,
    DeleteVolume,
    PlanStep,
    RaidLevel,
    RaidReading,
    RaidTask,
    RaidVolume,
    VolumeSpec,
    VolumeTask,
)

__all__ = ["LinuxRaid", "create_words"]

_SECONDS = 300.0
_SEEN_SECONDS = 15.0
_LOST = {RaidLevel.RAID5: 1, RaidLevel.RAID6: 2}


class LinuxRaid:
    def __init__(self, connection: LinuxConnection) -> None:
        self._host = connection.host

    async def get_raid(self, arguments: Nothing, call: Call) -> RaidReading:
        """One controller `md` with the disks that nothing else uses. Arrays that are not running are told as well."""
        return reading_of(await self._read(call), self._unsuitable())

    async def apply_raid(self, arguments: ApplyRaid, call: Call) -> ApplyRaidResult:
        """Plans the way from what is there to what is asked, and goes it; repeating it is harmless.

        Raises OperationError: INVALID_ARGUMENT with every fault of the request, UNSUPPORTED (no mdadm, global hot
        spares), or the failure of a step; then `done` and `notDone` in its details say how far it went.
        """
        if arguments.hot_spares:
            raise OperationError(
                ErrorCode.UNSUPPORTED, "md has no hot spares for all volumes: give each volume its own `spares`"
            )
        found = await self._read(call)
        way = plan(
            reading_of(found, self._unsuitable()),
            arguments.volumes,
            arguments.delete_others,
            controller=arguments.controller,
        )
        way.check()
        if arguments.dry_run or not way.changes:
            return ApplyRaidResult(plan=way.steps(), kept=[keep.volume for keep in way.keep])
        return await _Run(self._host, found, way, call).carry_out()

    async def create_volume(self, arguments: CreateVolume, call: Call) -> VolumeTask:
        """Makes one array on free disks. Raises OperationError: INVALID_ARGUMENT with every fault, UNSUPPORTED,
        CONFLICT (a disk is in use), NOT_APPLIED with mdadm's words."""
        wanted = VolumeSpec(
            level=arguments.level,
            name=arguments.name,
            size_gib=arguments.size_gib,
            drives=arguments.drives,
            spans=arguments.spans,
        )
        found = await self._read(call)
        way = plan(reading_of(found, self._unsuitable()), [wanted], controller=arguments.controller, adopt=False)
        way.check(of_one=True)
        made = await _create(self._host, found, way.make[0])
        return VolumeTask(volume=made.id, size_bytes=made.size_bytes, drives=made.drives)

    async def delete_volume(self, arguments: DeleteVolume, call: Call) -> RaidTask:
        """Stops an array and removes its superblocks. Raises OperationError: INVALID_ARGUMENT (no such array),
        CONFLICT (it is in use), NOT_APPLIED."""
        self._check(arguments.controller)
        found = await self._read(call)
        array = _array(found, arguments.volume)
        await _delete(self._host, array)
        return RaidTask(deleted=[array.id])

    async def clear_raid(self, arguments: ClearRaid, call: Call) -> RaidTask:
        """Deletes every array. Raises what `delete_volume` raises; `deleted` in its details says how far it came."""
        self._check(arguments.controller)
        deleted: list[str] = []
        for array in (await self._read(call)).arrays:
            try:
                await _delete(self._host, array)
            except OperationError as error:
                error.details = {**error.details, "deleted": deleted}
                raise
            deleted.append(array.id)
        return RaidTask(deleted=deleted)

    async def _read(self, call: Call) -> MdReading:
        await settled(self._host, call)
        return await asyncio.to_thread(_reading, self._host)

    def _unsuitable(self) -> str | None:
        return None if self._host.has("mdadm") else "mdadm is not installed here"

    def _check(self, controller: str) -> None:
        unsuitable = self._unsuitable()
        if controller not in (CONTROLLER, "any"):
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT, f"controller: there is no {controller!r}; this machine has {CONTROLLER}"
            )
        if unsuitable is not None:
            raise OperationError(ErrorCode.UNSUPPORTED, unsuitable)


@dataclass(slots=True)
class _Run:
    """A plan that is being carried out, one step after the other."""

    host: Host
    found: MdReading
    way: Plan
    call: Call
    done: list[PlanStep] = field(default_factory=list)
    made: dict[int, RaidVolume] = field(default_factory=dict)

    async def carry_out(self) -> ApplyRaidResult:
        steps = [step for step in self.way.steps() if step.act != "keep"]
        try:
            acts: list[RaidVolume | Make | Spare] = [*self.way.delete, *self.way.make, *self.way.spare]
            for step, act in zip(steps, acts, strict=True):
                self.call.progress(f"{step.act} {step.volume}: {step.detail}", len(self.done) / len(steps) * 100)
                await self._do(act)
                self.done.append(step)
        except OperationError as error:
            tell_progress(error, self.way, self.done)
            raise
        return ApplyRaidResult(
            plan=self.way.steps(),
            made=[self.made[index] for index in sorted(self.made)],
            kept=[keep.volume for keep in self.way.keep],
            deleted=[volume.id for volume in self.way.delete],
        )

    async def _do(self, act: RaidVolume | Make | Spare) -> None:
        if isinstance(act, RaidVolume):
            await _delete(self.host, _array(self.found, act.id))
        elif isinstance(act, Make):
            self.made[act.index] = await _create(self.host, self.found, act)
        else:
            kept = next((keep.volume for keep in self.way.keep if keep.index == act.index), None)
            volume = kept or (self.made[act.index] if act.index is not None else None)
            if volume is not None:
                await _add_spare(self.host, volume.id, act.drive)


def create_words(make: Make, paths: list[str], component_kib: int | None, name: str) -> list[str]:
    """mdadm's command line. Pure."""
    return [
        "mdadm",
        "--create",
        f"/dev/md/{name}",
        "--run",
        "--quiet",
        f"--level={make.level.value.lower().removeprefix('raid')}",
        f"--raid-devices={len(paths)}",
        f"--metadata={'1.0' if make.level is RaidLevel.RAID1 else '1.2'}",
        f"--name={name}",
        "--homehost=any",
        *([f"--size={component_kib}"] if component_kib is not None else []),
        *paths,
    ]


def _component_kib(make: Make) -> int | None:
    """What each disk gives, for the size that is asked. Raises OperationError INVALID_ARGUMENT where md cannot."""
    if make.size_bytes is None:
        return None
    if make.level is RaidLevel.RAID0:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT, "md makes a RAID0 of all the space only: leave sizeGiB out, or write max"
        )
    data = {RaidLevel.RAID1: 1, RaidLevel.RAID10: len(make.drives) // 2}.get(
        make.level, len(make.drives) - _LOST.get(make.level, 0)
    )
    # In whole chunks of 512 KiB, as md counts them.
    return -(-make.size_bytes // data // (512 << 10)) * 512


async def _create(host: Host, found: MdReading, make: Make) -> RaidVolume:
    paths = [found.disks[name].path for name in make.drives]
    # Known before anything is destroyed.
    component = _component_kib(make)
    for name in make.drives:
        await asyncio.to_thread(_make_blank, host, found, name)
    name = make.name or f"volume-{uuid.uuid4().hex[:8]}"
    ran = await host.run(*create_words(make, paths, component, name), timeout=_SECONDS)
    if ran.code:
        raise OperationError(ErrorCode.NOT_APPLIED, f"mdadm made no {make.level}: {ran.words}")
    loop = asyncio.get_running_loop()
    until = loop.time() + _SEEN_SECONDS
    while loop.time() < until:
        now = await asyncio.to_thread(_reading, host)
        for array in now.arrays:
            if array.running and {member.disk for member in array.members} == set(make.drives):
                return array.volume()
        await asyncio.sleep(0.2)
    raise OperationError(
        ErrorCode.NOT_APPLIED, f"mdadm made a {make.level} that the kernel does not show: {ran.words}"
    )


def _make_blank(host: Host, found: MdReading, name: str) -> None:
    """So that no older table or superblock shines through. Raises OperationError CONFLICT where it is in use, or
    another disk by now."""
    disk = found.disks[name]
    with BlockDevice(disk.path, writing=True) as device:
        require_same(host, disk)
        clear_places(device, [(part.start, part.size) for part in disk.partitions])
        forget_partitions(device, [part.number for part in disk.partitions])


async def _delete(host: Host, array: Array) -> None:
    if array.running:
        stopped = await host.run("mdadm", "--stop", f"/dev/{array.id}", timeout=_SECONDS)
        if stopped.code:
            raise OperationError(ErrorCode.CONFLICT, f"{array.id} cannot be stopped: {stopped.words}")
    members = [str(host.dev / member.name) for member in array.members]
    if members:
        cleared = await host.run("mdadm", "--zero-superblock", "--force", *members, timeout=_SECONDS)
        if cleared.code:
            raise OperationError(
                ErrorCode.NOT_APPLIED, f"the members of {array.id} still say that they belong to it: {cleared.words}"
            )


async def _add_spare(host: Host, volume: str, drive: str) -> None:
    ran = await host.run("mdadm", "--manage", f"/dev/{volume}", "--add", str(host.dev / drive), timeout=_SECONDS)
    if ran.code:
        raise OperationError(ErrorCode.NOT_APPLIED, f"{drive} did not become a spare of {volume}: {ran.words}")


def _reading(host: Host) -> MdReading:
    return read_arrays(host, read_disks(host))


def _array(found: MdReading, name: str) -> Array:
    """By its id, or by its name where only one has it. Raises OperationError INVALID_ARGUMENT."""
    matching = [array for array in found.arrays if array.id == name]
    matching = matching or [array for array in found.arrays if array.name == name]
    if len(matching) == 1:
        return matching[0]
    known = ", ".join(array.id for array in found.arrays) or "none"
    what = f"is the name of {len(matching)} arrays" if matching else "is no array here"
    raise OperationError(ErrorCode.INVALID_ARGUMENT, f"volume: {name!r} {what}; there is {known}")
