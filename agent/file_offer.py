"""The files of this host that operations may use: those in one folder, and nothing that leads out of it."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from agent.file_server import FileServer
from protocol.errors import ErrorCode, OperationError

__all__ = ["SiteFiles"]


class SiteFiles:
    """What drivers get as `Environment.files`. A relative path counts from the folder."""

    def __init__(self, folder: Path, server: FileServer) -> None:
        self._folder = folder
        self._server = server

    def open(self, path: str) -> BinaryIO:
        """The file, open for reading. Raises OperationError INVALID_ARGUMENT for what lies outside (also by a
        symbolic link), for a device and the like, and for what is not there."""
        try:
            root = self._folder.resolve()
            real = (root / path).resolve()
        except (OSError, RuntimeError, ValueError):
            raise self._outside(path) from None
        if not real.is_relative_to(root):
            raise self._outside(path)
        try:
            # Not to wait for a pipe, and not to follow a link that was put there since.
            handle = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError as error:
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT, f"the file {path} cannot be opened on the site host: {error.strerror}"
            ) from None
        try:
            status = os.fstat(handle)
            if not Path(os.readlink(f"/proc/self/fd/{handle}")).is_relative_to(root):
                raise self._outside(path)
            if not stat.S_ISREG(status.st_mode) or not status.st_size:
                what = "is empty" if stat.S_ISREG(status.st_mode) else "is no ordinary file"
                raise OperationError(ErrorCode.INVALID_ARGUMENT, f"{path} on the site host {what}")
        except BaseException:
            os.close(handle)
            raise
        return os.fdopen(handle, "rb", buffering=0)

    async def offer(self, path: str, name: str, lifetime: float, *, reached_by: str) -> str:
        """An address under which the BMC `reached_by` can fetch it. Raises OperationError as `open` does, and
        CONFLICT where nothing can listen."""
        with self.open(path) as file:
            return await self._server.offer(file, name, lifetime, reached_by=reached_by)

    async def withdraw(self, url: str) -> None:
        await self._server.withdraw(url)

    async def aclose(self) -> None:
        """Ends every offer."""
        await self._server.aclose()

    def _outside(self, path: str) -> OperationError:
        return OperationError(
            ErrorCode.INVALID_ARGUMENT,
            f"{path} may not be used: on the site host only files below {self._folder} may (files.dir in agent.toml)",
        )
