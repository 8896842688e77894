"""What became of a change that a BMC took as a task (HTTP 202): followed to its end, its own words where it failed.

The Task is read and not its monitor: reading a monitor ends the task on Lenovo XCC (metal-toolbox/bmclib). A task
that is not there any more has ended: Dell iDRAC before 5.00 drops it a minute later, others with the next restart.
What it did is then for the caller to read (cases B41, B42).
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish import messages
from drivers.redfish.answer import Answer
from drivers.redfish.document import dig, link, links, path_of, same_path
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.task_view import Stage, TaskView, is_task
from drivers.redfish.watching import HOPELESS
from protocol.errors import BmcMessage, ErrorCode, OperationError

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["Ending", "Outcome", "TaskName", "follow_task", "task_named_by", "words_about", "words_of_task"]

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 10.0
_CREATION_SECONDS = 30.0
"""How long a task may be missing that was named just now (Dell iDRAC: 404 on a job just created)."""
_SCHEDULED_SECONDS = 5.0
"""How long a task must be Scheduled until it counts as one that waits for a reset: others pass through it."""
_WAITING_SECONDS = 30.0
"""The same for New and Pending, which say less."""
_GONE_READS = 2
"""A BMC that restarts may answer 404 for a moment."""
_LOOK_SHARE, _LOOK_SECONDS = 0.1, 10.0
"""What is kept back of the operation's time, so that the caller can still look at the effect."""
_SEARCHED = 20
"""How many of the newest tasks are looked through for the one that a monitor belongs to."""
_MOST_SAID = 16_384
"""Characters of an answer's messages that are searched for a task's path."""
_TASK_PATH = re.compile(r"/(tasks|jobs|taskmonitors)/[^/]", re.IGNORECASE)
_PATH_IN_TEXT = re.compile(r"/redfish/v1/[\w./:-]*?/(?:Tasks|Jobs)/[\w.:-]*\w", re.IGNORECASE)


class Outcome(Enum):
    """How a task ended, as far as the task itself tells."""

    DONE = "done"
    FAILED = "failed"
    STAGED = "staged"
    """It waits for a reset of the host (or of what it changes)."""
    GONE = "gone"
    """It was seen or named and is no more: it ended, or was dropped. Only reading its effect can tell."""
    UNKNOWN = "unknown"
    """The answer named no task."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a task. `words`: what the BMC said in it; `percent`: as last seen."""

    outcome: Outcome
    path: str | None = None
    words: list[BmcMessage] = field(default_factory=list)
    percent: int | None = None


@dataclass(frozen=True, slots=True)
class TaskName:
    """Where an answer says that its task is to be seen; one of the two may be unknown."""

    task: str | None
    monitor: str | None = None


def task_named_by(answer: Answer | NoAnswer | None) -> TaskName | None:
    """The task that an answer names: in its body, in `Location`, or in a message; None for an answer without one.

    DSP0266 wants 202 with the monitor in `Location` and the task as body. Seen besides: no `Location` at all; the
    task in it; 200 with a job in it (Dell); a message that names the task (Supermicro).
    """
    if not isinstance(answer, Answer):
        return None
    accepted, body = answer.status == 202, answer.said()
    location = answer.headers.get("Location") or ""
    place = path_of(location) if location.strip() else None
    monitor = link(body, "TaskMonitor") if isinstance(body, dict) else None
    if place is not None and "monitor" in place.lower():
        place, monitor = None, place
    task = link(body) if isinstance(body, dict) else None
    if task is not None and not is_task(body) and (not accepted or same_path(task, answer.path)):
        task = None
    if task is None and place is not None and (accepted or _TASK_PATH.search(place)):
        task = place
    if task is None and monitor is None and not (accepted or answer.status == 200):
        return None
    if task is None and monitor is None:
        said = " ".join(f"{note.text} {' '.join(note.properties)}" for note in messages.notes_of(body))
        found = _PATH_IN_TEXT.search(said[:_MOST_SAID])
        task = found.group() if found is not None else None
    return None if task is None and monitor is None else TaskName(task, monitor)


async def follow_task(
    connection: RedfishConnection,
    answer: Answer | NoAnswer | None,
    call: Call,
    *,
    patience: float | None = None,
    staged_ends: bool = True,
    at_reset: bool = False,
) -> Ending:
    """Reads the task that `answer` names until it has ended, and tells its progress to `call`.

    Dropped connections, a busy or restarting BMC and a task that is not there yet are put up with. With `staged_ends`
    a task that waits for a reset ends the wait; without, it is waited for (a change that applies at once may be
    New or Scheduled for a while). `at_reset`: the change was ordered for the next reset, so that a task that is
    Scheduled is where it belongs, at the first look. `patience`: seconds at most; the operation's own time otherwise.
    Raises OperationError TIMEOUT with what was last seen, and what makes asking again hopeless (a refused login).
    Nothing is ever sent but reads, so following again after a crash is harmless.
    """
    name = task_named_by(answer)
    if name is None:
        return Ending(Outcome.UNKNOWN, words=_own_words(answer))
    return await _Follower(connection, name, call, patience, staged_ends, at_reset).follow()


async def words_about(
    connection: RedfishConnection, answer: Answer | NoAnswer | None, call: Call
) -> list[BmcMessage]:
    """What a BMC said of a change that it took and did not do: in the change's task, or in its answer."""
    return (await words_of_task(connection, answer, call))[1] or _own_words(answer)


async def words_of_task(
    connection: RedfishConnection, answer: Answer | NoAnswer | None, call: Call
) -> tuple[bool, list[BmcMessage]]:
    """Whether the task of an answer has failed, and what it says, by one look at it."""
    name = task_named_by(answer)
    if name is None or name.task is None:
        return False, []
    try:
        document = await connection.find(name.task, call)
    except OperationError:
        return False, []
    if document is None:
        return False, []
    view = TaskView.of(document)
    return view.stage is Stage.FAILED, view.words


class _Follower:
    """One task under watch."""

    def __init__(
        self,
        connection: RedfishConnection,
        name: TaskName,
        call: Call,
        patience: float | None,
        staged_ends: bool,
        at_reset: bool,
    ) -> None:
        self._connection = connection
        self._call = call
        self._staged_ends = staged_ends
        self._scheduled_seconds = 0.0 if at_reset else _SCHEDULED_SECONDS
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()
        self._until = call.deadline - min(_LOOK_SECONDS, call.remaining * _LOOK_SHARE)
        if patience is not None:
            self._until = min(self._until, self._started + patience)
        self._monitor = name.monitor
        self._task = name.task
        self._guesses = [] if name.task else _tasks_of_monitor(name.monitor or "")
        self._searched = name.task is not None
        self._view: TaskView | None = None
        self._unread: OperationError | None = None
        self._missing = 0
        self._idle: tuple[Stage, float] | None = None
        self._told: tuple[str, int | None] | None = None

    @property
    def _path(self) -> str | None:
        return self._task or self._monitor

    async def follow(self) -> Ending:
        pause = _FIRST_PAUSE
        while True:
            ending = await self._look()
            if ending is not None:
                return ending
            left = self._until - self._clock()
            if left <= 0:
                raise self._too_long()
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    async def _look(self) -> Ending | None:
        """One look; the ending where this one tells it."""
        try:
            answer = await self._read()
        except Refused as refused:
            if refused.code in HOPELESS and not refused.absent:
                raise
            self._unread = refused
            return self._of_failed_monitor(refused)
        except OperationError as error:
            if error.code in HOPELESS:
                raise
            self._unread = error
            return None
        if answer is None:
            return self._of_missing()
        self._missing, self._unread = 0, None
        body = answer.said()
        if self._task is None and answer.status != 202 and not is_task(body):
            # A monitor that answers with what the change itself answers: the task has ended well.
            return Ending(Outcome.DONE, self._path, _own_words(answer), 100)
        return self._of_view(TaskView.of(body if isinstance(body, dict) else {}))

    def _of_view(self, view: TaskView) -> Ending | None:
        self._view = view
        if (view.says, view.percent) != self._told:
            self._told = (view.says, view.percent)
            self._call.progress(view.says, view.percent)
        if view.stage is Stage.DONE:
            return self._ending(Outcome.DONE)
        if view.stage is Stage.FAILED:
            return self._ending(Outcome.FAILED)
        now = self._clock()
        if view.stage is Stage.RUNNING:
            self._idle = None
        elif self._idle is None or self._idle[0] is not view.stage:
            self._idle = (view.stage, now)
        if self._idle is not None and self._staged_ends:
            enough = self._scheduled_seconds if view.stage is Stage.SCHEDULED else _WAITING_SECONDS
            if now - self._idle[1] >= enough:
                return self._ending(Outcome.STAGED)
        return None

    def _of_missing(self) -> Ending | None:
        """Nothing answers for the task: it ended, or it is not there yet."""
        self._missing += 1
        if self._view is not None:
            return self._ending(Outcome.GONE) if self._missing >= _GONE_READS else None
        if self._clock() - self._started < _CREATION_SECONDS:
            return None
        return self._ending(Outcome.GONE)

    def _of_failed_monitor(self, refused: Refused) -> Ending | None:
        """A monitor ends with the change's own answer, so also with its error (DSP0266, asynchronous operations)."""
        if self._task is None and refused.notes and not refused.transient:
            return Ending(Outcome.FAILED, self._path, list(refused.bmc))
        return None

    def _ending(self, outcome: Outcome) -> Ending:
        view = self._view
        return Ending(outcome, self._path, view.words if view else [], view.percent if view else None)

    async def _read(self) -> Answer | None:
        """The answer for the task, by whatever leads to it; None where it is not there."""
        if self._task is None:
            await self._find_task()
        for path in self._spellings(self._task):
            answer = await self._read_if_there(path)
            if answer is not None:
                # Raises Refused for an error that was sent as a success.
                self._connection.document_of(answer)
                self._task = path
                return answer
        if self._task is None or self._view is None:
            for path in self._spellings(self._monitor):
                answer = await self._read_if_there(path)
                if answer is not None:
                    body = answer.said()
                    self._monitor, self._task = path, link(body) if is_task(body) else None
                    return answer
        return None

    async def _read_if_there(self, path: str) -> Answer | None:
        try:
            return await self._connection.read(path, self._call, patience=0)
        except Refused as refused:
            if refused.status not in (404, 405, 410):
                raise
            return None

    def _spellings(self, path: str | None) -> list[str]:
        """The path, and as long as nothing was seen there also with its slash at the end taken off or put on."""
        if path is None:
            return []
        other = path.rstrip("/") if path.endswith("/") else f"{path}/"
        return [path] if self._view is not None else [path, other]

    async def _find_task(self) -> None:
        """The task that a monitor belongs to: by the usual forms of its path, else among the newest tasks."""
        while self._guesses:
            guess = self._guesses.pop(0)
            if is_task(await self._connection.find(guess, self._call)):
                self._task = guess
                return
        if self._searched or self._monitor is None:
            return
        self._searched = True
        service = await self._connection.find(link(await self._connection.root(self._call), "Tasks"), self._call)
        collection = await self._connection.find(link(service, "Tasks"), self._call)
        for path in reversed(links(dig(collection, "Members"))[-_SEARCHED:]):
            document = await self._connection.find(path, self._call)
            monitor = link(document, "TaskMonitor")
            if monitor is not None and same_path(monitor, self._monitor):
                self._task = path
                return

    def _too_long(self) -> OperationError:
        view, seconds = self._view, self._clock() - self._started
        if view is None:
            seen = f"it could not be read ({self._unread.message})" if self._unread else "it was not there to be read"
        else:
            percent = "" if view.percent is None else f", {view.percent} % done"
            seen = f"it was last seen {view.state or 'without a state'}{percent}"
        details: dict[str, object] = {"task": self._path}
        if view is not None:
            details |= {"state": view.state, "percent": view.percent}
        return OperationError(
            ErrorCode.TIMEOUT,
            f"the task {self._path} had not ended after {seconds:.0f} s: {seen}. Read its effect before repeating",
            bmc=view.words if view is not None else [],
            details=details,
        )


def _tasks_of_monitor(monitor: str) -> list[str]:
    """The task that a monitor's path is usually made from: `…/TaskMonitors/5`, `…/Tasks/5/Monitor`."""
    path = monitor.rstrip("/")
    parent, _, last = path.rpartition("/")
    if "monitor" in last.lower():
        return [parent] if _TASK_PATH.search(parent) else []
    swapped = re.sub(r"/TaskMonitors?/", "/Tasks/", path, flags=re.IGNORECASE)
    return [swapped] if swapped != path else []


def _own_words(answer: Answer | NoAnswer | None) -> list[BmcMessage]:
    """What an answer itself says beyond yes."""
    if not isinstance(answer, Answer):
        return []
    return [said for said in messages.bmc_messages(messages.notes_of(answer.said())) if not _is_assent(said)]


def _is_assent(said: BmcMessage) -> bool:
    return said.id.rpartition(".")[2] in ("Success", "NoOperation", "Created")
