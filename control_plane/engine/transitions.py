"""One transition of one workflow: what the reconciler does, as plain functions over a transaction.

`advance` looks at the stored rows, makes at most one transition, and says what is next. It has no clock, no sockets
and no memory of its own: a worker that dies anywhere is continued by the next one from the same rows. Each call locks
the workflow's row first, so that operators' verbs and the reconciler follow one another, and checks the worker's
fence, so that a worker that lost the shard changes nothing.

Code on the control plane takes two transitions: `advance` marks it running and hands it out; outside of any
transaction it is executed; `settle` stores what came of it, if the step is still running in the same attempt.
"""

from enum import Enum
from typing import NamedTuple

import msgspec

from control_plane.engine import outbox
from control_plane.engine.agent_steps import (
    NoAgent,
    agent_for,
    cancel_commands,
    command_end,
    command_key,
    command_of,
    error_of,
    send_command,
    step_command,
)
from control_plane.engine.outcomes import cancel_step, close_main, fail_attempt, finish, skip, succeed
from control_plane.engine.records import Rejoin, StepError, StepRow, WorkflowRow
from control_plane.engine.rejoining import Presence, has_rejoined, presence_of, present_boot
from control_plane.engine.rows import (
    Grip,
    load_running,
    load_step,
    lock_held,
    next_pending,
    save_step,
    save_workflow,
)
from control_plane.engine.states import ACTIVE, Ending, Phase, StepState, WorkflowState
from control_plane.engine.timing import Timing
from control_plane.engine.when import holds
from control_plane.nodes import labels_of
from control_plane.store import Transaction
from protocol.commands import TERMINAL, CommandState
from protocol.errors import RequestError

__all__ = ["Next", "Settlement", "Then", "advance", "late_words", "settle"]

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


def advance(
    tx: Transaction,
    timing: Timing,
    workflow_id: str,
    grip: Grip,
    *,
    executing: tuple[int, int] | None = None,
    hinted: bool = False,
) -> Next:
    """At most one transition.

    `executing`: the (seq, attempt) whose code this worker executes now; then nothing but that very step is looked at,
    and any answer but a WAIT without a step says that its code is to end. `hinted`: something happened that a waiting
    step may have waited for, so it is looked at before its time.
    """
    workflow = lock_held(tx, workflow_id, grip)
    if workflow is None or workflow.state not in ACTIVE:
        return Next(Then.OVER)
    return _one_transition(tx, timing, workflow, executing, hinted)._replace(now=tx.now())


def _one_transition(
    tx: Transaction, timing: Timing, workflow: WorkflowRow, executing: tuple[int, int] | None, hinted: bool
) -> Next:
    if executing is not None and executing[0] != workflow.step_seq:
        return Next(Then.AGAIN)
    if workflow.step_seq is not None:
        step = load_step(tx, workflow.id, workflow.step_seq)
        if executing is not None and (step.state is not StepState.RUNNING or step.attempt != executing[1]):
            return Next(Then.AGAIN)
        if step.state is StepState.RUNNING:
            return _look_at_code(tx, timing, workflow, step, executing)
        return _look_at_waiting(tx, timing, workflow, step, hinted)
    if workflow.state is WorkflowState.PENDING:
        workflow = replace(workflow, state=WorkflowState.RUNNING, started_at=tx.now())
        outbox.workflow_event(tx, workflow, "started")
    if workflow.state is WorkflowState.PAUSED:
        return _sleep(tx, workflow)
    upcoming = next_pending(tx, workflow.id)
    if upcoming is None:
        return Next(Then.OVER, workflow=finish(tx, workflow))
    return _take_up(tx, timing, workflow, upcoming)


def settle(tx: Transaction, timing: Timing, step: StepRow, grip: Grip, settlement: Settlement) -> bool:
    """Stores what became of a step's code.

    False, and nothing changed, when the step is not running in this attempt any more (aborted, timed out, taken over)
    or the shard is lost.
    """
    workflow = lock_held(tx, step.workflow_id, grip)
    running = None if workflow is None else load_running(tx, workflow, step)
    if workflow is None or running is None:
        return False
    if running.spec.await_rejoin and (settlement.result is not None or running.command_id is not None):
        # What its code says of the command that ended the machine means nothing: from now on only the return counts.
        _poll(tx, timing, workflow, replace(running, result=settlement.result or {}))
    elif settlement.error is not None:
        cancel_commands(tx, workflow, "the step that sent it has failed")
        fail_attempt(tx, workflow, running, settlement.error)
    elif settlement.not_ready_ms is not None:
        _wait(tx, workflow, running, min(tx.now() + settlement.not_ready_ms, running.deadline or tx.now()))
    else:
        succeed(tx, workflow, running, settlement.result)
    return True


def _take_up(tx: Transaction, timing: Timing, workflow: WorkflowRow, step: StepRow) -> Next:
    """The next pending row: begun, or found not to be due."""
    if step.phase is Phase.ON_FAILURE and workflow.ending is not Ending.FAILING:
        close_main(tx, workflow)
        return Next(Then.AGAIN)
    if step.phase is Phase.CLEANUP and step.owner_seq is not None:
        owner = load_step(tx, workflow.id, step.owner_seq)
        if owner.started_at is None:
            skip(tx, workflow, step)
            return Next(Then.AGAIN)
    if step.spec.when is not None and not holds(step.spec.when, labels_of(tx, workflow.node_id)):
        skip(tx, workflow, step)
        return Next(Then.AGAIN)
    now = tx.now()
    step = replace(step, started_at=now, deadline=now + step.spec.timeout_ms)
    outbox.step_event(tx, workflow, step, "started")
    if step.spec.kind == "code":
        if step.spec.await_rejoin:
            step = replace(step, rejoin=present_boot(tx, workflow.node_id))
        return _run(tx, workflow, step)
    return _send(tx, timing, workflow, step)


def _run(tx: Transaction, workflow: WorkflowRow, step: StepRow) -> Next:
    """Marks code as running. Its deadline is when it is looked at without any news."""
    running = save_step(tx, replace(step, state=StepState.RUNNING, wake_at=None))
    saved = save_workflow(tx, replace(workflow, step_seq=step.seq, step_id=step.id, wake_at=step.deadline))
    return Next(Then.RUN, step.deadline, saved, running)


def _send(tx: Transaction, timing: Timing, workflow: WorkflowRow, step: StepRow) -> Next:
    """Sends an agent step's one command, in the transition that begins the step."""
    try:
        agent_id = agent_for(tx, workflow.tenant_id, workflow.node_id, step.runs_on)
    except NoAgent as nobody:
        if not nobody.waits:
            fail_attempt(tx, workflow, step, StepError(code="NO_AGENT", message=nobody.message))
            return Next(Then.AGAIN)
        return _poll(tx, timing, workflow, step)
    try:
        command = send_command(
            tx,
            workflow,
            step_command(tx, workflow, step),
            node_id=workflow.node_id or "",
            agent_id=agent_id,
            key=command_key(step),
            deadline=step.deadline or tx.now(),
        )
    except RequestError as refused:
        fail_attempt(tx, workflow, step, StepError(code=refused.code.value, message=refused.message))
        return Next(Then.AGAIN)
    rejoin = present_boot(tx, workflow.node_id) if step.spec.await_rejoin else None
    return _poll(tx, timing, workflow, replace(step, command_id=command.id, rejoin=rejoin))


def _look_at_code(
    tx: Transaction, timing: Timing, workflow: WorkflowRow, step: StepRow, executing: tuple[int, int] | None
) -> Next:
    if workflow.ending is Ending.CANCELLING and step.phase is not Phase.CLEANUP:
        return _drain(tx, timing, workflow, step)
    if _overdue(tx, step):
        return _time_out(tx, workflow, step)
    if executing == (step.seq, step.attempt):
        return Next(Then.WAIT, step.deadline)
    # The worker that ran it is gone: the same attempt is run again, under the same keys.
    return Next(Then.RUN, step.deadline, workflow, step)


def _look_at_waiting(tx: Transaction, timing: Timing, workflow: WorkflowRow, step: StepRow, hinted: bool) -> Next:
    if workflow.ending is Ending.CANCELLING and step.phase is not Phase.CLEANUP:
        return _drain(tx, timing, workflow, step)
    if step.spec.await_rejoin and (step.command_id is not None or step.result is not None):
        return _look_for_rejoin(tx, timing, workflow, step)
    if step.spec.kind == "code":
        if _overdue(tx, step):
            return _time_out(tx, workflow, step)
        if hinted or step.wake_at is None or step.wake_at <= tx.now():
            return _run(tx, workflow, step)
        return Next(Then.WAIT, step.wake_at)
    return _look_at_command(tx, timing, workflow, step)


def _look_at_command(tx: Transaction, timing: Timing, workflow: WorkflowRow, step: StepRow) -> Next:
    if step.command_id is None:
        if _overdue(tx, step):
            message = f"no {step.runs_on} agent connected within the step's time"
            fail_attempt(tx, workflow, step, StepError(code="NO_AGENT", message=message))
            return Next(Then.AGAIN)
        return _send(tx, timing, workflow, step)
    found = command_of(tx, workflow, step)
    if found is not None and found.state in TERMINAL:
        failure, result = command_end(found)
        if found.state is CommandState.SUCCEEDED:
            succeed(tx, workflow, step, result)
        else:
            fail_attempt(tx, workflow, step, error_of(found.state, failure))
        return Next(Then.AGAIN)
    if _overdue(tx, step):
        return _time_out(tx, workflow, step)
    return _poll(tx, timing, workflow, step)


def _look_for_rejoin(tx: Transaction, timing: Timing, workflow: WorkflowRow, step: StepRow) -> Next:
    presence = presence_of(tx, workflow.node_id)
    before = step.rejoin or Rejoin(None, None)
    if presence is not None and has_rejoined(before, presence, step.deadline or tx.now()):
        if _is_yet_to_come(tx, workflow, step, presence):
            step = replace(step, rejoin=presence.as_rejoin)
        else:
            cancel_commands(tx, workflow, "the machine has come back")
            succeed(tx, workflow, step, {"bootId": presence.boot_id, "role": presence.role})
            return Next(Then.AGAIN)
    if _overdue(tx, step):
        cancel_commands(tx, workflow, "the step's time is over")
        message = "the machine did not come back in time"
        fail_attempt(tx, workflow, step, StepError(code="REJOIN_TIMEOUT", message=message))
        return Next(Then.AGAIN)
    return _poll(tx, timing, workflow, step)


def _is_yet_to_come(tx: Transaction, workflow: WorkflowRow, step: StepRow, presence: Presence) -> bool:
    """Whether the command travels over the very connection that looks like the machine's return.

    The machine went down by itself before it was given the command, and gets it only now: it will go down once more,
    and the next step must not begin before that.
    """
    command = command_of(tx, workflow, step) if step.command_id is not None else None
    return command is not None and command.state not in TERMINAL and command.sent_session == presence.session_id


def _drain(tx: Transaction, timing: Timing, workflow: WorkflowRow, step: StepRow) -> Next:
    """Of an aborted workflow: the step in flight ends with its command, or when the grace is over.

    Clean-up must not work on a machine beside an act that is still under way.
    """
    open_still = cancel_commands(tx, workflow, "the workflow was aborted")
    if open_still and not _overdue(tx, step):
        return _wait(tx, workflow, step, min(tx.now() + timing.command_step_poll_ms, step.deadline or tx.now()))
    cancel_step(tx, workflow, step)
    return Next(Then.AGAIN)


def _time_out(tx: Transaction, workflow: WorkflowRow, step: StepRow) -> Next:
    cancel_commands(tx, workflow, "the step's time is over")
    fail_attempt(tx, workflow, step, StepError(code="STEP_TIMEOUT", message=late_words(step)))
    return Next(Then.AGAIN)


def late_words(step: StepRow) -> str:
    """What is said of a step whose time is over."""
    return f"it was not done within {step.spec.timeout_ms / 1_000:g} s"


def _poll(tx: Transaction, timing: Timing, workflow: WorkflowRow, step: StepRow) -> Next:
    """Waits for news; looks again without any, and at the deadline at the latest."""
    return _wait(tx, workflow, step, min(tx.now() + timing.workflow_poll_ms, step.deadline or tx.now()))


def _wait(tx: Transaction, workflow: WorkflowRow, step: StepRow, wake_at: int) -> Next:
    waiting = save_step(tx, replace(step, state=StepState.WAITING, wake_at=wake_at))
    saved = save_workflow(tx, replace(workflow, step_seq=step.seq, step_id=step.id, wake_at=wake_at))
    return Next(Then.WAIT, wake_at, saved, waiting)


def _sleep(tx: Transaction, workflow: WorkflowRow) -> Next:
    if workflow.wake_at is not None:
        save_workflow(tx, replace(workflow, wake_at=None))
    return Next(Then.OVER)


def _overdue(tx: Transaction, step: StepRow) -> bool:
    return step.deadline is not None and step.deadline <= tx.now()
