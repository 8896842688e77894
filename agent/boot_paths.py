"""Which paths of the boot server are good, for which machine, and how long: kept over a restart, without any ticket.

A path's token is what admits to it: 160 random bits. Its time is kept by the kernel's clock, and begins anew where
the host was booted since.
"""

import asyncio
import secrets
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import structlog

from agent.clock import Clock, Deadline, remaining_seconds
from agent.files import write_durably

__all__ = ["ImagePath", "MachinePath", "PathKind", "Paths"]

_log = structlog.get_logger("agent.boot_paths")
_ARMED_SECONDS = 7200.0
"""For so long a request for an iPXE script starts the ramdisk: longer than any machine's self-test takes."""
PathKind = Literal["media", "http", "pxe"]
"""A virtual medium, an ISO for UEFI HTTP boot, or a machine that may ask for an iPXE script."""


class MachinePath(msgspec.Struct, frozen=True, kw_only=True):
    """What one machine may start from."""

    token: str
    kind: PathKind
    node_id: str
    deadline: Deadline
    image: str = ""
    """The ISO's checksum: under this path there is never another one."""
    handed: str = ""
    """pxe, and http for one start: the id of the join token that was handed out. Once it was used, the machine has
    started."""
    asker: str = ""
    """pxe: the address or UUID by which it has asked."""


class ImagePath(msgspec.Struct, frozen=True, kw_only=True):
    """An image of an operating system, for one machine."""

    token: str
    node_id: str
    digest: str
    """`sha256-` or `sha512-` and hexadecimal digits."""
    name: str
    origin: str
    deadline: Deadline


_Path = TypeVar("_Path", MachinePath, ImagePath)


class _Stored(msgspec.Struct, frozen=True):
    machines: list[MachinePath] = []
    images: list[ImagePath] = []


class Paths:
    """The good paths. Changes are durable when the call returns."""

    def __init__(self, file: Path, clock: Clock, seconds: float) -> None:
        self._file = file
        self._clock = clock
        self._seconds = seconds
        self._lock = asyncio.Lock()
        stored = _read(file)
        self._machines = {path.token: self._of_this_boot(path, self._lifetime(path.kind)) for path in stored.machines}
        self._images = {path.token: self._of_this_boot(path, seconds) for path in stored.images}

    @property
    def is_empty(self) -> bool:
        return not self._machines and not self._images

    def machine(self, token: str) -> MachinePath | None:
        return self._good(self._machines.get(token))

    def image(self, token: str) -> ImagePath | None:
        return self._good(self._images.get(token))

    def of(self, node_id: str, kind: PathKind) -> MachinePath | None:
        """The machine's path of this kind."""
        found = (path for path in self._machines.values() if path.node_id == node_id and path.kind == kind)
        return self._good(next(found, None))

    def all_of(self, kind: PathKind) -> list[MachinePath]:
        return [path for path in self._machines.values() if path.kind == kind and self._good(path) is not None]

    def machines(self) -> list[MachinePath]:
        """Also those whose time is over."""
        return list(self._machines.values())

    async def make(self, node_id: str, kind: PathKind, image: str, handed: str = "") -> MachinePath:
        """A new path in place of the machine's earlier one of this kind."""
        path = MachinePath(
            token=secrets.token_hex(20),
            kind=kind,
            node_id=node_id,
            deadline=self._in(self._lifetime(kind)),
            image=image,
            handed=handed,
        )
        self._drop(node_id, (kind,))
        self._machines[path.token] = path
        await self._save()
        return path

    async def make_image(self, node_id: str, digest: str, name: str, origin: str, token: str) -> ImagePath:
        """The machine's path to this image, under what admits to it (`token`), its time begun anew."""
        path = ImagePath(
            token=token,
            node_id=node_id,
            digest=digest,
            name=name,
            origin=origin,
            deadline=self._in(self._seconds),
        )
        self._images[path.token] = path
        await self._save()
        return path

    async def note(self, path: MachinePath) -> None:
        """The same path with more known of it; one that was withdrawn meanwhile stays so."""
        if path.token in self._machines:
            self._machines[path.token] = path
            await self._save()

    async def withdraw(self, node_id: str, *kinds: PathKind) -> None:
        if self._drop(node_id, kinds):
            await self._save()

    def _drop(self, node_id: str, kinds: tuple[PathKind, ...]) -> bool:
        gone = [path.token for path in self._machines.values() if path.node_id == node_id and path.kind in kinds]
        for token in gone:
            del self._machines[token]
        return bool(gone)

    async def _save(self) -> None:
        """Raises OSError. What is over is left out."""
        async with self._lock:
            self._machines = {token: path for token, path in self._machines.items() if self._good(path) is not None}
            self._images = {token: path for token, path in self._images.items() if self._good(path) is not None}
            stored = _Stored(list(self._machines.values()), list(self._images.values()))
            await asyncio.to_thread(write_durably, self._file, msgspec.json.encode(stored))

    def _good(self, path: _Path | None) -> _Path | None:
        if path is None or (remaining_seconds(self._clock, path.deadline) or 0) <= 0:
            return None
        return path

    def _lifetime(self, kind: PathKind) -> float:
        return min(self._seconds, _ARMED_SECONDS) if kind == "pxe" else self._seconds

    def _in(self, seconds: float) -> Deadline:
        return Deadline(self._clock.boottime_ms() + int(seconds * 1000), self._clock.boot_id)

    def _of_this_boot(self, path: _Path, seconds: float) -> _Path:
        if remaining_seconds(self._clock, path.deadline) is not None:
            return path
        return msgspec.structs.replace(path, deadline=self._in(seconds))


def _read(file: Path) -> _Stored:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Stored)
    except FileNotFoundError:
        return _Stored()
    except (OSError, msgspec.MsgspecError) as error:
        _log.error("boot_paths_not_readable", file=str(file), reason=str(error), hint="machines are given new ones")
        return _Stored()
