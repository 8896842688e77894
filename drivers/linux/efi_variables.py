"""EFI variables as Linux shows them (efivarfs), and the boot entries among them (UEFI 2.10, sections 3.1 and 10.3).

The variables are read themselves, not through efibootmgr, whose output cannot be told apart from the labels in it.
Labels are whatever a maker or another system left there: UTF-8, half a UTF-16 character, 0xFF (LP 2072336, 2015602).
"""

import contextlib
import fcntl
import os
import re
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import ErrorCode, OperationError

__all__ = ["BootEntry", "EfiVariables", "decode_entry", "device_path_of_file", "encode_entry"]

_GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
_NON_VOLATILE_BOOT_RUNTIME = 7
_ACTIVE = 1
_IMMUTABLE = 0x10
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_NAME = re.compile(r"Boot([0-9A-Fa-f]{4})-" + _GLOBAL)


@dataclass(frozen=True, slots=True)
class BootEntry:
    """EFI_LOAD_OPTION. `label`: as far as it can be read; `path`: the device path's bytes."""

    number: int
    label: str
    path: bytes
    attributes: int = _ACTIVE
    optional: bytes = b""

    @property
    def name(self) -> str:
        return f"Boot{self.number:04X}"

    @property
    def is_active(self) -> bool:
        return bool(self.attributes & _ACTIVE)


def decode_entry(number: int, data: bytes) -> BootEntry:
    """Whatever the firmware holds: a label that is no UTF-16, or has no end, is read as far as that goes. Pure."""
    attributes = int.from_bytes(data[0:4], "little")
    length = int.from_bytes(data[4:6], "little")
    rest = data[6:]
    end = next((place for place in range(0, len(rest) - 1, 2) if rest[place : place + 2] == b"\0\0"), len(rest))
    raw = rest[:end]
    body = rest[end + 2 :]
    return BootEntry(number, _label(raw), body[:length], attributes, body[length:])


def _label(raw: bytes) -> str:
    text = raw.decode("utf-16-le", errors="replace")
    # Bytes of UTF-8 that were stored as they are give Chinese characters when they are read as UTF-16.
    with contextlib.suppress(UnicodeDecodeError):
        narrow = raw.rstrip(b"\0").decode("ascii")
        if narrow.isprintable() and len(narrow) > 1:
            text = narrow
    return "".join(letter if letter.isprintable() else "�" for letter in text).strip()


def encode_entry(label: str, path: bytes, optional: bytes = b"") -> bytes:
    return struct.pack("<IH", _ACTIVE, len(path)) + label.encode("utf-16-le") + b"\0\0" + path + optional


def device_path_of_file(number: int, start: int, size: int, unique: uuid.UUID, loader: str) -> bytes:
    """A file on a GPT partition (`start`, `size` in sectors): HD(…)/File(…), as firmware writes it itself."""
    drive = struct.pack("<BBHIQQ16sBB", 4, 1, 42, number, start, size, unique.bytes_le, 2, 2)
    name = loader.replace("/", "\\").encode("utf-16-le") + b"\0\0"
    return drive + struct.pack("<BBH", 4, 4, 4 + len(name)) + name + struct.pack("<BBH", 0x7F, 0xFF, 4)


class EfiVariables:
    """The boot entries and their order. All of it blocks, shortly."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self) -> None:
        """Raises OperationError UNSUPPORTED where the machine was not started by UEFI, or hides its variables."""
        if not self._folder.parent.is_dir():
            raise OperationError(
                ErrorCode.UNSUPPORTED,
                "this machine was started by a BIOS, which has no boot entries: it starts what the disk's MBR holds",
            )
        if not self._folder.is_dir() or not any(self._folder.iterdir()):
            raise OperationError(
                ErrorCode.UNSUPPORTED,
                f"{self._folder} shows no variables: mount efivarfs there, or start without noefi",
            )

    def entries(self) -> Iterator[BootEntry]:
        """Every entry, in the order of their numbers; those that cannot be read are left out."""
        for name in sorted(os.listdir(self._folder)):
            match = _NAME.fullmatch(name)
            data = self._read(name) if match is not None else None
            if match is not None and data is not None and len(data) >= 6:
                yield decode_entry(int(match[1], 16), data)

    def numbers(self) -> set[int]:
        """Those that are taken, also by entries that cannot be read."""
        return {int(match[1], 16) for name in os.listdir(self._folder) if (match := _NAME.fullmatch(name))}

    def order(self) -> list[int]:
        data = self._read(f"BootOrder-{_GLOBAL}") or b""
        return [number for (number,) in struct.iter_unpack("<H", data[: len(data) // 2 * 2])]

    def write_order(self, order: list[int]) -> None:
        """Raises OperationError NOT_APPLIED."""
        self._write(f"BootOrder-{_GLOBAL}", struct.pack(f"<{len(order)}H", *order))

    def write_entry(self, number: int, data: bytes) -> None:
        """Raises OperationError NOT_APPLIED."""
        self._write(f"Boot{number:04X}-{_GLOBAL}", data)

    def remove_entry(self, number: int) -> None:
        """Raises OperationError NOT_APPLIED."""
        for name in sorted(os.listdir(self._folder)):
            match = _NAME.fullmatch(name)
            if match is not None and int(match[1], 16) == number:
                path = self._folder / name
                _make_mutable(path)
                try:
                    path.unlink()
                except OSError as error:
                    raise self._refused(name, error) from error

    def _read(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()[4:]
        except OSError:
            return None

    def _write(self, name: str, value: bytes) -> None:
        path = self._folder / name
        _make_mutable(path)
        data = struct.pack("<I", _NON_VOLATILE_BOOT_RUNTIME) + value
        try:
            # In one call: the kernel hands each write to the firmware as a whole variable.
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(handle, data)
                with contextlib.suppress(OSError):
                    # Where an ordinary file stands for the variable: efivarfs keeps no old end.
                    os.ftruncate(handle, len(data))
            finally:
                os.close(handle)
        except OSError as error:
            raise self._refused(name, error) from error

    def _refused(self, name: str, error: OSError) -> OperationError:
        full = " (its memory for variables is full: remove old boot entries)" if error.errno == 28 else ""
        return OperationError(
            ErrorCode.NOT_APPLIED,
            f"the firmware did not take {name.partition('-')[0]}: {error.strerror}{full}",
        )


def _make_mutable(path: Path) -> None:
    """efivarfs protects variables that are there from an `rm -rf` (Documentation/filesystems/efivarfs.rst)."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            flags = int.from_bytes(fcntl.ioctl(handle, _GET_FLAGS, bytes(8))[:4], "little")
            if flags & _IMMUTABLE:
                fcntl.ioctl(handle, _SET_FLAGS, struct.pack("<q", flags & ~_IMMUTABLE))
        finally:
            os.close(handle)
