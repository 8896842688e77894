"""What the BMC of a virtual machine does not forget: one file, replaced as a whole with each change.

It holds passwords, as the flash of a BMC does, and only its owner may read it.
"""

import os
from pathlib import Path
from typing import Any

import msgspec

FORMAT = 1


class BmcMemoryError(ValueError):
    """The file is damaged, or of another version; the text says what to do."""


class InsertedImage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The image in the virtual drive, and how to read it. `local` is a file of the host, not a URL."""

    address: str
    local: bool = False
    user: str = ""
    password: str = ""
    verify: bool = False

    def __repr__(self) -> str:
        return f"InsertedImage(local={self.local})"


class SavedAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A login as it was changed last."""

    password: str
    role: str

    def __repr__(self) -> str:
        return f"SavedAccount(role={self.role!r})"


class BmcMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Power and boot settings, in Redfish's words, the image in the drive, the logins and the certificate."""

    format: int = FORMAT
    powered: bool = False
    restore_policy: str = "LastState"
    boot: dict[str, Any] = {}
    image: InsertedImage | None = None
    accounts: dict[str, SavedAccount] = {}
    certificate: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return f"BmcMemory(powered={self.powered})"


class BmcMemoryFile:
    """The file of one BMC. `now` is what it holds; `change` writes when something is different."""

    def __init__(self, file: Path) -> None:
        """Raises BmcMemoryError, OSError."""
        self._file = file
        self.now = read_memory(file)

    def change(self, **values: Any) -> None:
        """Replaces some values, on the disk before it returns. Raises OSError."""
        following = msgspec.structs.replace(self.now, **values)
        if following == self.now and self._file.exists():
            return
        write_private(self._file, msgspec.json.format(msgspec.json.encode(following)))
        self.now = following


def read_memory(file: Path) -> BmcMemory:
    """What the file holds; a new BMC's memory where there is none."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return BmcMemory()
    try:
        memory = msgspec.json.decode(content, type=BmcMemory)
    except msgspec.DecodeError as error:
        raise BmcMemoryError(f"{file} is damaged: {error}. Remove it to begin with a new BMC") from error
    if memory.format != FORMAT:
        raise BmcMemoryError(f"{file} has format {memory.format}, not {FORMAT}: use the version that wrote it")
    return memory


def write_private(file: Path, content: bytes) -> None:
    """Replaces a file that only its owner may read, whole and on the disk, or not at all."""
    fresh = file.with_name(f"{file.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(file)
