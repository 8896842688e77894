"""Linux software RAID as it is: the arrays that the kernel runs, and those whose members only lie on the disks."""

from collections.abc import Sequence
from dataclasses import dataclass

from drivers.linux.block_device import BlockDevice
from drivers.linux.disks import Disk
from drivers.linux.host import Host
from drivers.linux.md_superblock import MdSuperblock, parse_superblock, superblock_places
from drivers.raid_layout import capacity
from protocol.errors import OperationError
from protocol.shapes.raid import Media, RaidController, RaidDrive, RaidLevel, RaidReading, RaidVolume

__all__ = ["CONTROLLER", "Array", "MdReading", "Member", "read_arrays", "reading_of"]

CONTROLLER = "md"
_LEVELS = {0: RaidLevel.RAID0, 1: RaidLevel.RAID1, 5: RaidLevel.RAID5, 6: RaidLevel.RAID6, 10: RaidLevel.RAID10}
_WORDS = {f"raid{number}": level for number, level in _LEVELS.items()}
_HALF_STOPPED = {"clear", "inactive"}


@dataclass(frozen=True, slots=True)
class Member:
    """A disk or partition in an array. `disk`: the disk that it is or lies on."""

    name: str
    disk: str
    spare: bool = False
    faulty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """`id`: the kernel's name, or the array's UUID where it is not running."""

    id: str
    name: str | None
    level: RaidLevel | None
    members: tuple[Member, ...]
    size_bytes: int | None
    running: bool
    state: str
    health: str | None

    def volume(self) -> RaidVolume:
        return RaidVolume(
            id=self.id,
            controller=CONTROLLER,
            name=self.name,
            level=self.level,
            size_bytes=self.size_bytes,
            drives=list(dict.fromkeys(member.disk for member in self.members if not member.spare)),
            spares=list(dict.fromkeys(member.disk for member in self.members if member.spare)),
            state=self.state,
            health=self.health,
        )


@dataclass(frozen=True, slots=True)
class MdReading:
    disks: dict[str, Disk]
    arrays: tuple[Array, ...]
    unread: tuple[str, ...] = ()


def read_arrays(host: Host, disks: Sequence[Disk]) -> MdReading:
    """Blocking."""
    by_name = {disk.name: disk for disk in disks if disk.transport != "md"}
    found, unread = _superblocks(host, list(by_name.values()))
    running = [_running(host, disk, by_name, found) for disk in disks if disk.transport == "md"]
    taken = {member.name for array in running for member in array.members}
    asleep: dict[object, list[tuple[Member, MdSuperblock]]] = {}
    for name, (disk, block) in found.items():
        if name not in taken:
            member = Member(name, disk, block.role is None and not block.faulty, block.faulty)
            asleep.setdefault(block.array, []).append((member, block))
    stopped = [_stopped(str(array), members) for array, members in asleep.items()]
    return MdReading(by_name, (*running, *stopped), tuple(unread))


def reading_of(found: MdReading, unsuitable: str | None) -> RaidReading:
    """As every driver tells it. Disks in use by anything but an array are none that arrays are made of. Pure."""
    arrays = {array.id for array in found.arrays}
    drives = []
    for disk in found.disks.values():
        own = [array for array in found.arrays if any(member.disk == disk.name for member in array.members)]
        others = [holder for holder in disk.holders if holder not in arrays]
        if others or disk.mounted or disk.boot_medium or disk.removable or disk.read_only or not disk.size_bytes:
            continue
        if disk.transport in ("usb", "loop") and not own:
            continue
        faulty = any(member.faulty for array in own for member in array.members if member.disk == disk.name)
        drives.append(
            RaidDrive(
                id=disk.name,
                controller=CONTROLLER,
                name=disk.model,
                serial=disk.serial,
                media=None if disk.rotational is None else (Media.HDD if disk.rotational else Media.SSD),
                size_bytes=disk.size_bytes,
                state="failed" if faulty else ("online" if own else "ready"),
                volumes=[array.id for array in own],
            )
        )
    controller = RaidController(
        id=CONTROLLER,
        name="Linux software RAID",
        model="md",
        levels=[] if unsuitable else list(_LEVELS.values()),
        unsuitable=unsuitable,
    )
    volumes = [array.volume() for array in found.arrays]
    return RaidReading(controllers=[controller], drives=drives, volumes=volumes, unread=list(found.unread))


def _superblocks(host: Host, disks: Sequence[Disk]) -> tuple[dict[str, tuple[str, MdSuperblock]], list[str]]:
    """Member name → its disk and superblock."""
    found: dict[str, tuple[str, MdSuperblock]] = {}
    unread = []
    for disk in disks:
        if not disk.size_bytes or disk.removable:
            continue
        for name in (disk.name, *(part.name for part in disk.partitions)):
            try:
                block = _superblock(str(host.dev / name))
            except OperationError as error:
                unread.append(f"{name}: {error.message}")
                continue
            if block is not None:
                found[name] = disk.name, block
    return found, unread


def _superblock(path: str) -> MdSuperblock | None:
    with BlockDevice(path) as device:
        for place in superblock_places(device.size):
            if place >= 0 and (block := parse_superblock(device.read_bytes(place, 4096))) is not None:
                return block
    return None


def _running(host: Host, disk: Disk, disks: dict[str, Disk], blocks: dict[str, tuple[str, MdSuperblock]]) -> Array:
    base = ("block", disk.name, "md")
    members = []
    for name in host.names("block", disk.name, "slaves"):
        states = (host.text(*base, f"dev-{name}", "state") or "").split(",")
        members.append(Member(name, _disk_of(name, disks), "spare" in states, "faulty" in states))
    names = [blocks[member.name][1].name for member in members if member.name in blocks]
    degraded = host.number(*base, "degraded") or 0
    doing = host.text(*base, "sync_action")
    state = host.text(*base, "array_state") or "unknown"
    offline = state in _HALF_STOPPED
    return Array(
        id=disk.name,
        name=next((name for name in names if name), None),
        level=_WORDS.get(host.text(*base, "level") or ""),
        members=tuple(members),
        size_bytes=disk.size_bytes or None,
        running=True,
        state="offline" if offline else ("rebuilding" if doing == "recover" else "online"),
        health="critical" if offline else ("warning" if degraded else "ok"),
    )


def _disk_of(name: str, disks: dict[str, Disk]) -> str:
    return next((disk.name for disk in disks.values() if any(part.name == name for part in disk.partitions)), name)


def _stopped(array: str, members: list[tuple[Member, MdSuperblock]]) -> Array:
    block = max((block for _, block in members), key=lambda block: block.events)
    level = _LEVELS.get(block.level)
    complete = sum(not member.spare and not member.faulty for member, _ in members) >= block.devices
    return Array(
        id=array,
        name=block.name or None,
        level=level,
        members=tuple(member for member, _ in sorted(members, key=lambda pair: pair[0].name)),
        size_bytes=None if level is None else _size(level, block),
        running=False,
        state="offline",
        health=None if complete else "warning",
    )


def _size(level: RaidLevel, block: MdSuperblock) -> int | None:
    return capacity(level, block.devices, block.component_bytes) or None
