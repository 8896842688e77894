"""A machine that is a folder: its /sys, /proc and /dev, with disks that are files."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from drivers.driver import Call
from drivers.linux.disks import Disk, read_disks
from drivers.linux.host import Host, Ran
from protocol.errors import ErrorCode, OperationError

__all__ = ["FakeHost", "Machine", "call", "vpd_of_ata"]

Program = Callable[[tuple[str, ...]], Ran]


@dataclass(frozen=True)
class FakeHost(Host):
    """Programs are functions of the test, by name; a program without one is not installed."""

    programs: dict[str, Program] = field(default_factory=dict)
    ran: list[tuple[str, ...]] = field(default_factory=list)

    def has(self, program: str) -> bool:
        return program in self.programs

    async def run(self, *words: str, timeout: float, given: bytes | None = None) -> Ran:
        self.ran.append(words)
        if words[0] not in self.programs:
            raise OperationError(ErrorCode.UNSUPPORTED, f"{words[0]} is not installed here")
        return self.programs[words[0]](words)


class Machine:
    """`folder`: of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = FakeHost(
            folder / "sys",
            folder / "proc",
            folder / "dev",
            folder / "state",
            devices_settling=folder / "devices-settling",
        )
        for place in (self.host.sys / "block", self.host.proc / "self", self.host.dev):
            place.mkdir(parents=True)

    def write(self, path: str, value: str | bytes) -> None:
        """One attribute below /sys."""
        place = self.host.sys / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(value if isinstance(value, bytes) else f"{value}\n".encode())

    def add_disk(
        self,
        name: str,
        size: int,
        *,
        device: str = "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0",
        **attributes: str | bytes,
    ) -> Path:
        """A disk of so many bytes, all zeros, and its file. Attributes are paths below the disk, `__` for `/`."""
        real = self.host.sys / "devices" / device / "block" / name
        real.mkdir(parents=True)
        (self.host.sys / "block" / name).symlink_to(real)
        base = {"size": str(size // 512), "removable": "0", "ro": "0", "queue/logical_block_size": "512"}
        base["queue/rotational"] = "0"
        given = {key.replace("__", "/"): value for key, value in attributes.items()}
        for path, value in {**base, **given}.items():
            self.write(f"devices/{device}/block/{name}/{path}", value)
        file = self.host.dev / name
        with file.open("wb") as handle:
            handle.truncate(size)
        return file

    def mount(self, number: str, place: str, source: str = "/dev/x") -> None:
        """One line of mountinfo: a device number that is mounted."""
        with (self.host.proc / "self" / "mountinfo").open("a") as file:
            file.write(f"30 1 {number} / {place} rw,relatime - ext4 {source} rw\n")

    def disk(self, name: str) -> Disk:
        return next(disk for disk in read_disks(self.host) if disk.name == name)

    def bytes_of(self, name: str) -> bytes:
        return (self.host.dev / name).read_bytes()


def call(operation: str = "deploy.writeImage", seconds: float = 50.0) -> Call:
    """A call with so much time, whose progress is kept in `call.observed`."""
    return Call(operation, asyncio.get_running_loop().time() + seconds)


def vpd_of_ata(*, model: str, serial: str, firmware: str = "", wwn: int = 0, rotation: int = 1) -> bytes:
    """The ATA Information page of a drive, as /sys has it."""
    data = bytearray(512)
    for place, size, word in ((20, 20, serial), (46, 8, firmware), (54, 40, model)):
        padded = word.ljust(size).encode()
        data[place : place + size] = bytes(padded[index ^ 1] for index in range(size))
    data[174:176] = (0x4100).to_bytes(2, "little")
    for index in range(4):
        data[216 + 2 * index : 218 + 2 * index] = (wwn >> 16 * (3 - index) & 0xFFFF).to_bytes(2, "little")
    data[434:436] = rotation.to_bytes(2, "little")
    return bytes([0, 0x89, 2, 0x38]) + bytes(56) + bytes(data)


def is_root() -> bool:
    return os.geteuid() == 0
