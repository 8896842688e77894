"""The `agent.collectLogs` command: the agent's own last log lines, as they were written, without secrets."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from agent.endings import interrupted
from agent.handlers import Answer
from drivers.driver import ProgressListener
from protocol import VERSION
from protocol.commands import Ending
from protocol.errors import Issue
from protocol.operations import Repeat
from protocol.validation import check

__all__ = ["CollectLogs", "LogCollector"]

_LARGEST_BYTES = 512 * 1024


class CollectLogs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of `agent.collectLogs`."""

    lines: Annotated[int, Meta(ge=1, le=2000)] = 500


class LogCollector:
    """Handles `agent.collectLogs`; `kept` are the lines, oldest first."""

    def __init__(self, kept: Iterable[str]) -> None:
        self._kept = kept

    def faults(self, payload: Mapping[str, object]) -> list[Issue]:
        return check(CollectLogs, payload, "payload")[1]

    def repeat(self, payload: Mapping[str, object]) -> Repeat:
        return Repeat.READ

    @contextlib.asynccontextmanager
    async def turn(self, payload: Mapping[str, object]) -> AsyncIterator["LogCollector._Work"]:
        yield self._Work(self._kept, msgspec.convert(payload, CollectLogs).lines)

    class _Work:
        def __init__(self, kept: Iterable[str], count: int) -> None:
            self._kept = kept
            self._count = count

        async def run(self, timeout: float, progress: ProgressListener) -> Answer:
            wanted = list(self._kept)[-self._count :]
            lines: list[str] = []
            size = 0
            for line in reversed(wanted):
                size += len(line.encode()) + 4
                if size > _LARGEST_BYTES:
                    break
                lines.append(line)
            lines.reverse()
            return Answer(
                {
                    "host": os.uname().nodename,
                    "version": VERSION,
                    "lines": lines,
                    "omitted": len(wanted) - len(lines),
                }
            )

        async def observe(self, timeout: float) -> Ending:
            return interrupted("agent.collectLogs")
