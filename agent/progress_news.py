"""How far the commands under way are: what is true now, told at a pace that a link bears."""

import asyncio
from collections.abc import Callable

from protocol.frames import Progress

__all__ = ["ProgressNews"]

_SPACING = 1.0
"""Seconds between two frames of one command."""


class ProgressNews:
    """The last news of each command. What comes too soon waits, and gives way to what is newer; nothing that is still
    true stays untold. `wake` is called when there is something to take."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._last: dict[str, Progress] = {}
        self._due: dict[str, None] = {}
        self._resting: dict[str, asyncio.TimerHandle] = {}
        self._changed: set[str] = set()

    def add(self, news: Progress) -> None:
        if self._last.get(news.id) == news:
            return
        self._last[news.id] = news
        if news.id in self._resting:
            self._changed.add(news.id)
        else:
            self._make_due(news.id)

    def take(self) -> Progress | None:
        if not self._due:
            return None
        command_id = next(iter(self._due))
        del self._due[command_id]
        self._resting[command_id] = asyncio.get_running_loop().call_later(_SPACING, self._rested, command_id)
        return self._last[command_id]

    def end(self, command_id: str) -> None:
        """There is nothing more to tell of this command."""
        self._last.pop(command_id, None)
        self._due.pop(command_id, None)
        self._rest_no_more(command_id)

    def tell_anew(self) -> None:
        """A new connection begins: its other end knows nothing."""
        for command_id in list(self._resting):
            self._rest_no_more(command_id)
        self._due = dict.fromkeys(self._last)
        if self._due:
            self._wake()

    def _rested(self, command_id: str) -> None:
        changed = command_id in self._changed
        self._rest_no_more(command_id)
        if changed:
            self._make_due(command_id)

    def _rest_no_more(self, command_id: str) -> None:
        self._changed.discard(command_id)
        if (timer := self._resting.pop(command_id, None)) is not None:
            timer.cancel()

    def _make_due(self, command_id: str) -> None:
        self._due[command_id] = None
        self._wake()
