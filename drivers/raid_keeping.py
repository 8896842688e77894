"""Which of the volumes that are there are the ones that are wanted, so that a plan keeps them. Pure."""

from collections.abc import Mapping, Sequence

from drivers.raid_drives import Key, drive_named, selected
from drivers.raid_layout import least_capacity
from drivers.raid_plan import bytes_wanted, is_size
from protocol.shapes.raid import DriveSelector, RaidDrive, RaidVolume, VolumeSpec

__all__ = ["kept_volumes"]

_RESERVED = 0.1
"""What a controller may keep of an array for itself, as a share: a volume of the rest still has all the space."""


def kept_volumes(
    present: Sequence[RaidVolume], wanted: Sequence[VolumeSpec], drives: Mapping[Key, RaidDrive]
) -> dict[int, RaidVolume]:
    """The present volume of each wish that has one, by the wish's place in `wanted`.

    The most wanted volumes that can be there at once: one present volume may suit several wishes, and the first wish
    must not take it from the only one that it suits.
    """
    suits = [[n for n, volume in enumerate(present) if _is(volume, spec, drives)] for spec in wanted]
    holder: dict[int, int] = {}

    def settle(index: int, tried: set[int]) -> bool:
        for number in suits[index]:
            if number not in tried:
                tried.add(number)
                if number not in holder or settle(holder[number], tried):
                    holder[number] = index
                    return True
        return False

    for index in range(len(wanted)):
        settle(index, set())
    return {index: present[number] for number, index in holder.items()}


def _is(volume: RaidVolume, spec: VolumeSpec, drives: Mapping[Key, RaidDrive]) -> bool:
    if volume.level is not spec.level or spec.name not in (None, volume.name) or not volume.drives:
        return False
    members = [drives.get((volume.controller, drive)) for drive in volume.drives]
    found = [drive for drive in members if drive is not None]
    if isinstance(spec.drives, DriveSelector):
        fitting = [drive for drive in found if selected(drive, spec.drives)]
        if not len(fitting) == len(members) == spec.drives.count:
            return False
    else:
        asked = [drive_named(drives, volume.controller, name) for name in spec.drives]
        if {drive.id for drive in asked if drive is not None} != set(volume.drives) or None in asked:
            return False
    sizes = [drive.size_bytes for drive in found]
    if spec.size_gib != "max" or volume.size_bytes is None or len(found) < len(members) or None in sizes:
        return is_size(volume.size_bytes, bytes_wanted(spec))
    whole = least_capacity(spec.level, len(found), min(size for size in sizes if size is not None))
    return volume.size_bytes >= whole * (1 - _RESERVED)
