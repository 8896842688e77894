"""From what a machine's RAID controllers hold to what is asked of them: which volumes are kept, deleted and made.

Pure, and the same for every driver. Each choice depends only on the reading and the request, never on the order in
which a BMC lists things, so a plan that was shown is the plan that is carried out. A plan with faults is not begun.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from drivers.raid_drives import Fits, Key, choose, drive_named, key_of, natural, selected, unusable
from drivers.raid_keeping import kept_volumes
from drivers.raid_layout import capacity, layout_fault
from drivers.raid_plan import Keep, Make, Plan, Spare, bytes_wanted
from protocol.errors import Issue
from protocol.shapes.raid import (
    DriveSelector,
    RaidController,
    RaidDrive,
    RaidReading,
    RaidVolume,
    SpareKind,
    VolumeSpec,
)

__all__ = ["ANY", "plan"]

ANY = "any"
_GIB = 1 << 30


def plan(
    reading: RaidReading,
    wanted: Sequence[VolumeSpec],
    delete_others: bool = False,
    *,
    controller: str = ANY,
    hot_spares: list[str] | DriveSelector | None = None,
    adopt: bool = True,
) -> Plan:
    """The way from `reading` to `wanted`, or every fault that bars it.

    A volume that is there with the level, drives, size (within a hundredth) and name that are asked is kept; without
    `adopt` none is. Drives of other volumes are used only with `delete_others`, which deletes the other volumes of
    the named controller, or with `any` of those controllers that hold or get a wanted one.
    """
    return _Planner(reading, wanted, delete_others, controller, adopt).plan(hot_spares)


@dataclass(slots=True)
class _Planner:
    reading: RaidReading
    wanted: Sequence[VolumeSpec]
    delete_others: bool
    named: str
    adopt: bool
    unsuitable: bool = False
    faults: list[Issue] = field(default_factory=list)
    scope: list[RaidController] = field(default_factory=list)
    drives: dict[Key, RaidDrive] = field(default_factory=dict)
    keep: dict[int, RaidVolume] = field(default_factory=dict)
    make: dict[int, Make] = field(default_factory=dict)
    spare: list[Spare] = field(default_factory=list)
    claims: dict[Key, str] = field(default_factory=dict)
    """Drives that are spoken for, and by what."""

    def plan(self, hot_spares: list[str] | DriveSelector | None) -> Plan:
        self.scope = self._scope()
        self.drives = {key_of(drive): drive for drive in self.reading.drives}
        if self.scope:
            if self.adopt:
                self._keep_what_is_there()
            explicit = [i for i, spec in enumerate(self.wanted) if not isinstance(spec.drives, DriveSelector)]
            chosen = [i for i in range(len(self.wanted)) if i not in explicit]
            # Drives that are named come first, so that no choice takes them away.
            for index in (*explicit, *chosen):
                if index not in self.keep:
                    self._place(index, self.wanted[index])
            for index, spec in enumerate(self.wanted):
                if spec.spares is not None:
                    self._dedicate(index, spec.spares)
            if hot_spares is not None:
                self._stand_by(hot_spares)
        return Plan(
            delete=tuple(self._deletions()),
            make=tuple(self.make[index] for index in sorted(self.make)),
            keep=tuple(Keep(index, self.keep[index]) for index in sorted(self.keep)),
            spare=tuple(self.spare),
            faults=tuple(self.faults),
            unsuitable=self.unsuitable,
        )

    # What is looked at

    def _scope(self) -> list[RaidController]:
        controllers = sorted(self.reading.controllers, key=lambda controller: natural(controller.id))
        able = [controller for controller in controllers if controller.unsuitable is None]
        if self.named == ANY:
            if not able:
                self.unsuitable = True
                reasons = "; ".join(f"{c.id}: {c.unsuitable}" for c in controllers) or "there is none"
                self._fault("controller", f"no controller of this machine makes volumes ({reasons})")
            # Those that name their levels first: one that names none may turn out to have none.
            return sorted(able, key=lambda controller: not controller.levels)
        found = [controller for controller in controllers if controller.id == self.named]
        if not found:
            known = ", ".join(controller.id for controller in controllers) or "none"
            self._fault("controller", f"there is no {self.named!r}; this machine has {known}")
        elif found[0].unsuitable is not None:
            self.unsuitable = True
            self._fault("controller", f"{self.named} makes no volumes: {found[0].unsuitable}")
            return []
        return found

    def _volumes(self) -> Iterator[RaidVolume]:
        inside = {controller.id for controller in self.scope}
        listed = sorted(self.reading.volumes, key=lambda volume: (natural(volume.controller), natural(volume.id)))
        return (volume for volume in listed if volume.controller in inside)

    def _keep_what_is_there(self) -> None:
        self.keep = kept_volumes(list(self._volumes()), self.wanted, self.drives)
        for volume in self.keep.values():
            for drive in (*volume.drives, *volume.spares):
                self.claims.setdefault((volume.controller, drive), f"the volume {volume.id}, which is kept")

    # Making

    def _place(self, index: int, spec: VolumeSpec) -> None:
        path = f"volumes[{index}]"
        count = spec.drives.count if isinstance(spec.drives, DriveSelector) else len(spec.drives)
        offering = [c for c in self.scope if not c.levels or spec.level in c.levels]
        if not offering:
            offered = "; ".join(f"{c.id} offers {', '.join(c.levels)}" for c in self.scope)
            self._fault(f"{path}.level", f"{spec.level} is not offered: {offered}")
        problem = layout_fault(spec.level, count, spec.spans)
        if problem is not None:
            self._fault(f"{path}.drives", problem)
        if isinstance(spec.drives, DriveSelector):
            found = self._choose(path, spec, spec.drives, offering) if offering and problem is None else None
        else:
            found = self._named_drives(f"{path}.drives", spec.drives)
        if not found:
            return
        self._check_room(path, spec, found)
        controller = found[0].controller
        if offering and controller not in {c.id for c in offering}:
            self._fault(f"{path}.level", f"{spec.level} is not offered by {controller}, which has these drives")
        self.make[index] = Make(
            index,
            controller,
            spec.level,
            tuple(drive.id for drive in found),
            spec.name,
            bytes_wanted(spec),
            spec.spans,
        )
        self._claim(found, path)

    def _check_room(self, path: str, spec: VolumeSpec, drives: list[RaidDrive]) -> None:
        sizes = [drive.size_bytes for drive in drives if drive.size_bytes is not None]
        size = bytes_wanted(spec)
        if size is None or len(sizes) < len(drives) or layout_fault(spec.level, len(drives), spec.spans):
            return
        most = capacity(spec.level, len(drives), min(sizes), spec.spans)
        if size > most:
            self._fault(
                f"{path}.sizeGiB",
                f"{spec.level} over {len(drives)} drives offers {most / _GIB:.0f} GiB, not {size / _GIB:g}",
            )

    def _choose(
        self, path: str, spec: VolumeSpec, selector: DriveSelector, offering: list[RaidController]
    ) -> list[RaidDrive] | None:
        size = bytes_wanted(spec)

        def has_room(drives: Sequence[RaidDrive]) -> bool:
            sizes = [drive.size_bytes for drive in drives]
            if size is None or None in sizes:
                return True
            return capacity(spec.level, len(drives), min(s for s in sizes if s is not None), spec.spans) >= size

        for freed in (False, True) if self.delete_others else (False,):
            for controller in offering:
                found = choose(self._free(controller.id, freed), selector, has_room)
                if found is not None:
                    return found
        self._fault(f"{path}.drives", self._why_none(selector, offering, size))
        return None

    def _why_none(self, selector: DriveSelector, offering: list[RaidController], size: int | None) -> str:
        found = []
        for controller in offering:
            free = [d for d in self._free(controller.id, self.delete_others) if selected(d, selector, making=True)]
            taken = [
                drive
                for drive in self._of(controller.id)
                if drive.volumes
                and drive not in free
                and selected(drive, selector)
                and key_of(drive) not in self.claims
            ]
            note = f" ({len(taken)} more belong to other volumes: deleteOthers frees them)" if taken else ""
            found.append(f"{len(free)} free ones of {controller.id} match{note}")
        alike = ", of one media and size" + (f" and with room for {size / _GIB:g} GiB" if size is not None else "")
        return f"{selector.count} are asked for{alike}, and {'; '.join(found)}"

    # Spares

    def _dedicate(self, index: int, asked: list[str] | DriveSelector) -> None:
        path = f"volumes[{index}].spares"
        if index in self.keep:
            volume = self.keep[index]
            controller, members, present = volume.controller, volume.drives, volume.spares
        elif index in self.make:
            controller, members, present = self.make[index].controller, list(self.make[index].drives), []
        else:
            return
        used = [drive for name in members if (drive := self.drives.get((controller, name))) is not None]
        sizes = [drive.size_bytes for drive in used if drive.size_bytes is not None]
        smallest = min(sizes, default=0)
        media = {drive.media for drive in used if drive.media is not None}

        def fits(drives: Sequence[RaidDrive]) -> bool:
            return all(
                (drive.size_bytes is None or drive.size_bytes >= smallest) and (not media or drive.media in media)
                for drive in drives
            )

        standing = [drive for name in present if (drive := self.drives.get((controller, name))) is not None]
        found = self._spares(path, asked, [controller], standing, fits)
        self.spare += [Spare(controller, drive.id, index) for drive in found]
        self._claim(found, path)

    def _stand_by(self, asked: list[str] | DriveSelector) -> None:
        busy = self._busy_controllers()
        ids = [c.id for c in self.scope if c.id in busy] or [c.id for c in self.scope]
        standing = [drive for c in ids for drive in self._of(c) if drive.spare is SpareKind.GLOBAL]
        found = self._spares("hotSpares", asked, ids, standing, lambda _: True)
        self.spare += [Spare(drive.controller, drive.id) for drive in found]
        self._claim(found, "hotSpares")

    def _spares(
        self,
        path: str,
        asked: list[str] | DriveSelector,
        controllers: list[str],
        standing: list[RaidDrive],
        fits: Fits,
    ) -> list[RaidDrive]:
        """The drives that must become spares besides those that stand by already."""
        if not isinstance(asked, DriveSelector):
            names = [n for n in asked if not any(n in (drive.id, drive.serial) for drive in standing)]
            found = self._named_drives(path, names, controllers) if names else []
            if found and not fits(found):
                self._fault(path, "a spare must be of the volume's media, and as large as its smallest drive")
            return found
        lacking = asked.count - sum(selected(drive, asked) for drive in standing)
        if lacking <= 0:
            return []
        for controller in controllers:
            free = [drive for drive in self._free(controller, self.delete_others) if fits([drive])]
            found = [drive for drive in free if selected(drive, asked, making=True)][:lacking]
            if len(found) == lacking:
                return found
        self._fault(
            path, f"{asked.count} spares are asked for, and {lacking} of them cannot be found among free drives"
        )
        return []

    # Drives

    def _of(self, controller: str) -> list[RaidDrive]:
        return sorted(
            (drive for drive in self.reading.drives if drive.controller == controller),
            key=lambda drive: natural(drive.id),
        )

    def _free(self, controller: str, freed: bool) -> list[RaidDrive]:
        """Drives to choose from; with `freed`, also those of volumes that will be deleted."""
        return [
            drive
            for drive in self._of(controller)
            if unusable(drive) is None
            and key_of(drive) not in self.claims
            and (not drive.volumes or (freed and self._is_freed(drive)))
        ]

    def _is_freed(self, drive: RaidDrive) -> bool:
        """Whether every volume on the drive is known, so that deleting the others frees it."""
        known = {volume.id for volume in self._volumes() if volume.controller == drive.controller}
        return all(name in known for name in drive.volumes)

    def _named_drives(self, path: str, names: list[str], controllers: list[str] | None = None) -> list[RaidDrive]:
        """The drives that a list names, all on one controller; every fault of the list is noted."""
        ids = controllers or [controller.id for controller in self.scope]
        homes = [c for c in ids if all(drive_named(self.drives, c, name) is not None for name in names)]
        if len(homes) != 1:
            self._fault_homes(path, names, ids, homes)
            return []
        found = [drive for name in names if (drive := drive_named(self.drives, homes[0], name)) is not None]
        for twice in dict.fromkeys(d.id for d in found if [e.id for e in found].count(d.id) > 1):
            self._fault(path, f"{twice} is named twice")
        for one in {drive.id: drive for drive in found}.values():
            self._check_free(path, one)
        return found

    def _fault_homes(self, path: str, names: list[str], ids: list[str], homes: list[str]) -> None:
        if homes:
            which = " and ".join(homes)
            self._fault(path, f"{', '.join(names)} may be drives of {which}: name the controller")
            return
        missing = [name for name in dict.fromkeys(names) if not any(drive_named(self.drives, c, name) for c in ids)]
        for name in missing:
            known = ", ".join(drive.id for c in ids for drive in self._of(c)) or "none"
            self._fault(path, f"there is no {name}; there are {known}")
        if not names:
            self._fault(path, "no drive is named")
        elif not missing:
            self._fault(path, f"{', '.join(names)} are not all on one controller")

    def _check_free(self, path: str, drive: RaidDrive) -> None:
        reason = unusable(drive)
        claim = self.claims.get(key_of(drive))
        if reason is not None:
            self._fault(path, f"{drive.id} {reason}")
        elif claim is not None:
            self._fault(path, f"{drive.id} belongs to {claim}")
        elif drive.volumes and not self.delete_others:
            listed = ", ".join(drive.volumes)
            self._fault(path, f"{drive.id} belongs to another volume ({listed}): allow deleteOthers, or name others")
        elif drive.volumes and not self._is_freed(drive):
            self._fault(path, f"{drive.id} belongs to {', '.join(drive.volumes)}, which could not be read")

    def _claim(self, drives: Iterable[RaidDrive], by: str) -> None:
        for drive in drives:
            self.claims.setdefault(key_of(drive), by)

    # Deleting

    def _busy_controllers(self) -> set[str]:
        return {volume.controller for volume in self.keep.values()} | {made.controller for made in self.make.values()}

    def _deletions(self) -> Iterator[RaidVolume]:
        if not self.delete_others:
            return
        busy = self._busy_controllers()
        if self.named != ANY or (len(self.scope) == 1 and not self.wanted):
            busy = {controller.id for controller in self.scope}
        elif not self.wanted and self.scope:
            self._fault(
                "controller", "several controllers have volumes: name the one whose volumes are to be deleted"
            )
        kept = {(volume.controller, volume.id) for volume in self.keep.values()}
        for volume in self._volumes():
            if volume.controller in busy and (volume.controller, volume.id) not in kept and not volume.raw:
                yield volume

    def _fault(self, path: str, message: str) -> None:
        self.faults.append(Issue(path, message))
