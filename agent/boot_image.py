"""The ramdisk's bootable image, as `rackwright ramdisk build` left it: an ISO, what is in it, and its description.

One image serves every machine: where the description says, the machine's own ticket is laid over the image's bytes
while they are sent. Nothing is copied, and nothing on the disk is changed.
"""

import hashlib
import os
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from agent.byte_serving import FileContent
from protocol.boot_ticket import AREA_SIZE, decode_area
from protocol.errors import ErrorCode, OperationError

__all__ = ["BootImage", "BootImages", "overlaid"]

Bytes = bytes | bytearray | memoryview
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=120)]


class _Description(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`<iso>.json`."""

    format: int
    version: str
    architecture: str
    area_offset: Annotated[int, Meta(ge=0)]
    area_size: int
    iso_size: Annotated[int, Meta(gt=0)]
    iso_sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    kernel: FileName
    initrd: FileName
    kernel_sha256: str | None = None
    initrd_sha256: str | None = None
    command_line: Annotated[str, Meta(pattern=r"^[\x20-\x7e]*$")] = "console=tty0"
    """Of the kernel, for loaders other than the medium's own."""


class BootImage:
    """An opened image. Its files stay readable when they are replaced by newer ones."""

    def __init__(self, description: _Description, iso: int, kernel: int, initrd: int) -> None:
        self.version = description.version
        self.sha256 = description.iso_sha256
        self.area_offset = description.area_offset
        self.command_line = description.command_line
        self.iso, self.kernel, self.initrd = iso, kernel, initrd
        self.changed_at = os.fstat(iso).st_mtime

    @classmethod
    def open(cls, path: Path) -> "BootImage":
        """Reads all of it once, to know that it is whole. Raises OperationError CONFLICT with what is wrong."""
        handles: list[int] = []
        try:
            try:
                description = msgspec.json.decode(path.read_bytes(), type=_Description)
                folder = path.parent
                names = (path.name.removesuffix(".json"), description.kernel, description.initrd)
                handles.extend(os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC) for name in names)
            except OSError as error:
                raise _unusable(path, f"{error.filename} cannot be read ({error.strerror})") from None
            except msgspec.DecodeError as error:
                raise _unusable(path, f"it does not describe an image ({error})") from None
            fault = _fault(description, handles[0]) or _loader_fault(description, *handles[1:])
            if fault is not None:
                raise _unusable(path, fault)
        except BaseException:
            for handle in handles:
                os.close(handle)
            raise
        return cls(description, *handles)

    @property
    def size(self) -> int:
        return os.fstat(self.iso).st_size

    def file(self, handle: int) -> FileContent:
        """The kernel or the initial ramdisk, to be sent."""
        status = os.fstat(handle)
        return FileContent(handle, status.st_size, status.st_mtime)

    def close(self) -> None:
        for handle in (self.iso, self.kernel, self.initrd):
            os.close(handle)


class BootImages:
    """The image at a path, opened anew where its description was replaced. Earlier ones stay open for readers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: dict[str, BootImage] = {}
        self._seen: tuple[int, int, int] | None = None
        self._newest: BootImage | None = None

    def newest(self) -> BootImage:
        """Blocks while it is read. Raises OperationError CONFLICT."""
        try:
            status = self._path.stat()
        except OSError as error:
            raise _unusable(self._path, f"it cannot be read ({error.strerror})") from None
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if self._newest is None or seen != self._seen:
            image = BootImage.open(self._path)
            self._newest = self._opened.setdefault(image.sha256, image)
            if self._newest is not image:
                image.close()
            self._seen = seen
        return self._newest

    def of(self, sha256: str) -> BootImage | None:
        """The image with this checksum, where it is the present one or was so before in this process. As `newest`."""
        return self._opened.get(sha256) or (image if (image := self.newest()).sha256 == sha256 else None)

    def close(self) -> None:
        for image in self._opened.values():
            image.close()
        self._opened.clear()
        self._newest = None


def overlaid(data: Bytes, start: int, over: bytes, offset: int) -> Bytes:
    """`data`, which stands at `start`, with the bytes of `over` that stand in it from `offset` on. Pure."""
    first, last = max(start, offset), min(start + len(data), offset + len(over))
    if first >= last:
        return data
    changed = bytearray(data)
    changed[first - start : last - start] = over[first - offset : last - offset]
    return changed


def _fault(description: _Description, iso: int) -> str | None:
    if description.format != 1:
        return f"it has format {description.format}, and this agent reads format 1: use versions that fit"
    size = os.fstat(iso).st_size
    if size != description.iso_size:
        return f"the ISO has {size} bytes, and should have {description.iso_size}"
    if description.area_size != AREA_SIZE or description.area_offset + AREA_SIZE > size:
        return "its ticket area has another size, or lies outside of the ISO"
    if _sha256(iso) != description.iso_sha256:
        return "the ISO has another checksum: it is damaged, or belongs to another description"
    try:
        if decode_area(os.pread(iso, AREA_SIZE, description.area_offset)) is not None:
            return "its ticket area holds a ticket"
    except ValueError as error:
        return f"its ticket area is not where it says: {error}"
    return None


def _loader_fault(description: _Description, kernel: int, initrd: int) -> str | None:
    pairs = (
        (description.kernel, description.kernel_sha256, kernel),
        (description.initrd, description.initrd_sha256, initrd),
    )
    wrong = [name for name, sha256, handle in pairs if sha256 is not None and _sha256(handle) != sha256]
    return f"{' and '.join(wrong)} has another checksum" if wrong else None


def _sha256(handle: int) -> str:
    digest = hashlib.sha256()
    position = 0
    while data := os.pread(handle, 1 << 20, position):
        digest.update(data)
        position += len(data)
    return digest.hexdigest()


def _unusable(path: Path, why: str) -> OperationError:
    return OperationError(
        ErrorCode.CONFLICT,
        f"the ramdisk's image {path} cannot be used: {why}. Build one (rackwright ramdisk build) and name its .json "
        "as boot.image in agent.toml",
    )
