"""The node spec that this host was told to have, kept in the state folder, and applied.

It is stored first, so that a restarted agent goes on with it; the control plane hears that it is held only when the
host is as it says. Until then it is sent again, and tried again: what was missing may have come meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
import structlog

from agent.files import write_durably
from protocol.errors import Issue
from protocol.frames import AgentFrame, ErrorFrame, NodeSpec, NodeSpecApplied

__all__ = ["Applies", "SpecKeeper", "store_only"]

_log = structlog.get_logger("agent.node_spec")
_MOST_FAULTS = 20

Applies = Callable[[Mapping[str, object]], Awaitable[list[Issue]]]
"""Brings the host to a spec, and returns what could not be brought about."""


class _Stored(msgspec.Struct, frozen=True):
    generation: int
    spec: dict[str, object]
    applied: bool = True
    """Files of earlier versions, which only stored, say nothing."""


async def store_only(_spec: Mapping[str, object]) -> list[Issue]:
    """For an agent that runs on no machine of its own."""
    return []


class SpecKeeper:
    """`say` sends a frame to the control plane. After a crash the file has the old spec or the new one, whole."""

    def __init__(self, file: Path, say: Callable[[AgentFrame], None], apply: Applies = store_only) -> None:
        self._file = file
        self._say = say
        self._apply = apply
        self._stored = _read(file)
        self._wanted: NodeSpec | None = None
        self._task: asyncio.Task[None] | None = None
        self._told = ""

    @property
    def generation(self) -> int:
        """The generation that the host has; 0 where it has none, or not yet."""
        return 0 if self._stored is None or not self._stored.applied else self._stored.generation

    @property
    def spec(self) -> dict[str, object] | None:
        """What is stored; None where nothing is."""
        return None if self._stored is None else self._stored.spec

    def take(self, frame: NodeSpec) -> None:
        """Stores and applies it soon, in place of what is there. Of several that wait only the last one counts."""
        self._wanted = frame
        self._begin()

    def resume(self) -> None:
        """At the start: brings the host to what is stored, also where it was changed by others meanwhile."""
        if self._stored is not None and self._apply is not store_only:
            self._wanted = NodeSpec(generation=self._stored.generation, spec=self._stored.spec)
            self._begin()

    async def aclose(self) -> None:
        """Ends once what was taken is stored and applied, or could not be."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._take_wanted())

    async def _take_wanted(self) -> None:
        try:
            while self._wanted is not None:
                frame, self._wanted = self._wanted, None
                applies = self._apply is not store_only
                known = self._stored is not None and (self._stored.generation, self._stored.spec) == (
                    frame.generation,
                    frame.spec,
                )
                if applies and known:
                    # Nothing to store: it is tried again.
                    await self._apply_stored(frame)
                elif await self._store(_Stored(frame.generation, frame.spec, not applies)):
                    await (self._apply_stored(frame) if applies else self._tell(frame))
        finally:
            self._task = None

    async def _apply_stored(self, frame: NodeSpec) -> None:
        faults = await self._apply(frame.spec)
        if faults:
            listed = [str(fault) for fault in faults[:_MOST_FAULTS]]
            said = f"node spec {frame.generation} is not applied: {'; '.join(listed)}"
            _log.error("node_spec_not_applied", generation=frame.generation, faults=listed)
            # It comes again and again until it is: the same faults are told once.
            if said != self._told:
                self._told = said
                self._say(ErrorFrame(message=said, about="nodeSpec"))
            return
        self._told = ""
        if self.generation == frame.generation or await self._store(_Stored(frame.generation, frame.spec)):
            await self._tell(frame)

    async def _tell(self, frame: NodeSpec) -> None:
        _log.info("node_spec_applied", generation=frame.generation)
        self._say(NodeSpecApplied(generation=frame.generation))

    async def _store(self, stored: _Stored) -> bool:
        try:
            await asyncio.to_thread(write_durably, self._file, msgspec.json.encode(stored))
        except OSError as error:
            # The control plane hears nothing, and sends it again.
            _log.error("node_spec_not_stored", generation=stored.generation, reason=str(error))
            return False
        self._stored = stored
        return True


def _read(file: Path) -> _Stored | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Stored)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        _log.error("node_spec_not_readable", file=str(file), reason=str(error), hint="it is asked for again")
        return None
