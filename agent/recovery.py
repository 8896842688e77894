"""After a crash: what is done with each command that the journal holds, as a pure plan.

    accepted                        its time has passed            expired, not done
    accepted                        otherwise                      wait for the control plane's word
    started, read or converge       its time is known and left     run it again: repeating is harmless
    started, read                   otherwise                      ended as interrupted
    started, converge or once       otherwise                      settle it by reading the machine
    finished                                                       report it until it is settled

A command that was begun and is an act (`once`) is never begun again, whatever is read.

One that was only accepted is not begun on the journal's word alone. The journal may be older than what the control
plane knows: its host was set back to a snapshot, or its disk was full when the command was cancelled or refused, and
the ending was told from memory. The control plane, which hears of it in the hello, sends it again with the time that
is left, or has it forgotten.
"""

from enum import Enum, auto

from agent.clock import Clock, remaining_seconds
from agent.journal import Entry
from protocol.commands import JournalState
from protocol.operations import Repeat

__all__ = ["Step", "plan"]


class Step(Enum):
    RUN_AGAIN = auto()
    EXPIRE = auto()
    AWAIT_WORD = auto()
    INTERRUPT = auto()
    OBSERVE = auto()
    REPORT = auto()


def plan(entry: Entry, repeat: Repeat, clock: Clock) -> Step:
    """What to do with a row of the journal when the agent starts."""
    if entry.state is JournalState.FINISHED:
        return Step.REPORT
    remaining = remaining_seconds(clock, entry.deadline)
    if entry.state is JournalState.ACCEPTED:
        return Step.EXPIRE if remaining is not None and remaining <= 0 else Step.AWAIT_WORD
    if repeat is not Repeat.ONCE and remaining is not None and remaining > 0:
        return Step.RUN_AGAIN
    return Step.INTERRUPT if repeat is Repeat.READ else Step.OBSERVE
