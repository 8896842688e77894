"""A machine that was just started has not shown all its devices: a disk behind a slow controller comes seconds after
the agent, and an inventory, an erasure or a choice by hints that was made before would miss it.

The ramdisk's first process keeps a file for as long as it is still looking (`ramdisk/image/files/init`).
"""

import asyncio
import os

from drivers.driver import Call
from drivers.linux.host import Host

__all__ = ["settled"]

_MOST_SECONDS = 60.0
_LOOK_SECONDS = 0.5
_WAITING = "waiting until the machine has shown all its devices"


async def settled(host: Host, call: Call) -> None:
    """Waits while the machine is still finding its devices, for a minute at the most: then it goes on with what is
    there, and says so in the progress. Returns at once on an installed system, which has no such file.

    Raises OperationError TIMEOUT where the call's own time ends before; nothing was begun then.
    """
    if not _settling(host):
        return
    call.progress(_WAITING, None)
    loop = asyncio.get_running_loop()
    until = loop.time() + _MOST_SECONDS
    while _settling(host):
        if loop.time() >= until:
            call.progress(f"going on: after {_MOST_SECONDS:.0f} s the machine still looks for devices", None)
            return
        await call.sleep(_LOOK_SECONDS, _WAITING)


def _settling(host: Host) -> bool:
    return os.path.exists(host.devices_settling)
