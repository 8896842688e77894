"""`rackwright control-plane serve`, but it dies at the Nth transaction boundary: run with N and a settings file.

Without dying it leaves the number of boundaries that it met in the file named third, when it is stopped.
"""

import asyncio
import os
import sys
from pathlib import Path

import uvloop

from control_plane import server
from control_plane.config import load
from control_plane.store import Store, open_store
from control_plane.store.crash import CrashingStore


class DyingStore(CrashingStore):
    """Ends the process where a `CrashingStore` raises: no handler runs, no socket is closed in good order."""

    def _live(self) -> None:
        if self.crashed:
            os._exit(137)


def main() -> None:
    at, config, count = sys.argv[1:]
    stores: list[DyingStore] = []

    def open_dying(url: str) -> Store:
        stores.append(DyingStore(open_store(url), at=int(at) if at != "never" else None))
        return stores[-1]

    vars(server)["open_store"] = open_dying
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.serve(load(Path(config))))
    Path(count).write_text(str(stores[-1].boundaries))


if __name__ == "__main__":
    main()
