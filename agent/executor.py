"""Does each command at most once, whatever the order in which frames, cuts and crashes come.

A command's id is looked up first, always: a known one is answered with what came of it and never done again. A new
one goes through

    admitting ──► waiting ──► starting ──► running ──► finishing ──► ended ──► (settled: gone)
                     │            │            │
                     └────────────┴────────────┴──► ended, when it is cancelled or its time runs out

and every arrow that the control plane may rely on is durable in the journal first: `accepted` before it is answered,
`started` before the machine is touched, the ending before it is reported and before the machine's lane is given on.

Commands that only read (`Repeat.READ`) are not journalled. If the agent dies, the control plane finds them missing in
the next hello and sends them again; reading twice is harmless, so a durable promise to read only once buys nothing,
and a sweep of 500 machines costs no disk writes. They are held in memory until settled, so a repeated id is still
answered and not read twice while the process lives.

Where the journal cannot be written (a full disk), nothing new is begun: a command is rejected, or fails before its
first act. The ending of an act already done is then reported all the same, from memory, and written as soon as the
disk allows: holding it back could only lose it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

import structlog

from agent import endings
from agent.clock import Clock
from agent.errors import JournalError
from agent.execution import Execution
from agent.handlers import Handler
from agent.journal import Entry, Journal
from agent.live_command import CANCELLABLE, LiveCommand, Phase, new_deadline
from agent.recovery import Step, plan
from agent.reports import Reports
from agent.safekeeping import Safekeeping
from protocol.commands import Ending, JournalState, payload_faults
from protocol.errors import Issue
from protocol.frames import Accepted, AgentFrame, Command, Finished, Held, Started
from protocol.ids import is_id
from protocol.operations import Repeat

__all__ = ["Executor"]

_log = structlog.get_logger("agent.executor")
_OVERTAKEN_CANCELS = 1024


class Executor:
    """Takes frames from the link without ever making it wait, and keeps `reports` of what to tell.

    `limit` bounds the commands held at a time, `running` those under way; a busy machine holds up only its own.
    `clean` takes secrets out of an ending, `clean_text` out of what is said before it, in case a machine repeats one.
    """

    def __init__(
        self,
        journal: Journal,
        handlers: Mapping[str, Handler],
        clock: Clock,
        *,
        role: str = "site",
        clean: Callable[[Ending], Ending] = lambda ending: ending,
        clean_text: Callable[[str], str] = str,
        limit: int = 10_000,
        running: int = 1_000,
    ) -> None:
        self._journal = journal
        self._handlers = handlers
        self._clock = clock
        self._role = role
        self._clean = clean
        self._limit = limit
        self._live: dict[str, LiveCommand] = {}
        self._cancelled_early: dict[str, str] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._awaited: dict[str, asyncio.Event] = {}
        self._safekeeping = Safekeeping(journal, self._spawn)
        self.reports = Reports(self._frame_of, clean_text)
        self._execution = Execution(journal, handlers, clock, self.reports, self._conclude, running=running)

    # What the link asks

    async def note_session(self, session_id: str) -> None:
        """Makes the session durable in the journal. Raises JournalError."""
        await self._journal.note_session(session_id)

    def held(self) -> list[Held]:
        """Every command that a hello names, also one whose acceptance is still on its way to the disk: the control
        plane takes a command that is missing here for one that never arrived, and may end it on its own."""
        return [Held(live.id, live.state) for live in self._live.values()]

    def report_endings(self) -> None:
        """After a welcome: every ending that was not settled is told again."""
        for live in self._live.values():
            if live.phase is Phase.ENDED:
                self.reports.mark(live.id)

    def counts(self) -> dict[str, int]:
        """How many commands are held, by state."""
        result = dict.fromkeys((state.value for state in JournalState), 0)
        for live in self._live.values():
            result[live.state.value] += 1
        return result

    # What the control plane sends

    def command(self, frame: Command) -> None:
        """A command: new, repeated, or too late. Its answer comes through the reports."""
        live = self._live.get(frame.id)
        if live is not None:
            self._repeated(live, frame)
            return
        if self._execution.closing:
            return
        if len(self._live) >= self._limit:
            self.reports.say(Finished(id=frame.id, ending=endings.no_room(self._limit)))
            return
        issues = self._faults(frame)
        handler = self._handlers.get(frame.kind)
        repeat = Repeat.ONCE if handler is None or issues else handler.repeat(frame.payload)
        live = LiveCommand(
            frame.id,
            frame.kind,
            frame.payload,
            repeat,
            new_deadline(self._clock, frame.remaining_ms),
            Phase.ADMITTING,
            journalled=repeat is not Repeat.READ,
        )
        live.cancel_reason = self._cancelled_early.pop(frame.id, None)
        self._live[frame.id] = live
        refusal = None
        if issues:
            refusal = endings.rejected(issues)
        elif frame.remaining_ms <= 0:
            refusal = endings.expired(-frame.remaining_ms / 1000)
        if refusal is None and repeat is Repeat.READ:
            live.phase = Phase.QUEUED
            self._begin_task(live, self._execution.carry_out(live))
            # A read that gets its lane at once says `started` and nothing before it.
            asyncio.get_running_loop().call_soon(self._tell_of_waiting, live)
        else:
            self._begin_task(live, self._admit(live, frame, refusal))

    def cancel(self, command_id: str, reason: str) -> None:
        """Stops what can be stopped. A cancel that overtakes its command is remembered for a while."""
        live = self._live.get(command_id)
        if live is None:
            self._cancelled_early[command_id] = reason
            if len(self._cancelled_early) > _OVERTAKEN_CANCELS:
                del self._cancelled_early[next(iter(self._cancelled_early))]
        elif live.phase is Phase.ENDED:
            self.reports.mark(command_id)
        elif live.cancel_reason is None:
            live.cancel_reason = reason
            if live.phase is Phase.PARKED:
                self._begin_task(live, self._conclude(live, live.cancelled()))
            elif live.phase in CANCELLABLE and live.task is not None:
                live.task.cancel()

    def settled(self, ids: Iterable[str]) -> None:
        """The control plane has these endings, or wants none: they are forgotten.

        What has not begun is not begun any more; what is under way runs to its end, which nobody is told.
        """
        gone: list[tuple[str, Ending]] = []
        for command_id in ids:
            live = self._live.get(command_id)
            if live is None:
                continue
            live.settled = True
            if live.phase is Phase.ENDED and live.ending is not None:
                self._drop(live)
                if live.journalled:
                    gone.append((live.id, live.ending))
            elif not live.begun:
                self.cancel(command_id, "the control plane does not want it any more")
        if gone:
            self._safekeeping.forget(gone)

    async def until_settled(self, command_id: str, seconds: float) -> bool:
        """Returns when the control plane has the command's ending, or wants none; False when that takes longer."""
        if command_id not in self._live:
            return True
        event = self._awaited.setdefault(command_id, asyncio.Event())
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return False
        return True

    # Start and stop

    def recover(self, entries: Iterable[Entry]) -> None:
        """Takes up what the journal holds; nothing here waits for a machine."""
        in_order = sorted(entries, key=lambda entry: entry.state is JournalState.ACCEPTED)
        for entry in in_order:
            handler = self._handlers.get(entry.kind)
            repeat = Repeat.ONCE if handler is None else handler.repeat(entry.payload)
            live = LiveCommand(
                entry.id,
                entry.kind,
                entry.payload,
                repeat,
                entry.deadline,
                Phase.QUEUED,
                journalled=True,
                begun=entry.state is JournalState.STARTED,
            )
            self._live[entry.id] = live
            self._take_up(live, entry, plan(entry, repeat, self._clock))

    async def stop(self, grace: float) -> None:
        """Takes no more commands, lets changes under way end within `grace` seconds, and abandons the rest.

        What is abandoned stays in the journal as it is, for the next start to recover.
        """
        self._execution.closing = True
        finishing = []
        for live in self._live.values():
            if live.task is None or live.task.done():
                continue
            if live.phase in (Phase.QUEUED, Phase.WAITING) or not live.journalled:
                live.task.cancel()
            else:
                finishing.append(live.task)
        if finishing:
            await asyncio.wait(finishing, timeout=grace)
        await self.abandon()

    async def abandon(self) -> None:
        """Drops every task where it is. Nothing more is written or reported."""
        self._execution.closing = True
        tasks = [task for task in self._background if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # One command's life

    def _faults(self, frame: Command) -> list[Issue]:
        handler = self._handlers.get(frame.kind)
        if handler is None:
            does = ", ".join(self._handlers)
            return [Issue("kind", f"this agent, of role {self._role}, does not do {frame.kind!r}; it does {does}")]
        if not is_id(frame.id, "cmd"):
            return [Issue("id", "is no id of a command")]
        return payload_faults(frame.kind, frame.payload) or handler.faults(frame.payload)

    def _repeated(self, live: LiveCommand, frame: Command) -> None:
        if live.phase is Phase.PARKED:
            live.deadline = new_deadline(self._clock, frame.remaining_ms)
            live.phase = Phase.ADMITTING
            self._begin_task(live, self._redate(live))
        elif live.phase is not Phase.ADMITTING:
            self.reports.mark(live.id)

    async def _admit(self, live: LiveCommand, frame: Command, refusal: Ending | None) -> None:
        """Asks the journal, which alone knows the ids that were settled before; then takes the command in."""
        try:
            if refusal is None:
                known = await self._journal.accept(frame, live.deadline)
            else:
                known = await self._journal.recall(frame.id)
        except JournalError as error:
            _log.error("command_rejected", command=live.id, reason=str(error))
            self._end(live, refusal or endings.not_journalled(str(error)))
            return
        if known is not None:
            _log.info("command_known", command=live.id, state=known.state)
            unknown = endings.outcome_unknown("the journal has this command from before, without its ending")
            self._end(live, known.ending or unknown)
        elif refusal is not None:
            _log.info("command_refused", command=live.id, outcome=refusal.outcome, error=refusal.error)
            self._end(live, refusal)
        else:
            live.phase = Phase.WAITING
            self.reports.mark(live.id)
            await self._execution.carry_out(live)

    async def _redate(self, live: LiveCommand) -> None:
        try:
            await self._journal.redate(live.id, live.deadline)
        except JournalError as error:
            _log.error("deadline_not_journalled", command=live.id, reason=str(error))
        live.phase = Phase.WAITING
        self.reports.mark(live.id)
        await self._execution.carry_out(live)

    async def _conclude(self, live: LiveCommand, ending: Ending) -> None:
        """Makes the ending durable, then tells of it. The lane is held meanwhile, so that the journal's order is the
        machine's."""
        live.phase = Phase.FINISHING
        ending = endings.fitting(live.id, self._clean(ending), live.repeat)
        if live.journalled:
            await self._safekeeping.finish(live.id, ending)
        self._end(live, ending)

    def _end(self, live: LiveCommand, ending: Ending) -> None:
        live.ending, live.phase = ending, Phase.ENDED
        live.payload, live.task = {}, None
        self.reports.end_progress(live.id)
        if not live.settled:
            self.reports.mark(live.id)
            return
        self._drop(live)
        if live.journalled:
            self._safekeeping.forget([(live.id, ending)])

    def _drop(self, live: LiveCommand) -> None:
        self._live.pop(live.id, None)
        self.reports.drop(live.id)
        if (awaited := self._awaited.pop(live.id, None)) is not None:
            awaited.set()

    # Recovery

    def _take_up(self, live: LiveCommand, entry: Entry, step: Step) -> None:
        if step is Step.REPORT and entry.ending is not None:
            self._end(live, entry.ending)
        elif live.kind not in self._handlers:
            ending = endings.outcome_unknown(f"this version of the agent does not know {live.kind!r} any more")
            self._begin_task(live, self._conclude(live, ending))
        elif step is Step.AWAIT_WORD:
            live.phase = Phase.PARKED
        elif step is Step.EXPIRE:
            self._begin_task(live, self._conclude(live, endings.expired(0.0)))
        elif step is Step.INTERRUPT:
            self._begin_task(live, self._conclude(live, endings.interrupted(live.kind)))
        else:
            self._begin_task(live, self._execution.carry_out(live, observe=step is Step.OBSERVE))
        _log.info("command_recovered", command=live.id, step=step.name.lower())

    # Small words

    def _frame_of(self, command_id: str) -> AgentFrame | None:
        live = self._live.get(command_id)
        if live is None:
            return None
        if live.phase is Phase.ENDED and live.ending is not None:
            return Finished(id=command_id, ending=live.ending)
        return Started(id=command_id) if live.begun else Accepted(id=command_id)

    def _tell_of_waiting(self, live: LiveCommand) -> None:
        if live.phase is Phase.WAITING:
            self.reports.mark(live.id)

    def _begin_task(self, live: LiveCommand, life: Coroutine[Any, Any, None]) -> None:
        live.task = self._spawn(life)
        live.task.add_done_callback(lambda task: self._never_silent(live, task))

    def _never_silent(self, live: LiveCommand, task: asyncio.Task[None]) -> None:
        """The last resort: a fault in this module itself still gives the command an ending."""
        error = asyncio.CancelledError("stopped from within") if task.cancelled() else task.exception()
        if error is None or self._execution.closing:
            return
        _log.error("command_lost_its_task", command=live.id, exc_info=error)
        if live.phase is not Phase.ENDED:
            self._end(live, self._clean(endings.agent_fault(error, begun=True, repeat=live.repeat)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
