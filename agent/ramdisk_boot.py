"""`rackwright:ramdisk` in an operation on a BMC: a real address goes to the BMC, and the word comes back.

So neither a command nor a result, a log or an error holds an address under which a machine's ticket can be fetched.
"""

from typing import Any

from agent.boot_server import BootServer
from drivers.concealment import conceal
from drivers.driver import ProgressListener
from drivers.masking import masked
from protocol.addresses import Address
from protocol.boot_ticket import RAMDISK_IMAGE
from protocol.commands import DriverInvoke
from protocol.errors import OperationError

__all__ = ["RamdiskBoot"]

_INSERT, _EJECT, _SET_DEVICE = "virtual-media.insertMedia", "virtual-media.ejectMedia", "boot.setBootDevice"
_SHOWS_ADDRESSES = frozenset({"virtual-media", "boot"})
_OTHER_DEVICES = frozenset({"disk", "none"})
"""A machine that is to start from these is not to start its ramdisk over the network any more."""


class RamdiskBoot:
    """One site's."""

    def __init__(self, server: BootServer, *, has_image: bool) -> None:
        self._server = server
        self._has_image = has_image

    async def arguments(self, invoke: DriverInvoke) -> dict[str, object]:
        """The operation's arguments as its driver is to have them. Raises OperationError CONFLICT or UNREACHABLE."""
        node_id, args = invoke.target_node_id, invoke.args
        host = Address.parse(invoke.target.address).host if invoke.target is not None else ""
        if invoke.operation_id == _INSERT and args.get("image") == RAMDISK_IMAGE:
            return args | {"image": await self._server.offer_medium(node_id, "media", reached_by=host)}
        if invoke.operation_id == _SET_DEVICE and args.get("httpBootUri") == RAMDISK_IMAGE:
            # Firmware shows the address on its console, and keeps it where the next system can read it.
            once = not args.get("persistent", False)
            return args | {
                "httpBootUri": await self._server.offer_medium(node_id, "http", reached_by=host, once=once)
            }
        if invoke.operation_id == _SET_DEVICE and args.get("device") == "pxe" and self._has_image:
            await self._server.arm_ipxe(node_id)
        return args

    async def succeeded(self, invoke: DriverInvoke) -> None:
        """What the machine can not start from any more is not given to it any more."""
        if invoke.operation_id == _EJECT:
            await self._server.media.withdraw(invoke.target_node_id, "media")
        elif invoke.operation_id == _SET_DEVICE and invoke.args.get("device") in _OTHER_DEVICES:
            await self._server.media.withdraw(invoke.target_node_id, "http", "pxe")

    def shown(self, invoke: DriverInvoke, result: dict[str, object]) -> dict[str, object]:
        """The result without any address of a medium."""
        if invoke.concern not in _SHOWS_ADDRESSES:
            return result
        shown: dict[str, object] = self._hidden(invoke.target_node_id, result)
        return shown

    def telling(self, progress: ProgressListener) -> ProgressListener:
        """The same listener, told of no medium's address: some of the words are the BMC's own."""
        return lambda message, percent: progress(masked(message, *self._server.media.secrets()), percent)

    def conceal(self, error: OperationError) -> None:
        """Takes the addresses out of a failure: many BMCs repeat one that they cannot use or fetch."""
        conceal(error, *self._server.media.secrets())

    def _hidden(self, node_id: str, value: Any) -> Any:
        if isinstance(value, str):
            return self._server.media.hidden(node_id, value)
        if isinstance(value, list):
            return [self._hidden(node_id, item) for item in value]
        if isinstance(value, dict):
            return {name: self._hidden(node_id, item) for name, item in value.items()}
        return value
