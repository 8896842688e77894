"""The drive of the virtual medium: an image goes in and out, whether the machine runs or not."""

import itertools
import logging
from collections.abc import Callable
from pathlib import Path

from simulators.machine.command_line import CD_DRIVE
from simulators.machine.host import Host
from simulators.machine.image import Image
from simulators.machine.nbd import Export
from simulators.machine.process import Running

log = logging.getLogger(__name__)

_SOCKET = "cd.sock"


class OpticalDrive:
    """Holds at most one image. Each start of the machine finds it there; a machine that runs sees it come and go."""

    def __init__(self, host: Host, folder: Path, on_fault: Callable[[str], None]) -> None:
        self._host = host
        self._folder = folder
        self._on_fault = on_fault
        self._export: Export | None = None
        self._numbers = itertools.count(1)
        self._node = ""

    @property
    def image(self) -> Image | None:
        """What is in the drive."""
        return self._export.image if self._export is not None else None

    async def insert(self, image: Image) -> None:
        """Puts an image in, in the place of one that is there. Raises MachineFault, OSError; then it is not in."""
        await self.eject()
        export = Export(image, self._folder, _SOCKET, self._on_fault)
        await export.start()
        self._export = export
        try:
            await self._host.between(self._show)
        except BaseException:
            self._export = None
            await export.stop()
            raise

    async def eject(self) -> None:
        """Takes the image out, by force: what the machine reads of it just now is an error there. Idempotent."""
        export, self._export = self._export, None
        if export is not None:
            # The image goes first, so that no read of it, however slow, holds up what follows.
            await export.stop()
            await self._host.between(self._take_out)

    async def close(self) -> None:
        """Lets go of the image once the machine is off and nothing is to run any more."""
        export, self._export = self._export, None
        if export is not None:
            await export.stop()

    async def attach(self, running: Running) -> None:
        """Gives a machine that has not begun to run what is in the drive. Raises MachineFault."""
        self._node = ""
        await self._show(running)

    async def _show(self, running: Running | None) -> None:
        if running is None or self._export is None or self._node:
            return
        node = f"medium{next(self._numbers)}"
        await running.execute(
            "blockdev-add",
            driver="raw",
            node_name=node,
            read_only=True,
            file={"driver": "nbd", "server": {"type": "unix", "path": _SOCKET}, "read-only": True},
        )
        self._node = node
        await running.execute("blockdev-open-tray", id=CD_DRIVE, force=True)
        await running.execute("blockdev-insert-medium", id=CD_DRIVE, node_name=node)
        await running.execute("blockdev-close-tray", id=CD_DRIVE)

    async def _take_out(self, running: Running | None) -> None:
        node, self._node = self._node, ""
        if running is None or not node:
            return
        await running.execute("blockdev-open-tray", id=CD_DRIVE, force=True)
        await running.execute("blockdev-remove-medium", id=CD_DRIVE)
        await running.execute("blockdev-close-tray", id=CD_DRIVE)
        await running.execute("blockdev-del", node_name=node)
