"""What the control plane has still to be told: ids, not frames, so that it stays small on a slow or dead link.

A command that changed three times before the link could take a frame is told of once, with its latest state.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from agent.progress_news import ProgressNews
from protocol.frames import AgentFrame, Progress

__all__ = ["Reports", "Source"]

_WAITING_FRAMES = 4096
_LONGEST_PROGRESS = 1_000
"""Characters: a driver may quote what a BMC said, and a frame has its limit."""


class Source(Protocol):
    """Frames that are made when the link has room for them."""

    def take(self) -> AgentFrame | None:
        """The next one; None when there is nothing to tell."""

    def close(self) -> None:
        """A new connection begins."""


class Reports:
    """`frame_of` gives a command's latest frame, or None when there is nothing to tell of it any more. `clean` takes
    secrets out of what is said of its progress."""

    def __init__(self, frame_of: Callable[[str], AgentFrame | None], clean: Callable[[str], str] = str) -> None:
        self._frame_of = frame_of
        self._clean = clean
        self._due: dict[str, None] = {}
        self._frames: deque[AgentFrame] = deque(maxlen=_WAITING_FRAMES)
        self._wake = asyncio.Event()
        self._news = ProgressNews(self._wake.set)
        self._all_told = asyncio.Event()
        self._source: Source | None = None

    def take_from(self, source: Source) -> None:
        """After endings and before progress its frames go out; `wake` says that it has some."""
        self._source = source

    def wake(self) -> None:
        self._wake.set()

    def mark(self, command_id: str) -> None:
        """The command has changed."""
        self._due[command_id] = None
        self._wake.set()

    def progress(self, command_id: str, message: str, percent: float | None) -> None:
        """How far it is. At most one a second per command goes out: what is true then, not all that was said."""
        self._news.add(Progress(id=command_id, message=message, percent=percent))

    def say(self, frame: AgentFrame) -> None:
        """A frame that belongs to no held command. Lost when the link is, and the oldest when too many wait."""
        self._frames.append(frame)
        self._wake.set()

    def drop(self, command_id: str) -> None:
        """There is nothing more to tell of this command."""
        self._due.pop(command_id, None)
        self.end_progress(command_id)

    def end_progress(self, command_id: str) -> None:
        self._news.end(command_id)

    def clear(self) -> None:
        """A new connection begins: what was due on the old one is told anew from the executor's state."""
        self._due.clear()
        self._news.tell_anew()
        self._frames.clear()
        if self._source is not None:
            self._source.close()

    async def wait(self) -> None:
        """Returns when there may be something to take."""
        await self._wake.wait()

    def take(self) -> AgentFrame | None:
        """The next frame to send; None when all is told."""
        if self._frames:
            return self._frames.popleft()
        while self._due:
            command_id = next(iter(self._due))
            del self._due[command_id]
            frame = self._frame_of(command_id)
            if frame is not None:
                return frame
        if self._source is not None and (frame := self._source.take()) is not None:
            return frame
        if (news := self._news.take()) is not None:
            return msgspec.structs.replace(news, message=self._clean(news.message)[:_LONGEST_PROGRESS])
        self._wake.clear()
        self._all_told.set()
        return None

    async def drain(self, timeout: float) -> None:
        """Returns when what is due now has been handed to the link, or after `timeout` seconds without one."""
        if self._due or self._frames:
            self._all_told.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._all_told.wait()
