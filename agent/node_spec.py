"""The node spec that this host was told to have, kept in the state folder.

It is stored before the control plane hears that it is held. Keeping it is all that is done here: bringing the host to
it is the daemon role's work, which reads it from this file.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from agent.files import write_durably
from protocol.frames import AgentFrame, NodeSpec, NodeSpecApplied

__all__ = ["SpecKeeper"]

_log = structlog.get_logger("agent.node_spec")


class _Stored(msgspec.Struct, frozen=True):
    generation: int
    spec: dict[str, object]


class SpecKeeper:
    """`say` sends a frame to the control plane. After a crash the file has the old spec or the new one, whole."""

    def __init__(self, file: Path, say: Callable[[AgentFrame], None]) -> None:
        self._file = file
        self._say = say
        self._stored = _read(file)
        self._wanted: NodeSpec | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def generation(self) -> int:
        """The generation that is stored; 0 where there is none."""
        return 0 if self._stored is None else self._stored.generation

    @property
    def spec(self) -> dict[str, object] | None:
        """What is stored; None where nothing is."""
        return None if self._stored is None else self._stored.spec

    def take(self, frame: NodeSpec) -> None:
        """Stores it soon, in place of what is there. Of several that wait only the last one counts."""
        self._wanted = frame
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._store_wanted())

    async def aclose(self) -> None:
        """Ends once what was taken is stored, or could not be."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _store_wanted(self) -> None:
        try:
            while self._wanted is not None:
                frame, self._wanted = self._wanted, None
                stored = _Stored(frame.generation, frame.spec)
                try:
                    await asyncio.to_thread(write_durably, self._file, msgspec.json.encode(stored))
                except OSError as error:
                    # The control plane hears nothing, and sends it again.
                    _log.error("node_spec_not_stored", generation=frame.generation, reason=str(error))
                else:
                    self._stored = stored
                    _log.info("node_spec_stored", generation=frame.generation)
                    self._say(NodeSpecApplied(generation=frame.generation))
        finally:
            self._task = None


def _read(file: Path) -> _Stored | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Stored)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        _log.error("node_spec_not_readable", file=str(file), reason=str(error), hint="it is asked for again")
        return None
