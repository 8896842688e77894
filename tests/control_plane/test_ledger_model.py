"""The real ledger against a model agent, under every mishap that Hypothesis puts together.

Frames are lost, doubled, reordered, or arrive over a connection that a newer one superseded; clocks jump by hours on
the control plane's side; processes die, disks fill up, hosts are set back to a snapshot, databases to a backup. After
each step: no act was executed twice, and no ending denies what the machine saw. At last everything ends.
"""

import asyncio
import contextlib
import shutil
import sqlite3
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from control_plane.commands import list_commands
from control_plane.records import CommandRow
from control_plane.store import Store, migrate, open_store
from protocol.commands import TERMINAL, CommandState, Ending, JournalState
from protocol.operations import Repeat
from tests.control_plane.ledger import DONE, TENANT, Clock, Ledger, make_ledger
from tests.control_plane.model_agent import Disk, ModelAgent

HOUR = 3_600_000
ANY = st.integers(0, 50)


class LedgerUnderSiege(RuleBasedStateMachine):
    """One agent, one machine, one database file."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="ledger-"))
        self.clock = Clock()
        self.store: Store = open_store(f"sqlite://{self.folder}/ledger.db", clock=self.clock)
        self.runner.run(migrate(self.store))
        self.ledger: Ledger = self.runner.run(make_ledger(self.store, self.clock))
        self.agent = ModelAgent()
        self.ids: list[str] = []
        self.inbox: list[tuple[str, CommandRow | str, int]] = []
        self.snapshots: list[Disk] = [self.agent.snapshot()]
        self.backup: Path | None = None
        self.rewound = False
        """The database was set back: of what it has forgotten, only the machine's count still says something."""
        self.disk_changed = False
        """The agent's disk was lost or set back: with a database set back as well, nobody knows anything any more."""
        self.heard: dict[str, list[Ending]] = {}
        self.endings: dict[str, Ending] = {}
        self.connect()

    def teardown(self) -> None:
        try:
            self.settle_down()
        finally:
            self.runner.run(self.store.close())
            self.runner.close()
            shutil.rmtree(self.folder)

    # The operator and the control plane

    @rule(repeat=st.sampled_from([Repeat.ONCE, Repeat.ONCE, *Repeat]), direct=st.booleans())
    def ask(self, repeat: Repeat, direct: bool) -> None:
        session = self.agent.memory.session if direct else None
        fields = {} if session is None else {"sent_session": session.id, "sent_journal": session.journal_id}
        row = self.runner.run(self.ledger.command(repeat, lasts_ms=300_000, **fields))
        self.ids.append(row.id)
        self.agent.repeats[row.id] = repeat
        if row.sent_session is not None:
            self._post(row)

    @rule(dies=st.booleans())
    def sweep(self, dies: bool) -> None:
        """`dies`: between the commit and the frames."""
        session = self.agent.memory.session
        live = frozenset({session.id} if session is not None else ())
        for command_id in self.runner.run(self.ledger.send_owed(live=live)):
            if not dies:
                self._post(self.row(command_id))
        for command_id in self.runner.run(self.ledger.cancels()):
            if not dies and session is not None:
                self.inbox.append(("cancel", command_id, 0))

    @precondition(lambda self: self.ids)
    @rule(which=ANY)
    def cancel(self, which: int) -> None:
        command_id = self._pick(which)
        if command_id is not None:
            self.runner.run(self.ledger.cancel(command_id))

    @rule()
    def expire(self) -> None:
        self.runner.run(self.ledger.expire())

    @rule(milliseconds=st.sampled_from([1_000, 100_000, 400_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.clock.pass_by(milliseconds)
        self.agent.now += milliseconds

    @rule(hours=st.sampled_from([-5, -1, 1, 5]))
    def the_clock_is_set(self, hours: int) -> None:
        self.clock.pass_by(hours * HOUR)

    @rule()
    def back_up_the_database(self) -> None:
        self.backup = self.folder / "backup.db"
        self.backup.unlink(missing_ok=True)
        with (
            contextlib.closing(sqlite3.connect(self.folder / "ledger.db")) as source,
            contextlib.closing(sqlite3.connect(self.backup)) as copied,
        ):
            source.backup(copied)

    @precondition(lambda self: self.backup is not None and not self.disk_changed)
    @rule()
    def restore_the_database(self) -> None:
        assert self.backup is not None
        self.runner.run(self.store.close())
        for file in self.folder.glob("ledger.db-*"):
            file.unlink()
        shutil.copy(self.backup, self.folder / "ledger.db")
        self.store = self.ledger.store = open_store(f"sqlite://{self.folder}/ledger.db", clock=self.clock)
        self.rewound = True
        self.endings.clear()
        self.cut()

    # The network

    @rule()
    def connect(self) -> None:
        agent = self.agent
        self.inbox.clear()
        session, resume = self.runner.run(
            self.ledger.connect(
                agent.held(),
                journal=agent.disk.journal_id,
                boot=agent.boot_id,
                noted=agent.disk.last_session,
                instance=agent.instance,
            )
        )
        agent.disk.last_session = session.id
        agent.welcomed(session, resume.forget)
        self.inbox += [("cancel", row.id, 0) for row in resume.stop]
        for row in resume.send:
            self._post(row)

    @rule(told=st.booleans())
    def cut(self, told: bool = True) -> None:
        session = self.agent.memory.session
        self.agent.cut()
        self.inbox.clear()
        if told and session is not None:
            self.runner.run(self.ledger.disconnect(session))

    @rule()
    def the_agent_works(self) -> None:
        """Everything that is there for it to do."""
        while self.inbox:
            self.a_frame_arrives(twice=False)
        while self.agent.memory.may_begin:
            self.begin(0)

    @precondition(lambda self: self.inbox)
    @rule(twice=st.booleans())
    def a_frame_arrives(self, twice: bool) -> None:
        frame = self.inbox.pop(0)
        for _ in range(2 if twice else 1):
            self._take(*frame)

    @precondition(lambda self: self.agent.outbox)
    @rule(which=ANY, twice=st.booleans(), answered=st.booleans())
    def a_report_arrives(self, which: int, twice: bool, answered: bool) -> None:
        report = self.agent.outbox.pop(which % len(self.agent.outbox))
        if twice:
            self.agent.outbox.append(report)
        if report.ending is None:
            known = {JournalState.ACCEPTED: CommandState.DELIVERED, JournalState.STARTED: CommandState.RUNNING}
            if report.id in self._known():
                self.runner.run(self.ledger.advance(report.id, known[report.state]))
            return
        settlement = self.runner.run(self.ledger.settle(report.id, report.ending, over=report.session))
        if settlement.value != "stale":
            self.heard.setdefault(report.id, []).append(report.ending)
            if answered and self.agent.memory.session == report.session:
                self.inbox.append(("settled", report.id, 0))

    @precondition(lambda self: self.agent.outbox)
    @rule()
    def reports_are_lost(self) -> None:
        self.agent.outbox.clear()
        self.cut()

    # The agent and its host

    @precondition(lambda self: self.agent.memory.may_begin)
    @rule(which=ANY)
    def begin(self, which: int) -> None:
        waiting = list(self.agent.memory.may_begin)
        self.agent.begin(waiting[which % len(waiting)])

    @rule(which=ANY)
    def finish(self, which: int) -> None:
        running = [key for key, state in self.agent.held().items() if state is JournalState.STARTED]
        if running:
            self.agent.end(running[which % len(running)], DONE)

    @rule()
    def the_disk_is_full(self) -> None:
        self.agent.full = True

    @rule()
    def the_disk_has_room(self) -> None:
        self.agent.room()

    @rule(boots=st.booleans())
    def the_agent_dies(self, boots: bool) -> None:
        self.inbox.clear()
        if boots:
            self.agent.boot()
        else:
            self.agent.kill()

    @precondition(lambda self: not self.rewound)
    @rule()
    def the_disk_is_lost(self) -> None:
        self.inbox.clear()
        self.disk_changed = True
        self.agent.full = False
        self.agent.lose_disk()

    @rule()
    def the_host_is_copied(self) -> None:
        self.snapshots.append(self.agent.snapshot())

    @precondition(lambda self: not self.rewound)
    @rule(which=ANY)
    def the_host_is_set_back(self, which: int) -> None:
        self.inbox.clear()
        self.disk_changed = True
        self.agent.full = False
        self.agent.set_back(self.snapshots[which % len(self.snapshots)])

    # Mishaps that take several steps, which chance alone seldom puts in a row

    @precondition(lambda self: not self.rewound)
    @rule(copied=st.sampled_from(["before", "accepted"]), reported=st.booleans())
    def an_act_is_done_and_the_host_set_back(self, copied: str, reported: bool) -> None:
        self.connect()
        snapshot = self.agent.snapshot()
        self.ask(Repeat.ONCE, direct=True)
        while self.inbox:
            self.a_frame_arrives(twice=False)
        if copied == "accepted":
            snapshot = self.agent.snapshot()
        self.the_agent_works()
        self.agent.outbox = [report for report in self.agent.outbox if reported and report.ending is None]
        while self.agent.outbox:
            self.a_report_arrives(0, twice=False, answered=False)
        self.snapshots.append(snapshot)
        self.the_host_is_set_back(len(self.snapshots) - 1)
        self.connect()

    @rule()
    def a_refusal_is_overtaken_by_the_next_connection(self) -> None:
        self.connect()
        self.ask(Repeat.ONCE, direct=True)
        self.the_disk_is_full()
        while self.inbox:
            self.a_frame_arrives(twice=False)
        self.the_agent_dies(boots=False)
        self.the_disk_has_room()
        self.connect()

    @rule()
    def a_cancelled_command_stays_on_a_full_disk(self) -> None:
        self.connect()
        self.ask(Repeat.ONCE, direct=True)
        while self.inbox:
            self.a_frame_arrives(twice=False)
        self.the_disk_is_full()
        self.runner.run(self.ledger.cancel(self.ids[-1]))
        self.sweep(dies=False)
        while self.inbox:
            self.a_frame_arrives(twice=False)
        while self.agent.outbox:
            self.a_report_arrives(0, twice=False, answered=True)
        self.the_agent_dies(boots=False)
        self.the_disk_has_room()

    # What must hold

    @invariant()
    def no_act_is_executed_twice(self) -> None:
        twice = {i for i, n in self.agent.executed.items() if n > 1 and self.agent.repeats[i] is Repeat.ONCE}
        assert not twice

    @invariant()
    def no_ending_denies_what_happened_and_none_changes(self) -> None:
        for row in self._rows():
            if row.state not in TERMINAL:
                assert row.id not in self.endings, f"{row.id} came back from its end"
                continue
            assert row.ending is not None
            assert self.endings.setdefault(row.id, row.ending) == row.ending
            if self.rewound or self.agent.repeats[row.id] is not Repeat.ONCE or not self.agent.executed[row.id]:
                continue
            said = row.late_ending or row.ending
            assert not _denies(said), f"{row.id} was done, and its ending says: {said}"

    @invariant()
    def no_result_is_lost(self) -> None:
        if self.rewound:
            return
        for row in self._rows():
            # The first thing that the agent said is the ending, or stands beside it.
            if row.id in self.heard:
                assert self.heard[row.id][0] in (row.ending, row.late_ending)

    @invariant()
    def commands_keep_their_order(self) -> None:
        fresh = [frame[1].id for frame in self.inbox if isinstance(frame[1], CommandRow)]
        assert fresh == sorted(fresh)

    def settle_down(self) -> None:
        """Nothing fails any more, and time goes by."""
        self.agent.room()
        for _ in range(3):
            self.connect()
            for _ in range(3 * len(self.ids) + 3):
                self.sweep(dies=False)
                while self.inbox:
                    self.a_frame_arrives(twice=False)
                while self.agent.memory.may_begin:
                    self.begin(0)
                self.finish(0)
                while self.agent.outbox:
                    self.a_report_arrives(0, twice=False, answered=True)
        self.clock.pass_by(20 * HOUR)
        self.expire()
        self.connect()
        while self.inbox or self.agent.outbox:
            while self.agent.outbox:
                self.a_report_arrives(0, twice=False, answered=True)
            while self.inbox:
                self.a_frame_arrives(twice=False)
        self.no_act_is_executed_twice()
        self.no_ending_denies_what_happened_and_none_changes()
        self.no_result_is_lost()
        assert all(row.state in TERMINAL for row in self._rows())
        assert not self.agent.held()

    # Small words

    def row(self, command_id: str) -> CommandRow:
        return self.runner.run(self.ledger.row(command_id))

    def _rows(self) -> list[CommandRow]:
        return self.runner.run(self.store.read(list_commands, TENANT, None, 1_000))

    def _known(self) -> set[str]:
        return {row.id for row in self._rows()}

    def _pick(self, which: int) -> str | None:
        known = sorted(self._known())
        return known[which % len(known)] if known else None

    def _post(self, row: CommandRow) -> None:
        remaining = max(0, min(row.not_after - self.clock.now, row.not_after - row.created_at))
        if self.agent.memory.session is not None and row.sent_session == self.agent.memory.session.id:
            self.inbox.append(("command", row, remaining))

    def _take(self, kind: str, about: CommandRow | str, remaining: int) -> None:
        if isinstance(about, CommandRow):
            self.agent.command(about, remaining)
        elif kind == "cancel":
            self.agent.cancel(about)
        else:
            self.agent.settled(about)


def _denies(ending: Ending) -> bool:
    """Whether it says that nothing was done."""
    if ending.error is None or ending.error.code == "OUTCOME_UNKNOWN":
        return False
    return not ending.error.details.get("mayHaveHappened", False)


LedgerUnderSiege.TestCase.settings = settings(
    max_examples=120, stateful_step_count=25, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
TestTheLedgerUnderSiege = LedgerUnderSiege.TestCase
