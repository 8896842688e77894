"""Writes to the journal that are not given up when its disk fails: endings, and what may be forgotten."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from agent.errors import JournalError
from agent.journal import Journal
from protocol.commands import Ending

__all__ = ["Safekeeping"]

_log = structlog.get_logger("agent.safekeeping")
_RETRY_SECONDS = 5.0


class Safekeeping:
    """What could not be written is tried again in tasks made by `spawn`, until the disk takes it."""

    def __init__(
        self, journal: Journal, spawn: Callable[[Coroutine[Any, Any, None]], object], retry: float = _RETRY_SECONDS
    ) -> None:
        self._journal = journal
        self._spawn = spawn
        self._retry = retry

    async def finish(self, command_id: str, ending: Ending) -> None:
        """Durable when it returns; or told of in the log, and written later."""
        try:
            await self._journal.finish(command_id, ending)
        except JournalError as error:
            _log.error("ending_not_journalled", command=command_id, outcome=ending.outcome, reason=str(error))
            self._spawn(self._finish_later(command_id, ending))

    def forget(self, gone: list[tuple[str, Ending]]) -> None:
        """Begins to forget these. Until it is durable, a restart would report them once more, which is harmless."""
        self._spawn(self._forget(gone))

    async def _finish_later(self, command_id: str, ending: Ending) -> None:
        written = False
        while not written:
            await asyncio.sleep(self._retry)
            try:
                await self._journal.finish(command_id, ending)
                written = True
            except JournalError as error:
                _log.debug("ending_still_not_journalled", command=command_id, reason=str(error))

    async def _forget(self, gone: list[tuple[str, Ending]]) -> None:
        while True:
            try:
                await self._journal.forget(gone)
            except JournalError as error:
                _log.error("settled_not_journalled", commands=len(gone), reason=str(error))
                await asyncio.sleep(self._retry)
            else:
                return
