"""`rackwright:admission` in the address of an image that a ramdisk is to write: asked for, and put in just before.

So neither the command nor the ramdisk's journal holds what admits to the image (`protocol.image_admission`).
"""

from collections.abc import Callable

from agent.tickets import Tickets
from protocol.commands import DriverInvoke
from protocol.image_admission import admitted, checksum_of
from protocol.secret import Secret

__all__ = ["SiteImages"]

_WRITE = "deploy.writeImage"
_PATIENCE = 60.0


class SiteImages:
    """A ramdisk's. `learn`: is told what must never be shown."""

    def __init__(self, tickets: Tickets, learn: Callable[[Secret], None]) -> None:
        self._tickets = tickets
        self._learn = learn

    async def arguments(self, invoke: DriverInvoke) -> dict[str, object]:
        """The operation's arguments as its driver is to have them. Raises OperationError as `Tickets.admission`."""
        image = invoke.args.get("image")
        address = image.get("url") if isinstance(image, dict) and invoke.operation_id == _WRITE else None
        checksum = checksum_of(address) if isinstance(address, str) else None
        if not isinstance(image, dict) or not isinstance(address, str) or checksum is None:
            return invoke.args
        admission = await self._tickets.admission("", checksum, patience=_PATIENCE)
        self._learn(admission)
        return invoke.args | {"image": {**image, "url": admitted(address, admission.reveal())}}
