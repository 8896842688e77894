"""One transition of a workflow: what the reconciler does, as plain functions over a transaction.

`transit` looks at the stored rows of some workflows, makes at most one transition of each, and says what is next. It
has no clock, no sockets and no memory of its own: a worker that dies anywhere is continued by the next one from the
same rows. It locks the workflows' rows first, so that operators' verbs and the reconciler follow one another, and
checks the worker's fences, so that a worker that lost a shard changes nothing. Each transition is decided for its
workflow alone; only reading and storing is shared (`work.Work`).

Code on the control plane takes two transitions: a `Look` marks it running and hands it out; outside of any
transaction it is executed; a `Settle` stores what came of it, if the step is still running in the same attempt.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from control_plane.commands import get_command
from control_plane.engine import outbox
from control_plane.engine.agent_steps import (
    NoAgent,
    agent_for,
    cancel_commands,
    command_end,
    command_key,
    error_of,
    send_command,
    step_command,
)
from control_plane.engine.outcomes import cancel_step, close_main, fail_attempt, finish, skip, succeed
from control_plane.engine.records import Rejoin, StepError, StepRow, WorkflowRow
from control_plane.engine.rejoining import Presence, has_rejoined, presence_of, present_boot
from control_plane.engine.rows import Grip, held_by_others
from control_plane.engine.states import ACTIVE, Ending, Phase, StepState, WorkflowState
from control_plane.engine.timing import Timing
from control_plane.engine.when import holds
from control_plane.engine.work import Work
from control_plane.nodes import labels_of
from control_plane.store import Transaction
from protocol.commands import TERMINAL, CommandState
from protocol.errors import RequestError

__all__ = [
    "Look",
    "Next",
    "Settle",
    "Settlement",
    "Then",
    "advance",
    "running_still",
    "settle",
    "transit",
]

replace = msgspec.structs.replace


class Then(Enum):
    """What is to come after a transition."""

    AGAIN = "again"
    """More is due at once."""
    RUN = "run"
    """The step's code is to be executed now."""
    WAIT = "wait"
    """Nothing before `Next.wake_at` but a hint."""
    OVER = "over"
    """The workflow has ended, is paused with nothing in flight, or is not this worker's."""
    LATER = "later"
    """Somebody else holds its row just now. Nothing was done; it is to be asked for alone."""


class Next(NamedTuple):
    then: Then
    wake_at: int | None = None
    workflow: WorkflowRow | None = None
    step: StepRow | None = None
    """With RUN: the row as it was stored, running."""
    now: int = 0
    """The store's time of this transition."""


class Settlement(NamedTuple):
    """What became of a step's code: exactly one of the three."""

    result: dict[str, object] | None = None
    error: StepError | None = None
    not_ready_ms: int | None = None


class Look(NamedTuple):
    """A workflow is to be looked at.

    `executing`: the (seq, attempt) whose code this worker executes now; then nothing but that very step is looked at,
    and any answer but a WAIT without a step says that its code is to end. `hinted`: something happened that a waiting
    step may have waited for, so it is looked at before its time.
    """

    workflow_id: str
    grip: Grip
    executing: tuple[int, int] | None = None
    hinted: bool = False


class Settle(NamedTuple):
    """What became of a step's code is to be stored, if the step still runs in this attempt."""

    step: StepRow
    grip: Grip
    settlement: Settlement

    @property
    def workflow_id(self) -> str:
        return self.step.workflow_id


def transit(
    tx: Transaction,
    timing: Timing,
    asked: Sequence[Look | Settle],
    patient: bool = True,
) -> list[Next]:
    """At most one transition of each of these workflows, no two of which are the same.

    A settlement that came too late (aborted, timed out, taken over, the shard lost) changes nothing and is answered
    with OVER; one that was stored with AGAIN. `patient`: a row that somebody else holds is waited for; otherwise its
    workflow is answered with LATER, and the others need not wait.
    """
    work = Work(tx)
    grips = {one.workflow_id: one.grip for one in asked}
    held = work.hold(grips.items(), patient=patient)
    taken = set() if patient else held_by_others(tx, {key: grip for key, grip in grips.items() if key not in held})
    answers = [
        Next(Then.LATER) if one.workflow_id in taken else _transition(work, timing, held.get(one.workflow_id), one)
        for one in asked
    ]
    work.flush()
    return answers


def advance(
    tx: Transaction,
    timing: Timing,
    workflow_id: str,
    grip: Grip,
    *,
    executing: tuple[int, int] | None = None,
    hinted: bool = False,
) -> Next:
    """At most one transition of one workflow; see `Look`."""
    return transit(tx, timing, [Look(workflow_id, grip, executing, hinted)])[0]


def settle(tx: Transaction, timing: Timing, step: StepRow, grip: Grip, settlement: Settlement) -> bool:
    """Stores what became of one step's code. False, and nothing changed, when that does not count any more."""
    return transit(tx, timing, [Settle(step, grip, settlement)])[0].then is Then.AGAIN


def _transition(work: Work, timing: Timing, workflow: WorkflowRow | None, asked: Look | Settle) -> Next:
    if workflow is None or workflow.state not in ACTIVE:
        return Next(Then.OVER)
    if isinstance(asked, Settle):
        running = running_still(work, workflow, asked.step)
        if running is None:
            return Next(Then.OVER)
        _settle(work, timing, workflow, running, asked.settlement)
        return Next(Then.AGAIN)
    made = _one_transition(work, timing, workflow, asked.executing, asked.hinted)
    return Next(made.then, made.wake_at, made.workflow, made.step, work.now())


def _one_transition(
    work: Work, timing: Timing, workflow: WorkflowRow, executing: tuple[int, int] | None, hinted: bool
) -> Next:
    if executing is not None and executing[0] != workflow.step_seq:
        return Next(Then.AGAIN)
    if workflow.step_seq is not None:
        step = work.step(workflow.id, workflow.step_seq)
        if executing is not None and (step.state is not StepState.RUNNING or step.attempt != executing[1]):
            return Next(Then.AGAIN)
        if step.state is StepState.RUNNING:
            return _look_at_code(work, timing, workflow, step, executing)
        return _look_at_waiting(work, timing, workflow, step, hinted)
    if workflow.state is WorkflowState.PENDING:
        workflow = replace(workflow, state=WorkflowState.RUNNING, started_at=work.now())
        outbox.workflow_event(work, workflow, "started")
    if workflow.state is WorkflowState.PAUSED:
        return _sleep(work, workflow)
    upcoming = work.upcoming(workflow.id)
    if upcoming is None:
        return Next(Then.OVER, workflow=finish(work, workflow))
    return _take_up(work, timing, workflow, upcoming)


def running_still(work: Work, workflow: WorkflowRow, step: StepRow) -> StepRow | None:
    """The step as it is stored now, while its code may still do something: it runs in this very attempt, and nobody
    has aborted its workflow since. None otherwise."""
    if workflow.step_seq != step.seq or workflow.state not in ACTIVE:
        return None
    if workflow.ending is Ending.CANCELLING and step.phase is not Phase.CLEANUP:
        return None
    present = work.step(workflow.id, step.seq)
    return present if present.state is StepState.RUNNING and present.attempt == step.attempt else None


def _settle(work: Work, timing: Timing, workflow: WorkflowRow, running: StepRow, settlement: Settlement) -> None:
    if running.spec.await_rejoin and (settlement.result is not None or running.command_id is not None):
        # What its code says of the command that ended the machine means nothing: from now on only the return counts.
        _poll(work, timing, workflow, replace(running, result=settlement.result or {}))
    elif settlement.error is not None:
        cancel_commands(work.direct(), workflow, "the step that sent it has failed")
        fail_attempt(work, workflow, running, settlement.error)
    elif settlement.not_ready_ms is not None:
        _wait(work, workflow, running, min(work.now() + settlement.not_ready_ms, running.deadline or work.now()))
    else:
        succeed(work, workflow, running, settlement.result)


def _take_up(work: Work, timing: Timing, workflow: WorkflowRow, step: StepRow) -> Next:
    """The next pending row: begun, or found not to be due."""
    if step.phase is Phase.ON_FAILURE and workflow.ending is not Ending.FAILING:
        close_main(work, workflow)
        return Next(Then.AGAIN)
    if step.phase is Phase.CLEANUP and step.owner_seq is not None:
        owner = work.step(workflow.id, step.owner_seq)
        if owner.started_at is None:
            skip(work, workflow, step)
            return Next(Then.AGAIN)
    if step.spec.when is not None and not holds(step.spec.when, labels_of(work.tx, workflow.node_id)):
        skip(work, workflow, step)
        return Next(Then.AGAIN)
    now = work.now()
    step = replace(step, started_at=now, deadline=now + step.spec.timeout_ms)
    outbox.step_event(work, workflow, step, "started")
    if step.spec.kind == "code":
        if step.spec.await_rejoin:
            step = replace(step, rejoin=present_boot(work.tx, workflow.node_id))
        return _run(work, workflow, step)
    return _send(work, timing, workflow, step)


def _run(work: Work, workflow: WorkflowRow, step: StepRow) -> Next:
    """Marks code as running. Its deadline is when it is looked at without any news."""
    running = work.save_step(replace(step, state=StepState.RUNNING, wake_at=None))
    saved = work.save_workflow(replace(workflow, step_seq=step.seq, step_id=step.id, wake_at=step.deadline))
    return Next(Then.RUN, step.deadline, saved, running)


def _send(work: Work, timing: Timing, workflow: WorkflowRow, step: StepRow) -> Next:
    """Sends an agent step's one command, in the transition that begins the step."""
    try:
        agent_id = agent_for(work.tx, workflow.tenant_id, workflow.node_id, step.runs_on)
    except NoAgent as nobody:
        if not nobody.waits:
            fail_attempt(work, workflow, step, StepError(code="NO_AGENT", message=nobody.message))
            return Next(Then.AGAIN)
        return _poll(work, timing, workflow, step)
    try:
        command = send_command(
            work.direct(),
            workflow,
            step_command(work.tx, workflow, step),
            node_id=workflow.node_id or "",
            agent_id=agent_id,
            key=command_key(step),
            deadline=step.deadline or work.now(),
        )
    except RequestError as refused:
        fail_attempt(work, workflow, step, StepError(code=refused.code.value, message=refused.message))
        return Next(Then.AGAIN)
    rejoin = present_boot(work.tx, workflow.node_id) if step.spec.await_rejoin else None
    return _poll(work, timing, workflow, replace(step, command_id=command.id, rejoin=rejoin))


def _look_at_code(
    work: Work, timing: Timing, workflow: WorkflowRow, step: StepRow, executing: tuple[int, int] | None
) -> Next:
    if workflow.ending is Ending.CANCELLING and step.phase is not Phase.CLEANUP:
        return _drain(work, timing, workflow, step)
    if _overdue(work, step):
        return _time_out(work, workflow, step)
    if executing == (step.seq, step.attempt):
        return Next(Then.WAIT, step.deadline)
    # The worker that ran it is gone: the same attempt is run again, under the same keys.
    return Next(Then.RUN, step.deadline, workflow, step)


def _look_at_waiting(work: Work, timing: Timing, workflow: WorkflowRow, step: StepRow, hinted: bool) -> Next:
    if workflow.ending is Ending.CANCELLING and step.phase is not Phase.CLEANUP:
        return _drain(work, timing, workflow, step)
    if step.spec.await_rejoin and (step.command_id is not None or step.result is not None):
        return _look_for_rejoin(work, timing, workflow, step)
    if step.spec.kind == "code":
        if _overdue(work, step):
            return _time_out(work, workflow, step)
        if hinted or step.wake_at is None or step.wake_at <= work.now():
            return _run(work, workflow, step)
        return Next(Then.WAIT, step.wake_at)
    return _look_at_command(work, timing, workflow, step)


def _look_at_command(work: Work, timing: Timing, workflow: WorkflowRow, step: StepRow) -> Next:
    if step.command_id is None:
        if _overdue(work, step):
            message = f"no {step.runs_on} agent connected within the step's time"
            fail_attempt(work, workflow, step, StepError(code="NO_AGENT", message=message))
            return Next(Then.AGAIN)
        return _send(work, timing, workflow, step)
    found = work.command(workflow, step)
    if found is not None and found.state in TERMINAL:
        failure, result = command_end(found)
        if found.state is CommandState.SUCCEEDED:
            succeed(work, workflow, step, result)
        else:
            fail_attempt(work, workflow, step, error_of(found.state, failure))
        return Next(Then.AGAIN)
    if _overdue(work, step):
        return _time_out(work, workflow, step)
    return _poll(work, timing, workflow, step)


def _look_for_rejoin(work: Work, timing: Timing, workflow: WorkflowRow, step: StepRow) -> Next:
    presence = presence_of(work.tx, workflow.node_id)
    before = step.rejoin or Rejoin(None, None)
    if presence is not None and has_rejoined(before, presence, step.deadline or work.now()):
        if _is_yet_to_come(work, workflow, step, presence):
            step = replace(step, rejoin=presence.as_rejoin)
        else:
            cancel_commands(work.direct(), workflow, "the machine has come back")
            succeed(work, workflow, step, {"bootId": presence.boot_id, "role": presence.role})
            return Next(Then.AGAIN)
    if _overdue(work, step):
        cancel_commands(work.direct(), workflow, "the step's time is over")
        message = "the machine did not come back in time"
        fail_attempt(work, workflow, step, StepError(code="REJOIN_TIMEOUT", message=message))
        return Next(Then.AGAIN)
    return _poll(work, timing, workflow, step)


def _is_yet_to_come(work: Work, workflow: WorkflowRow, step: StepRow, presence: Presence) -> bool:
    """Whether the command travels over the very connection that looks like the machine's return.

    The machine went down by itself before it was given the command, and gets it only now: it will go down once more,
    and the next step must not begin before that.
    """
    if step.command_id is None:
        return False
    # As it is now, and held: what was read ahead may have been handed to that very connection since.
    command = get_command(work.direct(), workflow.tenant_id, step.command_id, lock=True)
    return command is not None and command.state not in TERMINAL and command.sent_session == presence.session_id


def _drain(work: Work, timing: Timing, workflow: WorkflowRow, step: StepRow) -> Next:
    """Of an aborted workflow: the step in flight ends with its command, or when the grace is over.

    Clean-up must not work on a machine beside an act that is still under way.
    """
    open_still = cancel_commands(work.direct(), workflow, "the workflow was aborted")
    if open_still and not _overdue(work, step):
        return _wait(work, workflow, step, min(work.now() + timing.command_step_poll_ms, step.deadline or work.now()))
    cancel_step(work, workflow, step)
    return Next(Then.AGAIN)


def _time_out(work: Work, workflow: WorkflowRow, step: StepRow) -> Next:
    cancel_commands(work.direct(), workflow, "the step's time is over")
    fail_attempt(work, workflow, step, StepError(code="STEP_TIMEOUT", message=_late_words(step)))
    return Next(Then.AGAIN)


def _late_words(step: StepRow) -> str:
    """What is said of a step whose time is over."""
    return f"it was not done within {step.spec.timeout_ms / 1_000:g} s"


def _poll(work: Work, timing: Timing, workflow: WorkflowRow, step: StepRow) -> Next:
    """Waits for news; looks again without any, and at the deadline at the latest."""
    return _wait(work, workflow, step, min(work.now() + timing.workflow_poll_ms, step.deadline or work.now()))


def _wait(work: Work, workflow: WorkflowRow, step: StepRow, wake_at: int) -> Next:
    waiting = work.save_step(replace(step, state=StepState.WAITING, wake_at=wake_at))
    saved = work.save_workflow(replace(workflow, step_seq=step.seq, step_id=step.id, wake_at=wake_at))
    return Next(Then.WAIT, wake_at, saved, waiting)


def _sleep(work: Work, workflow: WorkflowRow) -> Next:
    if workflow.wake_at is not None:
        work.save_workflow(replace(workflow, wake_at=None))
    return Next(Then.OVER)


def _overdue(work: Work, step: StepRow) -> bool:
    return step.deadline is not None and step.deadline <= work.now()
