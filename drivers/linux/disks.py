"""The machine's disks as the kernel shows them, and which of them must be left alone.

What is read here decides what may be destroyed, so whatever is not understood counts as in use.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from drivers.linux.ata_identity import AtaIdentity, from_vpd
from drivers.linux.host import Host
from drivers.linux.words import real
from protocol.errors import ErrorCode, OperationError

__all__ = ["BOOT_MEDIUM_LABEL", "NEVER_MEANT", "Disk", "Part", "natural_name", "read_disks", "require_same"]

BOOT_MEDIUM_LABEL = "RACKWRIGHT"
"""The volume label of our own boot medium: whatever carries it is never written to."""
_SECTOR = 512
"""The unit of sizes and starts below /sys, whatever the disk's own are (Documentation/ABI/stable/sysfs-block)."""
_BOOT_MEDIUM, _REMOVABLE, _EMPTY = "is the medium that this machine was started from", "is removable", "has no medium"
_LABELLED = (
    f"carries the label of a boot medium ({BOOT_MEDIUM_LABEL}): if it is none, clear its first MiB by a script"
)
_BUILT_IN = ("nvme", "sata", "sas", "nvdimm")
"""What is attached this way was not put in for a start. Whoever had the machine can have written our label there, and
a release must not pass by it."""
NEVER_MEANT = frozenset({_BOOT_MEDIUM, _REMOVABLE, _EMPTY})
"""Reasons of disks that are not meant where all are."""
_NO_DISKS = ("ram", "zram", "sr", "fd", "dm-", "mtdblock", "nbd", "rbd", "drbd", "ubiblock")
_VOLUME_DESCRIPTOR = 32768
"""Where an ISO 9660 volume describes itself (ECMA-119, 6.7.1)."""


@dataclass(frozen=True, slots=True)
class Part:
    """A partition as the kernel knows it. `start` and `size` in bytes."""

    name: str
    number: int
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """One whole disk. `sector`: its logical sector in bytes."""

    name: str
    path: str
    size_bytes: int
    sector: int = 512
    serial: str | None = None
    wwn: str | None = None
    vendor: str | None = None
    model: str | None = None
    firmware: str | None = None
    transport: str | None = None
    rotational: bool | None = None
    removable: bool = False
    read_only: bool = False
    discards: bool = False
    partitions: tuple[Part, ...] = ()
    holders: tuple[str, ...] = ()
    """What stands on it or on its partitions: arrays, volume groups, multipath."""
    mounted: tuple[str, ...] = ()
    """Where it or one of its partitions is mounted; `swap` for swap space."""
    boot_medium: bool = False
    controller: str | None = None
    bay: str | None = None

    @property
    def unsuitable(self) -> str | None:
        """Why it may be neither written to nor erased; None where it may."""
        if self.boot_medium:
            return _LABELLED if self._built_in else _BOOT_MEDIUM
        if self.mounted:
            return f"is in use: mounted at {', '.join(self.mounted)}"
        if self.holders:
            return f"is in use by {', '.join(self.holders)}"
        if self.removable:
            return _REMOVABLE
        if self.read_only:
            return "is read-only"
        if self.size_bytes <= 0:
            return _EMPTY
        return None

    @property
    def in_the_way(self) -> bool:
        """One of the machine's own disks that cannot be touched now: in use, read-only, or with our label on it."""
        if self.removable or (self.boot_medium and not self._built_in):
            return False
        return bool(self.boot_medium or self.mounted or self.holders or self.read_only)

    @property
    def _built_in(self) -> bool:
        return not self.removable and self.transport in _BUILT_IN

    def partition_name(self, number: int) -> str:
        """What the kernel calls a partition: `sda2`, `nvme0n1p2`."""
        return f"{self.name}p{number}" if self.name[-1].isdecimal() else f"{self.name}{number}"

    def known_as(self) -> str:
        """For an operator: the name with what is printed on the drive."""
        label = " ".join(word for word in (self.model, self.serial) if word)
        return f"{self.name} ({label})" if label else self.name


def natural_name(name: str) -> tuple[int, str]:
    """A key that sorts `sdb` before `sdaa` and `nvme9n1` before `nvme10n1`."""
    return len(name), name


def read_disks(host: Host) -> list[Disk]:
    """Every disk, also those that are in use, in the order of their names. Blocking."""
    mounts = _mounts(host)
    found = [disk for name in host.names("block") if (disk := _disk(host, name, mounts)) is not None]
    return sorted(found, key=lambda disk: natural_name(disk.name))


def require_same(host: Host, disk: Disk) -> None:
    """That the name still is this disk's, which is held open: drives are pulled and put in, and names are given anew.
    Raises OperationError CONFLICT. Blocking."""
    now = _disk(host, disk.name, {})
    if now is None or (now.serial, now.wwn, now.size_bytes) != (disk.serial, disk.wwn, disk.size_bytes):
        shown = "nothing" if now is None else now.known_as()
        raise OperationError(
            ErrorCode.CONFLICT,
            f"{disk.name} is another disk now than when it was chosen: {shown}, not {disk.known_as()}. Nothing was "
            "done to it",
        )


def _disk(host: Host, name: str, mounts: dict[str, list[str]]) -> Disk | None:
    base = ("block", name)
    if name.startswith(_NO_DISKS) or (name.startswith("loop") and not host.loop_devices):
        return None
    # The paths of a multipath NVMe disk are hidden, and eMMC boot areas are no disks.
    if host.number(*base, "hidden") or "boot" in name or name.endswith("rpmb"):
        return None
    size = (host.number(*base, "size") or 0) * _SECTOR
    if name.startswith("loop") and not size:
        return None
    partitions = tuple(_partitions(host, name))
    holders = [*host.names(*base, "holders")]
    for part in partitions:
        holders += host.names(*base, part.name, "holders")
    mounted = [place for one in (name, *(part.name for part in partitions)) for place in mounts.get(one, [])]
    path = str(host.dev / name)
    identity = _identity(host, name)
    return Disk(
        name=name,
        path=path,
        size_bytes=size,
        sector=host.number(*base, "queue", "logical_block_size") or _SECTOR,
        serial=identity.serial,
        wwn=identity.wwn,
        vendor=identity.vendor,
        model=identity.model,
        firmware=identity.firmware,
        transport=_transport(host, name),
        rotational=None if (spins := host.number(*base, "queue", "rotational")) is None else bool(spins),
        removable=bool(host.number(*base, "removable")),
        read_only=bool(host.number(*base, "ro")),
        discards=bool(host.number(*base, "queue", "discard_max_bytes")),
        partitions=partitions,
        holders=tuple(dict.fromkeys(holders)),
        mounted=tuple(dict.fromkeys(mounted)),
        boot_medium=_is_boot_medium(path),
        controller=_controller(host, name),
        bay=host.text(*base, "device", "enclosure_device", "slot"),
    )


def _partitions(host: Host, name: str) -> Iterator[Part]:
    for entry in host.names("block", name):
        number = host.number("block", name, entry, "partition")
        if number is not None:
            start = (host.number("block", name, entry, "start") or 0) * _SECTOR
            yield Part(entry, number, start, (host.number("block", name, entry, "size") or 0) * _SECTOR)


@dataclass(frozen=True, slots=True)
class _Identity:
    vendor: str | None = None
    model: str | None = None
    serial: str | None = None
    firmware: str | None = None
    wwn: str | None = None


def _identity(host: Host, name: str) -> _Identity:
    device = ("block", name, "device")
    if name.startswith("md"):
        label = host.text("block", name, "md", "metadata_version")
        level = host.text("block", name, "md", "level")
        return _Identity("Linux", f"md {level}" if level else "md", None, label, None)
    ata = from_vpd(host.data(*device, "vpd_pg89"))
    wwn = wwn_of(host.text("block", name, "wwid") or host.text(*device, "wwid"))
    if ata is not None:
        return _Identity("ATA", real(ata.model), real(ata.serial), real(ata.firmware), wwn or _ata_wwn(ata))
    serial = host.text(*device, "serial") or host.text("block", name, "serial")
    return _Identity(
        vendor=real(host.text(*device, "vendor")) if not name.startswith("vd") else None,
        model=real(host.text(*device, "model") or (host.text(*device, "name") if name.startswith("mmc") else None)),
        serial=real(serial) or real(_vpd_serial(host.data(*device, "vpd_pg80"))),
        firmware=real(host.text(*device, "firmware_rev") or host.text(*device, "rev")),
        wwn=wwn,
    )


def _ata_wwn(ata: AtaIdentity) -> str | None:
    return None if ata.wwn is None else f"0x{ata.wwn:016x}"


def wwn_of(word: str | None) -> str | None:
    """As the inventory writes it: `0x5000c500a1b2c3d4` for an NAA name, `eui.0025385b71b0a1c2` for an EUI. None for
    names that are only put together from the model and serial number."""
    lowered = (word or "").strip().lower()
    if lowered.startswith("naa."):
        return f"0x{lowered.removeprefix('naa.')}"
    if lowered.startswith("eui.") and lowered.strip("eui.0"):
        return lowered
    return None


def _vpd_serial(page: bytes | None) -> str | None:
    """The Unit Serial Number page (SPC-4, 7.8.15)."""
    if page is None or len(page) < 4 or page[1] != 0x80:
        return None
    return page[4 : 4 + int.from_bytes(page[2:4])].decode("ascii", errors="replace")


def _transport(host: Host, name: str) -> str | None:
    if name.startswith("nvme"):
        return "nvme"
    if name.startswith("vd"):
        return "virtio"
    if name.startswith("mmcblk"):
        return "mmc"
    if name.startswith("md"):
        return "md"
    if name.startswith("pmem"):
        # The medium of UEFI HTTP boot looks like one, but has no module (ACPI 6.5, 5.2.25.2: virtual CD).
        return "nvdimm" if host.number("block", name, "device", "..", "mappings") else None
    parts = Path(os.path.realpath(host.sys / "block" / name)).parts
    if any(part.startswith("usb") and part[3:].isdecimal() for part in parts):
        return "usb"
    if any(part.startswith("ata") and part[3:].isdecimal() for part in parts):
        return "sata"
    if any(part.startswith(("end_device-", "sas_")) for part in parts):
        return "sata" if host.data("block", name, "device", "vpd_pg89") else "sas"
    if any(part.startswith("virtio") for part in parts):
        return "virtio"
    return None


def _controller(host: Host, name: str) -> str | None:
    """The PCI address of what the disk is attached to."""
    parts = Path(os.path.realpath(host.sys / "block" / name)).parts
    addresses = [part for part in parts if len(part) == 12 and part[4] == ":" and part[7] == ":" and part[10] == "."]
    return addresses[-1] if addresses else None


def _mounts(host: Host) -> dict[str, list[str]]:
    """Device name → where it is mounted. By device number, so that no name of a file system's own can mislead."""
    by_number = _device_numbers(host)
    found: dict[str, list[str]] = {}
    for line in _lines(host.proc / "self" / "mountinfo"):
        fields = line.split(" ")
        if len(fields) < 5:
            continue
        # A file system on several devices (btrfs) has a number of its own: its source names a device.
        source = line.partition(" - ")[2].split(" ")
        shown = Path(source[1]).name if len(source) > 1 and source[1].startswith("/dev/") else ""
        device = by_number.get(fields[2], shown)
        if device:
            found.setdefault(device, []).append(fields[4].replace("\\040", " "))
    for line in _lines(host.proc / "swaps")[1:]:
        device = Path(line.split()[0]).name if line.split() else ""
        if device:
            found.setdefault(device, []).append("swap")
    return found


def _device_numbers(host: Host) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in host.names("block"):
        for parts in ((name,), *((name, inner) for inner in host.names("block", name) if inner.startswith(name))):
            number = host.text("block", *parts, "dev")
            if number is not None:
                found[number] = parts[-1]
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _is_boot_medium(path: str) -> bool:
    """Whether it is our own boot medium, as a CD or copied to a stick."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        descriptor = os.pread(handle, 72, _VOLUME_DESCRIPTOR)
    except OSError:
        return False
    finally:
        os.close(handle)
    label = descriptor[40:72].decode("ascii", errors="replace").strip()
    return descriptor[1:6] == b"CD001" and label == BOOT_MEDIUM_LABEL
