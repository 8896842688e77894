"""One command at its machine: the wait for the lane, the durable beginning, the act (or the reading, after a crash),
and the ending that follows, whatever has interrupted it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

import structlog

from agent import endings
from agent.clock import Clock
from agent.errors import JournalError
from agent.handlers import CURRENT_COMMAND, Handler, Work
from agent.journal import Journal
from agent.live_command import LiveCommand, Over, Phase
from agent.reports import Reports
from protocol.commands import Ending, Outcome
from protocol.errors import OperationError

__all__ = ["Execution"]

_log = structlog.get_logger("agent.execution")
_OBSERVATION_SECONDS = 60.0


class Execution:
    """Carries commands out, each in a task of its own; `running` bounds those that are under way.

    `conclude` takes a command's ending. It is called while the machine's lane is still held.
    """

    def __init__(
        self,
        journal: Journal,
        handlers: Mapping[str, Handler],
        clock: Clock,
        reports: Reports,
        conclude: Callable[[LiveCommand, Ending], Awaitable[None]],
        *,
        running: int,
    ) -> None:
        self.closing = False
        """The agent stops: nothing is begun any more, and what is interrupted is left without an ending."""
        self._journal = journal
        self._handlers = handlers
        self._clock = clock
        self._reports = reports
        self._conclude = conclude
        self._slots = asyncio.Semaphore(running)

    async def carry_out(self, live: LiveCommand, *, observe: bool = False) -> None:
        """From the wait for its turn to its ending. `observe`: it was begun before this process, so nothing is done
        and its outcome is read from the machine."""
        handler = self._handlers[live.kind]
        CURRENT_COMMAND.set(live.id)
        async with contextlib.AsyncExitStack() as lane:
            try:
                work = await self._take_turn(live, handler, lane, bounded=not observe)
                if observe:
                    ending = await self._observe(live, work)
                else:
                    remaining = await self._start(live)
                    ending = await self._run(live, work, remaining)
            except Over as over:
                ending = over.ending
            except OperationError as error:
                ending = self._failed(live, error, observe)
            except Exception as error:
                _log.exception("command_failed_unexpectedly", command=live.id)
                ending = endings.agent_fault(error, begun=live.begun, repeat=live.repeat)
            await self._conclude(live, ending)

    async def _take_turn(
        self, live: LiveCommand, handler: Handler, lane: contextlib.AsyncExitStack, *, bounded: bool
    ) -> Work:
        """Holds the machine's lane, then one of the places for commands under way; in this order, so that commands
        that wait for one machine take no place from another's."""
        live.phase = Phase.WAITING
        if self.closing:
            raise asyncio.CancelledError
        live.check_cancelled()
        remaining = live.remaining(self._clock) if bounded else None
        try:
            async with asyncio.timeout(remaining):
                work = await lane.enter_async_context(handler.turn(live.payload))
                await lane.enter_async_context(self._slots)
        except TimeoutError:
            raise Over(live.too_late()) from None
        except asyncio.CancelledError as stop:
            raise Over(self._stopped(live, stop)) from None
        if bounded:
            # Time that the host slept through counts, and no timer of the loop has seen it.
            live.remaining(self._clock)
        if self.closing:
            raise asyncio.CancelledError
        return work

    async def _start(self, live: LiveCommand) -> float:
        """Durably begun; returns the seconds left."""
        if live.journalled and not live.begun:
            live.phase = Phase.STARTING
            try:
                await self._journal.start(live.id)
            except JournalError as error:
                raise Over(endings.cannot_begin(str(error))) from error
            live.check_cancelled()
        remaining = live.remaining(self._clock)
        live.begun = True
        live.phase = Phase.RUNNING
        self._reports.mark(live.id)
        return remaining

    async def _run(self, live: LiveCommand, work: Work, remaining: float) -> Ending:
        def progress(message: str, percent: float | None) -> None:
            self._reports.progress(live.id, message, percent)

        try:
            answer = await work.run(remaining, progress)
        except asyncio.CancelledError as stop:
            return self._stopped(live, stop)
        return Ending(Outcome.SUCCEEDED, result=answer.result, observed=answer.observed)

    async def _observe(self, live: LiveCommand, work: Work) -> Ending:
        try:
            return await work.observe(live.remaining_or(self._clock, _OBSERVATION_SECONDS))
        except asyncio.CancelledError as stop:
            return self._stopped(live, stop)

    def _stopped(self, live: LiveCommand, stop: asyncio.CancelledError) -> Ending:
        """The ending of a command whose work was cancelled. Raises `stop` again when the agent itself stops.

        Where the control plane wished it, the command ends and its task goes on. Where nobody did, something that
        the driver waited for was cancelled beside it, and that must not end in silence either.
        """
        task = asyncio.current_task()
        if self.closing or task is None:
            raise stop
        if not task.cancelling():
            _log.error("work_cancelled_from_within", command=live.id)
            return endings.agent_fault(stop, begun=live.begun, repeat=live.repeat)
        if live.cancel_reason is None:
            raise stop
        task.uncancel()
        return live.cancelled()

    def _failed(self, live: LiveCommand, error: OperationError, observe: bool) -> Ending:
        if observe:
            return endings.outcome_unknown(
                f"the agent stopped while this command was under way, and the machine cannot be read since "
                f"({error}): look at it, and ask again if it is still wanted"
            )
        return endings.failed(error)
