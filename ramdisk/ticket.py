"""Where this boot's ticket is: in the initial ramdisk itself, on the boot medium, or on the kernel's command line.

The first two are the site agent's doing, and are read in this order. Only what the machine cannot write is a boot
medium: whoever had the machine before could leave a disk with our label and a ticket to a control plane of his own.
The command line is for set-ups by hand: everybody on the machine can read it, so the ticket is one-time like every
other, and is dead once it was used.
"""

import contextlib
import io
import shlex
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import NamedTuple

from drivers.linux.block_device import BlockDevice
from drivers.linux.host import Host
from protocol.boot_ticket import (
    AREA_NAME,
    AREA_SIZE,
    MEDIUM_LABEL,
    TICKET_NAME,
    TICKET_WORD,
    BootTicket,
    decode_area,
    decode_word,
    from_json,
)
from protocol.errors import OperationError
from ramdisk.iso9660 import find_file, volume_label

__all__ = ["Carriers", "FoundTicket", "Look", "word_of"]


class FoundTicket(NamedTuple):
    ticket: BootTicket
    carrier: str
    """In words, such as "on the boot medium sr0"."""
    exposed: bool = False
    """It can be read by everybody on the machine."""


class Look(NamedTuple):
    """What one look at all carriers has found, and what was wrong with those that held none."""

    found: FoundTicket | None
    faults: list[str]
    refused: bool = False
    """There is only what is of no use any more."""


class Carriers:
    """`root`: of the initial ramdisk's own files."""

    def __init__(self, host: Host, root: Path = Path("/")) -> None:
        self._host = host
        self._files: dict[Path, Callable[[bytes], BootTicket | None]] = {
            root / TICKET_NAME: from_json,
            root / AREA_NAME: decode_area,
        }
        """iPXE adds the first; the medium's own boot loader hands its area over as the second, also where Linux sees
        no medium (UEFI HTTP boot)."""

    def look(self, refused: Set[str] = frozenset()) -> Look:
        """The first carrier that holds a ticket whose token is not refused. Blocking; nothing is cached, since a
        BMC's medium may change."""
        faults: list[str] = []
        dead = False
        for carrier in (self._in_the_ramdisk, self._on_media, self._on_the_command_line):
            found = carrier(faults)
            if found is not None and found.ticket.token.reveal() not in refused:
                return Look(found, faults)
            dead = dead or found is not None
        return Look(None, faults, dead)

    def wipe(self) -> None:
        """The ticket was used: its files in memory are removed. What cannot be written is dead."""
        for path in self._files:
            with contextlib.suppress(OSError):
                with path.open("r+b") as file:
                    file.write(bytes(path.stat().st_size))
                path.unlink()
                path.parent.rmdir()

    def _in_the_ramdisk(self, faults: list[str]) -> FoundTicket | None:
        for path, decode in self._files.items():
            try:
                ticket = decode(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                faults.append(f"{path}: {error}")
                continue
            if ticket is not None:
                return FoundTicket(ticket, "in the initial ramdisk")
        return None

    def _on_media(self, faults: list[str]) -> FoundTicket | None:
        for name in self._media():
            area = self._area(name)
            if area is None:
                continue
            try:
                ticket = decode_area(area)
            except ValueError as error:
                faults.append(f"the boot medium {name}: {error}")
                continue
            if ticket is not None:
                return FoundTicket(ticket, f"on the boot medium {name}")
            faults.append(f"the boot medium {name} holds no ticket: it was not made for this machine")
        return None

    def _on_the_command_line(self, faults: list[str]) -> FoundTicket | None:
        try:
            word = word_of((self._host.proc / "cmdline").read_text(errors="replace"), TICKET_WORD)
            return (
                None if word is None else FoundTicket(decode_word(word), "on the kernel's command line", exposed=True)
            )
        except (OSError, ValueError) as error:
            faults.append(f"the kernel's command line: {error}")
        return None

    def _media(self) -> Iterator[str]:
        """Optical drives first, which BMCs show; then write-protected sticks, which some show instead."""
        names = sorted(self._host.names("block"))
        yield from (name for name in names if name.startswith("sr"))
        yield from (name for name in names if not name.startswith("sr") and self._is_protected_stick(name))

    def _is_protected_stick(self, name: str) -> bool:
        return bool(self._host.number("block", name, "removable") and self._host.number("block", name, "ro"))

    def _area(self, name: str) -> bytes | None:
        """The area of our own medium; None of every other disk."""
        try:
            with BlockDevice(str(self._host.dev / name)) as device:
                medium = io.BufferedReader(_Medium(device), 1 << 16)
                if volume_label(medium) != MEDIUM_LABEL:
                    return None
                extent = find_file(medium, AREA_NAME)
                return device.read_bytes(extent.offset, AREA_SIZE)
        except (OSError, OperationError, ValueError):
            return None


class _Medium(io.RawIOBase):
    """A device past the page cache, as a file."""

    def __init__(self, device: BlockDevice) -> None:
        super().__init__()
        self._device = device
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._device.size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = min(len(buffer), max(0, self._device.size - self._place))
        if count:
            buffer[:count] = self._device.read_bytes(self._place, count)
        self._place += count
        return count


def word_of(command_line: str, name: str) -> str | None:
    """The value of the last `name=value` of a kernel command line, in quotes or not. Pure."""
    try:
        words = shlex.split(command_line)
    except ValueError:
        words = command_line.split()
    values = [word.partition("=")[2] for word in words if word.partition("=")[0] == name]
    return values[-1] if values and values[-1] else None
