"""A model of an agent as its contract describes it, with a disk that fails, a host that is set back, and a machine.

What is on the disk and what is in memory are kept apart, since it is their difference that a crash brings to light.
"""

import copy
from collections import Counter
from dataclasses import dataclass, field

from control_plane.records import CommandRow, SessionRow
from protocol.commands import Ending, JournalState, Outcome
from protocol.errors import Failure
from protocol.operations import Repeat
from tests.control_plane.ledger import DONE

ACCEPTED, STARTED, FINISHED = JournalState.ACCEPTED, JournalState.STARTED, JournalState.FINISHED


def denial(outcome: Outcome, code: str) -> Ending:
    """An ending that says: it was not done."""
    return Ending(outcome, error=Failure(code, "nothing was done", details={"mayHaveHappened": False}))


def in_doubt(outcome: Outcome = Outcome.FAILED, code: str = "OUTCOME_UNKNOWN") -> Ending:
    return Ending(outcome, error=Failure(code, "it may have been done", details={"mayHaveHappened": True}))


@dataclass
class Disk:
    """The journal's file."""

    journal_id: str
    last_session: str = ""
    held: dict[str, tuple[JournalState, Ending | None]] = field(default_factory=dict)
    settled: dict[str, Ending] = field(default_factory=dict)


@dataclass
class Memory:
    """What a process knows besides; gone with it."""

    session: SessionRow | None = None
    may_begin: dict[str, int] = field(default_factory=dict)
    """Commands with the control plane's word, and the moment when their time is over."""
    endings: dict[str, Ending] = field(default_factory=dict)
    """Endings that the disk did not take, and refusals that never go to it."""
    dropped: set[str] = field(default_factory=set)
    """Settled, and still on a disk that is full."""
    cancels: set[str] = field(default_factory=set)


@dataclass
class Report:
    """A frame on its way to the control plane, over this connection."""

    id: str
    session: SessionRow
    state: JournalState
    ending: Ending | None


class ModelAgent:
    """`executed` counts what the machine saw; nothing sets it back."""

    def __init__(self) -> None:
        self.disk = Disk("jrn_0")
        self.memory = Memory()
        self.full = False
        self.boots = 0
        self.lives = 0
        self.disks = 0
        self.now = 0
        self.executed: Counter[str] = Counter()
        self.repeats: dict[str, Repeat] = {}
        self.outbox: list[Report] = []

    @property
    def instance(self) -> str:
        return f"process-{self.lives}"

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boots}"

    def state_of(self, command_id: str) -> tuple[JournalState, Ending | None] | None:
        if command_id in self.memory.endings:
            return FINISHED, self.memory.endings[command_id]
        if command_id in self.memory.dropped:
            return None
        return self.disk.held.get(command_id)

    def held(self) -> dict[str, JournalState]:
        known = [*self.disk.held, *self.memory.endings]
        return {i: state[0] for i in known if (state := self.state_of(i)) is not None}

    def tell(self, command_id: str) -> None:
        state = self.state_of(command_id)
        if state is not None and self.memory.session is not None:
            self.outbox.append(Report(command_id, self.memory.session, *state))

    # Frames from the control plane

    def welcomed(self, session: SessionRow, forget: list[str]) -> None:
        self.memory.session = session
        for command_id in forget:
            self.settled(command_id)
        for command_id, state in self.held().items():
            if state is FINISHED:
                self.tell(command_id)

    def command(self, row: CommandRow, remaining_ms: int) -> None:
        self.repeats[row.id] = row.repeat
        known = self.state_of(row.id)
        if known is None and row.id in self.disk.settled:
            self.memory.endings[row.id] = self.disk.settled[row.id]
        elif known is None and row.id in self.disk.held:
            self.memory.endings[row.id] = self.disk.held[row.id][1] or in_doubt()
        elif known is None and remaining_ms <= 0:
            self.memory.endings[row.id] = denial(Outcome.EXPIRED, "TIMEOUT")
        elif known is None and row.id in self.memory.cancels:
            self.memory.endings[row.id] = denial(Outcome.CANCELLED, "CANCELLED")
        elif known is None and self.full and row.repeat is not Repeat.READ:
            self.memory.endings[row.id] = denial(Outcome.REJECTED, "BUSY")
        elif known is None:
            self.disk.held[row.id] = (ACCEPTED, None)
            self.memory.may_begin[row.id] = self.now + remaining_ms
        elif known[0] is ACCEPTED and row.id not in self.memory.may_begin:
            self.memory.may_begin[row.id] = self.now + remaining_ms
        self.tell(row.id)

    def cancel(self, command_id: str) -> None:
        state = self.state_of(command_id)
        if state is None:
            self.memory.cancels.add(command_id)
        elif state[0] is ACCEPTED:
            self.end(command_id, denial(Outcome.CANCELLED, "CANCELLED"))
        elif state[0] is STARTED:
            self.end(command_id, in_doubt(Outcome.CANCELLED, "CANCELLED"))

    def settled(self, command_id: str) -> None:
        state = self.state_of(command_id)
        if state is None or state[0] is STARTED:
            return
        ending = state[1] or denial(Outcome.CANCELLED, "CANCELLED")
        self.memory.endings.pop(command_id, None)
        self.memory.may_begin.pop(command_id, None)
        if command_id in self.disk.held:
            if self.full:
                self.memory.dropped.add(command_id)
            else:
                del self.disk.held[command_id]
                self.disk.settled[command_id] = ending

    # Its own doing

    def begin(self, command_id: str) -> None:
        if self.now >= self.memory.may_begin[command_id]:
            self.end(command_id, denial(Outcome.EXPIRED, "TIMEOUT"))
        elif self.full:
            self.end(command_id, denial(Outcome.FAILED, "INTERRUPTED"))
        else:
            self.disk.held[command_id] = (STARTED, None)
            self.memory.may_begin.pop(command_id)
            self.executed[command_id] += 1
            self.tell(command_id)

    def end(self, command_id: str, ending: Ending) -> None:
        self.memory.may_begin.pop(command_id, None)
        if self.full:
            self.memory.endings[command_id] = ending
        else:
            self.disk.held[command_id] = (FINISHED, ending)
        self.tell(command_id)

    def room(self) -> None:
        """The disk takes writes again; what was held back is written."""
        self.full = False
        for command_id in self.memory.dropped:
            _, ending = self.disk.held.pop(command_id)
            self.disk.settled[command_id] = ending or in_doubt()
        self.memory.dropped.clear()
        for command_id, ending in list(self.memory.endings.items()):
            if command_id in self.disk.held:
                self.disk.held[command_id] = (FINISHED, ending)
                del self.memory.endings[command_id]

    # Mishaps

    def cut(self) -> None:
        """What it said is still under way; it hears nothing more."""
        self.memory.session = None

    def kill(self) -> None:
        self.memory = Memory()
        self.lives += 1
        for command_id, (state, _) in list(self.disk.held.items()):
            if self.repeats[command_id] is Repeat.READ:
                del self.disk.held[command_id]
            elif state is STARTED:
                self.end(command_id, in_doubt() if self.repeats[command_id] is Repeat.ONCE else DONE)

    def boot(self) -> None:
        self.boots += 1
        self.kill()

    def lose_disk(self) -> None:
        self.disks += 1
        self.disk = Disk(f"jrn_{self.disks}")
        self.kill()

    def snapshot(self) -> Disk:
        return copy.deepcopy(self.disk)

    def set_back(self, disk: Disk) -> None:
        self.disk = copy.deepcopy(disk)
        self.boot()
