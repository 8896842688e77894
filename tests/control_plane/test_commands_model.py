"""The ledger against a model of an agent, under every mishap that Hypothesis can put together.

Frames to the agent keep their order, as on one connection, but may be doubled or lost with it; frames from it arrive
in any order, since each has a transaction of its own. Connections are cut; the agent's process dies at any point; its
disk is lost; the control plane dies between a commit and the sending of what was committed. What must hold all the
same: an act is executed once at the most, whatever was executed and reported is kept, and everything ends.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control_plane.records import SessionRow
from control_plane.store import migrate, open_store
from protocol.commands import TERMINAL, CommandState, Ending, JournalState
from protocol.operations import Repeat
from tests.control_plane.ledger import DONE, Clock, Ledger, failed, make_ledger

ACCEPTED, STARTED, FINISHED = JournalState.ACCEPTED, JournalState.STARTED, JournalState.FINISHED
ORDERS = ("enqueue", "send", "send and die", "cancel", "expire", "pass time")
AGENT_STEPS = ("connect", "take", "start", "finish", "report", "report, answer lost", "double")
MISHAPS = ("cut", "kill agent", "lose disk")
STEP = st.tuples(st.sampled_from(ORDERS + AGENT_STEPS * 3 + MISHAPS), st.integers(0, 7))


@dataclass
class ModelAgent:
    """Does what the agent's contract says, and counts what it did to the machine."""

    ledger: Ledger
    journal_id: str = "jrn_0"
    journal: dict[str, tuple[JournalState, Ending | None]] = field(default_factory=dict)
    repeats: dict[str, Repeat] = field(default_factory=dict)
    executed: Counter[str] = field(default_factory=Counter)
    reported: dict[str, Ending] = field(default_factory=dict)
    session: SessionRow | None = None
    inbox: list[tuple[str, bool]] = field(default_factory=list)
    """Frames on their way to it: a command's id, and whether the frame says that it is settled."""
    outbox: list[tuple[str, JournalState, Ending | None]] = field(default_factory=list)
    lives: int = 0

    async def connect(self) -> None:
        """Hello and welcome. What an old connection still carried to the agent is gone with it."""
        held = {command_id: state for command_id, (state, _) in self.journal.items()}
        self.session, resume = await self.ledger.connect(held, journal=self.journal_id)
        self.inbox = [(row.id, False) for row in resume.send]
        for command_id in resume.forget:
            if self.journal.get(command_id, (None,))[0] in (ACCEPTED, FINISHED):
                del self.journal[command_id]
        for command_id, (state, ending) in self.journal.items():
            if state is FINISHED:
                self.outbox.append((command_id, FINISHED, ending))

    def take(self) -> None:
        """The next frame: a new command is made durable, a known one is answered from the journal."""
        if not self.inbox:
            return
        command_id, settled = self.inbox.pop(0)
        if settled:
            self.journal.pop(command_id, None)
            return
        state, ending = self.journal.setdefault(command_id, (ACCEPTED, None))
        self.outbox.append((command_id, state, ending))

    def start(self, choice: int) -> None:
        waiting = [command_id for command_id, (state, _) in self.journal.items() if state is ACCEPTED]
        if waiting:
            command_id = waiting[choice % len(waiting)]
            self.journal[command_id] = (STARTED, None)
            self.executed[command_id] += 1
            self.outbox.append((command_id, STARTED, None))

    def finish(self, choice: int) -> None:
        running = [command_id for command_id, (state, _) in self.journal.items() if state is STARTED]
        if running:
            self._end(running[choice % len(running)], DONE)

    def kill(self) -> None:
        """The process dies and comes back: what was under way is settled by its kind, never repeated blindly."""
        self.cut()
        self.outbox.clear()
        for command_id, (state, _) in list(self.journal.items()):
            if state is STARTED:
                once = self.repeats[command_id] is Repeat.ONCE
                self._end(command_id, failed("OUTCOME_UNKNOWN") if once else DONE)

    def lose_disk(self) -> None:
        self.cut()
        self.outbox.clear()
        self.journal.clear()
        self.lives += 1
        self.journal_id = f"jrn_{self.lives}"

    def cut(self) -> None:
        self.session = None
        self.inbox.clear()

    async def report(self, choice: int, *, answered: bool) -> None:
        """A frame reaches the ledger, in any order; `answered`: the agent hears that it is settled."""
        if not self.outbox:
            return
        command_id, state, ending = self.outbox.pop(choice % len(self.outbox))
        if state is not FINISHED:
            known = {ACCEPTED: CommandState.DELIVERED, STARTED: CommandState.RUNNING}[state]
            await self.ledger.advance(command_id, known)
            return
        assert ending is not None
        await self.ledger.settle(command_id, ending)
        self.reported.setdefault(command_id, ending)
        if answered:
            self.inbox.append((command_id, True))

    def _end(self, command_id: str, ending: Ending) -> None:
        self.journal[command_id] = (FINISHED, ending)
        self.outbox.append((command_id, FINISHED, ending))


async def step(agent: ModelAgent, action: str, choice: int, ids: list[str]) -> None:
    ledger = agent.ledger
    match action:
        case "enqueue":
            repeat = list(Repeat)[choice % 3]
            row = await ledger.command(repeat, lasts_ms=300_000)
            ids.append(row.id)
            agent.repeats[row.id] = repeat
        case "send" | "send and die":
            owed = await ledger.send_owed()
            if action == "send" and agent.session is not None:
                agent.inbox += [(command_id, False) for command_id in owed]
        case "cancel" if ids:
            await ledger.cancel(ids[choice % len(ids)])
        case "expire":
            await ledger.expire()
        case "pass time":
            ledger.clock.pass_by(choice * 20_000)
        case "connect":
            await agent.connect()
        case "take" if agent.session is not None:
            agent.take()
        case "start":
            agent.start(choice)
        case "finish":
            agent.finish(choice)
        case "report" | "report, answer lost" if agent.session is not None:
            await agent.report(choice, answered=action == "report")
        case "double" if agent.outbox and agent.inbox:
            agent.outbox.append(agent.outbox[choice % len(agent.outbox)])
            agent.inbox.insert(0, agent.inbox[0])
        case "cut":
            if agent.session is not None:
                await ledger.disconnect(agent.session)
            agent.cut()
        case "kill agent":
            agent.kill()
        case "lose disk":
            agent.lose_disk()


async def settle_down(agent: ModelAgent, ids: list[str]) -> None:
    """The network holds from now on, and time goes by until everything has ended."""
    for _ in range(3):
        await agent.connect()
        for _ in range(8 * len(ids) + 8):
            agent.inbox += [(command_id, False) for command_id in await agent.ledger.send_owed()]
            agent.take()
            agent.start(0)
            agent.finish(0)
            await agent.report(0, answered=True)
    agent.ledger.clock.pass_by(3_600_000)
    await agent.ledger.expire()
    await agent.connect()
    while agent.outbox:
        await agent.report(0, answered=True)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEP, min_size=40, max_size=100))
async def test_an_act_is_executed_once_at_most_and_no_result_is_lost(
    steps: list[tuple[str, int]], tmp_path_factory: object
) -> None:
    folder: Path = tmp_path_factory.mktemp("model")  # type: ignore[attr-defined]
    clock = Clock()
    store = open_store(f"sqlite://{folder}/ledger.db", clock=clock)
    try:
        await migrate(store)
        agent = ModelAgent(await make_ledger(store, clock))
        ids: list[str] = []
        for action, choice in [("enqueue", 2), ("connect", 0), *steps]:
            await step(agent, action, choice, ids)
            doubled = {i for i, times in agent.executed.items() if times > 1 and agent.repeats[i] is Repeat.ONCE}
            assert not doubled
        await settle_down(agent, ids)
        for command_id in ids:
            row = await agent.ledger.row(command_id)
            assert row.state in TERMINAL
            assert agent.repeats[command_id] is not Repeat.ONCE or agent.executed[command_id] <= 1
            if command_id in agent.reported:
                # What the agent said is the ending, or stands beside the ending that was given before it spoke.
                assert agent.reported[command_id] in (row.ending, row.late_ending)
            if row.state is CommandState.EXPIRED:
                assert agent.executed[command_id] == 0
    finally:
        await store.close()
